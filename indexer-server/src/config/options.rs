use super::{IndexShards, WorkerSpec};
use clap::{ArgAction, Args};
use kvasir_process::{
    config,
    options::{NatsOptions, ProcessOptions},
    text::{self, ByteCount, Span, optional},
};
use kvasir_proto::{broker::STREAM_AGE_DEFAULT, shard::ShardPlace, types::LossPolicy};
use serde::Serialize;
use std::path::PathBuf;

/// What may be configured, each option by flag, environment and file alike. None is required.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Options {
    /// Ports, logs and how the process stops.
    #[command(flatten)]
    #[serde(flatten)]
    pub process: ProcessOptions,
    /// What happens to a source's blocks when events are lost for good: keep or clear
    #[arg(long, value_name = "POLICY", default_value_t = LossPolicy::Keep)]
    #[serde(serialize_with = "text::serialize")]
    pub loss_policy: LossPolicy,
    /// How long suspect blocks stay in the index under loss policy keep
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(600))]
    pub degraded_ttl: Span,
    /// How long a source may be disconnected before its blocks are dropped; a worker's lease takes
    /// precedence
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(60))]
    pub worker_timeout: Span,
    /// How long a source of a pool may be disconnected before its blocks are dropped, if another source has been
    /// connected for as long; three times what agents take between two searches of a volume, at least
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(1_800))]
    pub pool_source_timeout: Span,
    /// Time between two probes of an engine's replay socket
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(30))]
    pub probe_interval: Span,
    /// Limit of concurrent replays, over all engines
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    pub replay_concurrency: usize,
    /// Limit of concurrent reads (dumps and event ranges) from workers' local indexers
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    pub dump_concurrency: usize,
    /// The shard that this server is, such as 0/3 for the first of three: it accepts only workers of
    /// its shard's buckets. All workers if not set
    #[arg(long, value_name = "I/N")]
    #[serde(serialize_with = "optional::serialize")]
    pub shard: Option<ShardPlace>,
    /// File that assigns buckets to shards, read at start and at SIGHUP; or nats for the key `map` in
    /// the bucket `kvasir-shards` of NATS' key-value store, which the server watches. Equal ranges if
    /// not set
    #[arg(long, value_name = "FILE")]
    pub shard_map: Option<PathBuf>,
    /// Shards of the index in this process, 1 to 64, or auto: one for every 8 cores, at least 1, at most 4. Each has a part of the
    /// workers and a writer thread. Blocks are shared only within a shard
    #[arg(long, value_name = "COUNT", default_value_t = IndexShards::Auto)]
    pub index_shards: IndexShards,
    /// Memory limit of the index, over all models and tenants, such as 8GiB: at least 1MiB a shard, no
    /// limit if not set. Beyond it the index sheds the least recently stored blocks: answers then
    /// credit less, never more
    #[arg(long, value_name = "BYTES")]
    pub max_index_bytes: Option<ByteCount>,
    /// Folder for checkpoints, created if missing. With one, a restart resumes from the last
    /// checkpoint; without one, the index starts empty
    #[arg(long, value_name = "FOLDER")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Time between checkpoints; each writes what changed since the one before
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(10))]
    pub checkpoint_interval: Span,
    /// The NATS server.
    #[command(flatten)]
    #[serde(flatten)]
    pub nats: NatsOptions,
    /// How long that stream retains events
    #[arg(long, value_name = "TIME", default_value_t = Span(STREAM_AGE_DEFAULT))]
    pub nats_stream_age: Span,
    /// How many bytes of events it retains
    #[arg(long, value_name = "BYTES", default_value_t = ByteCount(1 << 30))]
    pub nats_stream_bytes: ByteCount,
    /// Messages in the stream after which a snapshot of the index is uploaded to NATS' object store;
    /// replicas with an empty disk start from it
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    pub snapshot_threshold: u64,
    /// DANGEROUS: purges the stream, the snapshots in the object store and the checkpoint at start, for
    /// all shards and replicas that share them. Every index is then rebuilt from the agents
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false)]
    pub reset_states: bool,
    /// Most speculative blocks (pairs of rank and block that RecordPlacement announced), over all
    /// models and tenants: 65536 to 16777216
    #[arg(long, value_name = "COUNT", default_value_t = 1 << 20)]
    pub speculative_blocks_max: usize,
    /// Share of them that stays when a placement no longer fits, 0 to 1; of the tenant with the
    /// most of them those that expire first are dropped
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    pub speculative_keep_ratio: f64,
    /// Largest part of the limits on models, workers, sockets for endpoints and bytes of registrations that one tenant
    /// may take, 0.001 to 1: below 1, a tenant that uses up its own leaves the others theirs
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub tenant_share: f64,
    /// Limit of concurrent unary requests, over all connections; more are refused
    #[arg(long, value_name = "COUNT", default_value_t = 1_024)]
    pub max_in_flight: usize,
    /// Limit of concurrent gRPC connections; more are closed at once
    #[arg(long, value_name = "COUNT", default_value_t = 1_024)]
    pub max_connections: usize,
    /// Where endpoints may lie that publishers register beside their own address: networks such as 10.0.0.0/8, host names
    /// and *.DOMAIN, with commas between them. Loopback and link-local addresses need an entry as soon as the server
    /// listens beyond loopback. Workers of this configuration may have any
    #[arg(long, value_name = "PLACES", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoint_places: Vec<String>,
    /// Other replicas of the same shard, such as http://10.0.0.2:50051, at most 16 with commas between
    /// them: at start, the server copies from them the workers that neither its checkpoint nor a
    /// snapshot has
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub siblings: Vec<String>,
    /// A worker to register at start: id=,model=,block-size= and, as needed, tenant=, engine=,
    /// endpoint=, replay=, topic=, bind=, dp-rank=, copy-mode=, loss-policy=, lora.NUMBER= (the name of
    /// a LoRA adapter that the engine announces by number), ttl.MEDIUM= (how long blocks on a medium such as
    /// CPU are held after they were last announced, where its connector never removes them: LMCache), connector-chunk.MEDIUM=
    /// (blocks in a chunk of a connector that loads complete chunks only: vLLM's blocks_per_chunk above 1, LMCache), pools= (pools that
    /// it can load blocks from, with + between them); for routers role=, model-types=, image-tokens= (sglang-30-bit for SGLang
    /// until 0.5.22), total-kv-blocks=, max-num-batched-tokens=, label.KEY=; with commas between them. Repeat the flag (or put ; between
    /// workers) for more workers, or for more endpoints of one; in the file, a `[[worker]]` table each
    #[arg(long, value_name = "WORKER", value_delimiter = ';')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub worker: Vec<WorkerSpec>,
}

impl config::Options for Options {
    const PROGRAM: &'static str = "indexer-server";
    const ABOUT: &'static str = "Standalone KV-cache index for LLM inference fleets: takes in engines' KV events and \
         answers, over gRPC, which worker holds which leading blocks of a prompt";
    const EXAMPLE: &'static str = "--worker id=vllm-0,model=MODEL,block-size=16,engine=vllm,\
         endpoint=tcp://HOST:5557,replay=tcp://HOST:5558";
    const VARIABLE_PREFIX: &'static str = "KVASIR_";
    const TABLES: &'static [&'static str] = &["worker"];
    const DEFAULTS: &'static [(&'static str, &'static str)] =
        &[("listen", "127.0.0.1:50051"), ("http-listen", "127.0.0.1:9091")];
}
