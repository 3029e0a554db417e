use super::capacity::CapacitySettings;
use super::engine_facts::EngineFactsSettings;
use super::retired::{RETIRED, RETIRED_BLOCKS};
use super::zmq::ZmqSettings;
use super::{BlocksOptions, SourceSpec};
use clap::{ArgAction, Args};
use kvasir_feed::hub::BatchingConfig;
use kvasir_feed::journal::JournalConfig;
use kvasir_process::config::{self, Retired};
use kvasir_process::options::{NATS_RETIRED, NatsOptions, PROCESS_RETIRED, ProcessOptions};
use kvasir_process::text::{self, ByteCount, KeyValues, PAIRS, Span, optional};
use kvasir_proto::convert::{ModelTypes, Role};
use kvasir_proto::types::EngineKind;
use serde::Serialize;
use std::path::PathBuf;

/// Options, each available as a flag, an environment variable and a key of the file.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Options {
    /// Name of the agent's worker, unique within model and tenant. Required
    #[arg(long, help_heading = "Worker", value_name = "ID")]
    pub worker_id: Option<String>,
    /// Name of the model that the worker serves. Required
    #[arg(long, help_heading = "Worker", value_name = "MODEL")]
    pub model: Option<String>,
    /// Tenant of the worker. If not set: the tenant without a name
    #[arg(long, help_heading = "Worker", value_name = "TENANT", default_value = "")]
    pub tenant: String,
    /// Tokens per block of the engine's cache. Required
    #[arg(long, help_heading = "Worker", value_name = "TOKENS")]
    pub block_size: Option<u32>,
    /// Kind of engine beside the agent: vllm, sglang, trtllm or custom
    #[arg(long, help_heading = "Worker", value_name = "ENGINE", default_value_t = EngineKind::Custom)]
    #[serde(serialize_with = "text::serialize")]
    pub engine: EngineKind,
    /// Role of the worker, for routers: prefill, decode or both
    #[arg(long, help_heading = "Worker", value_name = "ROLE")]
    #[serde(serialize_with = "optional::serialize")]
    pub role: Option<Role>,
    /// Requests that routers send to the worker: chat, completions or chat+completions. If not set: all kinds
    #[arg(long, help_heading = "Worker", value_name = "TYPES")]
    #[serde(serialize_with = "optional::serialize")]
    pub model_types: Option<ModelTypes>,
    /// Facts that the engine's events do not state, such as eagle-drops-block=true. Keys: attention-chunk-tokens= (chunk
    /// of chunked local attention); eagle-drops-block= (true for vLLM with EAGLE or MTP and a KV connector);
    /// replay-tokens= (cached tokens that the engine computes again); prefix-match-unit= (vLLM's option of this name);
    /// unannounced-groups= (true for SGLang with sliding windows or Mamba); image-tokens= (sglang-30-bit for SGLang until
    /// 0.5.22, sglang-62-bit for SGLang from 0.5.23, else identifier)
    #[arg(long, help_heading = "Worker", value_name = PAIRS, default_value_t)]
    pub engine_facts: KeyValues<EngineFactsSettings>,
    /// Capacity of each rank, for routers, such as total-kv-blocks=40000. Keys: total-kv-blocks= (blocks that fit into
    /// the accelerator memory); request-total-slots= (maximum number of concurrent requests, which the agent reports
    /// with the load); max-num-batched-tokens= (maximum number of tokens in one step)
    #[arg(long, help_heading = "Worker", value_name = PAIRS, default_value_t)]
    pub capacity: KeyValues<CapacitySettings>,
    /// URL of the engine's Prometheus metrics, such as http://127.0.0.1:8000/metrics (vllm or sglang). Every second, the
    /// agent reads the engine's load there and reports it to routers. If not set: the agent reads no metrics
    #[arg(long, help_heading = "Worker", value_name = "URL")]
    pub metrics_url: Option<String>,
    /// Label of the worker for routers, key=value. Repeat the flag, or separate by commas, for more labels
    #[arg(long, help_heading = "Worker", value_name = "LABEL", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub label: Vec<String>,
    /// ZMQ publisher of an engine, to relay: endpoint= and optional keys. Optional keys, separated by commas: replay=,
    /// topic=, bind=, dp-rank=. Repeat the flag, or separate by semicolons, for more ranks or sources; in the file, a
    /// `[[source]]` table each
    #[arg(long, help_heading = "Sources", value_name = "SOURCE", value_delimiter = ';')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<SourceSpec>,
    /// Accept several sources for one rank, such as engine and block manager. A block stays until every source that
    /// announced it has removed it. Required for --source with --blocks-host. If false: one source per rank
    #[arg(long, help_heading = "Sources", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false)]
    pub consolidate: bool,
    /// Time after which the blocks of a disconnected engine are removed
    #[arg(long, help_heading = "Sources", value_name = "TIME", default_value_t = Span::seconds(60))]
    pub worker_timeout: Span,
    /// Name of a LoRA adapter that the engine announces by number, number=name. Repeat the flag, or separate by commas,
    /// for more adapters
    #[arg(long, help_heading = "Sources", value_name = "LORA", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lora: Vec<String>,
    /// Time to live of blocks on a medium, medium=time, such as CPU=10m. For connectors that announce no evictions
    /// (LMCache). Each announcement of a block restarts the time. Requires --source; excludes --journal-dir. Repeat the
    /// flag, or separate by commas, for more media
    #[arg(long, help_heading = "Sources", value_name = "TTL", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub medium_ttl: Vec<String>,
    /// Blocks per chunk on a medium, medium=blocks, such as CPU=4. For connectors that load only complete chunks
    /// (LMCache, or vLLM's blocks_per_chunk above 1). Repeat the flag, or separate by commas, for more media
    #[arg(long, help_heading = "Sources", value_name = "CHUNK", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connector_chunk: Vec<String>,
    /// Pool id of the store that this and other engines share. The agent publishes blocks with medium EXTERNAL or OBJ,
    /// or locality REMOTE, under this id. Give all agents of the store the same id. Requires --source. If not set:
    /// blocks of shared stores are not published
    #[arg(long, help_heading = "Sources", value_name = "ID")]
    pub engine_pool: Option<String>,
    /// How long batches wait to be merged, at most 10s. The agent merges batches of one rank, and publishes earlier once
    /// 4,096 blocks wait; 0s publishes each batch immediately. Indexes lag by this time: even an exact worker may be
    /// this far behind its engine. Excludes --journal-dir
    #[arg(long, help_heading = "Sources", value_name = "TIME", default_value_t = Span(BatchingConfig::DEFAULT.interval))]
    pub batch_interval: Span,
    /// Index servers to publish to, such as http://127.0.0.1:50051, separated by commas. Name all replicas of the
    /// worker's shard, at most 16
    #[arg(long, help_heading = "Indexes", value_name = "URLS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub indexers: Vec<String>,
    /// Index servers of all other shards, separated by commas, at most 256. The agent publishes the blocks of
    /// --blocks-volume and --engine-pool there, too, because workers of all shards can load these blocks
    #[arg(long, help_heading = "Indexes", value_name = "URLS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pool_indexers: Vec<String>,
    /// Sockets that re-publish events in vLLM's wire format, such as
    /// listen=127.0.0.1:5557,replay-listen=127.0.0.1:5558. The events have no tokens. Only trusted peers may reach the
    /// sockets. Keys: listen= (ZMQ PUB) and replay-listen= (ZMQ ROUTER, which replays missed events), both required;
    /// topic=. If not set: no ZMQ publisher
    #[arg(long, help_heading = "Indexes", value_name = PAIRS, default_value_t)]
    pub zmq: KeyValues<ZmqSettings>,
    /// URL at which indexes reach the agent's gRPC port, such as http://10.0.0.7:50052. Required with --indexers if the
    /// port listens on all addresses. If not set: the listen address
    #[arg(long, help_heading = "Indexes", value_name = "URL")]
    pub advertise: Option<String>,
    /// Lease of the worker at indexes, 1s to 1h. Indexes remove the worker after this time without a message from the
    /// agent. The agent sends a heartbeat every twelfth of the lease, and at least every 5s
    #[arg(long, help_heading = "Indexes", value_name = "TIME", default_value_t = Span::seconds(60))]
    pub lease: Span,
    /// Remove the worker from indexes when a signal stops the agent
    #[arg(long, help_heading = "Indexes", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = true)]
    pub deregister: bool,
    /// Folder on a local disk for a copy of the journal. Only one agent may use the folder. A killed and restarted
    /// agent continues its incarnation if its engine survived; with --consolidate, also if its block manager has blocks
    /// on disk. Excludes --medium-ttl and --batch-interval. If not set: journal in memory only
    #[arg(long, help_heading = "Journal", value_name = "FOLDER")]
    pub journal_dir: Option<PathBuf>,
    /// Maximum memory for batches retained for indexes that missed them, at least 512KiB
    #[arg(long, help_heading = "Journal", value_name = "BYTES", default_value_t = ByteCount(JournalConfig::DEFAULT.bytes_max))]
    pub journal_bytes: ByteCount,
    /// NATS servers, and how to publish there.
    #[command(flatten)]
    #[serde(flatten)]
    pub nats: NatsOptions,
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
    const RETIRED: &'static [&'static [Retired]] =
        &[PROCESS_RETIRED, NATS_RETIRED, RETIRED, RETIRED_BLOCKS];
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
        "blocks-host",
        "listen",
        "http-listen",
    ];
}
