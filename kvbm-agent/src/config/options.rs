use super::{BlocksOptions, SourceSpec};
use crate::zmq::ZMQ_TOPIC_DEFAULT;
use clap::{ArgAction, Args};
use kvasir_feed::hub::BatchingConfig;
use kvasir_feed::journal::JournalConfig;
use kvasir_process::config::{self, Retired};
use kvasir_process::options::{NATS_RETIRED, NatsOptions, PROCESS_RETIRED, ProcessOptions};
use kvasir_process::text::{self, ByteCount, Span, optional};
use kvasir_proto::convert::{ImageTokens, ModelTypes, Role};
use kvasir_proto::types::EngineKind;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Options, each available as a flag, an environment variable and a key of the file.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Options {
    /// Name of the agent's worker, unique within model and tenant. Required
    #[arg(long, value_name = "ID")]
    pub worker_id: Option<String>,
    /// Name of the model that the worker serves. Required
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Tenant of the worker. If not set: the tenant without a name
    #[arg(long, value_name = "TENANT", default_value = "")]
    pub tenant: String,
    /// Tokens per block of the engine's cache. Required
    #[arg(long, value_name = "TOKENS")]
    pub block_size: Option<u32>,
    /// Kind of engine beside the agent: vllm, sglang, trtllm or custom
    #[arg(long, value_name = "ENGINE", default_value_t = EngineKind::Custom)]
    #[serde(serialize_with = "text::serialize")]
    pub engine: EngineKind,
    /// Role of the worker, for routers: prefill, decode or both
    #[arg(long, value_name = "ROLE")]
    #[serde(serialize_with = "optional::serialize")]
    pub role: Option<Role>,
    /// Requests that routers send to the worker: chat, completions or chat+completions. If not set: all kinds
    #[arg(long, value_name = "TYPES")]
    #[serde(serialize_with = "optional::serialize")]
    pub model_types: Option<ModelTypes>,
    /// Form of the engine's tokens for an image, needed by gateways. Use identifier, sglang-30-bit (SGLang until
    /// 0.5.22) or sglang-62-bit (SGLang from 0.5.23). If not set: the form of the engine's newest release
    #[arg(long, value_name = "FORM")]
    #[serde(serialize_with = "optional::serialize")]
    pub image_tokens: Option<ImageTokens>,
    /// Number of blocks that fit into each rank's accelerator memory, for routers
    #[arg(long, value_name = "COUNT")]
    pub total_kv_blocks: Option<u64>,
    /// Maximum number of concurrent requests of each rank, for routers. The agent reports it with the rank's load
    #[arg(long, value_name = "COUNT")]
    pub request_total_slots: Option<u64>,
    /// URL of the engine's Prometheus metrics, such as http://127.0.0.1:8000/metrics (vllm or sglang). The agent reads
    /// the engine's load there and reports it to routers. If not set: the agent reads no metrics
    #[arg(long, value_name = "URL")]
    pub metrics_url: Option<String>,
    /// Interval at which --metrics-url is read, and timeout of each read
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(1))]
    pub metrics_interval: Span,
    /// Maximum number of tokens in one step of each rank, for routers
    #[arg(long, value_name = "COUNT")]
    pub max_num_batched_tokens: Option<u64>,
    /// Label of the worker for routers, key=value. Repeat the flag, or separate by commas, for more labels
    #[arg(long, value_name = "LABEL", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub label: Vec<String>,
    /// Name of a LoRA adapter that the engine announces by number, number=name. Repeat the flag, or separate by commas,
    /// for more adapters
    #[arg(long, value_name = "LORA", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lora: Vec<String>,
    /// Time to live of blocks on a medium, medium=time, such as CPU=10m. For connectors that announce no evictions
    /// (LMCache). Each announcement of a block restarts the time. Requires --source; excludes --journal-dir. Repeat the
    /// flag, or separate by commas, for more media
    #[arg(long, value_name = "TTL", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub medium_ttl: Vec<String>,
    /// Blocks per chunk on a medium, medium=blocks, such as CPU=4. For connectors that load only complete chunks
    /// (LMCache, or vLLM's blocks_per_chunk above 1). Repeat the flag, or separate by commas, for more media
    #[arg(long, value_name = "CHUNK", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connector_chunk: Vec<String>,
    /// ZMQ publisher of an engine, to relay: endpoint= and optional keys. Optional keys, separated by commas: replay=,
    /// topic=, bind=, dp-rank=. Repeat the flag, or separate by semicolons, for more ranks or sources; in the file, a
    /// `[[source]]` table each
    #[arg(long, value_name = "SOURCE", value_delimiter = ';')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<SourceSpec>,
    /// Maximum number of sources at a time, 1 to 16. Relays of --source, publishers on the gRPC port and the block
    /// manager count
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    pub sources_max: u8,
    /// Accept several sources for one rank, such as engine and block manager. A block stays until every source that
    /// announced it has removed it. Required for --source with --blocks-host-bytes. If false: one source per rank
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false)]
    pub consolidate: bool,
    /// Pool id of the store that this and other engines share. The agent publishes blocks with medium EXTERNAL or OBJ,
    /// or locality REMOTE, under this id. Give all agents of the store the same id. Requires --source. If not set:
    /// blocks of shared stores are not published
    #[arg(long, value_name = "ID")]
    pub engine_pool: Option<String>,
    /// Index servers to publish to, such as http://127.0.0.1:50051, separated by commas. Name all replicas of the
    /// worker's shard, at most 16
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub indexers: Vec<String>,
    /// Index servers of all other shards, separated by commas, at most 256. The agent publishes the blocks of
    /// --blocks-volume and --engine-pool there, too, because workers of all shards can load these blocks
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pool_indexers: Vec<String>,
    /// NATS servers, and how to publish there.
    #[command(flatten)]
    #[serde(flatten)]
    pub nats: NatsOptions,
    /// Address that re-publishes events over ZMQ (PUB), in vLLM's wire format. The events have no tokens. Only trusted
    /// peers may reach it. Requires --zmq-replay-listen. If not set: no ZMQ publisher
    #[arg(long, value_name = "ADDRESS")]
    pub zmq_listen: Option<SocketAddr>,
    /// Address of the ZMQ ROUTER socket that replays events missed on --zmq-listen. Required with --zmq-listen
    #[arg(long, value_name = "ADDRESS")]
    pub zmq_replay_listen: Option<SocketAddr>,
    /// ZMQ topic of the events re-published on --zmq-listen
    #[arg(long, value_name = "TOPIC", default_value = ZMQ_TOPIC_DEFAULT)]
    pub zmq_topic: String,
    /// URL at which indexes reach the agent's gRPC port, such as http://10.0.0.7:50052. Required with --indexers if the
    /// port listens on all addresses. If not set: the listen address
    #[arg(long, value_name = "URL")]
    pub advertise: Option<String>,
    /// Lease of the worker at indexes, 1s to 1h. Indexes remove the worker after this time without a message from the
    /// agent
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(60))]
    pub lease: Span,
    /// Time between two heartbeats to indexes, at most a third of --lease
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(5))]
    pub heartbeat_interval: Span,
    /// Remove the worker from indexes when a signal stops the agent
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = true)]
    pub deregister: bool,
    /// Time after which the blocks of a disconnected engine are removed
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(60))]
    pub worker_timeout: Span,
    /// Folder on a local disk for a copy of the journal. Only one agent may use the folder. A killed and restarted
    /// agent continues its incarnation if its engine survived; with --consolidate, also if its block manager has blocks
    /// on disk. Excludes --medium-ttl and --batch-interval. If not set: journal in memory only
    #[arg(long, value_name = "FOLDER")]
    pub journal_dir: Option<PathBuf>,
    /// How long batches wait to be merged, at most 10s. The agent merges batches of one rank; 0s publishes each batch
    /// immediately. Indexes lag by this time: even an exact worker may be this far behind its engine. Excludes
    /// --journal-dir
    #[arg(long, value_name = "TIME", default_value_t = Span(BatchingConfig::DEFAULT.interval))]
    pub batch_interval: Span,
    /// Number of waiting blocks that ends --batch-interval early, 1 to 65,536. Stored and removed blocks count. A clear
    /// is published immediately
    #[arg(long, value_name = "COUNT", default_value_t = BatchingConfig::DEFAULT.blocks_max)]
    pub batch_blocks: usize,
    /// Maximum number of batches retained for indexes that missed them
    #[arg(long, value_name = "COUNT", default_value_t = JournalConfig::DEFAULT.batches_max)]
    pub journal_batches: usize,
    /// Maximum memory for the batches kept by --journal-batches, at least 512KiB
    #[arg(long, value_name = "BYTES", default_value_t = ByteCount(JournalConfig::DEFAULT.bytes_max))]
    pub journal_bytes: ByteCount,
    /// Maximum number of cached blocks that the agent tracks, over all ranks
    #[arg(long, value_name = "COUNT", default_value_t = JournalConfig::DEFAULT.held_blocks_max)]
    pub held_blocks_max: usize,
    /// The block manager.
    #[command(flatten)]
    #[serde(flatten)]
    pub blocks: BlocksOptions,
    /// Ports, logs and shutdown.
    #[command(flatten)]
    #[serde(flatten)]
    pub process: ProcessOptions,
}

impl config::Options for Options {
    const PROGRAM: &'static str = "kvbm-agent";
    const ABOUT: &'static str = "Agent of Kvasir, the KV-cache index: runs beside one inference engine, takes in which KV \
         blocks it stores and evicts, journals that, and publishes it to one or more indexes, which ask it for what they \
         missed";
    const EXAMPLE: &'static str = "--worker-id vllm-0 --model MODEL --block-size 16 --engine vllm \\\n    \
         --source endpoint=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558 \\\n    --indexers http://127.0.0.1:50051";
    const VARIABLE_PREFIX: &'static str = "KVASIR_AGENT_";
    const TABLES: &'static [&'static str] = &["source"];
    const DEFAULTS: &'static [(&'static str, &'static str)] =
        &[("listen", "127.0.0.1:50052"), ("http-listen", "127.0.0.1:9092")];
    const RETIRED: &'static [&'static [Retired]] = &[PROCESS_RETIRED, NATS_RETIRED];
    const SHORT_HELP: &'static [&'static str] = &[
        "worker-id",
        "model",
        "block-size",
        "engine",
        "source",
        "indexers",
        "nats-url",
        "advertise",
        "journal-dir",
        "blocks-host-bytes",
        "listen",
        "http-listen",
    ];
}
