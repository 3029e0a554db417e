//! Encodes the facts that an engine has shown and the meanings of its names, for other indexes and for disk.

use super::ConvertError;
use super::shared::check_count;
use crate::limits::{
    BLOCK_SIZE_TOKENS_MAX, DUMP_MEANINGS_MAX, FURTHER_GROUPS_MAX, WORKER_LORA_NAMES_MAX,
};
use crate::pb;
use crate::types::{
    AdapterNumber, BlockName, DpRank, Group, GroupKind, ImageKeys, Learned, NameMeaning, Tier,
};
use prost::Message;

/// A name of a rank, with its meaning.
pub type KnownName = (DpRank, BlockName, NameMeaning);

/// Encodes the meaning of a name.
#[must_use]
pub const fn name_meaning(name: BlockName, meaning: &NameMeaning) -> pb::NameMeaning {
    let [device_copies, host_copies, disk_copies] = meaning.copies;
    pb::NameMeaning {
        name: name.0,
        adapter_seed: meaning.adapter,
        seed: meaning.seed,
        matchable: meaning.matchable,
        own_keys: meaning.has_own_keys,
        device_copies,
        host_copies,
        disk_copies,
    }
}

/// Decodes the meaning of a name. `None` if the last copy of the name is gone.
fn read_name_meaning(stated: &pb::NameMeaning) -> Option<(BlockName, NameMeaning)> {
    let copies = [stated.device_copies, stated.host_copies, stated.disk_copies];
    let meaning = NameMeaning {
        adapter: stated.adapter_seed,
        seed: stated.seed,
        matchable: stated.matchable,
        has_own_keys: stated.own_keys,
        copies,
    };
    (copies != [0; Tier::COUNT]).then_some((BlockName(stated.name), meaning))
}

pub(super) fn read_meanings(meanings: &pb::DumpMeanings) -> Result<Vec<KnownName>, ConvertError> {
    check_count("names", meanings.names.len(), DUMP_MEANINGS_MAX)?;
    let names = meanings.names.iter().filter_map(read_name_meaning);
    Ok(names.map(|(name, meaning)| (meanings.dp_rank, name, meaning)).collect())
}

/// Encodes the meaning of a name as bytes to store.
#[must_use]
pub fn encode_meaning(name: BlockName, meaning: &NameMeaning) -> Vec<u8> {
    name_meaning(name, meaning).encode_to_vec()
}

/// Decodes the meaning of a name from stored bytes; none if the bytes belong to another name or are unreadable.
#[must_use]
pub fn decode_meaning(name: BlockName, bytes: &[u8]) -> Option<NameMeaning> {
    let (of, meaning) = read_name_meaning(&pb::NameMeaning::decode(bytes).ok()?)?;
    (of == name).then_some(meaning)
}

/// Encodes a source's learned facts, except its main group, as bytes to store.
#[must_use]
pub fn encode_learned(learned: &Learned) -> Vec<u8> {
    source_learned(learned).encode_to_vec()
}

/// Decodes a source's learned facts from stored bytes. Without bytes, from an earlier version, only the main group is
/// known. None if the bytes are unreadable.
#[must_use]
pub fn decode_learned(main_group: Option<u32>, bytes: Option<&[u8]>) -> Option<Learned> {
    let stated = bytes.map(pb::SourceLearned::decode).transpose().ok()?;
    read_source_learned(main_group, stated.as_ref()).ok()
}

/// Encodes a source's learned facts, except its main group.
pub(super) fn source_learned(learned: &Learned) -> pb::SourceLearned {
    let image_keys = match learned.image_keys {
        ImageKeys::Unknown => pb::ImageKeys::Unspecified,
        ImageKeys::Bare => pb::ImageKeys::Bare,
        ImageKeys::Pairs => pb::ImageKeys::Pairs,
    };
    let adapters = learned.adapters.iter().map(|at| pb::AdapterNumber {
        dp_rank: at.rank,
        adapter_seed: at.adapter,
        number: at.number,
    });
    pb::SourceLearned {
        states_keys: learned.states_keys,
        looks_ahead: learned.looks_ahead,
        has_extra_keys: learned.has_extra_keys,
        splits_chunks: learned.splits_chunks,
        image_keys: image_keys.into(),
        forgot_names: learned.forgot_names,
        adapters: adapters.collect(),
        groups: learned.groups.iter().map(group_message).collect(),
    }
}

fn group_message(group: &Group) -> pb::LearnedGroup {
    pb::LearnedGroup {
        number: group.number,
        kind: group.kind.number(),
        block_size: group.block_size,
        unit: group.unit,
        window: group.window,
    }
}

/// Reads a group. `None` if a field is out of range: the group is learned again from its next block.
fn read_group(stated: &pb::LearnedGroup) -> Option<Group> {
    let size = 1..=BLOCK_SIZE_TOKENS_MAX;
    let is_valid = stated.number < Group::NUMBERS
        && size.contains(&stated.block_size)
        && size.contains(&stated.unit)
        && stated.window < Group::WINDOW_MAX;
    Some(Group {
        number: stated.number,
        kind: GroupKind::from_number(stated.kind)?,
        block_size: stated.block_size,
        unit: stated.unit,
        window: stated.window,
    })
    .filter(|_| is_valid)
}

/// Decodes a source's learned facts. Without a message, from an earlier version, only the main group is known.
pub(super) fn read_source_learned(
    main_group: Option<u32>,
    stated: Option<&pb::SourceLearned>,
) -> Result<Learned, ConvertError> {
    let Some(stated) = stated else { return Ok(Learned { main_group, ..Learned::default() }) };
    let count = stated.adapters.len();
    check_count("adapters", count, WORKER_LORA_NAMES_MAX)
        .map_err(|error| error.within("learned"))?;
    // An unknown form of image keys is learned again from the next image.
    let image_keys = match stated.image_keys() {
        pb::ImageKeys::Unspecified => ImageKeys::Unknown,
        pb::ImageKeys::Bare => ImageKeys::Bare,
        pb::ImageKeys::Pairs => ImageKeys::Pairs,
    };
    let adapters = stated.adapters.iter().map(|at| AdapterNumber {
        rank: at.dp_rank,
        adapter: at.adapter_seed,
        number: at.number,
    });
    check_count("groups", stated.groups.len(), FURTHER_GROUPS_MAX)
        .map_err(|error| error.within("learned"))?;
    Ok(Learned {
        main_group,
        states_keys: stated.states_keys,
        looks_ahead: stated.looks_ahead,
        has_extra_keys: stated.has_extra_keys,
        splits_chunks: stated.splits_chunks,
        image_keys,
        forgot_names: stated.forgot_names,
        adapters: adapters.collect(),
        groups: stated.groups.iter().filter_map(read_group).collect(),
    })
}
