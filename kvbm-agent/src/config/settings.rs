use super::{Options, SourceSpec};
use crate::broker::Delivery;
use crate::hub::BatchingConfig;
use crate::journal::JournalConfig;
use crate::zmq::ZMQ_TOPIC_DEFAULT;
use kvasir_process::telemetry::LogFormat;
use kvasir_process::text::{self, ByteCount, ServerUrl, Span, optional};
use kvasir_proto::convert::{Engine, Role};
use serde::Serialize;
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// The value of every option, by the names of [`Options`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "as in Options")]
pub struct Settings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub tenant: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    #[serde(serialize_with = "text::serialize")]
    pub engine: Engine,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional::serialize")]
    pub role: Option<Role>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_kv_blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_total_slots: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_url: Option<String>,
    #[serde(serialize_with = "text::serialize")]
    pub metrics_interval: Span,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_batched_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub label: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lora: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub medium_ttl: Vec<String>,
    pub sources_max: u8,
    pub consolidate: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub indexers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats_url: Option<ServerUrl>,
    #[serde(serialize_with = "text::serialize")]
    pub nats_delivery: Delivery,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zmq_listen: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zmq_replay_listen: Option<SocketAddr>,
    pub zmq_topic: Cow<'static, str>,
    pub listen: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    pub http_listen: SocketAddr,
    #[serde(serialize_with = "text::serialize")]
    pub lease: Span,
    #[serde(serialize_with = "text::serialize")]
    pub heartbeat_interval: Span,
    pub deregister: bool,
    #[serde(serialize_with = "text::serialize")]
    pub worker_timeout: Span,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal_dir: Option<PathBuf>,
    #[serde(serialize_with = "text::serialize")]
    pub batch_interval: Span,
    pub batch_blocks: usize,
    pub journal_batches: usize,
    #[serde(serialize_with = "text::serialize")]
    pub journal_bytes: ByteCount,
    pub held_blocks_max: usize,
    #[serde(serialize_with = "text::serialize")]
    pub log_format: LogFormat,
    pub log_filter: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    #[serde(serialize_with = "text::serialize")]
    pub drain_timeout: Span,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<SourceSpec>,
}

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Lists are not merged: the later one's are taken if there are any.
fn list<T>(before: Vec<T>, after: Vec<T>) -> Vec<T> {
    if after.is_empty() { before } else { after }
}

impl Settings {
    /// What holds where nothing is configured. The only place that says so.
    pub const DEFAULTS: Self = Self {
        worker_id: None,
        model: None,
        tenant: Cow::Borrowed(""),
        block_size: None,
        engine: Engine::Custom,
        role: None,
        total_kv_blocks: None,
        request_total_slots: None,
        metrics_url: None,
        metrics_interval: Span::seconds(1),
        max_num_batched_tokens: None,
        label: Vec::new(),
        lora: Vec::new(),
        medium_ttl: Vec::new(),
        sources_max: 8,
        consolidate: false,
        indexers: Vec::new(),
        nats_url: None,
        nats_delivery: Delivery::Core,
        zmq_listen: None,
        zmq_replay_listen: None,
        zmq_topic: Cow::Borrowed(ZMQ_TOPIC_DEFAULT),
        listen: local(50_052),
        advertise: None,
        http_listen: local(9_092),
        lease: Span::seconds(60),
        heartbeat_interval: Span::seconds(5),
        deregister: true,
        worker_timeout: Span::seconds(60),
        journal_dir: None,
        batch_interval: Span(BatchingConfig::DEFAULT.interval),
        batch_blocks: BatchingConfig::DEFAULT.blocks_max,
        journal_batches: JournalConfig::DEFAULT.batches_max,
        journal_bytes: ByteCount(JournalConfig::DEFAULT.bytes_max),
        held_blocks_max: JournalConfig::DEFAULT.held_blocks_max,
        log_format: LogFormat::Text,
        log_filter: Cow::Borrowed("info"),
        otlp_endpoint: None,
        drain_timeout: Span::seconds(10),
        source: Vec::new(),
    };

    /// These settings, where `options` says nothing else.
    #[must_use]
    pub fn overridden_by(self, options: Options) -> Self {
        Self {
            worker_id: options.worker_id.or(self.worker_id),
            model: options.model.or(self.model),
            tenant: options.tenant.map_or(self.tenant, Cow::Owned),
            block_size: options.block_size.or(self.block_size),
            engine: options.engine.unwrap_or(self.engine),
            role: options.role.or(self.role),
            total_kv_blocks: options.total_kv_blocks.or(self.total_kv_blocks),
            request_total_slots: options.request_total_slots.or(self.request_total_slots),
            metrics_url: options.metrics_url.or(self.metrics_url),
            metrics_interval: options.metrics_interval.unwrap_or(self.metrics_interval),
            max_num_batched_tokens: options.max_num_batched_tokens.or(self.max_num_batched_tokens),
            label: list(self.label, options.label),
            lora: list(self.lora, options.lora),
            medium_ttl: list(self.medium_ttl, options.medium_ttl),
            sources_max: options.sources_max.unwrap_or(self.sources_max),
            consolidate: options.consolidate.unwrap_or(self.consolidate),
            indexers: list(self.indexers, options.indexers),
            nats_url: options.nats_url.or(self.nats_url),
            nats_delivery: options.nats_delivery.unwrap_or(self.nats_delivery),
            zmq_listen: options.zmq_listen.or(self.zmq_listen),
            zmq_replay_listen: options.zmq_replay_listen.or(self.zmq_replay_listen),
            zmq_topic: options.zmq_topic.map_or(self.zmq_topic, Cow::Owned),
            listen: options.listen.unwrap_or(self.listen),
            advertise: options.advertise.or(self.advertise),
            http_listen: options.http_listen.unwrap_or(self.http_listen),
            lease: options.lease.unwrap_or(self.lease),
            heartbeat_interval: options.heartbeat_interval.unwrap_or(self.heartbeat_interval),
            deregister: options.deregister.unwrap_or(self.deregister),
            worker_timeout: options.worker_timeout.unwrap_or(self.worker_timeout),
            journal_dir: options.journal_dir.or(self.journal_dir),
            batch_interval: options.batch_interval.unwrap_or(self.batch_interval),
            batch_blocks: options.batch_blocks.unwrap_or(self.batch_blocks),
            journal_batches: options.journal_batches.unwrap_or(self.journal_batches),
            journal_bytes: options.journal_bytes.unwrap_or(self.journal_bytes),
            held_blocks_max: options.held_blocks_max.unwrap_or(self.held_blocks_max),
            log_format: options.log_format.unwrap_or(self.log_format),
            log_filter: options.log_filter.map_or(self.log_filter, Cow::Owned),
            otlp_endpoint: options.otlp_endpoint.or(self.otlp_endpoint),
            drain_timeout: options.drain_timeout.unwrap_or(self.drain_timeout),
            source: list(self.source, options.source),
        }
    }
}
