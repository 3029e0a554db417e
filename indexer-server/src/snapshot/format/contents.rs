//! Encodes and decodes the database values that contain a rank's blocks: pages of plain blocks, names with a record,
//! holes, and meanings of names.

use super::reader::{FormatError, Reader};
use kvasir_index::{
    HoleImage, NameImage, PAGE_SLOTS, PageImage, Position, RunImage, Slot, SourceId,
};
use kvasir_proto::convert;
use kvasir_proto::types::{BlockName, LocalHash, NameMeaning, StoredBlock, Tier, TierSet};

// Encodings of a run's parent, in the bits above the three tier bits.
const ROOT: u8 = 0;
const SLOT_BEFORE: u8 = 1;
const SLOT_NAMED: u8 = 2;
const PARENT_SHIFT: u32 = 3;
const TIER_BITS: u8 = (1 << PARENT_SHIFT) - 1;

// Flags: optional fields of a name's value.
const HAS_PARENT: u8 = 1;
const HAS_LOCAL: u8 = 2;
const HAS_SLOT: u8 = 4;
const HAS_SLOT_ABOVE: u8 = 8;

const _: () = assert!(Tier::COUNT == PARENT_SHIFT as usize);
const _: () = assert!(PAGE_SLOTS <= u8::MAX as u32);

const fn tier_bit(tier: Tier) -> u8 {
    1 << tier.index()
}

fn tier_bits(tiers: TierSet) -> u8 {
    Tier::ALL.into_iter().filter(|tier| tiers.contains(*tier)).map(tier_bit).sum()
}

fn tiers_of(bits: u8) -> TierSet {
    Tier::ALL.into_iter().filter(|tier| bits & tier_bit(*tier) != 0).collect()
}

/// Appends the encoded value of a page with at least one run.
///
/// # Errors
/// If its runs are not within the page, in order, with 1 to 64 blocks each.
pub(in crate::snapshot) fn encode_page(
    page: &PageImage,
    value: &mut Vec<u8>,
) -> Result<(), FormatError> {
    let wrong = |field| FormatError::Range { what: "page", field };
    let base = page.page.checked_mul(PAGE_SLOTS).ok_or_else(|| wrong("page"))?;
    let runs = u8::try_from(page.runs.len()).map_err(|_error| wrong("runs"))?;
    if runs == 0 {
        return Err(wrong("runs"));
    }
    value.push(runs);
    let mut free = 0;
    for run in &page.runs {
        let offset = run.first.checked_sub(base).filter(|offset| *offset >= free);
        let offset = offset.ok_or_else(|| wrong("first"))?;
        let count = u32::try_from(run.blocks.len()).ok().filter(|count| *count > 0);
        free = count.and_then(|count| offset.checked_add(count)).ok_or_else(|| wrong("blocks"))?;
        if free > PAGE_SLOTS {
            return Err(wrong("blocks"));
        }
        encode_run(run, offset, value).map_err(wrong)?;
    }
    Ok(())
}

/// Appends one run. The caller has checked that its slots are within the page.
fn encode_run(run: &RunImage, offset: u32, value: &mut Vec<u8>) -> Result<(), &'static str> {
    if run.tiers.is_empty() {
        return Err("tiers");
    }
    let parent = match run.parent {
        None => ROOT,
        Some(slot) if slot.checked_add(1) == Some(run.first) => SLOT_BEFORE,
        Some(_) => SLOT_NAMED,
    };
    value.push(u8::try_from(offset).map_err(|_error| "first")?);
    value.push(u8::try_from(run.blocks.len()).map_err(|_error| "blocks")?);
    value.push(tier_bits(run.tiers) | parent << PARENT_SHIFT);
    if let Some(slot) = run.parent.filter(|_slot| parent == SLOT_NAMED) {
        value.extend(slot.to_le_bytes());
    }
    for block in &run.blocks {
        value.extend(block.name.0.to_le_bytes());
        value.extend(block.local.0.to_le_bytes());
    }
    Ok(())
}

/// Decodes the value of a page.
///
/// # Errors
/// If the value is malformed. Then no part of it is valid.
pub(in crate::snapshot) fn decode_page(page: u32, value: &[u8]) -> Result<PageImage, FormatError> {
    let mut reader = Reader::new("page", value);
    let base = page.checked_mul(PAGE_SLOTS).ok_or_else(|| reader.range("page"))?;
    let count = reader.byte()?;
    if count == 0 {
        return Err(reader.range("runs"));
    }
    // Each run has at least one slot, so a forged number of runs ends at the end of the page.
    let mut runs = Vec::new();
    let mut free = 0;
    for _run in 0..count {
        let run = decode_run(base, &mut free, &mut reader)?;
        runs.push(run);
    }
    reader.check_end()?;
    Ok(PageImage { page, runs })
}

/// Decodes a run that begins at `free` or later. Moves `free` behind the run.
fn decode_run(
    base: Slot,
    free: &mut u32,
    reader: &mut Reader<'_>,
) -> Result<RunImage, FormatError> {
    let offset = u32::from(reader.byte()?);
    let count = reader.byte()?;
    let bits = reader.byte()?;
    if offset < *free {
        return Err(reader.range("first"));
    }
    *free = offset + u32::from(count);
    if count == 0 || *free > PAGE_SLOTS {
        return Err(reader.range("blocks"));
    }
    let first = base.checked_add(offset).ok_or_else(|| reader.range("first"))?;
    let parent = match bits >> PARENT_SHIFT {
        ROOT => None,
        SLOT_BEFORE => Some(first.checked_sub(1).ok_or_else(|| reader.range("parent"))?),
        SLOT_NAMED => Some(reader.u32()?),
        _ => return Err(reader.range("parent")),
    };
    let tiers = tiers_of(bits & TIER_BITS);
    if tiers.is_empty() {
        return Err(reader.range("tiers"));
    }
    let mut blocks = Vec::with_capacity(usize::from(count));
    for _block in 0..count {
        let name = BlockName(reader.u64()?);
        blocks.push(StoredBlock { name, local: LocalHash(reader.u64()?) });
    }
    Ok(RunImage { first, parent, tiers, blocks })
}

/// Appends the encoded value of a name with at least one copy.
///
/// # Errors
/// If the name has no copies, or copies of too many sources.
pub(in crate::snapshot) fn encode_name(
    name: &NameImage,
    value: &mut Vec<u8>,
) -> Result<(), FormatError> {
    let wrong = |field| FormatError::Range { what: "name", field };
    let above = name.position.and_then(|position| position.parent);
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    value.push(
        flag(name.parent.is_some(), HAS_PARENT)
            | flag(name.local.is_some(), HAS_LOCAL)
            | flag(name.position.is_some(), HAS_SLOT)
            | flag(above.is_some(), HAS_SLOT_ABOVE),
    );
    value.extend(name.parent.into_iter().flat_map(|parent| parent.0.to_le_bytes()));
    value.extend(name.local.into_iter().flat_map(|local| local.0.to_le_bytes()));
    value.extend(name.position.into_iter().flat_map(|position| position.slot.to_le_bytes()));
    value.extend(above.into_iter().flat_map(Slot::to_le_bytes));
    let sources = u8::try_from(name.copies.len()).ok().filter(|sources| *sources > 0);
    value.push(sources.ok_or_else(|| wrong("copies"))?);
    for (source, counts) in &name.copies {
        let counts = || Tier::ALL.into_iter().zip(counts).filter(|(_tier, count)| **count > 0);
        let bits: u8 = counts().map(|(tier, _count)| tier_bit(tier)).sum();
        if bits == 0 {
            return Err(wrong("copies"));
        }
        value.extend(source.0.to_le_bytes());
        value.push(bits);
        value.extend(counts().flat_map(|(_tier, count)| count.to_le_bytes()));
    }
    Ok(())
}

/// Decodes the value of a name.
///
/// # Errors
/// If the value is malformed.
pub(in crate::snapshot) fn decode_name(
    name: BlockName,
    value: &[u8],
) -> Result<NameImage, FormatError> {
    let mut reader = Reader::new("name", value);
    let flags = reader.byte()?;
    if flags > HAS_PARENT | HAS_LOCAL | HAS_SLOT | HAS_SLOT_ABOVE {
        return Err(reader.range("flags"));
    }
    let has = |flag| flags & flag != 0;
    if has(HAS_SLOT_ABOVE) && !has(HAS_SLOT) {
        return Err(reader.range("position"));
    }
    let parent = if has(HAS_PARENT) { Some(BlockName(reader.u64()?)) } else { None };
    let local = if has(HAS_LOCAL) { Some(LocalHash(reader.u64()?)) } else { None };
    let slot = if has(HAS_SLOT) { Some(reader.u32()?) } else { None };
    let above = if has(HAS_SLOT_ABOVE) { Some(reader.u32()?) } else { None };
    let position = slot.map(|slot| Position { slot, parent: above });
    let sources = reader.byte()?;
    if sources == 0 {
        return Err(reader.range("copies"));
    }
    let mut copies = Vec::with_capacity(usize::from(sources));
    for _source in 0..sources {
        let source = SourceId(reader.u32()?);
        copies.push((source, decode_counts(&mut reader)?));
    }
    reader.check_end()?;
    Ok(NameImage { name, parent, local, position, copies })
}

/// Decodes the copies of one source, per tier.
fn decode_counts(reader: &mut Reader<'_>) -> Result<[u32; Tier::COUNT], FormatError> {
    let bits = reader.byte()?;
    if bits == 0 || bits > TIER_BITS {
        return Err(reader.range("tiers"));
    }
    let mut counts = [0; Tier::COUNT];
    for (tier, count) in Tier::ALL.into_iter().zip(&mut counts) {
        if bits & tier_bit(tier) != 0 {
            *count = reader.u32()?;
            if *count == 0 {
                return Err(reader.range("copies"));
            }
        }
    }
    Ok(counts)
}

/// Appends the value of a hole.
pub(in crate::snapshot) fn encode_hole(hole: &HoleImage, value: &mut Vec<u8>) {
    value.push(u8::from(hole.position.parent.is_some()));
    value.extend(hole.position.parent.into_iter().flat_map(Slot::to_le_bytes));
    value.extend(hole.name.0.to_le_bytes());
    value.extend(hole.local.0.to_le_bytes());
}

/// Decodes the value of a hole at `slot`.
///
/// # Errors
/// If the value is malformed.
pub(in crate::snapshot) fn decode_hole(slot: Slot, value: &[u8]) -> Result<HoleImage, FormatError> {
    let mut reader = Reader::new("hole", value);
    let parent = match reader.byte()? {
        0 => None,
        1 => Some(reader.u32()?),
        _ => return Err(reader.range("parent")),
    };
    let name = BlockName(reader.u64()?);
    let local = LocalHash(reader.u64()?);
    reader.check_end()?;
    Ok(HoleImage { position: Position { slot, parent }, name, local })
}

/// Appends the meaning of a name.
pub(in crate::snapshot) fn encode_meaning(
    name: BlockName,
    meaning: &NameMeaning,
    value: &mut Vec<u8>,
) {
    value.extend(convert::encode_meaning(name, meaning));
}

/// Decodes the meaning of a name.
///
/// # Errors
/// If the value belongs to another name, or is malformed.
pub(in crate::snapshot) fn decode_meaning(
    name: BlockName,
    value: &[u8],
) -> Result<NameMeaning, FormatError> {
    let wrong = FormatError::Range { what: "meaning", field: "name" };
    convert::decode_meaning(name, value).ok_or(wrong)
}
