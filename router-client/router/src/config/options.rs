use super::settings::{BusyThreshold, Credits, FetchRates, Load, Queue, Timing, WorkerHealth};
use clap::{ArgAction, Args};
use kvasir_process::config::{self, Retired};
use kvasir_process::options::{NATS_RETIRED, NatsAccessOptions, PROCESS_RETIRED, ProcessOptions};
use kvasir_process::text::{self, KeyValues, PAIRS, ServerUrl};
use router_client::route::Mode;
use serde::Serialize;
use std::path::PathBuf;

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
#[command(next_help_heading = "Routing")]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct RoutingOptions {
    /// Index servers of one shard, such as http://a:50051,http://b:50051. Separate replicas by commas. Repeat the flag,
    /// or separate by semicolons, for more shards, from shard 0. Required
    #[arg(long, value_name = "SERVERS", value_delimiter = ';')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub indexer: Vec<String>,
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
    /// Fraction of prefill saved by a cached block (0–1), by place: device=, host=, disk=, pool=. A pool is a store,
    /// such as a volume, that the worker can load from. uncertain= is the fraction of overlap credited where the index
    /// is behind or stale
    #[arg(long, value_name = PAIRS, default_value_t)]
    pub credits: KeyValues<Credits>,
    /// Whether engines publish KV events. If false: the router records each decision at the index, which counts the
    /// prompt's blocks as cached on the chosen worker for --timing placement-ttl=
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = true)]
    pub kv_events: bool,
    /// Minimum number of tokens to compute on a prefill worker. A disaggregated request with fewer tokens is computed
    /// by the decode worker
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub remote_prefill_tokens_min: u64,
    /// Plan which missing blocks a worker copies from other workers' agents. A copy is planned only if it is faster
    /// than computing the blocks. Each answer contains the chosen worker's plan, and a worker's cost includes its plan
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false)]
    pub fetch_plans: bool,
    /// Rates assumed by --fetch-plans: bandwidth= (bytes per second between two agents, such as 1GiB), prefill= (tokens
    /// per second of a worker). They are used until a rate is measured, the bandwidth also once the last fetch is a minute
    /// ago. 0: only measured rates count
    #[arg(long, value_name = PAIRS, default_value_t)]
    pub fetch_rates: KeyValues<FetchRates>,
    /// File to which one line of JSON is appended per request. The line has the time of arrival, block hashes, lengths,
    /// durations and the worker. If not set: no recording
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Queue of requests while every worker that may serve them is saturated. threshold=: tokens to compute from
    /// which requests wait, as a multiple of max-num-batched-tokens; 0 disables the queue. policy=: fcfs (earliest
    /// first) or wspt (short prompts first). entries=: maximum number of waiting requests; more are refused. timeout=:
    /// maximum wait, at most 25s in the router; a request can override it
    #[arg(long, value_name = PAIRS, default_value_t, help_heading = "Load")]
    pub queue: KeyValues<Queue>,
    /// Load above which a rank receives no requests. decode-blocks=: fraction of blocks in use. prefill-tokens=: number
    /// of tokens to compute. prefill-tokens-frac=: tokens to compute, as a multiple of max-num-batched-tokens. If not
    /// set: no limit
    #[arg(long, value_name = PAIRS, default_value_t, help_heading = "Load")]
    pub busy_threshold: KeyValues<BusyThreshold>,
    /// What counts as a worker's load. track-blocks=: off, prompt or prompt-and-output. kv-reuse=: assumed (blocks of a
    /// common prefix count once) or unique (for each request). track-prefill-tokens=: true or false.
    /// active-prefill-weight=: weight of the tokens queued at a worker against the request's own. decode-price=: cost
    /// of a block in use, by-room (almost 0 while the worker has room) or full (Dynamo's formula)
    #[arg(long, value_name = PAIRS, default_value_t, help_heading = "Load")]
    pub load: KeyValues<Load>,
    /// New and failing workers. slow-start=: how long a new worker receives fewer requests; 0s disables it.
    /// ejection-failures=: consecutive failures after which a worker receives no requests for a while; 0 disables it.
    /// ejection-time=: duration of the first ejection; each further one lasts twice as long, up to 10 times the first
    #[arg(long, value_name = PAIRS, default_value_t, help_heading = "Load")]
    pub worker_health: KeyValues<WorkerHealth>,
    /// Times that rarely need a change. index-deadline=: maximum wait for the index, after which load alone decides.
    /// discovery-interval=: between two requests to the index for its workers. max-staleness=: age of the index's
    /// verification up to which overlap has full credit; unlimited if not set. request-lease=: after which a request
    /// without a report stops counting as load. session-ttl=: how long a session prefers the rank that last served it;
    /// 0s disables sessions. report-stale-after=: age at which an engine's load report is stale. sync-digest-interval=:
    /// between two comparisons of digests between replicas. placement-ttl=: how long a decision recorded at the index
    /// counts; if not set, 120s without --kv-events, and with --kv-events decisions are not recorded
    #[arg(long, value_name = PAIRS, default_value_t, help_heading = "Load")]
    pub timing: KeyValues<Timing>,
    /// Synchronise active requests with other replicas of the router, over NATS
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false, help_heading = "NATS")]
    pub replica_sync: bool,
    /// URL of the NATS server for --replica-sync and agents' load reports. An example is nats://127.0.0.1:4222. If not
    /// set, and --replica-sync or another option needs NATS: the variable NATS_SERVER, else nats://127.0.0.1:4222
    #[arg(
        long,
        hide_env_values = true,
        hide_default_value = true,
        value_name = "URL",
        help_heading = "NATS"
    )]
    pub nats_url: Option<ServerUrl>,
    /// NATS credentials and the prefix of all NATS names.
    #[command(flatten)]
    #[serde(flatten)]
    pub nats_access: NatsAccessOptions,
}

/// Retired options of every program with [`RoutingOptions`].
pub const ROUTING_RETIRED: &[Retired] = &[
    Retired::key("device-credit", "credits", "device"),
    Retired::key("host-credit", "credits", "host"),
    Retired::key("disk-credit", "credits", "disk"),
    Retired::key("pool-credit", "credits", "pool"),
    Retired::key("uncertain-credit", "credits", "uncertain"),
    Retired::key("fetch-bandwidth", "fetch-rates", "bandwidth"),
    Retired::key("prefill-rate", "fetch-rates", "prefill"),
    Retired::key("queue-threshold", "queue", "threshold"),
    Retired::key("queue-policy", "queue", "policy"),
    Retired::key("queue-entries", "queue", "entries"),
    Retired::key("queue-timeout", "queue", "timeout"),
    Retired::key("active-decode-blocks-threshold", "busy-threshold", "decode-blocks"),
    Retired::key("active-prefill-tokens-threshold", "busy-threshold", "prefill-tokens"),
    Retired::key("active-prefill-tokens-threshold-frac", "busy-threshold", "prefill-tokens-frac"),
    Retired::key("track-blocks", "load", "track-blocks"),
    Retired::key("kv-reuse", "load", "kv-reuse"),
    Retired::key("track-prefill-tokens", "load", "track-prefill-tokens"),
    Retired::key("active-prefill-weight", "load", "active-prefill-weight"),
    Retired::key("decode-price", "load", "decode-price"),
    Retired::key("slow-start", "worker-health", "slow-start"),
    Retired::key("ejection-failures", "worker-health", "ejection-failures"),
    Retired::key("ejection-time", "worker-health", "ejection-time"),
    Retired::key("index-deadline", "timing", "index-deadline"),
    Retired::key("discovery-interval", "timing", "discovery-interval"),
    Retired::key("max-staleness", "timing", "max-staleness"),
    Retired::key("request-lease", "timing", "request-lease"),
    Retired::key("session-ttl", "timing", "session-ttl"),
    Retired::key("report-stale-after", "timing", "report-stale-after"),
    Retired::key("sync-digest-interval", "timing", "sync-digest-interval"),
    Retired::key("placement-ttl", "timing", "placement-ttl"),
    Retired::ignored(
        "transfer-domain-label",
        "a worker's label transfer-domain names its transfer domain",
    ),
];

impl config::Options for Options {
    const PROGRAM: &'static str = "router";
    const ABOUT: &'static str = "Router of Kvasir, the KV-cache index: chooses the worker of each request by what workers \
         have cached and by how much they have to do";
    const EXAMPLE: &'static str = "--indexer http://127.0.0.1:50051";
    const VARIABLE_PREFIX: &'static str = "KVASIR_ROUTER_";
    const DEFAULTS: &'static [(&'static str, &'static str)] =
        &[("listen", "127.0.0.1:50053"), ("http-listen", "127.0.0.1:9093")];
    const RETIRED: &'static [&'static [Retired]] =
        &[PROCESS_RETIRED, NATS_RETIRED, ROUTING_RETIRED];
    const SHORT_HELP: &'static [&'static str] = &[
        "indexer",
        "mode",
        "overlap-score-weight",
        "kv-events",
        "replica-sync",
        "nats-url",
        "queue",
        "fetch-plans",
        "listen",
        "http-listen",
        "identities",
        "tls-cert",
    ];
}
