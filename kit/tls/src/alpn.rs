//! Names of protocols within TLS (ALPN).

/// Protocol of connections that transfer blocks between agents.
pub const BLOCKS_ALPN: &[u8] = b"kvasir-blocks/1";
