//! Msgpack payloads to raw events, for every layout that engines are known to send.
//!
//! A payload is an array `[time stamp, events, rank?]`, or (proposed for vLLM) a map of `ts`,
//! `events` and `data_parallel_rank`. An event is an array `["BlockStored", …]`, its fields known
//! by position, or a map `{"type": "BlockStored", …}`, its fields known by key, or a map
//! `{"event_type": "stored", …}` of Mooncake's RFC #1527 (`layout.rs`). Arrays: vLLM 0.9 to 0.23,
//! SGLang up to 0.5.19 (its 0.5.18 and 0.5.19 put a map with the salt where vLLM has the LoRA
//! name). Maps: vLLM from 0.24, SGLang from 0.5.20, TensorRT-LLM and Dynamo's bridge; and of a
//! custom engine with a key more, `local_hashes`, where it has hashed the tokens already (a Kvasir
//! agent that publishes as an engine does). Keys come in any order. Unknown keys and slots are
//! skipped; an event of an unknown kind is [`RawEvent::Unknown`].
//!
//! What a faulty or hostile peer can cause:
//! - A field that cannot be read costs its event, which becomes [`RawEvent::Unreadable`]; the
//!   others keep their order and meaning. Only where the extent of a value is lost (truncation,
//!   msgpack's reserved byte) or the envelope is wrong is the batch refused ([`DecodeError`]).
//! - Memory is bounded by the bytes received: a list's claimed length is checked against the bytes
//!   that follow before anything is reserved, and limited. Worst case about 100 bytes held for
//!   each byte received (a list of one-byte nonsense events, at most [`PAYLOAD_EVENTS_MAX`]);
//!   real events take less than 5.
//! - Time is linear: a byte is read a few times at most. Nesting is skipped with a counter, so
//!   depth costs nothing, and nothing recurses.

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
/// The engine decides what the layouts leave open. A byte hash means its last 8 bytes,
/// big-endian; SGLang's means its first 8. Only in maps of a custom engine, `local_hashes`, one for
/// each block, may replace `token_ids`, which are empty then.
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
            let mut parts = Parts::of(&mut reader, entries)?;
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

/// The time stamp of a payload, as [`Batch::ts_bits`] has it, without decoding the rest.
#[must_use]
pub fn timestamp_bits(payload: &[u8]) -> Option<u64> {
    let mut reader = Reader::new(payload);
    match reader.value().ok()? {
        Value::Array(2..) => time_stamp(&mut reader).ok(),
        Value::Map(entries) => Parts::of(&mut reader, entries).ok()?.time_stamp().ok(),
        _ => None,
    }
}

/// Readers at the parts of a batch in map form: its keys come in any order.
#[derive(Default)]
struct Parts<'a> {
    time_stamp: Option<Reader<'a>>,
    events: Option<Reader<'a>>,
    rank: Option<Reader<'a>>,
}

impl<'a> Parts<'a> {
    /// Skips through the map; the last of repeated keys counts.
    fn of(reader: &mut Reader<'a>, entries: usize) -> Result<Self, DecodeError> {
        let mut parts = Self::default();
        for _ in 0..entries {
            let part = match values::key(reader)? {
                b"ts" => &mut parts.time_stamp,
                b"events" => &mut parts.events,
                // SGLang has another name for it.
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
    // Of a large integer the nearest f64 serves: time stamps are compared for equality only.
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
