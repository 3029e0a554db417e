use super::CopyMode;
use std::fmt;
use std::str::FromStr;

/// The engine that publishes a worker's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM, native or bridged.
    Trtllm,
    /// Any other engine, including an agent.
    Custom,
}

impl EngineKind {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Vllm, "vllm"),
        (Self::Sglang, "sglang"),
        (Self::Trtllm, "trtllm"),
        (Self::Custom, "custom"),
    ];

    /// Default copy mode of a registration with this engine.
    #[must_use]
    pub const fn default_copy_mode(self) -> CopyMode {
        match self {
            Self::Vllm | Self::Sglang => CopyMode::Counted,
            Self::Trtllm | Self::Custom => CopyMode::Set,
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(engine, _)| engine == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for EngineKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found
            .map(|(engine, _)| *engine)
            .ok_or_else(|| format!("{text:?} is not one of vllm, sglang, trtllm, custom"))
    }
}
