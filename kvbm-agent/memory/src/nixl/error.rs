use std::path::PathBuf;

/// Why NIXL can't be used, or a call of it failed.
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
        /// What the loader said.
        why: String,
    },
    /// A call failed.
    #[error("NIXL: {call}: {why}")]
    Call {
        /// The function, without its prefix.
        call: &'static str,
        /// What its status means.
        why: &'static str,
    },
    /// A text can't be passed to C, or is too long.
    #[error("NIXL: {field} must have 1 to {max} bytes, and no zero byte")]
    Text {
        /// Which text.
        field: &'static str,
        /// The limit.
        max: usize,
    },
    /// Too many, or none.
    #[error("NIXL: {field}: {count}, must be 1 to {max}")]
    Count {
        /// Of what.
        field: &'static str,
        /// How many.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// The processor can't address the memory.
    #[error("NIXL: the memory has no address in this process")]
    NoAddress,
    /// A slot, file or range that is not registered with the agent.
    #[error("NIXL: {0} is not registered with this agent")]
    Unregistered(&'static str),
    /// The agent does not know the transfer.
    #[error("NIXL: there is no such transfer")]
    Unknown,
}
