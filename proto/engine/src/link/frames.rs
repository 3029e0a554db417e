use crate::{
    decode::timestamp_bits,
    sequence::{Item, Received},
    zmtp::Message,
};
use bytes::Bytes;
use kvasir_proto::types::Fingerprint;

/// The number that ends a replay. No batch has it.
const END: u64 = u64::MAX;

/// Payload of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) bytes: Bytes,
    /// Bytes of the message it came in: its frames may share one allocation.
    message_bytes: usize,
}

impl Item for Payload {
    fn bytes(&self) -> usize {
        self.message_bytes
    }
}

/// A message that is none of the layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("{frames} frames instead of {expected}")]
    Frames { frames: usize, expected: &'static str },
    #[error("the sequence number has {bytes} bytes instead of 8")]
    Sequence { bytes: usize },
    #[error("the sequence number is the one that ends a replay")]
    Reserved,
}

/// One message of a replay.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Batch(Received<Payload>),
    End,
}

/// Reads `[topic, sequence, payload]`.
pub(super) fn live(message: &Message) -> Result<Received<Payload>, Malformed> {
    let [_, sequence, payload] = message.as_slice() else {
        return Err(Malformed::Frames { frames: message.len(), expected: "3" });
    };
    received(message, number(sequence)?, payload)
}

/// Reads `["", sequence, payload]` or `["", topic, sequence, payload]`; the end of a replay has a
/// number of its own and no payload.
pub(super) fn reply(message: &Message) -> Result<Reply, Malformed> {
    let ([_, sequence, payload] | [_, _, sequence, payload]) = message.as_slice() else {
        return Err(Malformed::Frames { frames: message.len(), expected: "3 or 4" });
    };
    let sequence = number(sequence)?;
    if sequence == END && payload.is_empty() {
        return Ok(Reply::End);
    }
    received(message, sequence, payload).map(Reply::Batch)
}

/// Asks for all batches from `sequence` on.
pub(super) const fn request(sequence: u64) -> [u8; 8] {
    sequence.to_be_bytes()
}

fn number(frame: &Bytes) -> Result<u64, Malformed> {
    let bytes = <[u8; 8]>::try_from(frame.as_ref());
    bytes
        .map(u64::from_be_bytes)
        .map_err(|_wrong_length| Malformed::Sequence { bytes: frame.len() })
}

fn received(
    message: &Message,
    sequence: u64,
    payload: &Bytes,
) -> Result<Received<Payload>, Malformed> {
    if sequence == END {
        return Err(Malformed::Reserved);
    }
    let fingerprint = Fingerprint::of(timestamp_bits(payload).unwrap_or(0), payload);
    let message_bytes = message.iter().map(Bytes::len).sum();
    let item = Payload { bytes: payload.clone(), message_bytes };
    Ok(Received { sequence, fingerprint, item })
}
