use super::{Settings, SourceSpec};
use crate::broker::Delivery;
use clap::Args;
use kvasir_process::config;
use kvasir_process::telemetry::LogFormat;
use kvasir_process::text::{ByteCount, ServerUrl, Span, deserialize_bytes, optional};
use kvasir_proto::convert::{Engine, Role};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What may be configured, each option by flag, environment and file alike.
#[derive(Debug, Clone, PartialEq, Default, Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Options {
    /// Name of the worker beside which the agent runs, unique within model and tenant. Required
    #[arg(long, env = "KVASIR_AGENT_WORKER_ID", value_name = "ID")]
    pub worker_id: Option<String>,
    /// Its model. Required
    #[arg(long, env = "KVASIR_AGENT_MODEL", value_name = "MODEL")]
    pub model: Option<String>,
    /// Its tenant
    #[arg(long, env = "KVASIR_AGENT_TENANT", value_name = "TENANT")]
    pub tenant: Option<String>,
    /// Tokens per block of the engine's cache. Required
    #[arg(long, env = "KVASIR_AGENT_BLOCK_SIZE", value_name = "TOKENS")]
    pub block_size: Option<u32>,
    /// The engine: vllm, sglang, trtllm or custom
    #[arg(long, env = "KVASIR_AGENT_ENGINE", value_name = "ENGINE")]
    #[serde(with = "optional")]
    pub engine: Option<Engine>,
    /// What the worker is for: prefill, decode or both; told to routers
    #[arg(long, env = "KVASIR_AGENT_ROLE", value_name = "ROLE")]
    #[serde(with = "optional")]
    pub role: Option<Role>,
    /// Blocks that fit into each rank's accelerator; told to routers
    #[arg(long, env = "KVASIR_AGENT_TOTAL_KV_BLOCKS", value_name = "COUNT")]
    pub total_kv_blocks: Option<u64>,
    /// Most requests that run at a time at each rank; told to routers with its load
    #[arg(long, env = "KVASIR_AGENT_REQUEST_TOTAL_SLOTS", value_name = "COUNT")]
    pub request_total_slots: Option<u64>,
    /// Where the engine, vllm or sglang, shows its Prometheus metrics, such as http://127.0.0.1:8000/metrics:
    /// how busy it is, is read there and told to routers; not read if not set
    #[arg(long, env = "KVASIR_AGENT_METRICS_URL", value_name = "URL")]
    pub metrics_url: Option<String>,
    /// How often they are read, and how long that may take
    #[arg(long, env = "KVASIR_AGENT_METRICS_INTERVAL", value_name = "TIME")]
    #[serde(with = "optional")]
    pub metrics_interval: Option<Span>,
    /// Most tokens of one step of each rank; told to routers
    #[arg(long, env = "KVASIR_AGENT_MAX_NUM_BATCHED_TOKENS", value_name = "COUNT")]
    pub max_num_batched_tokens: Option<u64>,
    /// A label, key=value, told to routers; repeat the flag (or put , between) for more
    #[arg(long = "label", env = "KVASIR_AGENT_LABEL", value_name = "LABEL", value_delimiter = ',')]
    pub label: Vec<String>,
    /// The name of a LoRA adapter that the engine announces by number only, number=name; repeat the flag (or
    /// put , between) for more
    #[arg(long = "lora", env = "KVASIR_AGENT_LORA", value_name = "LORA", value_delimiter = ',')]
    pub lora: Vec<String>,
    /// How long the engine's blocks on a medium are held after they were last announced, medium=time such as
    /// CPU=10m, where its connector never removes them (LMCache); repeat the flag (or put , between) for more
    #[arg(
        long = "medium-ttl",
        env = "KVASIR_AGENT_MEDIUM_TTL",
        value_name = "TTL",
        value_delimiter = ','
    )]
    pub medium_ttl: Vec<String>,
    /// An engine's publisher to relay: endpoint= and, as needed, replay=, topic=, bind=, dp-rank=, with
    /// commas between them. Repeat the flag (or put ; between) for more ranks or sources; in the file,
    /// a `[[source]]` table each
    #[arg(
        long = "source",
        env = "KVASIR_AGENT_SOURCE",
        value_name = "SOURCE",
        value_delimiter = ';'
    )]
    pub source: Vec<SourceSpec>,
    /// Most sources at a time, 1 to 16: relays, and publishers on the gRPC port
    #[arg(long, env = "KVASIR_AGENT_SOURCES_MAX", value_name = "COUNT")]
    pub sources_max: Option<u8>,
    /// Whether several sources may speak of one rank (an engine and a block manager, say): a block is held
    /// from its first source to its last. Else each rank is one source's
    #[arg(long, env = "KVASIR_AGENT_CONSOLIDATE", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub consolidate: Option<bool>,
    /// Indexes to feed, such as http://127.0.0.1:50051, with commas between them: the replicas of the
    /// worker's shard
    #[arg(long, env = "KVASIR_AGENT_INDEXERS", value_name = "URLS", value_delimiter = ',')]
    pub indexers: Vec<String>,
    /// NATS server to publish through, such as nats://127.0.0.1:4222 or
    /// nats://USER:PASSWORD@HOST:4222; none if not set
    #[arg(long, env = "KVASIR_AGENT_NATS_URL", hide_env_values = true, value_name = "URL")]
    pub nats_url: Option<ServerUrl>,
    /// How events go over NATS: core, or jetstream, into a stream that keeps them for a while
    #[arg(long, env = "KVASIR_AGENT_NATS_DELIVERY", value_name = "DELIVERY")]
    #[serde(with = "optional")]
    pub nats_delivery: Option<Delivery>,
    /// Address of a PUB socket on which it is published as an engine would, in vLLM's wire format, without
    /// tokens; none if not set. Only peers that are trusted may reach it
    #[arg(long, env = "KVASIR_AGENT_ZMQ_LISTEN", value_name = "ADDRESS")]
    #[serde(with = "optional")]
    pub zmq_listen: Option<SocketAddr>,
    /// Address of the ROUTER that replays what was missed there; required with zmq-listen
    #[arg(long, env = "KVASIR_AGENT_ZMQ_REPLAY_LISTEN", value_name = "ADDRESS")]
    #[serde(with = "optional")]
    pub zmq_replay_listen: Option<SocketAddr>,
    /// Topic of what is published there
    #[arg(long, env = "KVASIR_AGENT_ZMQ_TOPIC", value_name = "TOPIC")]
    pub zmq_topic: Option<String>,
    /// Address of the gRPC port: EventIngest for engines, LocalIndexer for indexes, WorkerLoads for routers
    #[arg(long, env = "KVASIR_AGENT_LISTEN", value_name = "ADDRESS")]
    #[serde(with = "optional")]
    pub listen: Option<SocketAddr>,
    /// Where indexes reach that port, such as http://10.0.0.7:50052; the address listened on if not set
    #[arg(long, env = "KVASIR_AGENT_ADVERTISE", value_name = "URL")]
    pub advertise: Option<String>,
    /// Address of the HTTP side port: /metrics, /livez, /readyz
    #[arg(long, env = "KVASIR_AGENT_HTTP_LISTEN", value_name = "ADDRESS")]
    #[serde(with = "optional")]
    pub http_listen: Option<SocketAddr>,
    /// Once nothing was heard of the agent for so long, indexes remove the worker
    #[arg(long, env = "KVASIR_AGENT_LEASE", value_name = "TIME")]
    #[serde(with = "optional")]
    pub lease: Option<Span>,
    /// How often indexes are told that it is there; a third of the lease at most
    #[arg(long, env = "KVASIR_AGENT_HEARTBEAT_INTERVAL", value_name = "TIME")]
    #[serde(with = "optional")]
    pub heartbeat_interval: Option<Span>,
    /// Whether the worker is removed from indexes when the agent is stopped in good order
    #[arg(long, env = "KVASIR_AGENT_DEREGISTER", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub deregister: Option<bool>,
    /// How long an engine may be gone before all that it held is dropped
    #[arg(long, env = "KVASIR_AGENT_WORKER_TIMEOUT", value_name = "TIME")]
    #[serde(with = "optional")]
    pub worker_timeout: Option<Span>,
    /// Folder of the agent's own, on a local disk, in which the journal is kept too: an agent that is killed and comes
    /// back goes on where it was, if its engine lived on. Memory only if not set
    #[arg(long, env = "KVASIR_AGENT_JOURNAL_DIR", value_name = "FOLDER")]
    pub journal_dir: Option<PathBuf>,
    /// How long an engine's batch may wait for others of its rank, to be said as one, at most 10s; 0s to say each as it
    /// comes. Indexes know of nothing that waits: an exact worker may be so far behind its engine
    #[arg(long, env = "KVASIR_AGENT_BATCH_INTERVAL", value_name = "TIME")]
    #[serde(with = "optional")]
    pub batch_interval: Option<Span>,
    /// Once so many blocks wait, stored and removed, they are said: 1 to 65,536. A clear never waits
    #[arg(long, env = "KVASIR_AGENT_BATCH_BLOCKS", value_name = "COUNT")]
    pub batch_blocks: Option<usize>,
    /// Most batches that are kept for indexes which missed them
    #[arg(long, env = "KVASIR_AGENT_JOURNAL_BATCHES", value_name = "COUNT")]
    pub journal_batches: Option<usize>,
    /// Most bytes that these take
    #[arg(long, env = "KVASIR_AGENT_JOURNAL_BYTES", value_name = "BYTES")]
    #[serde(deserialize_with = "deserialize_bytes")]
    pub journal_bytes: Option<ByteCount>,
    /// Most blocks held that are remembered, over all ranks
    #[arg(long, env = "KVASIR_AGENT_HELD_BLOCKS_MAX", value_name = "COUNT")]
    pub held_blocks_max: Option<usize>,
    /// Form of the log lines: text or json
    #[arg(long, env = "KVASIR_AGENT_LOG_FORMAT", value_name = "FORMAT")]
    #[serde(with = "optional")]
    pub log_format: Option<LogFormat>,
    /// What is logged: a level, or module=level pairs with commas between them
    #[arg(long, env = "KVASIR_AGENT_LOG_FILTER", value_name = "FILTER")]
    pub log_filter: Option<String>,
    /// Where spans are exported to (OTLP over gRPC); nowhere if not set
    #[arg(long, env = "KVASIR_AGENT_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Longest time that stopping takes
    #[arg(long, env = "KVASIR_AGENT_DRAIN_TIMEOUT", value_name = "TIME")]
    #[serde(with = "optional")]
    pub drain_timeout: Option<Span>,
}

impl config::Options for Options {
    type Settings = Settings;
    const PROGRAM: &'static str = "kvbm-agent";
    const ABOUT: &'static str = "Agent of Kvasir, the KV-cache index: runs beside one inference engine, takes in which KV \
         blocks it stores and evicts, keeps a journal of that, and tells one or more indexes, which ask it for what they \
         missed";
    const EXAMPLE: &'static str = "--worker-id vllm-0 --model MODEL --block-size 16 --engine vllm \\\n    \
         --source endpoint=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558 \\\n    --indexers http://127.0.0.1:50051";
    const CONFIG_VARIABLE: &'static str = "KVASIR_AGENT_CONFIG";
    const DEFAULTS: Settings = Settings::DEFAULTS;
    const TABLES: &'static [&'static str] = &["source"];

    fn over(self, settings: Settings) -> Settings {
        settings.overridden_by(self)
    }
}
