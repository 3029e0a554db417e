use super::{ClientLimits, IndexShards, NatsStream, SpeculativeBlocks, Timing, WorkerSpec};
use clap::{ArgAction, Args};
use kvasir_process::config::{self, Retired};
use kvasir_process::options::{NATS_RETIRED, NatsOptions, PROCESS_RETIRED, ProcessOptions};
use kvasir_process::text::{self, ByteCount, KeyValues, PAIRS, Span, optional};
use kvasir_proto::shard::ShardPlace;
use kvasir_proto::types::LossPolicy;
use serde::Serialize;
use std::path::PathBuf;

/// Options, each available as a flag, an environment variable and a key of the file. None is required.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Options {
    /// Worker to register at start: id=, model=, block-size= and optional keys. Separate keys by commas. Optional keys:
    /// tenant=, engine=, endpoint=, replay=, topic=, bind=, dp-rank=, copy-mode=, loss-policy=, lora.NUMBER= (name of a
    /// LoRA adapter that the engine announces by number), ttl.MEDIUM= (time to live of blocks on a medium such as CPU
    /// since their last announcement, for connectors that announce no evictions: LMCache), connector-chunk.MEDIUM=
    /// (blocks per chunk, for connectors that load only complete chunks: LMCache, or vLLM's blocks_per_chunk above 1),
    /// pools= (pools that the worker can load from, separated by +); for hybrid models attention-chunk-tokens=,
    /// eagle-drops-block=, replay-tokens=, prefix-match-unit= and unannounced-groups= (see engine/README.md). Optional
    /// keys for routers: role=, model-types=, image-tokens= (sglang-30-bit for SGLang until 0.5.22), total-kv-blocks=,
    /// max-num-batched-tokens=, label.KEY=. Repeat the flag, or separate by semicolons, for more workers or more
    /// endpoints of one worker; in the file, a `[[worker]]` table each
    #[arg(long, value_name = "WORKER", value_delimiter = ';', help_heading = "Workers")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub worker: Vec<WorkerSpec>,
    /// List of engines without an agent. The server asks them for model and block size, registers them, and removes engines
    /// that leave the list or stay silent for worker-timeout. Forms: file:PATH (one URL per line), dns:NAME:PORT (all
    /// addresses of a name), dns:_PORT._tcp.NAME (hosts and ports in SRV records), kubernetes:[NAMESPACE/]SERVICE:PORT
    /// (pods of a service; PORT is the pods' port, or its name in the service). Facts about each engine follow after
    /// commas: events=, replay=, block-size=, model=, key-file=. Files and DNS are read every 5 seconds and at SIGHUP,
    /// Kubernetes is watched. Give all shards and replicas the same list: each shard takes its own engines
    #[arg(long, value_name = "SOURCE", help_heading = "Workers")]
    pub engines_from: Option<String>,
    /// Networks and hosts whose endpoints publishers may register, besides their own address. List networks such as 10.0.0.0/8,
    /// host names and *.DOMAIN, separated by commas. Loopback and link-local addresses need an entry once the server
    /// listens beyond loopback. Workers of this configuration may use any place
    #[arg(long, value_name = "PLACES", value_delimiter = ',', help_heading = "Workers")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoint_places: Vec<String>,
    /// Treatment of blocks after a permanent loss of events: keep or clear. keep retains the source's blocks for
    /// degraded-ttl of --timing; clear removes the blocks immediately
    #[arg(long, value_name = "POLICY", default_value_t = LossPolicy::Keep, help_heading = "Index")]
    #[serde(serialize_with = "text::serialize")]
    pub loss_policy: LossPolicy,
    /// Time after which the blocks of a disconnected source are removed. A worker's lease takes precedence
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(60), help_heading = "Index")]
    pub worker_timeout: Span,
    /// Times that rarely need a change: degraded-ttl=, pool-source-timeout=, probe-interval=. Separate pairs by commas.
    /// degraded-ttl: how long blocks stay that were stored before a loss of events and not announced since.
    /// pool-source-timeout: after which the blocks of a pool's disconnected source are removed, if another source of
    /// the pool has been connected for as long; at least three times the agents' search interval of volumes.
    /// probe-interval: between two probes of an engine's replay socket
    #[arg(long, value_name = PAIRS, default_value_t, help_heading = "Index")]
    pub timing: KeyValues<Timing>,
    /// Number of index shards in this process, 1 to 64, or auto. auto is one for every 8 cores, at least 1, at most 4.
    /// Each shard has a part of the workers and a writer thread. Shards share no memory: a block
    /// that workers of several shards have is stored in each of these shards
    #[arg(long, value_name = "COUNT", default_value_t = IndexShards::Auto, help_heading = "Index")]
    pub index_shards: IndexShards,
    /// Shard of this server, such as 0/3 for the first of three. The server accepts only workers of its shard's
    /// buckets. If not set: all workers
    #[arg(long, value_name = "I/N", help_heading = "Shards and replicas")]
    #[serde(serialize_with = "optional::serialize")]
    pub shard: Option<ShardPlace>,
    /// TOML file that assigns buckets to shards, or nats. The server reads the file at start and at SIGHUP; with nats, it
    /// watches the key `map` in the bucket `kvasir-shards` of NATS' key-value store. If not set: equal ranges
    #[arg(long, value_name = "FILE", help_heading = "Shards and replicas")]
    pub shard_map: Option<PathBuf>,
    /// Other replicas of the same shard, such as http://10.0.0.2:50051. Name at most 16, separated by commas. At start,
    /// the server copies workers from a replica if neither its checkpoint nor a snapshot has them
    #[arg(long, value_name = "URL", value_delimiter = ',', help_heading = "Shards and replicas")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub siblings: Vec<String>,
    /// Folder for checkpoints, created if missing. A restarted server resumes from the last checkpoint. If not set: the
    /// index starts empty
    #[arg(long, value_name = "FOLDER", help_heading = "Checkpoints")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Time between two checkpoints. Each checkpoint writes the changes since the previous one
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(10), help_heading = "Checkpoints")]
    pub checkpoint_interval: Span,
    /// DANGEROUS: deletes the stream, the snapshots and the checkpoint at start. All shards and replicas that share
    /// this state are affected. Every index is then rebuilt from the agents
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false, help_heading = "Checkpoints")]
    pub reset_states: bool,
    /// The NATS server.
    #[command(flatten)]
    #[serde(flatten)]
    pub nats: NatsOptions,
    /// Limits of the JetStream stream: age=, bytes=, snapshot-threshold=. Separate pairs by commas. The stream retains
    /// events for age and up to bytes. After snapshot-threshold messages, the server uploads a snapshot of the index to
    /// NATS' object store; replicas with an empty disk start from it
    #[arg(long, value_name = PAIRS, default_value_t, help_heading = "NATS")]
    pub nats_stream: KeyValues<NatsStream>,
    /// Memory limit of the index, such as 8GiB. The limit covers all models and tenants, and is at least 1MiB per
    /// shard. At the limit, the index evicts the blocks stored longest ago: answers then report fewer blocks, never
    /// more. If not set: no limit
    #[arg(long, value_name = "BYTES", help_heading = "Limits")]
    pub max_index_bytes: Option<ByteCount>,
    /// Limit of speculative blocks: max= (65536 to 16777216), keep-ratio= (0–1). Separate pairs by commas. A
    /// speculative block is a pair of rank and block from RecordPlacement. The limit covers all models and tenants. At
    /// max blocks, the index evicts down to max x keep-ratio blocks. The tenant with the most speculative blocks loses
    /// the blocks closest to expiry
    #[arg(long, value_name = PAIRS, default_value_t, help_heading = "Limits")]
    pub speculative_blocks: KeyValues<SpeculativeBlocks>,
    /// Quota of one tenant, as a fraction of each limit (0.001–1). The limits are on models, workers, sockets for
    /// endpoints and bytes of registrations. Below 1, a tenant at its quota leaves room for other tenants
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, help_heading = "Limits")]
    pub tenant_share: f64,
    /// Limits on clients: in-flight=, connections=. Separate pairs by commas. in-flight: concurrent unary requests, over
    /// all connections; further requests are refused. connections: concurrent gRPC connections; further connections are
    /// closed immediately
    #[arg(long, value_name = PAIRS, default_value_t, help_heading = "Limits")]
    pub limits: KeyValues<ClientLimits>,
    /// Ports, logs and how the process stops.
    #[command(flatten)]
    #[serde(flatten)]
    pub process: ProcessOptions,
}

impl config::Options for Options {
    const PROGRAM: &'static str = "indexer-server";
    const ABOUT: &'static str = "Standalone KV-cache index for LLM inference fleets: takes in engines' KV events and \
         answers, over gRPC, which worker holds which leading blocks of a prompt";
    const EXAMPLE: &'static str = "--worker id=vllm-0,model=MODEL,block-size=16,engine=vllm,\
         endpoint=tcp://HOST:5557,replay=tcp://HOST:5558";
    const VARIABLE_PREFIX: &'static str = "KVASIR_";
    const TABLES: &'static [&'static str] = &["worker"];
    // `--engines-from` logs each problem with Kubernetes once.
    const DEFAULTS: &'static [(&'static str, &'static str)] = &[
        ("listen", "127.0.0.1:50051"),
        ("http-listen", "127.0.0.1:9091"),
        ("log-filter", "info,kube_client=off,kube_runtime=off"),
    ];
    const RETIRED: &'static [&'static [Retired]] = &[PROCESS_RETIRED, NATS_RETIRED, SERVER_RETIRED];
    const SHORT_HELP: &'static [&'static str] = &[
        "listen",
        "http-listen",
        "worker",
        "engines-from",
        "nats-url",
        "nats-delivery",
        "checkpoint-dir",
        "max-index-bytes",
        "shard",
        "siblings",
        "identities",
        "tls-cert",
    ];
}

const SERVER_RETIRED: &[Retired] = &[
    Retired::key("degraded-ttl", "timing", "degraded-ttl"),
    Retired::key("pool-source-timeout", "timing", "pool-source-timeout"),
    Retired::key("probe-interval", "timing", "probe-interval"),
    Retired::key("nats-stream-age", "nats-stream", "age"),
    Retired::key("nats-stream-bytes", "nats-stream", "bytes"),
    Retired::key("snapshot-threshold", "nats-stream", "snapshot-threshold"),
    Retired::key("speculative-blocks-max", "speculative-blocks", "max"),
    Retired::key("speculative-keep-ratio", "speculative-blocks", "keep-ratio"),
    Retired::key("max-in-flight", "limits", "in-flight"),
    Retired::key("max-connections", "limits", "connections"),
    Retired::ignored("replay-concurrency", "8 replays run at a time"),
    Retired::ignored("dump-concurrency", "8 dumps and event ranges are read at a time"),
];
