use clap::{ArgAction, Args};
use kvasir_process::config;
use kvasir_process::options::{NatsAccessOptions, ProcessOptions};
use kvasir_process::text::{self, ByteCount, ServerUrl, Span, optional};
use router_client::route::{BlockTracking, DecodePrice, KvReuse, Mode, QueuePolicy};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// What may be configured, each option by flag, environment and file alike.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Options {
    /// How workers are found and chosen.
    #[command(flatten)]
    #[serde(flatten)]
    pub routing: RoutingOptions,
    /// Ports, logs and how the process stops.
    #[command(flatten)]
    #[serde(flatten)]
    pub process: ProcessOptions,
}

/// How workers are found and chosen: the options of every program that routes. An asterisk marks what a request may set
/// itself.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct RoutingOptions {
    /// The index: for each shard, from shard 0, its servers with commas between them, such as
    /// http://a:50051,http://b:50051. Repeat the flag (or put ; between) for more shards. Required
    #[arg(long, value_name = "SERVERS", value_delimiter = ';')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub indexer: Vec<String>,
    /// Longest wait for the index; after it, load alone decides
    #[arg(long, value_name = "TIME", default_value_t = Span(Duration::from_millis(100)))]
    pub index_deadline: Span,
    /// How often the index is asked which workers there are
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(2))]
    pub discovery_interval: Span,
    /// How a worker is chosen*: kv, round-robin, random, direct, power-of-two or least-loaded
    #[arg(long, value_name = "MODE", default_value_t = Mode::Kv)]
    #[serde(serialize_with = "text::serialize")]
    pub mode: Mode,
    /// Weight of overlap against load*: more for the time to the first token, less for the time between tokens; 0 asks
    /// no index
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0)]
    pub overlap_score_weight: f64,
    /// Randomness of mode kv*: 0 takes the lowest cost
    #[arg(long, value_name = "TEMPERATURE", default_value_t = 0.0)]
    pub temperature: f64,
    /// How much of a block's prefill is saved where the block lies in device memory, 0 to 1
    #[arg(long, value_name = "CREDIT", default_value_t = 1.0)]
    pub device_credit: f64,
    /// The same for host memory
    #[arg(long, value_name = "CREDIT", default_value_t = 0.75)]
    pub host_credit: f64,
    /// The same for local disk
    #[arg(long, value_name = "CREDIT", default_value_t = 0.25)]
    pub disk_credit: f64,
    /// The same for a pool, such as a volume, that the worker can load from
    #[arg(long, value_name = "CREDIT", default_value_t = 0.25)]
    pub pool_credit: f64,
    /// Weight of the tokens that a worker has yet to compute for earlier requests, beside the request's own
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0)]
    pub active_prefill_weight: f64,
    /// Cost of a block in use: by-room (next to nothing while the worker has room) or full (as much as a block to compute: the
    /// formula of the documents)
    #[arg(long, value_name = "PRICE", default_value_t = DecodePrice::ByRoom)]
    #[serde(serialize_with = "text::serialize")]
    pub decode_price: DecodePrice,
    /// Overlap that the index verified longer ago is credited by uncertain-credit; however long ago if not set
    #[arg(long, value_name = "TIME")]
    #[serde(serialize_with = "optional::serialize")]
    pub max_staleness: Option<Span>,
    /// The share of overlap that is credited where the index is behind, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    pub uncertain_credit: f64,
    /// Whether to plan which blocks a worker fetches from other workers' agents instead of computing them. The plan is part of
    /// the answer and of the worker's cost
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false)]
    pub fetch_plans: bool,
    /// Bytes per second from one agent to another, such as 1GiB, until a fetch was reported, and a minute after the last
    /// one; 0 plans nothing then
    #[arg(long, value_name = "BYTES", default_value_t = ByteCount(1 << 30))]
    pub fetch_bandwidth: ByteCount,
    /// Tokens per second that a worker computes, until its first tokens show its own rate; 0 plans no fetches then
    #[arg(long, value_name = "TOKENS", default_value_t = 20_000.0)]
    pub prefill_rate: f64,
    /// Which blocks of requests under way are tracked: off, prompt or prompt-and-output
    #[arg(long, value_name = "BLOCKS", default_value_t = BlockTracking::Prompt)]
    #[serde(serialize_with = "text::serialize")]
    pub track_blocks: BlockTracking,
    /// Whether requests of one worker share the blocks with which they begin alike: assumed or unique
    #[arg(long, value_name = "REUSE", default_value_t = KvReuse::Assumed)]
    #[serde(serialize_with = "text::serialize")]
    pub kv_reuse: KvReuse,
    /// Whether tokens to be computed are tracked
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = true)]
    pub track_prefill_tokens: bool,
    /// How long a request counts without being reported
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(300))]
    pub request_lease: Span,
    /// Requests wait while all workers that may have them have more than this multiple of max-num-batched-tokens to
    /// compute; 0 turns the queue off
    #[arg(long, value_name = "MULTIPLE", default_value_t = 2.0)]
    pub queue_threshold: f64,
    /// Who leaves the queue first: fcfs or wspt
    #[arg(long, value_name = "POLICY", default_value_t = QueuePolicy::Fcfs)]
    #[serde(serialize_with = "text::serialize")]
    pub queue_policy: QueuePolicy,
    /// Most requests that wait
    #[arg(long, value_name = "COUNT", default_value_t = 4_096)]
    pub queue_entries: usize,
    /// Longest wait in the queue*. In the router at most 25s, as its answers have to begin within 30s; in the gateway any time
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(20))]
    pub queue_timeout: Span,
    /// Share of a rank's blocks in use above which it gets no request; no bound if not set
    #[arg(long, value_name = "SHARE")]
    pub active_decode_blocks_threshold: Option<f64>,
    /// Tokens to compute above which a rank gets no request; no bound if not set
    #[arg(long, value_name = "TOKENS")]
    pub active_prefill_tokens_threshold: Option<u64>,
    /// The same as a multiple of max-num-batched-tokens; no bound if not set
    #[arg(long, value_name = "MULTIPLE")]
    pub active_prefill_tokens_threshold_frac: Option<f64>,
    /// Disaggregated requests with fewer tokens to compute than this are computed by the decode worker
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub remote_prefill_tokens_min: u64,
    /// Label that names a worker's transfer domain. A prefill worker is paired with decode workers of its own domain
    /// only; one without the label is paired with any
    #[arg(long, value_name = "LABEL", default_value = "transfer-domain")]
    pub transfer_domain_label: String,
    /// How long a worker that has just joined is spared; 0s turns it off
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(30))]
    pub slow_start: Span,
    /// Failures in a row after which a worker is left alone for a while; 0 turns it off
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub ejection_failures: u32,
    /// How long a worker is left alone the first time; each further time doubles it, up to 10 times
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(30))]
    pub ejection_time: Span,
    /// How long a session prefers the rank that served it last; 0s turns sessions off
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(600))]
    pub session_ttl: Span,
    /// Whether engines publish events. If not, each decision is recorded at the index, and its blocks count as held for
    /// placement-ttl
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = true)]
    pub kv_events: bool,
    /// How long a recorded decision counts: 120s without events; with events, decisions are recorded only if this is set
    #[arg(long, value_name = "TIME")]
    #[serde(serialize_with = "optional::serialize")]
    pub placement_ttl: Option<Span>,
    /// Whether replicas of the router tell each other of their requests over NATS
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false)]
    pub replica_sync: bool,
    /// How often replicas compare what they know
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(5))]
    pub sync_digest_interval: Span,
    /// NATS server for replica-sync and for loads that agents publish, such as nats://127.0.0.1:4222. If not
    /// set, and replica-sync or another option needs NATS: the server in the variable NATS_SERVER, else
    /// nats://127.0.0.1:4222
    #[arg(long, hide_env_values = true, hide_default_value = true, value_name = "URL")]
    pub nats_url: Option<ServerUrl>,
    /// How to sign on to NATS, and what stands before all names there.
    #[command(flatten)]
    #[serde(flatten)]
    pub nats_access: NatsAccessOptions,
    /// Engines' reports of their load that are older than this are stale
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(10))]
    pub report_stale_after: Span,
    /// File to which a line of JSON is appended for each request: when it came, hashes of its blocks, its lengths, its times,
    /// its worker
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

impl config::Options for Options {
    const PROGRAM: &'static str = "router";
    const ABOUT: &'static str = "Router of Kvasir, the KV-cache index: chooses the worker of each request by what workers \
         have cached and by how much they have to do";
    const EXAMPLE: &'static str = "--indexer http://127.0.0.1:50051";
    const VARIABLE_PREFIX: &'static str = "KVASIR_ROUTER_";
    const DEFAULTS: &'static [(&'static str, &'static str)] =
        &[("listen", "127.0.0.1:50053"), ("http-listen", "127.0.0.1:9093")];
}
