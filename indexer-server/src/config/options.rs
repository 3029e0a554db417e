use super::WorkerSpec;
use crate::broker::Delivery;
use clap::Args;
use kvasir_process::{
    telemetry::LogFormat,
    text::{ByteCount, ServerUrl, Span, deserialize_bytes, optional},
};
use kvasir_proto::{convert::LossPolicy, shard::ShardPlace};
use serde::Deserialize;
use std::{net::SocketAddr, path::PathBuf};

/// What may be configured, each option by flag, environment and file alike. None is required.
#[derive(Debug, Clone, PartialEq, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Options {
    /// Address of the gRPC port
    #[arg(long, env = "KVASIR_LISTEN", value_name = "ADDRESS")]
    #[serde(with = "optional")]
    pub listen: Option<SocketAddr>,
    /// Address of the HTTP side port: /metrics, /livez, /readyz
    #[arg(long, env = "KVASIR_HTTP_LISTEN", value_name = "ADDRESS")]
    #[serde(with = "optional")]
    pub http_listen: Option<SocketAddr>,
    /// Form of the log lines: text or json
    #[arg(long, env = "KVASIR_LOG_FORMAT", value_name = "FORMAT")]
    #[serde(with = "optional")]
    pub log_format: Option<LogFormat>,
    /// What is logged: a level, or module=level pairs with commas between them
    #[arg(long, env = "KVASIR_LOG_FILTER", value_name = "FILTER")]
    pub log_filter: Option<String>,
    /// Where spans are exported to (OTLP over gRPC), such as http://127.0.0.1:4317; nowhere if not
    /// set
    #[arg(long, env = "KVASIR_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// What is done with a source's blocks once events were lost for good: keep or clear
    #[arg(long, env = "KVASIR_LOSS_POLICY", value_name = "POLICY")]
    #[serde(with = "optional")]
    pub loss_policy: Option<LossPolicy>,
    /// How long doubtful blocks are kept under loss policy keep
    #[arg(long, env = "KVASIR_DEGRADED_TTL", value_name = "TIME")]
    #[serde(with = "optional")]
    pub degraded_ttl: Option<Span>,
    /// How long a source may be disconnected before its blocks are dropped; a worker's lease goes
    /// before it
    #[arg(long, env = "KVASIR_WORKER_TIMEOUT", value_name = "TIME")]
    #[serde(with = "optional")]
    pub worker_timeout: Option<Span>,
    /// Time between two probes of an engine's replay socket
    #[arg(long, env = "KVASIR_PROBE_INTERVAL", value_name = "TIME")]
    #[serde(with = "optional")]
    pub probe_interval: Option<Span>,
    /// Most replays at a time, over all engines
    #[arg(long, env = "KVASIR_REPLAY_CONCURRENCY", value_name = "COUNT")]
    pub replay_concurrency: Option<usize>,
    /// Most dumps and ranges of events read from workers' local indexers at a time
    #[arg(long, env = "KVASIR_DUMP_CONCURRENCY", value_name = "COUNT")]
    pub dump_concurrency: Option<usize>,
    /// Which shard this server is, such as 0/3 for the first of three: it has the workers of its
    /// shard's buckets only and refuses others. All workers if not set
    #[arg(long, env = "KVASIR_SHARD", value_name = "I/N")]
    #[serde(with = "optional")]
    pub shard: Option<ShardPlace>,
    /// File that says which shard owns which buckets, read at start and at SIGHUP; or nats for the key
    /// `map` of the bucket `kvasir-shards` of NATS' key-value store, which is followed. Equal stretches if
    /// not set
    #[arg(long, env = "KVASIR_SHARD_MAP", value_name = "FILE")]
    pub shard_map: Option<PathBuf>,
    /// Shards of the index, 1 to 64: each has a part of the workers and a writer thread. More than
    /// one writer is worth having once one is busy; blocks are shared within a shard only
    #[arg(long, env = "KVASIR_INDEX_SHARDS", value_name = "COUNT")]
    pub index_shards: Option<usize>,
    /// Most memory of the index, over all models and tenants, such as 8GiB: 1MiB a shard at least, no
    /// limit if not set. Beyond it what was not stored for longest is dropped: answers then credit
    /// less, never more
    #[arg(long, env = "KVASIR_MAX_INDEX_BYTES", value_name = "BYTES")]
    #[serde(deserialize_with = "deserialize_bytes")]
    pub max_index_bytes: Option<ByteCount>,
    /// Folder of the checkpoints, made if it is not there: with one, a restart goes on where the server
    /// was; without one it begins empty
    #[arg(long, env = "KVASIR_CHECKPOINT_DIR", value_name = "FOLDER")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Time between two checkpoints, each of what changed since the one before
    #[arg(long, env = "KVASIR_CHECKPOINT_INTERVAL", value_name = "TIME")]
    #[serde(with = "optional")]
    pub checkpoint_interval: Option<Span>,
    /// NATS server through which agents publish, such as nats://127.0.0.1:4222 or
    /// nats://USER:PASSWORD@HOST:4222; none if not set. Their workers register themselves
    #[arg(long, env = "KVASIR_NATS_URL", hide_env_values = true, value_name = "URL")]
    pub nats_url: Option<ServerUrl>,
    /// How events come over NATS: core, as they are published, or jetstream, from a stream that keeps
    /// them for a while
    #[arg(long, env = "KVASIR_NATS_DELIVERY", value_name = "DELIVERY")]
    #[serde(with = "optional")]
    pub nats_delivery: Option<Delivery>,
    /// How long that stream keeps events
    #[arg(long, env = "KVASIR_NATS_STREAM_AGE", value_name = "TIME")]
    #[serde(with = "optional")]
    pub nats_stream_age: Option<Span>,
    /// How many bytes of events it keeps
    #[arg(long, env = "KVASIR_NATS_STREAM_BYTES", value_name = "BYTES")]
    #[serde(deserialize_with = "deserialize_bytes")]
    pub nats_stream_bytes: Option<ByteCount>,
    /// Messages in the stream after which a snapshot of the index goes to NATS' object store, from
    /// which replicas with an empty disk begin
    #[arg(long, env = "KVASIR_SNAPSHOT_THRESHOLD", value_name = "COUNT")]
    pub snapshot_threshold: Option<u64>,
    /// DANGEROUS: empties the stream, the snapshots in the object store and the checkpoint before it
    /// starts: for all shards and replicas that share them. Every index then begins anew from the agents
    #[arg(long, env = "KVASIR_RESET_STATES", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub reset_states: Option<bool>,
    /// Most speculative blocks (pairs of rank and block that RecordPlacement announced), over all
    /// models and tenants: 65536 to 16777216
    #[arg(long, env = "KVASIR_SPECULATIVE_BLOCKS_MAX", value_name = "COUNT")]
    pub speculative_blocks_max: Option<usize>,
    /// Share of them that is kept when a placement does not fit any more: from 0 up to 1; those
    /// that end first go first
    #[arg(long, env = "KVASIR_SPECULATIVE_KEEP_RATIO", value_name = "SHARE")]
    pub speculative_keep_ratio: Option<f64>,
    /// Most requests with one answer at a time, over all connections; more are refused
    #[arg(long, env = "KVASIR_MAX_IN_FLIGHT", value_name = "COUNT")]
    pub max_in_flight: Option<usize>,
    /// Most gRPC connections at a time; more are closed at once
    #[arg(long, env = "KVASIR_MAX_CONNECTIONS", value_name = "COUNT")]
    pub max_connections: Option<usize>,
    /// Other replicas of the same shard, such as http://10.0.0.2:50051, at most 16 with commas between
    /// them: at start, workers of which neither a checkpoint nor a snapshot has anything are copied
    /// from them
    #[arg(long, env = "KVASIR_SIBLINGS", value_name = "URL", value_delimiter = ',')]
    pub siblings: Vec<String>,
    /// Longest time that stopping takes
    #[arg(long, env = "KVASIR_DRAIN_TIMEOUT", value_name = "TIME")]
    #[serde(with = "optional")]
    pub drain_timeout: Option<Span>,
    /// A worker to register at start: id=,model=,block-size= and, as needed, tenant=, engine=,
    /// endpoint=, replay=, topic=, bind=, dp-rank=, copy-mode=, loss-policy=, lora.NUMBER= (the name of
    /// a LoRA adapter that the engine announces by number), ttl.MEDIUM= (how long blocks on a medium such as
    /// CPU are held after they were last announced, where its connector never removes them: LMCache), with
    /// commas between them. Repeat the flag (or put ; between workers) for more workers, or for more
    /// endpoints of one; in the file, a `[[worker]]` table each
    #[arg(long = "worker", env = "KVASIR_WORKER", value_name = "WORKER", value_delimiter = ';')]
    pub worker: Vec<WorkerSpec>,
}
