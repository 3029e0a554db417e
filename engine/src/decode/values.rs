//! Decodes the values of an event's fields: names, tokens, texts and numbers, each with its limit.

use super::error::DecodeError;
use super::event::{Fault, LookAhead, RawTokens};
use super::limits::EVENT_TOKENS_MAX;
use super::reader::{Reader, Value};
use kvasir_proto::limits::EVENT_BLOCKS_MAX;
use kvasir_proto::types::{BlockName, EngineKind, LocalHash};

/// Why a field could not be read.
pub(super) enum FieldError {
    /// The value's extent is lost, so the whole batch is unreadable.
    Batch(DecodeError),
    /// The value can be skipped. Only its event is unreadable.
    Event(Fault),
}

impl From<DecodeError> for FieldError {
    fn from(error: DecodeError) -> Self {
        Self::Batch(error)
    }
}

impl From<Fault> for FieldError {
    fn from(fault: Fault) -> Self {
        Self::Event(fault)
    }
}

/// Reads a key. A key that is not a string reads as "", which matches no field.
pub(super) fn key<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let value = reader.value()?;
    reader.skip_many(value.members())?;
    Ok(if let Value::Text(key) = value { key } else { b"" })
}

/// Reads the header of a list of at most `limit` members. `claimed` gets the claimed length even above the
/// limit; the remaining bytes can hold that many members.
pub(super) fn length(
    reader: &mut Reader<'_>,
    limit: usize,
    claimed: &mut Option<usize>,
) -> Result<usize, FieldError> {
    let Value::Array(count) = reader.value()? else {
        return Err(Fault::Type.into());
    };
    *claimed = Some(count);
    if count > limit {
        return Err(Fault::TooMany.into());
    }
    Ok(count)
}

/// Reads a block hash: an integer's bit pattern, bytes, or hexadecimal digits. The engine kind decides which
/// 64 bits of a longer hash count.
pub(super) fn name(value: Value<'_>, engine: EngineKind) -> Result<BlockName, Fault> {
    let name = match value {
        Value::Unsigned(_) | Value::Negative(_) => value.bits(),
        Value::Binary(bytes) if !bytes.is_empty() => Some(
            significant(bytes, 8, engine).iter().fold(0, |name, &byte| name << 8 | u64::from(byte)),
        ),
        Value::Text(digits) if digits.iter().all(u8::is_ascii_hexdigit) => {
            return hexadecimal(digits, engine).ok_or(Fault::Type);
        }
        _ => None,
    };
    name.map(BlockName).ok_or(Fault::Type)
}

/// Parses a block hash from hexadecimal digits.
pub(super) fn hexadecimal(digits: &[u8], engine: EngineKind) -> Option<BlockName> {
    let digits = str::from_utf8(significant(digits, 16, engine)).ok()?;
    u64::from_str_radix(digits, 16).ok().map(BlockName)
}

/// The bytes of a long hash that count: SGLang's first ones, other engines' last ones.
fn significant(bytes: &[u8], count: usize, engine: EngineKind) -> &[u8] {
    let found = match engine {
        EngineKind::Sglang => bytes.get(..count),
        EngineKind::Vllm | EngineKind::Trtllm | EngineKind::Custom => {
            bytes.len().checked_sub(count).and_then(|start| bytes.get(start..))
        }
    };
    found.unwrap_or(bytes)
}

pub(super) fn unsigned(value: Value<'_>) -> Result<u64, Fault> {
    if let Value::Unsigned(number) = value { Ok(number) } else { Err(Fault::Type) }
}

pub(super) fn text(value: Value<'_>) -> Result<Option<&str>, Fault> {
    match value {
        Value::Nil => Ok(None),
        Value::Text(bytes) => str::from_utf8(bytes).map(Some).or(Err(Fault::Type)),
        _ => Err(Fault::Type),
    }
}

/// Reads token ids; nil reads as an empty list.
pub(super) fn tokens(reader: &mut Reader<'_>) -> Result<RawTokens, FieldError> {
    if is_nil(reader)? {
        return Ok(RawTokens::Ids(vec![]));
    }
    let count = length(reader, EVENT_TOKENS_MAX, &mut None)?;
    let mut ahead = *reader;
    if count > 0 && matches!(ahead.value()?, Value::Array(_)) {
        reader.skip_many(count)?;
        return Ok(RawTokens::Pairs);
    }
    debug_assert!(count <= reader.remaining(), "memory is bounded by the bytes received");
    let mut ids_le = vec![0; count * 4];
    let (places, _no_rest) = ids_le.as_chunks_mut();
    let start = *reader;
    if reader.unsigned_32_le(places)? {
        return Ok(RawTokens::Ids(ids_le));
    }
    *reader = start;
    let mut wide_le = Vec::with_capacity(count * 8);
    for _ in 0..count {
        wide_le.extend(unsigned(reader.value()?)?.to_le_bytes());
    }
    Ok(RawTokens::Wide(wide_le))
}

/// Reads the tokens after each block, one list per block; nil reads as `None`.
pub(super) fn look_ahead(reader: &mut Reader<'_>) -> Result<Option<Vec<LookAhead>>, FieldError> {
    if is_nil(reader)? {
        return Ok(None);
    }
    let count = length(reader, EVENT_BLOCKS_MAX, &mut None)?;
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let mut ahead = *reader;
        reader.skip()?;
        let tokens = ahead.value()?;
        let only = if tokens == Value::Array(1) { ahead.value()? } else { tokens };
        let token = unsigned(only).ok().and_then(|token| u32::try_from(token).ok());
        all.push(token.map_or(LookAhead::Other, LookAhead::Token));
    }
    Ok(Some(all))
}

/// Reads the blocks' local hashes by bit pattern, one per block; nil reads as `None`.
pub(super) fn local_hashes(reader: &mut Reader<'_>) -> Result<Option<Vec<LocalHash>>, FieldError> {
    if is_nil(reader)? {
        return Ok(None);
    }
    let count = length(reader, EVENT_BLOCKS_MAX, &mut None)?;
    let mut hashes = Vec::with_capacity(count);
    for _ in 0..count {
        hashes.push(LocalHash(reader.value()?.bits().ok_or(Fault::Type)?));
    }
    Ok(Some(hashes))
}

/// Reads the number of remaining copies of each name; nil if the engine does not state it.
pub(super) fn remaining_copies(reader: &mut Reader<'_>) -> Result<Option<Vec<u32>>, FieldError> {
    if is_nil(reader)? {
        return Ok(None);
    }
    let count = length(reader, EVENT_BLOCKS_MAX, &mut None)?;
    let mut copies = Vec::with_capacity(count);
    for _ in 0..count {
        copies.push(u32::try_from(unsigned(reader.value()?)?).or(Err(Fault::Type))?);
    }
    Ok(Some(copies))
}

/// Skips the next value if it is nil. Returns whether it was.
pub(super) fn is_nil(reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
    let mut ahead = *reader;
    let is_nil = ahead.value()? == Value::Nil;
    if is_nil {
        *reader = ahead;
    }
    Ok(is_nil)
}

/// Reads one number for all blocks, or one per block. Returns minimum and maximum.
pub(super) fn num_block_tokens(reader: &mut Reader<'_>) -> Result<Option<(u64, u64)>, FieldError> {
    let count = match reader.value()? {
        Value::Nil => return Ok(None),
        Value::Unsigned(tokens) => return Ok(Some((tokens, tokens))),
        Value::Array(count) => count,
        _ => return Err(Fault::Type.into()),
    };
    let mut range: Option<(u64, u64)> = None;
    for _ in 0..count {
        let tokens = unsigned(reader.value()?)?;
        let (least, greatest) = range.unwrap_or((tokens, tokens));
        range = Some((least.min(tokens), greatest.max(tokens)));
    }
    Ok(range)
}
