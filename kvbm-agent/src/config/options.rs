use super::{BlocksOptions, SourceSpec};
use crate::zmq::ZMQ_TOPIC_DEFAULT;
use clap::{ArgAction, Args};
use kvasir_feed::hub::BatchingConfig;
use kvasir_feed::journal::JournalConfig;
use kvasir_process::config;
use kvasir_process::options::{NatsOptions, ProcessOptions};
use kvasir_process::text::{self, ByteCount, Span, optional};
use kvasir_proto::convert::{ImageTokens, ModelTypes, Role};
use kvasir_proto::types::EngineKind;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What may be configured, each option by flag, environment and file alike.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Options {
    /// Name of the worker beside which the agent runs, unique within model and tenant. Required
    #[arg(long, value_name = "ID")]
    pub worker_id: Option<String>,
    /// Its model. Required
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Its tenant
    #[arg(long, value_name = "TENANT", default_value = "")]
    pub tenant: String,
    /// Tokens per block of the engine's cache. Required
    #[arg(long, value_name = "TOKENS")]
    pub block_size: Option<u32>,
    /// The engine: vllm, sglang, trtllm or custom
    #[arg(long, value_name = "ENGINE", default_value_t = EngineKind::Custom)]
    #[serde(serialize_with = "text::serialize")]
    pub engine: EngineKind,
    /// What the worker is for: prefill, decode or both; passed on to routers
    #[arg(long, value_name = "ROLE")]
    #[serde(serialize_with = "optional::serialize")]
    pub role: Option<Role>,
    /// Kinds of requests that the worker serves: chat, completions or chat+completions. Routers send it no others; all
    /// kinds if not set
    #[arg(long, value_name = "TYPES")]
    #[serde(serialize_with = "optional::serialize")]
    pub model_types: Option<ModelTypes>,
    /// What the engine has in the place of an image's tokens: identifier, sglang-30-bit (SGLang until 0.5.22) or
    /// sglang-62-bit (SGLang from 0.5.23). By default as the newest release of the engine; gateways need it
    #[arg(long, value_name = "FORM")]
    #[serde(serialize_with = "optional::serialize")]
    pub image_tokens: Option<ImageTokens>,
    /// Blocks that fit into each rank's accelerator; passed on to routers
    #[arg(long, value_name = "COUNT")]
    pub total_kv_blocks: Option<u64>,
    /// Most requests that run at a time at each rank; passed on to routers with its load
    #[arg(long, value_name = "COUNT")]
    pub request_total_slots: Option<u64>,
    /// Prometheus metrics of the engine, vllm or sglang, such as http://127.0.0.1:8000/metrics: how busy it is, is read
    /// there and passed on to routers; not read if not set
    #[arg(long, value_name = "URL")]
    pub metrics_url: Option<String>,
    /// How often they are read, and how long that may take
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(1))]
    pub metrics_interval: Span,
    /// Most tokens of one step of each rank; passed on to routers
    #[arg(long, value_name = "COUNT")]
    pub max_num_batched_tokens: Option<u64>,
    /// A label, key=value, passed on to routers; repeat the flag (or put , between) for more
    #[arg(long, value_name = "LABEL", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub label: Vec<String>,
    /// The name of a LoRA adapter that the engine announces by number only, number=name; repeat the flag (or
    /// put , between) for more
    #[arg(long, value_name = "LORA", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lora: Vec<String>,
    /// How long the engine's blocks on a medium are held after they were last announced, medium=time such as
    /// CPU=10m, where its connector never removes them (LMCache); repeat the flag (or put , between) for more
    #[arg(long, value_name = "TTL", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub medium_ttl: Vec<String>,
    /// Blocks in a chunk on a medium, medium=blocks such as CPU=4, where a connector loads complete chunks only (vLLM's
    /// blocks_per_chunk above 1, LMCache); repeat the flag (or put , between) for more
    #[arg(long, value_name = "CHUNK", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connector_chunk: Vec<String>,
    /// An engine's publisher to relay: endpoint= and, as needed, replay=, topic=, bind=, dp-rank=, with
    /// commas between them. Repeat the flag (or put ; between) for more ranks or sources; in the file,
    /// a `[[source]]` table each
    #[arg(long, value_name = "SOURCE", value_delimiter = ';')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<SourceSpec>,
    /// Most sources at a time, 1 to 16: relays, and publishers on the gRPC port
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    pub sources_max: u8,
    /// Whether several sources may publish for one rank (such as an engine and a block manager): a block is held from
    /// its first source to its last. Else each rank is one source's
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false)]
    pub consolidate: bool,
    /// Id of the pool for blocks that the engine announces with medium EXTERNAL or OBJ, or locality REMOTE: those in a
    /// store that several engines share. Give the agents of all these engines the same id; without one, such blocks are
    /// not published
    #[arg(long, value_name = "ID")]
    pub engine_pool: Option<String>,
    /// Indexes to feed, such as http://127.0.0.1:50051, with commas between them: the replicas of the
    /// worker's shard
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub indexers: Vec<String>,
    /// Indexes of the other shards, as indexers: what is in blocks-volume and engine-pool is published to them, too,
    /// because workers of all shards can load it
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pool_indexers: Vec<String>,
    /// The NATS server.
    #[command(flatten)]
    #[serde(flatten)]
    pub nats: NatsOptions,
    /// Address of a PUB socket that publishes the events in vLLM's wire format, without tokens; none if not set. Only
    /// trusted peers may reach it
    #[arg(long, value_name = "ADDRESS")]
    pub zmq_listen: Option<SocketAddr>,
    /// Address of the ROUTER that replays what was missed there; required with zmq-listen
    #[arg(long, value_name = "ADDRESS")]
    pub zmq_replay_listen: Option<SocketAddr>,
    /// Topic of what is published there
    #[arg(long, value_name = "TOPIC", default_value = ZMQ_TOPIC_DEFAULT)]
    pub zmq_topic: String,
    /// Where indexes reach the gRPC port, such as http://10.0.0.7:50052; the address listened on if not set
    #[arg(long, value_name = "URL")]
    pub advertise: Option<String>,
    /// Indexes remove the worker after receiving nothing from the agent for this long
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(60))]
    pub lease: Span,
    /// How often indexes are sent a heartbeat; a third of the lease at most
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(5))]
    pub heartbeat_interval: Span,
    /// Whether the worker is removed from indexes when the agent is stopped by a signal
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = true)]
    pub deregister: bool,
    /// How long an engine may be gone before all that it held is dropped
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(60))]
    pub worker_timeout: Span,
    /// Folder of the agent's own, on a local disk, for a copy of the journal: an agent that is killed and restarted
    /// continues its incarnation if its engine survived, with `--consolidate` also if its block manager has blocks on
    /// disk. Memory only if not set
    #[arg(long, value_name = "FOLDER")]
    pub journal_dir: Option<PathBuf>,
    /// How long an engine's batch may wait for others of its rank, to be published as one, at most 10s; 0s to publish
    /// each at once. Indexes know of nothing that waits: an exact worker may be this far behind its engine
    #[arg(long, value_name = "TIME", default_value_t = Span(BatchingConfig::DEFAULT.interval))]
    pub batch_interval: Span,
    /// Once so many blocks wait, stored and removed, they are published: 1 to 65,536. A clear never waits
    #[arg(long, value_name = "COUNT", default_value_t = BatchingConfig::DEFAULT.blocks_max)]
    pub batch_blocks: usize,
    /// Most batches that are retained for indexes which missed them
    #[arg(long, value_name = "COUNT", default_value_t = JournalConfig::DEFAULT.batches_max)]
    pub journal_batches: usize,
    /// Most bytes that these take
    #[arg(long, value_name = "BYTES", default_value_t = ByteCount(JournalConfig::DEFAULT.bytes_max))]
    pub journal_bytes: ByteCount,
    /// Most held blocks that are remembered, over all ranks
    #[arg(long, value_name = "COUNT", default_value_t = JournalConfig::DEFAULT.held_blocks_max)]
    pub held_blocks_max: usize,
    /// The block manager.
    #[command(flatten)]
    #[serde(flatten)]
    pub blocks: BlocksOptions,
    /// Ports, logs and how the process stops.
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
}
