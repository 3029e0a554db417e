use std::path::PathBuf;

/// Why NIXL can't be used, or a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NixlError {
    /// The library can't be loaded.
    #[error(
        "{path} can't be loaded: {why}. Install NIXL (pip install nixl-cu12) and name its libnixl_capi.so, in the folder \
         .nixl_cu12.mesonpy.libs beside the package"
    )]
    Library {
        /// The file.
        path: PathBuf,
        /// The loader's message.
        why: String,
    },
    /// A call failed.
    #[error("NIXL: {call}: {why}")]
    Call {
        /// Name of the function, without its prefix.
        call: &'static str,
        /// Meaning of the status.
        why: &'static str,
    },
    /// A text can't be passed to C, or is too long.
    #[error("NIXL: {field} must have 1 to {max} bytes, and no zero byte")]
    Text {
        /// Name of the text.
        field: &'static str,
        /// Maximum bytes.
        max: usize,
    },
    /// The count is 0 or too large.
    #[error("NIXL: {field}: {count}, must be 1 to {max}")]
    Count {
        /// Name of the counted items.
        field: &'static str,
        /// The count.
        count: usize,
        /// The maximum.
        max: usize,
    },
    /// The processor can't address the memory.
    #[error("NIXL: the memory has no address in this process")]
    NoAddress,
    /// A slot, file or range is not registered with the agent.
    #[error("NIXL: {0} is not registered with this agent")]
    Unregistered(&'static str),
    /// The agent has no transfer with this id.
    #[error("NIXL: the transfer does not exist")]
    Unknown,
}
