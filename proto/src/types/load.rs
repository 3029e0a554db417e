/// Load of a rank. `None` means unknown, which differs from 0.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WorkerMetrics {
    /// Number of requests that wait to be scheduled.
    pub num_requests_waiting: Option<u64>,
    /// Share of the device's blocks that running requests use, 0 to 1.
    pub gpu_cache_usage_perc: Option<f64>,
    /// Hit rate of the device's prefix cache, by tokens, 0 to 1.
    pub gpu_prefix_cache_hit_rate: Option<f64>,
    /// Number of running requests, at most `request_total_slots`.
    pub request_active_slots: Option<u64>,
    /// Maximum number of requests that run at the same time.
    pub request_total_slots: Option<u64>,
    /// Blocks of the device that running requests use, at most `kv_total_blocks`.
    pub kv_active_blocks: Option<u64>,
    /// Number of blocks of the device.
    pub kv_total_blocks: Option<u64>,
}

impl WorkerMetrics {
    /// All values are unknown.
    pub const UNKNOWN: Self = Self {
        num_requests_waiting: None,
        gpu_cache_usage_perc: None,
        gpu_prefix_cache_hit_rate: None,
        request_active_slots: None,
        request_total_slots: None,
        kv_active_blocks: None,
        kv_total_blocks: None,
    };
}
