//! Decodes msgpack payloads into raw events, for every known engine layout.
//!
//! A payload is an array `[time stamp, events, rank?]`, or (proposed for vLLM) a map of `ts`, `events` and
//! `data_parallel_rank`. An event has one of three layouts:
//! - an array `["BlockStored", …]`, with fields by position: vLLM 0.9 to 0.23, SGLang up to 0.5.19. SGLang
//!   0.5.18 and 0.5.19 put a map with the salt where vLLM has the LoRA name.
//! - a map `{"type": "BlockStored", …}`, with fields by key: vLLM from 0.24, SGLang from 0.5.20,
//!   TensorRT-LLM, Dynamo's bridge, and custom engines. A custom engine that has already hashed the tokens
//!   adds the key `local_hashes`, such as a Kvasir agent that publishes as an engine.
//! - a map `{"event_type": "stored", …}` of Mooncake's RFC #1527 (`layout.rs`).
//!
//! Keys come in any order. Unknown keys and slots are skipped. An event of an unknown kind is
//! [`RawEvent::Unknown`].
//!
//! Effects of a faulty or hostile peer are limited:
//! - An unreadable field costs only its event, which becomes [`RawEvent::Unreadable`]. Other events keep
//!   their order and meaning. The whole batch is rejected ([`DecodeError`]) only if the envelope is wrong or
//!   a value's extent is lost (truncation, msgpack's reserved byte).
//! - Memory is bounded by the bytes received. A list's claimed length is limited, and checked against the
//!   bytes that follow, before memory is reserved. The worst case is about 100 bytes of memory per byte
//!   received (a list of one-byte nonsense events, at most [`PAYLOAD_EVENTS_MAX`]). Real events take less
//!   than 5.
//! - Time is linear: a byte is read a few times at most. Nested values are skipped with a counter instead of
//!   recursion.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "msgpack's types are a closed set, and all but the expected are the wrong one"
)]

mod error;
mod event;
mod extra;
mod fields;
mod layout;
mod limits;
mod object_key;
mod reader;
mod values;

pub use error::DecodeError;
pub use event::{
    Batch, ExtraKey, Fault, LookAhead, PerBlock, Place, RawEvent, RawMoved, RawRemoved, RawStored,
    RawTokens, Unreadable,
};

pub use kvasir_proto::types::EngineKind;
pub use limits::{EVENT_EXTRA_KEYS_MAX, EVENT_TOKENS_MAX, PAYLOAD_EVENTS_MAX};

use kvasir_proto::types::DpRank;
use reader::{Reader, Value};

/// Decodes one payload.
///
/// The engine kind resolves ambiguities of the layouts. A hash sent as bytes means its last 8 bytes,
/// big-endian; SGLang's means its first 8. Only in maps of a custom engine, `local_hashes` may replace
/// `token_ids`, which are then empty. It has one entry per block.
///
/// # Errors
/// If the envelope is wrong or the extent of a value is lost. A wrong event is no error.
pub fn decode(payload: &[u8], engine: EngineKind) -> Result<Batch<'_>, DecodeError> {
    let mut reader = Reader::new(payload);
    let batch = match reader.value()? {
        Value::Array(members @ 2..) => {
            let ts_bits = time_stamp(&mut reader)?;
            let events = events(&mut reader, engine)?;
            let rank = if members > 2 { rank(&mut reader)? } else { None };
            reader.skip_many(members.saturating_sub(3))?;
            Batch { ts_bits, rank, events }
        }
        Value::Map(entries) => {
            let mut parts = Parts::from_map(&mut reader, entries)?;
            let ts_bits = parts.time_stamp()?;
            let events = events(&mut parts.events.ok_or(DecodeError::Events)?, engine)?;
            let rank = parts.rank.as_mut().map_or(Ok(None), rank)?;
            Batch { ts_bits, rank, events }
        }
        _ => return Err(DecodeError::Envelope),
    };
    debug_assert!(batch.events.len() <= PAYLOAD_EVENTS_MAX, "events are limited");
    match reader.remaining() {
        0 => Ok(batch),
        bytes => Err(DecodeError::TrailingBytes { bytes }),
    }
}

/// Reads only a payload's time stamp, as in [`Batch::ts_bits`].
#[must_use]
pub fn timestamp_bits(payload: &[u8]) -> Option<u64> {
    let mut reader = Reader::new(payload);
    match reader.value().ok()? {
        Value::Array(2..) => time_stamp(&mut reader).ok(),
        Value::Map(entries) => Parts::from_map(&mut reader, entries).ok()?.time_stamp().ok(),
        _ => None,
    }
}

/// Readers positioned at the parts of a batch in map form, whose keys come in any order.
#[derive(Default)]
struct Parts<'a> {
    time_stamp: Option<Reader<'a>>,
    events: Option<Reader<'a>>,
    rank: Option<Reader<'a>>,
}

impl<'a> Parts<'a> {
    /// Skips through the map. If a key repeats, the last one counts.
    fn from_map(reader: &mut Reader<'a>, entries: usize) -> Result<Self, DecodeError> {
        let mut parts = Self::default();
        for _ in 0..entries {
            let part = match values::key(reader)? {
                b"ts" => &mut parts.time_stamp,
                b"events" => &mut parts.events,
                // `attn_dp_rank` is SGLang's name.
                b"data_parallel_rank" | b"attn_dp_rank" => &mut parts.rank,
                _ => &mut None,
            };
            *part = Some(*reader);
            reader.skip()?;
        }
        Ok(parts)
    }

    fn time_stamp(&mut self) -> Result<u64, DecodeError> {
        self.time_stamp.as_mut().map_or(Err(DecodeError::TimeStamp), time_stamp)
    }
}

/// Reads the list of events. Fails if it is longer than [`PAYLOAD_EVENTS_MAX`].
fn events<'a>(
    reader: &mut Reader<'a>,
    engine: EngineKind,
) -> Result<Vec<RawEvent<'a>>, DecodeError> {
    let Value::Array(count) = reader.value()? else {
        return Err(DecodeError::Events);
    };
    if count > PAYLOAD_EVENTS_MAX {
        return Err(DecodeError::TooManyEvents { events: count });
    }
    let mut events = Vec::with_capacity(count);
    for _ in 0..count {
        events.push(fields::event(reader, engine)?);
    }
    Ok(events)
}

/// Reads the bits of a time stamp.
fn time_stamp(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
    // A large integer becomes the nearest f64. Time stamps are compared only for equality.
    let time_stamp = match reader.value()? {
        Value::Float(seconds) => seconds,
        Value::Unsigned(seconds) => seconds as f64,
        Value::Negative(seconds) => seconds as f64,
        _ => return Err(DecodeError::TimeStamp),
    };
    Ok(time_stamp.to_bits())
}

fn rank(reader: &mut Reader<'_>) -> Result<Option<DpRank>, DecodeError> {
    match reader.value()? {
        Value::Nil => Ok(None),
        Value::Unsigned(rank) => DpRank::try_from(rank).map(Some).or(Err(DecodeError::Rank)),
        _ => Err(DecodeError::Rank),
    }
}
