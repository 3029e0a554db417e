//! Conversions that several message families share.

use super::{ConvertError, Problem};
use crate::hash::HASH_SCHEME;
use crate::limits::{BLOCK_SIZE_TOKENS_MAX, NAME_BYTES_MAX, SEQUENCE_MAX};
use crate::pb;
use crate::types::{
    CopyMode, Cursor, Direction, Incarnation, SourceState, StateReason, Tier, invisible_character,
};
use prost::bytes::Bytes;
use std::time::Duration;

/// Maximum number of characters of an unknown hash scheme in an error.
const HASH_SCHEME_SHOWN_MAX: usize = 64;

/// Encodes an incarnation: its 16 bytes in display order.
#[must_use]
pub fn incarnation(incarnation: Incarnation) -> Bytes {
    Bytes::copy_from_slice(&incarnation.0.to_be_bytes())
}

/// Encodes a cursor, without its fingerprint.
#[must_use]
pub fn cursor(cursor: Cursor) -> pb::Cursor {
    pb::Cursor { incarnation: incarnation(cursor.incarnation), sequence: cursor.sequence }
}

/// Decodes a cursor, without a fingerprint.
///
/// # Errors
/// If the incarnation does not have exactly 16 bytes, or the batch number is out of range.
pub fn read_cursor(cursor: &pb::Cursor) -> Result<Cursor, ConvertError> {
    let incarnation = read_incarnation("incarnation", &cursor.incarnation)?;
    check_sequence("sequence", cursor.sequence)?;
    Ok(Cursor { incarnation, sequence: cursor.sequence, fingerprint: None })
}

/// Encodes a source's state.
#[must_use]
pub const fn state(state: SourceState) -> pb::WorkerState {
    match state {
        SourceState::Exact => pb::WorkerState::Exact,
        SourceState::CatchingUp => pb::WorkerState::CatchingUp,
        SourceState::Gap => pb::WorkerState::Gap,
        SourceState::Partial => pb::WorkerState::Partial,
        SourceState::Degraded => pb::WorkerState::Degraded,
        SourceState::Cold => pb::WorkerState::Cold,
    }
}

/// Decodes a source's state.
pub(super) fn read_state(field: &str, value: i32) -> Result<SourceState, ConvertError> {
    match pb::WorkerState::try_from(value) {
        Ok(pb::WorkerState::Exact) => Ok(SourceState::Exact),
        Ok(pb::WorkerState::CatchingUp) => Ok(SourceState::CatchingUp),
        Ok(pb::WorkerState::Gap) => Ok(SourceState::Gap),
        Ok(pb::WorkerState::Degraded) => Ok(SourceState::Degraded),
        Ok(pb::WorkerState::Partial) => Ok(SourceState::Partial),
        Ok(pb::WorkerState::Cold) => Ok(SourceState::Cold),
        Ok(pb::WorkerState::Unspecified) => Err(ConvertError::new(field, Problem::Required)),
        Err(_) => Err(ConvertError::new(field, Problem::UnknownValue(value))),
    }
}

/// Encodes a tier.
pub(super) const fn tier(tier: Tier) -> pb::Tier {
    match tier {
        Tier::Device => pb::Tier::Device,
        Tier::Host => pb::Tier::Host,
        Tier::Disk => pb::Tier::Disk,
    }
}

/// Encodes a copy mode.
pub(super) const fn copy_mode(mode: CopyMode) -> pb::CopyMode {
    match mode {
        CopyMode::Counted => pb::CopyMode::Counted,
        CopyMode::Set => pb::CopyMode::Set,
    }
}

/// Encodes a reason with the time since it was first seen, if known.
#[must_use]
pub fn state_reason(seen: &StateReason, age: Option<Duration>) -> pb::StateReason {
    pb::StateReason {
        reason: seen.reason as i32,
        count: seen.count,
        example: seen.example.to_string(),
        age_ms: age.map(age_ms),
        may_be_high: seen.reason.direction() == Direction::MayBeHigh,
    }
}

/// Encodes an age, in milliseconds.
#[must_use]
pub fn age_ms(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn read_incarnation(field: &str, bytes: &[u8]) -> Result<Incarnation, ConvertError> {
    let Ok(bytes) = <[u8; 16]>::try_from(bytes) else {
        let actual = format!("has {} bytes", bytes.len());
        return Err(ConvertError::new(
            field,
            Problem::Mismatch { actual, expected: "exactly 16".to_owned() },
        ));
    };
    Ok(Incarnation(u128::from_be_bytes(bytes)))
}

/// Decodes a tier; 0 is `unspecified`.
pub(super) fn read_tier(
    field: &str,
    value: i32,
    unspecified: Option<Tier>,
) -> Result<Tier, ConvertError> {
    let tier = match pb::Tier::try_from(value) {
        Ok(pb::Tier::Unspecified) => unspecified,
        Ok(pb::Tier::Device) => Some(Tier::Device),
        Ok(pb::Tier::Host) => Some(Tier::Host),
        Ok(pb::Tier::Disk) => Some(Tier::Disk),
        Err(_) => None,
    };
    tier.ok_or_else(|| ConvertError::new(field, Problem::UnknownValue(value)))
}

pub(super) fn read_copy_mode(field: &str, value: i32) -> Result<Option<CopyMode>, ConvertError> {
    match pb::CopyMode::try_from(value) {
        Ok(pb::CopyMode::Unspecified) => Ok(None),
        Ok(pb::CopyMode::Counted) => Ok(Some(CopyMode::Counted)),
        Ok(pb::CopyMode::Set) => Ok(Some(CopyMode::Set)),
        Err(_) => Err(ConvertError::new(field, Problem::UnknownValue(value))),
    }
}

pub(super) fn check_block_size(block_size: u32) -> Result<u32, ConvertError> {
    check_range("block_size", block_size.into(), 1, BLOCK_SIZE_TOKENS_MAX.into())?;
    Ok(block_size)
}

pub(super) fn check_range(field: &str, value: u64, min: u64, max: u64) -> Result<(), ConvertError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ConvertError::new(field, Problem::OutOfRange { value, min, max }))
}

/// Checks the number of a batch.
pub(super) fn check_sequence(field: &str, sequence: u64) -> Result<(), ConvertError> {
    check_range(field, sequence, 0, SEQUENCE_MAX)
}

/// Reads an optional batch number.
pub(super) fn read_sequence(
    field: &str,
    sequence: Option<u64>,
) -> Result<Option<u64>, ConvertError> {
    sequence.map_or(Ok(()), |sequence| check_sequence(field, sequence))?;
    Ok(sequence)
}

pub(super) fn check_text(field: &str, text: &str, limit: usize) -> Result<(), ConvertError> {
    if text.len() <= limit {
        return Ok(());
    }
    Err(ConvertError::new(field, Problem::TooLong { bytes: text.len(), limit }))
}

pub(super) fn check_required(field: &str, text: &str, limit: usize) -> Result<(), ConvertError> {
    if text.is_empty() {
        return Err(ConvertError::new(field, Problem::Required));
    }
    check_text(field, text, limit)
}

/// Checks a displayed name that may be empty.
pub(super) fn check_name(field: &str, name: &str) -> Result<(), ConvertError> {
    check_text(field, name, NAME_BYTES_MAX)?;
    if name.chars().any(char::is_control) {
        return Err(ConvertError::new(field, Problem::ControlCharacter));
    }
    match invisible_character(name) {
        Some(character) => Err(ConvertError::new(field, Problem::Invisible(character))),
        None => Ok(()),
    }
}

/// Checks a displayed name that must not be empty.
pub(super) fn check_required_name(field: &str, name: &str) -> Result<(), ConvertError> {
    check_required(field, name, NAME_BYTES_MAX)?;
    check_name(field, name)
}

pub(super) fn check_count(field: &str, count: usize, limit: usize) -> Result<(), ConvertError> {
    if count <= limit {
        return Ok(());
    }
    Err(ConvertError::new(field, Problem::TooMany { count, limit }))
}

/// Rejects a stated hash scheme that differs from this server's.
pub(super) fn check_hash_scheme(stated: Option<&str>) -> Result<(), ConvertError> {
    let Some(other) = stated.filter(|scheme| *scheme != HASH_SCHEME) else { return Ok(()) };
    let scheme = other.chars().take(HASH_SCHEME_SHOWN_MAX).collect();
    Err(ConvertError::new("hash_scheme", Problem::HashScheme(scheme)))
}
