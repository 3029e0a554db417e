use super::error::WireError;
use super::kind::Kind;
use crate::limits::MESSAGE_BYTES_MAX;

/// Bytes before a frame's message.
pub const HEADER_BYTES: usize = 20;
const MAGIC: [u8; 4] = *b"KVBT";

/// The first bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Kind of the frame.
    pub kind: Kind,
    /// Bytes of the message: at most [`MESSAGE_BYTES_MAX`].
    pub message_bytes: usize,
    /// Bytes of the payload that follows the message: a block or a part of one. 0 unless the kind is [`Kind::Block`].
    pub payload_bytes: u64,
}

impl Header {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let message_bytes = u32::try_from(self.message_bytes).unwrap_or(u32::MAX);
        let mut bytes = [0; HEADER_BYTES];
        let kind = [self.kind as u8, 0, 0, 0];
        let parts = MAGIC.into_iter().chain(kind).chain(message_bytes.to_le_bytes());
        let parts = parts.chain(self.payload_bytes.to_le_bytes());
        bytes.iter_mut().zip(parts).for_each(|(to, byte)| *to = byte);
        bytes
    }

    /// Decodes a header, for blocks of `block_bytes` bytes.
    ///
    /// # Errors
    /// [`WireError`] if the header is invalid, or a size exceeds its limit.
    pub fn decode(bytes: &[u8; HEADER_BYTES], block_bytes: u64) -> Result<Self, WireError> {
        let [m0, m1, m2, m3, code, r0, r1, r2, l0, l1, l2, l3, payload @ ..] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(WireError::Magic);
        }
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == code);
        let kind = kind.ok_or(WireError::Kind(code))?;
        if [r0, r1, r2] != [0; 3] {
            return Err(WireError::Reserved);
        }
        let stated = u32::from_le_bytes([l0, l1, l2, l3]);
        let max = MESSAGE_BYTES_MAX;
        let message_bytes = usize::try_from(stated).ok().filter(|bytes| *bytes <= max);
        let message_bytes = message_bytes
            .ok_or(WireError::MessageBytes { bytes: stated.into(), max: max as u64 })?;
        let payload_bytes = u64::from_le_bytes(payload);
        let expected = if kind == Kind::Block { block_bytes } else { 0 };
        if payload_bytes != expected {
            return Err(WireError::PayloadBytes { kind, bytes: payload_bytes, expected });
        }
        Ok(Self { kind, message_bytes, payload_bytes })
    }
}
