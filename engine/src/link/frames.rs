use crate::decode::timestamp_bits;
use crate::expiry;
use crate::sequence::{Item, Received, stated_incarnation};
use crate::zmtp::Message;
use bytes::Bytes;
use kvasir_proto::limits::SEQUENCE_MAX;
use kvasir_proto::types::{Fingerprint, Incarnation};
use std::time::{Duration, SystemTime};

/// The sequence number that ends a replay. Batches never have it.
const END: u64 = u64::MAX;
/// Precedes the publisher's epoch in a topic (SGLang with snapshots). The barrier of a snapshot has a further
/// suffix. It is a batch without events, numbered like any other.
const TOPIC_EPOCH: &[u8] = b"\0sgl-kv-epoch=";

/// Payload of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) bytes: Bytes,
    /// Whether the batch was replayed: it may be old.
    pub(super) is_replayed: bool,
    /// Bytes of the batch's message: its frames may share one allocation.
    message_bytes: usize,
}

impl Payload {
    /// Age of the batch. A live batch has age zero, whatever the engine's clock shows.
    #[expect(clippy::disallowed_methods, reason = "engines state the time of day")]
    pub(super) fn age(&self, ts_bits: u64) -> Duration {
        if self.is_replayed { expiry::age(ts_bits, SystemTime::now()) } else { Duration::ZERO }
    }
}

impl Item for Payload {
    fn bytes(&self) -> usize {
        self.message_bytes
    }
}

/// A message of unknown layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("{frames} frames instead of {expected}")]
    Frames { frames: usize, expected: &'static str },
    #[error("the sequence frame has {bytes} bytes instead of 8, or 24 with an epoch")]
    Sequence { bytes: usize },
    #[error("the sequence number is {sequence}, above {SEQUENCE_MAX}, the highest")]
    Number { sequence: u64 },
}

/// One message of a replay.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Batch {
        received: Received<Payload>,
        /// Empty if the publisher omits it.
        topic: Bytes,
    },
    End,
}

/// The topic of a live message.
pub(super) fn topic(message: &Message) -> &[u8] {
    message.first().map_or(&[], |topic| topic)
}

/// Reads `[topic, sequence, payload]`.
pub(super) fn live(message: &Message) -> Result<Received<Payload>, Malformed> {
    let [topic, sequence, payload] = message.as_slice() else {
        return Err(Malformed::Frames { frames: message.len(), expected: "3" });
    };
    received(message, topic, number(sequence)?, payload, false)
}

/// Reads `["", sequence, payload]` or `["", topic, sequence, payload]`. The end of a replay has a number of
/// its own and an empty payload.
pub(super) fn reply(message: &Message) -> Result<Reply, Malformed> {
    // Without a topic, the frame before the number is empty.
    let ([topic, sequence, payload] | [_, topic, sequence, payload]) = message.as_slice() else {
        return Err(Malformed::Frames { frames: message.len(), expected: "3 or 4" });
    };
    let numbered = number(sequence)?;
    if numbered.0 == END && payload.is_empty() {
        return Ok(Reply::End);
    }
    let received = received(message, topic, numbered, payload, true)?;
    Ok(Reply::Batch { received, topic: topic.clone() })
}

/// Encodes a request for all batches from `sequence` on.
pub(super) const fn request(sequence: u64) -> [u8; 8] {
    sequence.to_be_bytes()
}

/// Reads a sequence number and the incarnation after it, if the publisher states one (vLLM with snapshots).
fn number(frame: &Bytes) -> Result<(u64, Option<Incarnation>), Malformed> {
    let malformed = Malformed::Sequence { bytes: frame.len() };
    let (number, epoch) = frame.split_first_chunk::<8>().ok_or(malformed)?;
    if !matches!(epoch.len(), 0 | 16) {
        return Err(malformed);
    }
    Ok((u64::from_be_bytes(*number), stated_incarnation(epoch)))
}

/// The incarnation that a topic states, if any.
fn topic_incarnation(topic: &[u8]) -> Option<Incarnation> {
    let at = topic.windows(TOPIC_EPOCH.len()).position(|part| part == TOPIC_EPOCH)?;
    let suffix = topic.get(at + TOPIC_EPOCH.len()..)?;
    stated_incarnation(suffix.split(|&byte| byte == 0).next()?)
}

/// Creates a batch from its frames. Fails if the number is out of range. The incarnation is stated with the number,
/// or in the topic.
fn received(
    message: &Message,
    topic: &Bytes,
    (sequence, incarnation): (u64, Option<Incarnation>),
    payload: &Bytes,
    is_replayed: bool,
) -> Result<Received<Payload>, Malformed> {
    if sequence > SEQUENCE_MAX {
        return Err(Malformed::Number { sequence });
    }
    let fingerprint = Fingerprint::of(timestamp_bits(payload).unwrap_or(0), payload);
    let message_bytes = message.iter().map(Bytes::len).sum();
    let item = Payload { bytes: payload.clone(), is_replayed, message_bytes };
    let incarnation = incarnation.or_else(|| topic_incarnation(topic));
    Ok(Received { sequence, fingerprint, incarnation, item })
}
