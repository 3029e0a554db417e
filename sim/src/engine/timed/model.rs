//! Model of an engine: durations of steps and transfers, and sizes.
//!
//! The constants are assumptions, not measurements. They resemble an H100-class accelerator (80 GB, 3.35 TB/s) that
//! runs a model of 8 billion parameters in 16 bits with grouped-query attention (128 KiB of keys and values a
//! token). All of them are options of the program.

/// Virtual time in nanoseconds. Integers, so that sums do not depend on the order of addition.
pub type Nanos = u64;

/// Nanoseconds per second.
pub const SECOND: Nanos = 1_000_000_000;

/// Fixed time of a step: 16 GB of weights are read once (5 ms), and kernels are started.
pub const STEP_NANOS: Nanos = 6_000_000;
/// Time per prompt token: 16 GFLOP at about half of the accelerator's peak.
pub const PREFILL_TOKEN_NANOS: Nanos = 35_000;
/// Time per decoding sequence: its token's arithmetic, sampling, and work of the host.
pub const DECODE_SEQUENCE_NANOS: Nanos = 20_000;
/// Time per token of context that a sequence of the step reads: 128 KiB at about 80 % of the bandwidth.
pub const CONTEXT_TOKEN_NANOS: Nanos = 50;
/// Time per token fetched from host memory: 128 KiB at about 25 GB/s.
pub const HOST_TOKEN_NANOS: Nanos = 5_000;
/// Time per token fetched from a local disk: 128 KiB at about 6 GB/s.
pub const DISK_TOKEN_NANOS: Nanos = 22_000;
/// Fixed time of a transfer of keys and values, before data moves: engines exchange the blocks' locations.
pub const TRANSFER_NANOS: Nanos = 1_000_000;
/// Time per transferred token: 128 KiB at 80 % of 400 Gbit/s.
pub const TRANSFER_TOKEN_NANOS: Nanos = 3_300;
/// Size of the cache in tokens: the part of 80 GB that weights and activations leave.
pub const CACHE_TOKENS: usize = 400_000;

/// Durations of the parts of a step. A step takes their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepModel {
    /// Fixed time per step, in nanoseconds; at least 1.
    pub step: Nanos,
    /// Time per computed prompt token, in nanoseconds.
    pub prefill_token: Nanos,
    /// Time per decoding sequence, in nanoseconds.
    pub decode_sequence: Nanos,
    /// Time per token of context that was computed in earlier steps and is read, in nanoseconds.
    pub context_token: Nanos,
    /// Time per token fetched from host memory, in nanoseconds.
    pub host_token: Nanos,
    /// Time per token fetched from disk, in nanoseconds.
    pub disk_token: Nanos,
}

/// Durations of the parts of a transfer of keys and values from another engine. A transfer takes their sum. Transfers
/// do not slow each other or steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferModel {
    /// Fixed time per transfer, in nanoseconds.
    pub begin: Nanos,
    /// Time per token, in nanoseconds.
    pub token: Nanos,
}

/// Work of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepLoad {
    /// Number of computed prompt tokens.
    pub prefill_tokens: u64,
    /// Number of decoding sequences.
    pub decode_sequences: u64,
    /// Number of context tokens that all sequences of the step read.
    pub context_tokens: u64,
    /// Number of tokens fetched from host memory before the step begins.
    pub host_tokens: u64,
    /// Number of tokens fetched from disk before the step begins.
    pub disk_tokens: u64,
}

/// Options of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Model of step durations.
    pub model: StepModel,
    /// Tokens per block.
    pub block_size: usize,
    /// Number of physical blocks.
    pub capacity_blocks: usize,
    /// Number of blocks in host memory; 0 disables this tier.
    pub host_blocks: usize,
    /// Number of blocks on disk; 0 disables this tier.
    pub disk_blocks: usize,
    /// Maximum number of states that a model with state layers (Mamba) keeps, one for each place where a prompt can be
    /// resumed; 0 for a model without such layers. With states, lower tiers are not read.
    pub state_slots: usize,
    /// Maximum number of tokens that a step computes, including decoding sequences; at least `running_max`.
    pub step_tokens_max: usize,
    /// Maximum number of requests that run concurrently.
    pub running_max: usize,
}

// === impl StepModel ===

impl Default for StepModel {
    fn default() -> Self {
        Self {
            step: STEP_NANOS,
            prefill_token: PREFILL_TOKEN_NANOS,
            decode_sequence: DECODE_SEQUENCE_NANOS,
            context_token: CONTEXT_TOKEN_NANOS,
            host_token: HOST_TOKEN_NANOS,
            disk_token: DISK_TOKEN_NANOS,
        }
    }
}

impl Default for TransferModel {
    fn default() -> Self {
        Self { begin: TRANSFER_NANOS, token: TRANSFER_TOKEN_NANOS }
    }
}

impl TransferModel {
    /// Duration of a transfer of this many tokens, in nanoseconds.
    #[must_use]
    pub fn nanos(&self, tokens: usize) -> Nanos {
        self.begin + self.token * tokens as u64
    }
}

impl StepModel {
    /// Duration of one step, in nanoseconds.
    #[must_use]
    pub fn step_nanos(&self, load: &StepLoad) -> Nanos {
        self.step
            + self.prefill_token * load.prefill_tokens
            + self.decode_sequence * load.decode_sequences
            + self.context_token * load.context_tokens
            + self.host_token * load.host_tokens
            + self.disk_token * load.disk_tokens
    }

    /// Duration of `steps` steps, in nanoseconds, if the same sequences decode in each and nothing else happens. Each
    /// step reads one more token of context per sequence.
    #[must_use]
    pub fn steps_nanos(&self, first: &StepLoad, steps: u64) -> Nanos {
        let growth = self.context_token * first.decode_sequences;
        steps * self.step_nanos(first) + growth * (steps * steps.saturating_sub(1) / 2)
    }
}
