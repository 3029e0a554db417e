use clap::{ArgAction, Args};
use kvasir_process::config;
use kvasir_process::options::{NatsAccessOptions, ProcessOptions};
use kvasir_process::text::{self, ByteCount, ServerUrl, Span, optional};
use router_client::route::{BlockTracking, DecodePrice, KvReuse, Mode, QueuePolicy};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Options, each available as a flag, an environment variable and a key of the file.
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

/// How workers are found and chosen: the options of every program that routes.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct RoutingOptions {
    /// Index servers of one shard, such as http://a:50051,http://b:50051. Separate replicas by commas. Repeat the flag,
    /// or separate by semicolons, for more shards, from shard 0. Required
    #[arg(long, value_name = "SERVERS", value_delimiter = ';')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub indexer: Vec<String>,
    /// Maximum wait for the index, after which load alone decides
    #[arg(long, value_name = "TIME", default_value_t = Span(Duration::from_millis(100)))]
    pub index_deadline: Span,
    /// Time between two requests to the index for its workers
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(2))]
    pub discovery_interval: Span,
    /// How a worker is chosen: kv, round-robin, random, direct, power-of-two or least-loaded. A request can override it
    #[arg(long, value_name = "MODE", default_value_t = Mode::Kv)]
    #[serde(serialize_with = "text::serialize")]
    pub mode: Mode,
    /// Weight of cache overlap against load. More shortens the time to the first token, less the time between tokens; 0
    /// skips the index. A request can override it
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0)]
    pub overlap_score_weight: f64,
    /// Randomness of mode kv; 0 chooses the lowest cost. A request can override it
    #[arg(long, value_name = "TEMPERATURE", default_value_t = 0.0)]
    pub temperature: f64,
    /// Fraction of prefill saved by a block in device memory (0–1)
    #[arg(long, value_name = "CREDIT", default_value_t = 1.0)]
    pub device_credit: f64,
    /// Fraction of prefill saved by a block in host memory (0–1)
    #[arg(long, value_name = "CREDIT", default_value_t = 0.75)]
    pub host_credit: f64,
    /// Fraction of prefill saved by a block on local disk (0–1)
    #[arg(long, value_name = "CREDIT", default_value_t = 0.25)]
    pub disk_credit: f64,
    /// Fraction of prefill saved by a block in a pool (0–1). A pool is a store, such as a volume, that the worker can
    /// load from
    #[arg(long, value_name = "CREDIT", default_value_t = 0.25)]
    pub pool_credit: f64,
    /// Weight of a worker's queued tokens against the request's own tokens. Queued tokens are the tokens of earlier
    /// requests that the worker still has to compute
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0)]
    pub active_prefill_weight: f64,
    /// Cost of a block in use: by-room or full. by-room is almost 0 while the worker has room; full equals the cost of
    /// computing a block (Dynamo's formula)
    #[arg(long, value_name = "PRICE", default_value_t = DecodePrice::ByRoom)]
    #[serde(serialize_with = "text::serialize")]
    pub decode_price: DecodePrice,
    /// Maximum age of the index's verification for full credit of overlap. Overlap verified earlier is credited by
    /// --uncertain-credit. If not set: no limit
    #[arg(long, value_name = "TIME")]
    #[serde(serialize_with = "optional::serialize")]
    pub max_staleness: Option<Span>,
    /// Fraction of overlap credited where the index is behind or stale (0–1)
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    pub uncertain_credit: f64,
    /// Plan which missing blocks a worker copies from other workers' agents. A copy is planned only if it is faster
    /// than computing the blocks. Each answer contains the chosen worker's plan, and a worker's cost includes its plan
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false)]
    pub fetch_plans: bool,
    /// Assumed bandwidth between two agents in bytes per second, such as 1GiB. Used until a fetch is reported, and from
    /// a minute after the last report. 0: fetch plans only with a recent report
    #[arg(long, value_name = "BYTES", default_value_t = ByteCount(1 << 30))]
    pub fetch_bandwidth: ByteCount,
    /// Assumed prefill rate of a worker in tokens per second. Used until the worker's first tokens show its own rate.
    /// 0: no fetch plans until then
    #[arg(long, value_name = "TOKENS", default_value_t = 20_000.0)]
    pub prefill_rate: f64,
    /// Blocks of active requests that count as load: off, prompt or prompt-and-output
    #[arg(long, value_name = "BLOCKS", default_value_t = BlockTracking::Prompt)]
    #[serde(serialize_with = "text::serialize")]
    pub track_blocks: BlockTracking,
    /// How blocks shared by a worker's requests count: assumed or unique. assumed counts a block of a common prefix
    /// once; unique counts it for each request
    #[arg(long, value_name = "REUSE", default_value_t = KvReuse::Assumed)]
    #[serde(serialize_with = "text::serialize")]
    pub kv_reuse: KvReuse,
    /// Track the tokens that are still to be computed as load
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = true)]
    pub track_prefill_tokens: bool,
    /// Time without a report after which a request stops counting as load
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(300))]
    pub request_lease: Span,
    /// Tokens to compute from which requests wait, as a multiple of max-num-batched-tokens. A request waits while every
    /// worker that may serve it exceeds the threshold. 0 disables the queue
    #[arg(long, value_name = "MULTIPLE", default_value_t = 2.0)]
    pub queue_threshold: f64,
    /// Order of the queue: fcfs (earliest first) or wspt (short prompts first)
    #[arg(long, value_name = "POLICY", default_value_t = QueuePolicy::Fcfs)]
    #[serde(serialize_with = "text::serialize")]
    pub queue_policy: QueuePolicy,
    /// Maximum number of waiting requests. Further requests are refused
    #[arg(long, value_name = "COUNT", default_value_t = 4_096)]
    pub queue_entries: usize,
    /// Maximum wait in the queue. A request can override it. At most 25s in the router, because its answers must begin
    /// within 30s; any time in the gateway
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(20))]
    pub queue_timeout: Span,
    /// Fraction of blocks in use above which a rank receives no requests. If not set: no limit
    #[arg(long, value_name = "SHARE")]
    pub active_decode_blocks_threshold: Option<f64>,
    /// Number of tokens to compute above which a rank receives no requests. If not set: no limit
    #[arg(long, value_name = "TOKENS")]
    pub active_prefill_tokens_threshold: Option<u64>,
    /// Tokens to compute above which a rank is busy, as a multiple of max-num-batched-tokens. A busy rank receives no
    /// requests. If not set: no limit
    #[arg(long, value_name = "MULTIPLE")]
    pub active_prefill_tokens_threshold_frac: Option<f64>,
    /// Minimum number of tokens to compute on a prefill worker. A disaggregated request with fewer tokens is computed
    /// by the decode worker
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub remote_prefill_tokens_min: u64,
    /// Label that names a worker's transfer domain. A prefill worker is paired only with decode workers of its own
    /// domain; a prefill worker without the label, with any decode worker
    #[arg(long, value_name = "LABEL", default_value = "transfer-domain")]
    pub transfer_domain_label: String,
    /// How long a new worker receives fewer requests; 0s disables it. The worker's cost starts at 10 times its value
    /// and falls to it
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(30))]
    pub slow_start: Span,
    /// Consecutive failures after which a worker is ejected; 0 disables ejection. An ejected worker receives no
    /// requests for --ejection-time
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub ejection_failures: u32,
    /// Duration of a worker's first ejection. Each further ejection lasts twice as long, up to 10 times the first
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(30))]
    pub ejection_time: Span,
    /// How long a session prefers the rank that last served it. 0s disables sessions
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(600))]
    pub session_ttl: Span,
    /// Whether engines publish KV events. If false: the router records each decision at the index, and its blocks count
    /// as cached for --placement-ttl
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = true)]
    pub kv_events: bool,
    /// How long a decision recorded at the index counts. If not set: 120s without --kv-events; with --kv-events,
    /// decisions are not recorded
    #[arg(long, value_name = "TIME")]
    #[serde(serialize_with = "optional::serialize")]
    pub placement_ttl: Option<Span>,
    /// Synchronise active requests with other replicas of the router, over NATS
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false)]
    pub replica_sync: bool,
    /// Time between two comparisons of digests between replicas, with --replica-sync
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(5))]
    pub sync_digest_interval: Span,
    /// URL of the NATS server for --replica-sync and agents' load reports. An example is nats://127.0.0.1:4222. If not
    /// set, and --replica-sync or another option needs NATS: the variable NATS_SERVER, else nats://127.0.0.1:4222
    #[arg(long, hide_env_values = true, hide_default_value = true, value_name = "URL")]
    pub nats_url: Option<ServerUrl>,
    /// NATS credentials and the prefix of all NATS names.
    #[command(flatten)]
    #[serde(flatten)]
    pub nats_access: NatsAccessOptions,
    /// Age after which an engine's report of its load is stale
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(10))]
    pub report_stale_after: Span,
    /// File to which one line of JSON is appended per request. The line has the time of arrival, block hashes, lengths,
    /// durations and the worker. If not set: no recording
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
    const SHORT_HELP: &'static [&'static str] = &[
        "indexer",
        "mode",
        "overlap-score-weight",
        "kv-events",
        "replica-sync",
        "nats-url",
        "session-ttl",
        "fetch-plans",
        "listen",
        "http-listen",
        "identities",
        "tls-cert",
    ];
}
