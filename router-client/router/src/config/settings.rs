//! Settings that belong together, each group as one option with `key=value` pairs.

use kvasir_process::text::{ByteCount, Setting, Settings, Span, Unset};
use router_client::route::{
    BlockTracking, CostConfig, DecodePrice, FetchConfig, KvReuse, QueuePolicy, TrustConfig,
};
use std::time::Duration;

/// Settings of `--credits`: fractions of prefill that a cached block saves.
#[derive(Debug, Clone, PartialEq)]
pub struct Credits {
    /// Of a block in device memory.
    pub device: f64,
    /// Of a block in host memory.
    pub host: f64,
    /// Of a block on local disk.
    pub disk: f64,
    /// Of a block in a pool.
    pub pool: f64,
    /// Factor for overlap where the index is behind or stale.
    pub uncertain: f64,
}

impl Default for Credits {
    fn default() -> Self {
        let credits = CostConfig::default().credits;
        Self {
            device: credits.device,
            host: credits.host,
            disk: credits.disk,
            pool: credits.pool,
            uncertain: TrustConfig::default().uncertain_credit,
        }
    }
}

impl Settings for Credits {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("device", &mut self.device),
            ("host", &mut self.host),
            ("disk", &mut self.disk),
            ("pool", &mut self.pool),
            ("uncertain", &mut self.uncertain),
        ]
    }
}

/// Settings of `--load`: what counts as a worker's load.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Blocks of active requests that count.
    pub track_blocks: BlockTracking,
    /// How blocks shared by a worker's requests count.
    pub kv_reuse: KvReuse,
    /// Whether tokens that are still to be computed count.
    pub track_prefill_tokens: bool,
    /// Weight of queued tokens against the request's own tokens.
    pub active_prefill_weight: f64,
    /// Cost of a block in use.
    pub decode_price: DecodePrice,
}

impl Default for Load {
    fn default() -> Self {
        let cost = CostConfig::default();
        Self {
            track_blocks: BlockTracking::Prompt,
            kv_reuse: KvReuse::Assumed,
            track_prefill_tokens: true,
            active_prefill_weight: cost.active_prefill_weight,
            decode_price: cost.decode_price,
        }
    }
}

impl Settings for Load {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("track-blocks", &mut self.track_blocks),
            ("kv-reuse", &mut self.kv_reuse),
            ("track-prefill-tokens", &mut self.track_prefill_tokens),
            ("active-prefill-weight", &mut self.active_prefill_weight),
            ("decode-price", &mut self.decode_price),
        ]
    }
}

/// Settings of `--busy-threshold`: load above which a rank receives no requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BusyThreshold {
    /// Fraction of blocks in use.
    pub decode_blocks: Unset<f64>,
    /// Number of tokens to compute.
    pub prefill_tokens: Unset<u64>,
    /// Tokens to compute, as a multiple of max-num-batched-tokens.
    pub prefill_tokens_frac: Unset<f64>,
}

impl Settings for BusyThreshold {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("decode-blocks", &mut self.decode_blocks),
            ("prefill-tokens", &mut self.prefill_tokens),
            ("prefill-tokens-frac", &mut self.prefill_tokens_frac),
        ]
    }
}

/// Settings of `--queue`: requests that wait for a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    /// Tokens to compute from which requests wait, as a multiple of max-num-batched-tokens. 0: no queue.
    pub threshold: f64,
    /// Order of the queue.
    pub policy: QueuePolicy,
    /// Maximum number of waiting requests.
    pub entries: usize,
    /// Maximum wait.
    pub timeout: Span,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            threshold: 2.0,
            policy: QueuePolicy::Fcfs,
            entries: 4_096,
            timeout: Span::seconds(20),
        }
    }
}

impl Settings for Queue {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("threshold", &mut self.threshold),
            ("policy", &mut self.policy),
            ("entries", &mut self.entries),
            ("timeout", &mut self.timeout),
        ]
    }
}

/// Settings of `--worker-health`: new and failing workers.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerHealth {
    /// How long a new worker receives fewer requests.
    pub slow_start: Span,
    /// Consecutive failures after which a worker is ejected; 0 disables ejection.
    pub ejection_failures: u32,
    /// Duration of a worker's first ejection.
    pub ejection_time: Span,
}

impl Default for WorkerHealth {
    fn default() -> Self {
        Self {
            slow_start: Span::seconds(30),
            ejection_failures: 5,
            ejection_time: Span::seconds(30),
        }
    }
}

impl Settings for WorkerHealth {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("slow-start", &mut self.slow_start),
            ("ejection-failures", &mut self.ejection_failures),
            ("ejection-time", &mut self.ejection_time),
        ]
    }
}

/// Settings of `--fetch-rates`: rates assumed until they are measured.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchRates {
    /// Bandwidth between two agents, in bytes per second.
    pub bandwidth: ByteCount,
    /// Prefill rate of a worker, in tokens per second.
    pub prefill: f64,
}

impl Default for FetchRates {
    fn default() -> Self {
        let prefill = FetchConfig::default().prefill_tokens_per_second;
        Self { bandwidth: ByteCount(1 << 30), prefill }
    }
}

impl Settings for FetchRates {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![("bandwidth", &mut self.bandwidth), ("prefill", &mut self.prefill)]
    }
}

/// Settings of `--timing`.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// Maximum wait for the index.
    pub index_deadline: Span,
    /// Time between two requests for the workers.
    pub discovery_interval: Span,
    /// Maximum age of the index's verification for full credit.
    pub max_staleness: Unset<Span>,
    /// Time without a report after which a request stops counting as load.
    pub request_lease: Span,
    /// How long a session prefers the rank that last served it.
    pub session_ttl: Span,
    /// Age after which an engine's report of its load is stale.
    pub report_stale_after: Span,
    /// Time between two comparisons of digests between replicas.
    pub sync_digest_interval: Span,
    /// How long a decision recorded at the index counts.
    pub placement_ttl: Unset<Span>,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            index_deadline: Span(Duration::from_millis(100)),
            discovery_interval: Span::seconds(2),
            max_staleness: Unset(None),
            request_lease: Span::seconds(300),
            session_ttl: Span::seconds(600),
            report_stale_after: Span::seconds(10),
            sync_digest_interval: Span::seconds(5),
            placement_ttl: Unset(None),
        }
    }
}

impl Settings for Timing {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("index-deadline", &mut self.index_deadline),
            ("discovery-interval", &mut self.discovery_interval),
            ("max-staleness", &mut self.max_staleness),
            ("request-lease", &mut self.request_lease),
            ("session-ttl", &mut self.session_ttl),
            ("report-stale-after", &mut self.report_stale_after),
            ("sync-digest-interval", &mut self.sync_digest_interval),
            ("placement-ttl", &mut self.placement_ttl),
        ]
    }
}

/// Where the library's settings are among the options: option and key.
const PLACES: [(&str, &str); 23] = [
    ("device credit", "credits: device"),
    ("host credit", "credits: host"),
    ("disk credit", "credits: disk"),
    ("pool credit", "credits: pool"),
    ("uncertain credit", "credits: uncertain"),
    ("track blocks", "load: track-blocks"),
    ("kv reuse", "load: kv-reuse"),
    ("active prefill weight", "load: active-prefill-weight"),
    ("decode price", "load: decode-price"),
    ("active decode blocks threshold", "busy-threshold: decode-blocks"),
    ("active prefill tokens threshold", "busy-threshold: prefill-tokens"),
    ("active prefill tokens threshold frac", "busy-threshold: prefill-tokens-frac"),
    ("queue threshold", "queue: threshold"),
    ("queue policy", "queue: policy"),
    ("queue entries", "queue: entries"),
    ("slow start", "worker-health: slow-start"),
    ("ejection time", "worker-health: ejection-time"),
    ("fetch bandwidth", "fetch-rates: bandwidth"),
    ("prefill rate", "fetch-rates: prefill"),
    ("max staleness", "timing: max-staleness"),
    ("request lease", "timing: request-lease"),
    ("session ttl", "timing: session-ttl"),
    ("sync digest interval", "timing: sync-digest-interval"),
];

/// The option of a setting of the library, with the key. Other settings are options: spaces become hyphens.
pub(super) fn place(setting: &str) -> String {
    let known = PLACES.iter().find(|(name, _)| *name == setting);
    known.map_or_else(|| setting.replace(' ', "-"), |(_, place)| (*place).to_owned())
}
