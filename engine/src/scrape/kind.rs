use std::fmt;

/// The engine whose metric names are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrapedEngine {
    /// vLLM: `vllm:…`, ranks by label `engine`.
    Vllm,
    /// SGLang (with `--enable-metrics`): `sglang:…`, ranks by label `dp_rank`.
    Sglang,
}

impl fmt::Display for ScrapedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
        })
    }
}
