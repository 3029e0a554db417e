use kvasir_process::text::{Setting, Settings, Unset};

/// Capacity of each rank of the worker, for routers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapacitySettings {
    /// Number of blocks that fit into the accelerator memory.
    pub total_kv_blocks: Unset<u64>,
    /// Maximum number of concurrent requests.
    pub request_total_slots: Unset<u64>,
    /// Maximum number of tokens in one step.
    pub max_num_batched_tokens: Unset<u64>,
}

impl Settings for CapacitySettings {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("total-kv-blocks", &mut self.total_kv_blocks),
            ("request-total-slots", &mut self.request_total_slots),
            ("max-num-batched-tokens", &mut self.max_num_batched_tokens),
        ]
    }
}
