//! How long a step of an engine and a transfer between two take, and how large an engine is.
//!
//! The constants are assumptions, not measurements. They resemble an H100-class accelerator (80 GB, 3.35 TB/s) that
//! runs a model of 8 billion parameters in 16 bits with grouped-query attention (128 KiB of keys and values a
//! token). All of them are options of the program.

/// Virtual time in nanoseconds. Whole numbers: sums do not depend on the order in which they are made.
pub type Nanos = u64;

/// Nanoseconds of a second.
pub const SECOND: Nanos = 1_000_000_000;

/// Time of a step whatever it computes: 16 GB of weights are read once (5 ms), and kernels are started.
pub const STEP_NANOS: Nanos = 6_000_000;
/// Time of one prompt token: 16 GFLOP at about half of the accelerator's peak.
pub const PREFILL_TOKEN_NANOS: Nanos = 35_000;
/// Time of one sequence that decodes: its token's arithmetic, sampling, and work of the host.
pub const DECODE_SEQUENCE_NANOS: Nanos = 20_000;
/// Time of one token of context that a sequence of the step reads: 128 KiB at about 80 % of the bandwidth.
pub const CONTEXT_TOKEN_NANOS: Nanos = 50;
/// Time of one token that is fetched from host memory: 128 KiB at about 25 GB/s.
pub const HOST_TOKEN_NANOS: Nanos = 5_000;
/// Time of one token that is fetched from a local disk: 128 KiB at about 6 GB/s.
pub const DISK_TOKEN_NANOS: Nanos = 22_000;
/// Time until a transfer of keys and values begins to move them: engines exchange where the blocks are.
pub const TRANSFER_NANOS: Nanos = 1_000_000;
/// Time of one token that is transferred: 128 KiB at 80 % of 400 Gbit/s.
pub const TRANSFER_TOKEN_NANOS: Nanos = 3_300;
/// Tokens of the cache: what weights and activations leave of 80 GB.
pub const CACHE_TOKENS: usize = 400_000;

/// Times of the parts of a step. A step takes their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepModel {
    /// Each step, in nanoseconds; at least 1.
    pub step: Nanos,
    /// Each prompt token that is computed, in nanoseconds.
    pub prefill_token: Nanos,
    /// Each sequence that decodes, in nanoseconds.
    pub decode_sequence: Nanos,
    /// Each token of context that was computed in earlier steps and is read, in nanoseconds.
    pub context_token: Nanos,
    /// Each token that is fetched from host memory, in nanoseconds.
    pub host_token: Nanos,
    /// Each token that is fetched from disk, in nanoseconds.
    pub disk_token: Nanos,
}

/// Times of the parts of a transfer of keys and values from another engine. A transfer takes their sum; transfers do not
/// slow each other, or steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferModel {
    /// Each transfer, in nanoseconds.
    pub begin: Nanos,
    /// Each token, in nanoseconds.
    pub token: Nanos,
}

/// What one step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepLoad {
    /// Prompt tokens.
    pub prefill_tokens: u64,
    /// Sequences that decode.
    pub decode_sequences: u64,
    /// Tokens of context that all sequences of the step read.
    pub context_tokens: u64,
    /// Tokens that are fetched from host memory before it begins.
    pub host_tokens: u64,
    /// Tokens that are fetched from disk before it begins.
    pub disk_tokens: u64,
}

/// One engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Times.
    pub model: StepModel,
    /// Tokens per block.
    pub block_size: usize,
    /// Physical blocks.
    pub capacity_blocks: usize,
    /// Blocks in host memory; 0: blocks are not kept there.
    pub host_blocks: usize,
    /// Blocks on disk; 0: blocks are not kept there.
    pub disk_blocks: usize,
    /// Most tokens that one step computes, decoding sequences included; at least `running_max`.
    pub step_tokens_max: usize,
    /// Most requests that run at once.
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
    /// How long one step takes, in nanoseconds.
    #[must_use]
    pub fn step_nanos(&self, load: &StepLoad) -> Nanos {
        self.step
            + self.prefill_token * load.prefill_tokens
            + self.decode_sequence * load.decode_sequences
            + self.context_token * load.context_tokens
            + self.host_token * load.host_tokens
            + self.disk_token * load.disk_tokens
    }

    /// How long so many steps take, in nanoseconds, if the same sequences decode in each and nothing else happens: each
    /// step reads one more token of context for each of them.
    #[must_use]
    pub fn steps_nanos(&self, first: &StepLoad, steps: u64) -> Nanos {
        let growth = self.context_token * first.decode_sequences;
        steps * self.step_nanos(first) + growth * (steps * steps.saturating_sub(1) / 2)
    }
}
