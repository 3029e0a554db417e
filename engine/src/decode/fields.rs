//! Decodes the fields of one event, by position (arrays) or by key (maps).

use super::error::DecodeError;
use super::event::{
    Fault, LookAhead, PerBlock, Place, RawEvent, RawMoved, RawRemoved, RawStored, RawTokens,
    Unreadable,
};
use super::extra::{extra_keys, multimodal, per_block};
use super::layout::{Dialect, Field, TAG, Tag};
use super::object_key::name_in_key;
use super::reader::{Reader, Value};
use super::values::{
    FieldError, key, length, local_hashes, look_ahead, name, num_block_tokens, remaining_copies,
    text, tokens, unsigned,
};
use kvasir_proto::limits::EVENT_BLOCKS_MAX;
use kvasir_proto::types::{BlockName, EngineKind, LocalHash};

/// Decodes one event of any kind and advances `reader` past it.
pub(super) fn event<'a>(
    reader: &mut Reader<'a>,
    engine: EngineKind,
) -> Result<RawEvent<'a>, DecodeError> {
    match reader.value()? {
        Value::Array(members) => array_event(reader, members, engine),
        Value::Map(entries) => map_event(reader, entries, engine),
        _ => Ok(untagged(Fault::Type)),
    }
}

/// Reads an event that is an array: its kind, then the fields of this kind by position. Fields after the last known
/// one are skipped.
fn array_event<'a>(
    reader: &mut Reader<'a>,
    members: usize,
    engine: EngineKind,
) -> Result<RawEvent<'a>, DecodeError> {
    let Some(slots) = members.checked_sub(1) else {
        return Ok(untagged(Fault::Missing));
    };
    let tag = reader.value()?;
    reader.skip_many(tag.members())?;
    let Some((tag, kind)) = Tag::from_value(tag, Dialect::Engine) else {
        reader.skip_many(slots)?;
        return Ok(untagged(Fault::Type));
    };
    let fields = tag.slots();
    let mut draft = Draft { slots: Some(slots), ..Draft::new(engine) };
    for slot in 0..slots {
        match fields.get(slot).copied().flatten() {
            Some(field) => draft.read_field(field, reader)?,
            None => reader.skip()?,
        }
    }
    Ok(draft.finish(tag, kind))
}

/// Reads an event that is a map. An event of an unknown kind, or without a valid kind, is skipped and reported.
fn map_event<'a>(
    reader: &mut Reader<'a>,
    entries: usize,
    engine: EngineKind,
) -> Result<RawEvent<'a>, DecodeError> {
    let (tag, kind, dialect) = match read_map_tag(*reader, entries)? {
        Ok((Tag::Unknown, kind, _)) => {
            reader.skip_many(entries * 2)?;
            return Ok(RawEvent::Unknown(kind));
        }
        Ok(tagged) => tagged,
        Err(fault) => {
            reader.skip_many(entries * 2)?;
            return Ok(untagged(fault));
        }
    };
    let mut draft = Draft::new(engine);
    if dialect == Dialect::Rfc1527 {
        // A store may omit the tokens. Its blocks then have names only.
        (draft.tokens, draft.block_size) = (Some(RawTokens::Ids(vec![])), Some(0));
    }
    for _ in 0..entries {
        match Field::of_key(key(reader)?, tag, dialect, engine) {
            Some(field) => draft.read_field(field, reader)?,
            None => reader.skip()?,
        }
    }
    Ok(draft.finish(tag, kind))
}

/// Reads the kind of an event that is a map, and the dialect in which the key of the kind is written. An engine's
/// key takes precedence: the search ends there. Other dialects are searched to the end, and the last one counts.
/// Engines usually send the key first, but any order is valid.
fn read_map_tag<'a>(
    mut reader: Reader<'a>,
    entries: usize,
) -> Result<Result<(Tag, &'a str, Dialect), Fault>, DecodeError> {
    let mut tagged = Err(Fault::Missing);
    for _ in 0..entries {
        let dialect = Dialect::of_tag(key(&mut reader)?);
        let mut ahead = reader;
        reader.skip()?;
        let Some(dialect) = dialect else { continue };
        let tag = Tag::from_value(ahead.value()?, dialect);
        tagged = tag.map(|(tag, kind)| (tag, kind, dialect)).ok_or(Fault::Type);
        if dialect == Dialect::Engine {
            break;
        }
    }
    Ok(tagged)
}

const fn untagged(fault: Fault) -> RawEvent<'static> {
    RawEvent::Unreadable(Unreadable { field: TAG, fault, operations: 1 })
}

/// The fields of an event that have been read.
struct Draft<'a> {
    engine: EngineKind,
    /// Number of fields after the tag, if fields are known by position.
    slots: Option<usize>,
    names: Option<Vec<BlockName>>,
    /// Length of the list of names, known even if a name is invalid.
    operations: Option<usize>,
    parent: Option<BlockName>,
    tokens: Option<RawTokens>,
    local_hashes: Option<Vec<LocalHash>>,
    block_size: Option<u64>,
    num_block_tokens: Option<(u64, u64)>,
    place: Place<'a>,
    window: Option<u64>,
    lora_id: Option<u64>,
    lora_name: Option<&'a str>,
    cache_salt: Option<&'a str>,
    extra_keys: Option<PerBlock<'a>>,
    multimodal: Option<PerBlock<'a>>,
    remaining: Option<Vec<u32>>,
    look_ahead: Option<Vec<LookAhead>>,
    /// Medium that the blocks left.
    from: Option<&'a str>,
    object_key: Option<&'a str>,
    /// The first invalid field.
    fault: Option<(Field, Fault)>,
}

impl<'a> Draft<'a> {
    const fn new(engine: EngineKind) -> Self {
        Self {
            engine,
            slots: None,
            names: None,
            operations: None,
            parent: None,
            tokens: None,
            local_hashes: None,
            block_size: None,
            num_block_tokens: None,
            place: Place { medium: None, locality: None, group: None, kind: None },
            window: None,
            lora_id: None,
            lora_name: None,
            cache_salt: None,
            extra_keys: None,
            multimodal: None,
            remaining: None,
            look_ahead: None,
            from: None,
            object_key: None,
            fault: None,
        }
    }

    /// Reads the value of `field`, or skips it if it is invalid.
    fn read_field(&mut self, field: Field, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        let start = *reader;
        match self.assign(field, reader) {
            Ok(()) => Ok(()),
            Err(FieldError::Batch(error)) => Err(error),
            Err(FieldError::Event(fault)) => {
                self.fault.get_or_insert((field, fault));
                *reader = start;
                reader.skip()
            }
        }
    }

    /// Parses the value of `field` into the draft.
    fn assign(&mut self, field: Field, reader: &mut Reader<'a>) -> Result<(), FieldError> {
        match field {
            Field::Names => self.names = Some(self.read_names(reader)?),
            Field::Parent => {
                self.parent = match reader.value()? {
                    Value::Nil => None,
                    value => Some(name(value, self.engine)?),
                }
            }
            Field::Tokens => self.tokens = Some(tokens(reader)?),
            Field::LocalHashes => self.local_hashes = local_hashes(reader)?,
            Field::BlockSize => {
                self.block_size = match reader.value()? {
                    // Only blocks without tokens may have no block size.
                    Value::Nil => Some(0),
                    value => Some(unsigned(value)?),
                }
            }
            Field::NumBlockTokens => self.num_block_tokens = num_block_tokens(reader)?,
            Field::LoraId => {
                self.lora_id = match reader.value()? {
                    Value::Nil => None,
                    value => Some(value.bits().ok_or(Fault::Type)?),
                }
            }
            Field::LoraName => self.read_lora_name(reader)?,
            Field::CacheSalt => self.cache_salt = text(reader.value()?)?,
            Field::Medium => self.place.medium = text(reader.value()?)?,
            Field::Locality => self.place.locality = text(reader.value()?)?,
            Field::Group => {
                self.place.group = match reader.value()? {
                    Value::Nil => None,
                    value => Some(u32::try_from(unsigned(value)?).or(Err(Fault::Type))?),
                }
            }
            Field::Kind => self.place.kind = text(reader.value()?)?,
            // Without a readable window, the group is one that cannot be indexed.
            Field::Window => {
                let value = reader.value()?;
                reader.skip_many(value.members())?;
                self.window = unsigned(value).ok();
            }
            Field::ExtraKeys => self.extra_keys = per_block(reader, extra_keys)?,
            Field::Multimodal => self.multimodal = per_block(reader, multimodal)?,
            Field::RemainingCopies => self.remaining = remaining_copies(reader)?,
            Field::LookAhead => self.look_ahead = look_ahead(reader)?,
            Field::From => self.from = text(reader.value()?)?,
            Field::ObjectKey => self.object_key = text(reader.value()?)?,
        }
        Ok(())
    }

    /// Reads the list of block hashes, at most [`EVENT_BLOCKS_MAX`].
    fn read_names(&mut self, reader: &mut Reader<'a>) -> Result<Vec<BlockName>, FieldError> {
        let count = length(reader, EVENT_BLOCKS_MAX, &mut self.operations)?;
        let mut names = Vec::with_capacity(count);
        for _ in 0..count {
            names.push(name(reader.value()?, self.engine)?);
        }
        Ok(names)
    }

    /// Reads the name of the LoRA adapter, or the map of metadata that SGLang sends in its place.
    fn read_lora_name(&mut self, reader: &mut Reader<'a>) -> Result<(), FieldError> {
        match reader.value()? {
            Value::Map(entries) => {
                for _ in 0..entries {
                    if key(reader)? == Field::CacheSalt.name().as_bytes() {
                        self.cache_salt = text(reader.value()?)?;
                    } else {
                        reader.skip()?;
                    }
                }
            }
            value => self.lora_name = text(value)?,
        }
        Ok(())
    }

    /// Converts the draft to an event of kind `tag`. Without hashes, the block's hash is parsed from its object key.
    /// An invalid or missing field makes the event unreadable.
    fn finish(mut self, tag: Tag, kind: &'a str) -> RawEvent<'a> {
        let operations = self.operations.unwrap_or(1);
        let object = self.object_key.filter(|_| operations == 0);
        if let Some(key) = object {
            let Some(name) = name_in_key(key, self.engine) else { return RawEvent::Unnamed };
            self.names = Some(vec![name]);
            // A block without one of its objects cannot be loaded.
            self.remaining = Some(vec![0]);
        }
        let event = match tag {
            Tag::Unknown => Ok(RawEvent::Unknown(kind)),
            Tag::Cleared | Tag::TierCleared => self.cleared(tag),
            Tag::Moved => self.moved(),
            Tag::Stored if object.is_some() => self.stored().map(RawEvent::StoredObject),
            Tag::Stored => self.stored().map(RawEvent::Stored),
            Tag::Removed => self.removed(),
        };
        event.unwrap_or_else(|(field, fault)| {
            RawEvent::Unreadable(Unreadable { field: field.name(), fault, operations })
        })
    }

    fn cleared(self, tag: Tag) -> Result<RawEvent<'a>, (Field, Fault)> {
        self.fault.map_or(Ok(()), Err)?;
        if tag == Tag::TierCleared && self.place.medium.is_none() {
            return Err((Field::Medium, Fault::Missing));
        }
        Ok(RawEvent::Cleared(self.place))
    }

    /// Converts the draft of a move. Fails if hashes or one of the two media are missing.
    fn moved(self) -> Result<RawEvent<'a>, (Field, Fault)> {
        self.fault.map_or(Ok(()), Err)?;
        let names = self.names.ok_or((Field::Names, Fault::Missing))?;
        for (field, medium) in [(Field::From, self.from), (Field::Medium, self.place.medium)] {
            medium.ok_or((field, Fault::Missing))?;
        }
        Ok(RawEvent::Moved(RawMoved { names, place: self.place, from: self.from }))
    }

    /// Converts the draft of a store. Fails with the first invalid field, or the first required field that is
    /// missing.
    fn stored(self) -> Result<Box<RawStored<'a>>, (Field, Fault)> {
        self.fault.map_or(Ok(()), Err)?;
        Ok(Box::new(RawStored {
            names: self.names.ok_or((Field::Names, Fault::Missing))?,
            parent: self.parent,
            tokens: self.tokens.ok_or((Field::Tokens, Fault::Missing))?,
            local_hashes: self.local_hashes,
            block_size: self.block_size.ok_or((Field::BlockSize, Fault::Missing))?,
            num_block_tokens: self.num_block_tokens,
            place: self.place,
            window: self.window,
            lora_id: self.lora_id,
            lora_name: self.lora_name,
            cache_salt: self.cache_salt,
            extra_keys: self.extra_keys,
            multimodal: self.multimodal,
            look_ahead: self.look_ahead,
            slots: self.slots,
        }))
    }

    /// Converts the draft of a removal. Fails if the hashes are missing, or if there is not one remaining count per
    /// hash.
    fn removed(self) -> Result<RawEvent<'a>, (Field, Fault)> {
        self.fault.map_or(Ok(()), Err)?;
        let names = self.names.ok_or((Field::Names, Fault::Missing))?;
        let remaining = self.remaining;
        if remaining.as_ref().is_some_and(|remaining| remaining.len() != names.len()) {
            return Err((Field::RemainingCopies, Fault::Length));
        }
        Ok(RawEvent::Removed(RawRemoved { names, place: self.place, remaining }))
    }
}
