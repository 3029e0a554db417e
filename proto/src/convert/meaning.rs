//! What an engine has shown of itself, and what its names mean: from one index to another, and on disk.

use super::{ConvertError, shared::check_count};
use crate::{
    limits::{DUMP_MEANINGS_MAX, WORKER_LORA_NAMES_MAX},
    pb,
    types::{AdapterNumber, BlockName, DpRank, ImageKeys, Learned, NameMeaning, Tier},
};
use prost::Message;

/// A name of a rank, and what it means.
pub type KnownName = (DpRank, BlockName, NameMeaning);

/// The message of what a name means.
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

/// What a name means; none if no copies of it are left.
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

/// What a name means, as bytes to store.
#[must_use]
pub fn encode_meaning(name: BlockName, meaning: &NameMeaning) -> Vec<u8> {
    name_meaning(name, meaning).encode_to_vec()
}

/// What a name means, from stored bytes; none if they are of another name, or unreadable.
#[must_use]
pub fn decode_meaning(name: BlockName, bytes: &[u8]) -> Option<NameMeaning> {
    let (of, meaning) = read_name_meaning(&pb::NameMeaning::decode(bytes).ok()?)?;
    (of == name).then_some(meaning)
}

/// What a source has shown, as bytes to store, its main group aside.
#[must_use]
pub fn encode_learned(learned: &Learned) -> Vec<u8> {
    source_learned(learned).encode_to_vec()
}

/// What a source has shown, from stored bytes; only its main group if an earlier version stored nothing else. None if
/// they are unreadable.
#[must_use]
pub fn decode_learned(main_group: Option<u32>, bytes: Option<&[u8]>) -> Option<Learned> {
    let stated = bytes.map(pb::SourceLearned::decode).transpose().ok()?;
    read_source_learned(main_group, stated.as_ref()).ok()
}

/// The message of what a source has shown, its main group aside.
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
    }
}

/// What a source has shown; only its main group if an earlier version kept nothing else.
pub(super) fn read_source_learned(
    main_group: Option<u32>,
    stated: Option<&pb::SourceLearned>,
) -> Result<Learned, ConvertError> {
    let Some(stated) = stated else { return Ok(Learned { main_group, ..Learned::default() }) };
    let count = stated.adapters.len();
    check_count("adapters", count, WORKER_LORA_NAMES_MAX)
        .map_err(|error| error.within("learned"))?;
    // A form that this version does not know is learned again from the next image.
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
    Ok(Learned {
        main_group,
        states_keys: stated.states_keys,
        looks_ahead: stated.looks_ahead,
        has_extra_keys: stated.has_extra_keys,
        splits_chunks: stated.splits_chunks,
        image_keys,
        forgot_names: stated.forgot_names,
        adapters: adapters.collect(),
    })
}
