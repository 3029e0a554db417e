//! Decodes extra keys: the inputs of a block's hash besides its tokens, in lists with one entry per block.

use super::error::DecodeError;
use super::event::{ExtraKey, Fault, PerBlock};
use super::limits::EVENT_EXTRA_KEYS_MAX;
use super::reader::{Reader, Value};
use super::values::{FieldError, is_nil, key, length, text};
use kvasir_proto::limits::EVENT_BLOCKS_MAX;

/// Reads one block's entry and pushes its keys.
type ReadEntry<'a> =
    fn(&mut Reader<'a>, push: &mut dyn FnMut(ExtraKey<'a>)) -> Result<(), DecodeError>;

/// Reads a list with one entry per block.
pub(super) fn per_block<'a>(
    reader: &mut Reader<'a>,
    read_entry: ReadEntry<'a>,
) -> Result<Option<PerBlock<'a>>, FieldError> {
    if is_nil(reader)? {
        return Ok(None);
    }
    let blocks = length(reader, EVENT_BLOCKS_MAX, &mut None)?;
    let mut keys = Vec::new();
    for block in (0..).take(blocks) {
        // Read from a copy, then skip the entry: it may become unreadable at any point.
        let mut entry = *reader;
        reader.skip()?;
        read_entry(&mut entry, &mut |key| {
            if keys.len() <= EVENT_EXTRA_KEYS_MAX {
                keys.push((block, key));
            }
        })?;
        if keys.len() > EVENT_EXTRA_KEYS_MAX {
            return Err(Fault::TooMany.into());
        }
    }
    debug_assert!(keys.is_sorted_by_key(|(block, _)| *block), "keys ascend by block");
    Ok(Some(PerBlock { blocks, keys }))
}

/// Keys of one block, as vLLM sends them: nil or a list.
pub(super) fn extra_keys<'a>(
    entry: &mut Reader<'a>,
    push: &mut dyn FnMut(ExtraKey<'a>),
) -> Result<(), DecodeError> {
    match entry.value()? {
        Value::Nil => {}
        Value::Array(count) => {
            for _ in 0..count {
                let mut ahead = *entry;
                entry.skip()?;
                push(extra_key(&mut ahead)?);
            }
        }
        _ => push(ExtraKey::Unknown),
    }
    Ok(())
}

/// Reads one extra key: a text, a number, or a multimodal item as a pair of identifier and offset. Any other value is
/// `Unknown`.
fn extra_key<'a>(reader: &mut Reader<'a>) -> Result<ExtraKey<'a>, DecodeError> {
    let value = reader.value()?;
    Ok(match value {
        Value::Text(_) => text_key(value, ExtraKey::Text),
        Value::Unsigned(_) | Value::Negative(_) => {
            value.bits().map_or(ExtraKey::Unknown, ExtraKey::Number)
        }
        // (identifier, offset)
        Value::Array(2) => {
            let identifier = reader.value()?;
            let offset = if identifier.members() == 0 { reader.value()?.bits() } else { None };
            match offset {
                Some(offset) => {
                    text_key(identifier, |text| ExtraKey::Item(text, offset.cast_signed()))
                }
                None => ExtraKey::Unknown,
            }
        }
        _ => ExtraKey::Unknown,
    })
}

fn text_key<'a>(value: Value<'a>, key: impl FnOnce(&'a str) -> ExtraKey<'a>) -> ExtraKey<'a> {
    text(value).ok().flatten().map_or(ExtraKey::Unknown, key)
}

/// Reads the multimodal content of one block, as Dynamo's bridge sends it: nil or `{"mm_objects":
/// [{"mm_hash": …}]}`.
pub(super) fn multimodal<'a>(
    entry: &mut Reader<'a>,
    push: &mut dyn FnMut(ExtraKey<'a>),
) -> Result<(), DecodeError> {
    let entries = match entry.value()? {
        Value::Nil => return Ok(()),
        Value::Map(entries) => entries,
        _ => {
            push(ExtraKey::Unknown);
            return Ok(());
        }
    };
    let mut objects = None;
    for _ in 0..entries {
        if key(entry)? == b"mm_objects" {
            objects = Some(*entry);
        }
        entry.skip()?;
    }
    let Some(mut objects) = objects else {
        push(ExtraKey::Unknown);
        return Ok(());
    };
    let Value::Array(count) = objects.value()? else {
        push(ExtraKey::Unknown);
        return Ok(());
    };
    for _ in 0..count {
        let mut object = objects;
        objects.skip()?;
        push(multimodal_object(&mut object)?);
    }
    Ok(())
}

/// Reads a multimodal item that is a map. A numeric `mm_hash` is the item's hash, a text is its identifier. Any other
/// item is `Unknown`.
fn multimodal_object<'a>(reader: &mut Reader<'a>) -> Result<ExtraKey<'a>, DecodeError> {
    let Value::Map(entries) = reader.value()? else {
        return Ok(ExtraKey::Unknown);
    };
    let mut found = ExtraKey::Unknown;
    for _ in 0..entries {
        let is_hash = key(reader)? == b"mm_hash";
        let mut ahead = *reader;
        reader.skip()?;
        if is_hash {
            let value = ahead.value()?;
            found = match value.bits() {
                Some(hash) => ExtraKey::ItemHash(hash),
                None => text_key(value, |identifier| ExtraKey::Item(identifier, 0)),
            };
        }
    }
    Ok(found)
}
