use super::{Options, WorkerSpec};
use crate::broker::Delivery;
use kvasir_process::{
    telemetry::LogFormat,
    text::{self, ByteCount, ServerUrl, Span, optional},
};
use kvasir_proto::{broker::STREAM_AGE_DEFAULT, convert::LossPolicy, shard::ShardPlace};
use serde::Serialize;
use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

/// The value of every option, by the names of [`Options`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "as in Options")]
pub struct Settings {
    pub listen: SocketAddr,
    pub http_listen: SocketAddr,
    #[serde(serialize_with = "text::serialize")]
    pub log_format: LogFormat,
    pub log_filter: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    #[serde(serialize_with = "text::serialize")]
    pub loss_policy: LossPolicy,
    #[serde(serialize_with = "text::serialize")]
    pub degraded_ttl: Span,
    #[serde(serialize_with = "text::serialize")]
    pub worker_timeout: Span,
    #[serde(serialize_with = "text::serialize")]
    pub probe_interval: Span,
    pub replay_concurrency: usize,
    pub dump_concurrency: usize,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional::serialize")]
    pub shard: Option<ShardPlace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard_map: Option<PathBuf>,
    pub index_shards: usize,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional::serialize")]
    pub max_index_bytes: Option<ByteCount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_dir: Option<PathBuf>,
    #[serde(serialize_with = "text::serialize")]
    pub checkpoint_interval: Span,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats_url: Option<ServerUrl>,
    #[serde(serialize_with = "text::serialize")]
    pub nats_delivery: Delivery,
    #[serde(serialize_with = "text::serialize")]
    pub nats_stream_age: Span,
    #[serde(serialize_with = "text::serialize")]
    pub nats_stream_bytes: ByteCount,
    pub snapshot_threshold: u64,
    pub reset_states: bool,
    pub speculative_blocks_max: usize,
    pub speculative_keep_ratio: f64,
    pub max_in_flight: usize,
    pub max_connections: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub siblings: Vec<String>,
    #[serde(serialize_with = "text::serialize")]
    pub drain_timeout: Span,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub worker: Vec<WorkerSpec>,
}

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

impl Settings {
    /// What holds where nothing is configured. The only place that says so.
    pub const DEFAULTS: Self = Self {
        listen: local(50_051),
        http_listen: local(9_091),
        log_format: LogFormat::Text,
        log_filter: Cow::Borrowed("info"),
        otlp_endpoint: None,
        loss_policy: LossPolicy::Keep,
        degraded_ttl: Span::seconds(600),
        worker_timeout: Span::seconds(60),
        probe_interval: Span::seconds(30),
        replay_concurrency: 8,
        dump_concurrency: 8,
        shard: None,
        shard_map: None,
        index_shards: 1,
        max_index_bytes: None,
        checkpoint_dir: None,
        checkpoint_interval: Span::seconds(10),
        nats_url: None,
        nats_delivery: Delivery::Core,
        nats_stream_age: Span(STREAM_AGE_DEFAULT),
        nats_stream_bytes: ByteCount(1 << 30),
        snapshot_threshold: 1_000_000,
        reset_states: false,
        speculative_blocks_max: 1 << 20,
        speculative_keep_ratio: 0.8,
        max_in_flight: 1_024,
        max_connections: 1_024,
        siblings: Vec::new(),
        drain_timeout: Span::seconds(10),
        worker: Vec::new(),
    };

    /// These settings, where `options` says nothing else. Workers are not merged: the options' are
    /// taken if there are any.
    #[must_use]
    pub fn overridden_by(self, options: Options) -> Self {
        let workers = Some(options.worker).filter(|workers| !workers.is_empty());
        let siblings = Some(options.siblings).filter(|siblings| !siblings.is_empty());
        Self {
            listen: options.listen.unwrap_or(self.listen),
            http_listen: options.http_listen.unwrap_or(self.http_listen),
            log_format: options.log_format.unwrap_or(self.log_format),
            log_filter: options.log_filter.map_or(self.log_filter, Cow::Owned),
            otlp_endpoint: options.otlp_endpoint.or(self.otlp_endpoint),
            loss_policy: options.loss_policy.unwrap_or(self.loss_policy),
            degraded_ttl: options.degraded_ttl.unwrap_or(self.degraded_ttl),
            worker_timeout: options.worker_timeout.unwrap_or(self.worker_timeout),
            probe_interval: options.probe_interval.unwrap_or(self.probe_interval),
            replay_concurrency: options.replay_concurrency.unwrap_or(self.replay_concurrency),
            dump_concurrency: options.dump_concurrency.unwrap_or(self.dump_concurrency),
            shard: options.shard.or(self.shard),
            shard_map: options.shard_map.or(self.shard_map),
            index_shards: options.index_shards.unwrap_or(self.index_shards),
            max_index_bytes: options.max_index_bytes.or(self.max_index_bytes),
            checkpoint_dir: options.checkpoint_dir.or(self.checkpoint_dir),
            checkpoint_interval: options.checkpoint_interval.unwrap_or(self.checkpoint_interval),
            nats_url: options.nats_url.or(self.nats_url),
            nats_delivery: options.nats_delivery.unwrap_or(self.nats_delivery),
            nats_stream_age: options.nats_stream_age.unwrap_or(self.nats_stream_age),
            nats_stream_bytes: options.nats_stream_bytes.unwrap_or(self.nats_stream_bytes),
            snapshot_threshold: options.snapshot_threshold.unwrap_or(self.snapshot_threshold),
            reset_states: options.reset_states.unwrap_or(self.reset_states),
            speculative_blocks_max: options
                .speculative_blocks_max
                .unwrap_or(self.speculative_blocks_max),
            speculative_keep_ratio: options
                .speculative_keep_ratio
                .unwrap_or(self.speculative_keep_ratio),
            max_in_flight: options.max_in_flight.unwrap_or(self.max_in_flight),
            max_connections: options.max_connections.unwrap_or(self.max_connections),
            siblings: siblings.unwrap_or(self.siblings),
            drain_timeout: options.drain_timeout.unwrap_or(self.drain_timeout),
            worker: workers.unwrap_or(self.worker),
        }
    }
}
