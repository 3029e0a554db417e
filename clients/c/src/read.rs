//! Validates pointer arguments. Detects invalid arguments where possible: null, misaligned, too
//! many items, text without an end, text that is not UTF-8, structure of another version. The
//! caller guarantees that a pointer leads to the stated number of items.

use crate::fault::Fault;
use crate::types::{KVASIR_TIER_DEVICE, KVASIR_TIER_DISK, KVASIR_TIER_HOST, Multimodal, Stored};
use kvasir_feed::publisher::{Content, NewBlocks};
use kvasir_proto::hash::{MultimodalSpan, Namespace, multimodal_hash};
use kvasir_proto::limits::{
    EVENT_BLOCKS_MAX, MULTIMODAL_IDENTIFIER_BYTES_MAX, NAME_BYTES_MAX, QUERY_MULTIMODAL_ITEMS_MAX,
};
use kvasir_proto::types::{BlockName, LocalHash, Tier};
use std::ffi::c_char;
use std::{slice, str};

/// Refuses a null or misaligned pointer.
fn check<T>(pointer: *const T, field: &str) -> Result<(), Fault> {
    if pointer.is_null() {
        return Err(Fault::argument(field, "is NULL"));
    }
    if !pointer.is_aligned() {
        return Err(Fault::argument(
            field,
            "is not aligned: pass a pointer to a value of its type",
        ));
    }
    Ok(())
}

/// Refuses a structure of another version, or one whose size is not set.
///
/// # Safety
/// `pointer` is null, not aligned, or leads to a structure that begins with its size.
unsafe fn check_size<T>(pointer: *const T, field: &str) -> Result<(), Fault> {
    check(pointer, field)?;
    // SAFETY: it leads to a structure, whose first field is its size.
    let size = unsafe { pointer.cast::<usize>().read() };
    if size != size_of::<T>() {
        let expected = size_of::<T>();
        let problem =
            format!("is {size}, must be {expected}: set it to sizeof, with this version's header");
        return Err(Fault::argument(&format!("{field}.struct_size"), problem));
    }
    Ok(())
}

/// Returns the structure at `pointer`, which the caller has filled in. Fails if `pointer` is null or misaligned, or if
/// the structure has the size of another version.
///
/// # Safety
/// `pointer` is null, not aligned, or leads to a `T` that begins with its size and stays as it is for `'a`.
pub(crate) unsafe fn structure<'a, T>(pointer: *const T, field: &str) -> Result<&'a T, Fault> {
    // SAFETY: as the caller says.
    unsafe { check_size(pointer, field) }?;
    // SAFETY: it is not null, aligned, and as the caller says a T.
    Ok(unsafe { &*pointer })
}

/// Writes `value()` to `pointer`. Fails, before it calls `value`, if `pointer` is null or misaligned, or if the
/// structure has the size of another version.
///
/// # Safety
/// `pointer` is null, not aligned, or leads to a `T` that begins with its size and that nobody else uses meanwhile.
pub(crate) unsafe fn write_structure<T>(
    pointer: *mut T,
    field: &str,
    value: impl FnOnce() -> T,
) -> Result<(), Fault> {
    // SAFETY: as the caller says.
    unsafe { check_size(pointer, field) }?;
    // SAFETY: it is not null, aligned, and as the caller says a place for a T of this size.
    unsafe { pointer.write(value()) };
    Ok(())
}

/// Refuses a null or misaligned pointer to a required result.
pub(crate) fn check_out<T>(pointer: *mut T, field: &str) -> Result<(), Fault> {
    check(pointer, field)
}

/// Writes a result. Has no effect if `pointer` is null or misaligned.
///
/// # Safety
/// `pointer` is null, or leads to a place for a `T` that nobody else uses meanwhile.
pub(crate) unsafe fn write<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() && pointer.is_aligned() {
        // SAFETY: it is not null, aligned, and as the caller says a place for a T.
        unsafe { pointer.write(value) };
    }
}

/// Reads a text of at most `bytes_max` bytes. Returns `None` if `pointer` is null. Fails if the text is longer or is
/// not UTF-8.
///
/// # Safety
/// `pointer` is null, or leads to bytes up to a 0 byte that stay as they are for `'a`.
pub(crate) unsafe fn text<'a>(
    pointer: *const c_char,
    field: &str,
    bytes_max: usize,
) -> Result<Option<&'a str>, Fault> {
    if pointer.is_null() {
        return Ok(None);
    }
    let bytes = pointer.cast::<u8>();
    // SAFETY: bytes are read one after the other up to the first 0 byte, so all belong to the text.
    let length = (0..=bytes_max).find(|&at| unsafe { bytes.add(at).read() } == 0);
    let Some(length) = length else {
        let problem = format!("has no 0 byte within {bytes_max} bytes: give a shorter text");
        return Err(Fault::argument(field, problem));
    };
    // SAFETY: these bytes were just read.
    let bytes = unsafe { slice::from_raw_parts(bytes, length) };
    let text = str::from_utf8(bytes).map_err(|error| Fault::argument(field, error))?;
    Ok(Some(text))
}

/// Reads an optional name.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn optional_name<'a>(
    pointer: *const c_char,
    field: &str,
) -> Result<Option<&'a str>, Fault> {
    // SAFETY: as the caller says.
    unsafe { text(pointer, field, NAME_BYTES_MAX) }
}

/// Reads a required name.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn name<'a>(pointer: *const c_char, field: &str) -> Result<&'a str, Fault> {
    // SAFETY: as the caller says.
    let name = unsafe { optional_name(pointer, field) }?;
    name.ok_or_else(|| Fault::argument(field, "is NULL: it is required"))
}

/// Reads a list of `count` items, at most `count_max`. If `count` is 0, returns an empty list for any pointer.
///
/// # Safety
/// `pointer` is null, not aligned, or leads to `count` of `T` that stay as they are for `'a`.
pub(crate) unsafe fn list<'a, T>(
    pointer: *const T,
    (count, count_max): (usize, usize),
    field: &str,
) -> Result<&'a [T], Fault> {
    if count == 0 {
        return Ok(&[]);
    }
    check(pointer, field)?;
    let limit = count_max.min(isize::MAX.unsigned_abs() / size_of::<T>().max(1));
    if count > limit {
        return Err(Fault::argument(field, format!("has {count} entries, the limit is {limit}")));
    }
    // SAFETY: it is not null, aligned, no more bytes than there can be, and as the caller says so many of T.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// Reads the names of blocks.
///
/// # Safety
/// As for [`list`].
pub(crate) unsafe fn names(pointer: *const u64, count: usize) -> Result<Vec<BlockName>, Fault> {
    // SAFETY: as the caller says.
    let names = unsafe { list(pointer, (count, EVENT_BLOCKS_MAX), "names") }?;
    Ok(names.iter().copied().map(BlockName).collect())
}

/// Converts a tier number.
pub(crate) fn tier(tier: u32) -> Result<Tier, Fault> {
    match tier {
        KVASIR_TIER_DEVICE => Ok(Tier::Device),
        KVASIR_TIER_HOST => Ok(Tier::Host),
        KVASIR_TIER_DISK => Ok(Tier::Disk),
        other => Err(Fault::argument("tier", format!("is {other}, must be a KVASIR_TIER, 0 to 2"))),
    }
}

/// Stored blocks in owned lists.
#[derive(Debug)]
pub(crate) struct StoredBlocks<'a> {
    parent: Option<BlockName>,
    names: Vec<BlockName>,
    tier: Tier,
    content: Given<'a>,
}

#[derive(Debug)]
enum Given<'a> {
    Tokens { tokens: &'a [u32], namespace: Namespace<'a>, multimodal: Vec<MultimodalSpan> },
    Locals(Vec<LocalHash>),
    Nothing,
}

impl<'a> StoredBlocks<'a> {
    /// Copies the lists of `stored`.
    ///
    /// # Safety
    /// Its pointers are null, not aligned, or lead to what [`Stored`] says.
    pub(crate) unsafe fn read(stored: &Stored, block_size: u32) -> Result<Self, Fault> {
        // SAFETY: the three calls as the caller says.
        let names = unsafe { names(stored.names, stored.names_count) }?;
        // SAFETY: as above.
        let parent =
            unsafe { list(stored.parent, (usize::from(!stored.parent.is_null()), 1), "parent") }?;
        // SAFETY: as above.
        let content = unsafe { Given::read(stored, block_size) }?;
        let parent = parent.first().copied().map(BlockName);
        Ok(Self { parent, names, tier: tier(stored.tier)?, content })
    }

    /// Converts the blocks to the publisher's type.
    pub(crate) fn new_blocks(&self) -> NewBlocks<'_> {
        let content = match &self.content {
            Given::Tokens { tokens, namespace, multimodal } => {
                Content::Tokens { tokens, namespace: *namespace, multimodal }
            }
            Given::Locals(locals) => Content::Locals(locals),
            Given::Nothing => Content::Known,
        };
        NewBlocks { parent: self.parent, names: &self.names, content, tier: self.tier }
    }
}

impl<'a> Given<'a> {
    /// # Safety
    /// As for [`StoredBlocks::read`].
    unsafe fn read(stored: &Stored, block_size: u32) -> Result<Self, Fault> {
        if stored.tokens.is_null() && stored.tokens_count == 0 {
            let with_tokens = [
                ("lora_name", stored.lora_name.is_null()),
                ("cache_salt", stored.cache_salt.is_null()),
                ("multimodal", stored.multimodal.is_null()),
            ];
            if let Some((field, _)) = with_tokens.iter().find(|(_, is_null)| !is_null) {
                return Err(Fault::argument(
                    field,
                    "goes with tokens only: local hashes contain it",
                ));
            }
            if stored.local_hashes.is_null() && stored.local_hashes_count == 0 {
                return Ok(Self::Nothing);
            }
            let count = (stored.local_hashes_count, EVENT_BLOCKS_MAX);
            // SAFETY: as the caller says.
            let locals = unsafe { list(stored.local_hashes, count, "local_hashes") }?;
            return Ok(Self::Locals(locals.iter().copied().map(LocalHash).collect()));
        }
        if !stored.local_hashes.is_null() {
            return Err(Fault::argument("local_hashes", "is given with tokens: give one of them"));
        }
        let block_size = usize::try_from(block_size).unwrap_or(usize::MAX);
        let count = (stored.tokens_count, EVENT_BLOCKS_MAX.saturating_mul(block_size));
        // SAFETY: this and what follows as the caller says.
        let tokens = unsafe { list(stored.tokens, count, "tokens") }?;
        // SAFETY: as above.
        let lora_name = unsafe { optional_name(stored.lora_name, "lora_name") }?;
        // SAFETY: as above.
        let cache_salt = unsafe { optional_name(stored.cache_salt, "cache_salt") }?;
        let count = (stored.multimodal_count, QUERY_MULTIMODAL_ITEMS_MAX);
        // SAFETY: as above.
        let items = unsafe { list(stored.multimodal, count, "multimodal") }?;
        // SAFETY: as above.
        let spans = items.iter().map(|item| unsafe { span(item, tokens.len()) });
        let multimodal = spans.collect::<Result<Vec<_>, _>>()?;
        let lora_name = lora_name.unwrap_or("");
        let cache_salt = cache_salt.unwrap_or("");
        Ok(Self::Tokens { tokens, namespace: Namespace { lora_name, cache_salt }, multimodal })
    }
}

/// # Safety
/// Its identifier is null, or leads to a text.
unsafe fn span(item: &Multimodal, tokens: usize) -> Result<MultimodalSpan, Fault> {
    // SAFETY: as the caller says.
    let identifier =
        unsafe { text(item.identifier, "multimodal.identifier", MULTIMODAL_IDENTIFIER_BYTES_MAX) }?;
    let Some(identifier) = identifier.filter(|text| !text.is_empty()) else {
        return Err(Fault::argument("multimodal.identifier", "is empty: it is required"));
    };
    let start = item.start;
    let end = item.end;
    if start >= end || end > tokens {
        let problem = format!("{start} to {end} is not within {tokens} tokens");
        return Err(Fault::argument("multimodal", problem));
    }
    Ok(MultimodalSpan { hash: multimodal_hash(identifier), start, end })
}
