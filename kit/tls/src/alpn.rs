//! Names of what is spoken within TLS.

/// Connections for blocks between agents.
pub const BLOCKS_ALPN: &[u8] = b"kvasir-blocks/1";
