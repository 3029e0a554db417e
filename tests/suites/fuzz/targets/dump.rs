//! Any messages as a dump of a sibling or of an agent: read, and put into an index that stays valid. The first byte
//! chooses whose, then come the messages as parts.

use super::parts;
use bytes::Bytes;
use kvasir_index::{Index, Limits, SourceId};
use kvasir_proto::codec::decode;
use kvasir_proto::convert::{LocalDumpPart, WorkerDumpPart};
use kvasir_proto::pb;
use kvasir_proto::types::{CopyMode, DpRank, HeldBlock, NameChange, WorkerId};
use std::collections::BTreeMap;

pub(super) fn target(input: &[u8]) -> bool {
    let Some((&choice, messages)) = input.split_first() else { return false };
    let worker = WorkerId::new("w").expect("a name");
    let mut index = Index::new(Limits::default());
    let understood = match choice % 2 {
        0 => of_sibling(&mut index, &worker, messages),
        _ => of_agent(&mut index, &worker, messages),
    };
    index.validate().expect("a valid index");
    understood
}

/// Ends of sources say what they are; records come in any order.
fn of_sibling(index: &mut Index, worker: &WorkerId, messages: &[u8]) -> bool {
    let mut sources: BTreeMap<u32, SourceId> = BTreeMap::new();
    let mut chunks: Vec<(DpRank, Vec<(u32, HeldBlock)>)> = Vec::new();
    let mut names = Vec::new();
    for message in parts(messages) {
        let message = decode::<pb::DumpWorkerResponse>(Bytes::copy_from_slice(message));
        let Ok(Ok(part)) = message.map(WorkerDumpPart::try_from) else { return false };
        match part {
            WorkerDumpPart::Chunk { rank, records } => chunks.push((rank, records)),
            WorkerDumpPart::Meanings { number, names: of } => names.push((number, of)),
            WorkerDumpPart::End { number, source, .. } => {
                let rank = source.ranks.first().copied().unwrap_or_default();
                let added = index.add_source(worker, &source.name, rank, source.copy_mode);
                let Ok(id) = added else { return false };
                sources.insert(number, id);
            }
        }
    }
    let mut understood = false;
    for (number, of) in names {
        let Some(&source) = sources.get(&number) else { continue };
        let known = |(rank, name, meaning)| NameChange { rank, name, meaning: Some(meaning) };
        index.change_meanings(source, &of.into_iter().map(known).collect::<Vec<_>>());
    }
    for (rank, records) in chunks {
        for (number, held) in records {
            let Some(&source) = sources.get(&number) else { continue };
            understood |= index.set_names(source, rank, &[held]).is_ok();
        }
    }
    understood
}

/// All of it is of one source.
fn of_agent(index: &mut Index, worker: &WorkerId, messages: &[u8]) -> bool {
    let source = index.add_source(worker, "agent", 0, CopyMode::Counted).expect("room");
    let mut understood = false;
    for message in parts(messages) {
        match LocalDumpPart::decode(Bytes::copy_from_slice(message)) {
            Ok(LocalDumpPart::Chunk { rank, records }) => {
                understood |= index.set_names(source, rank, &records).is_ok();
            }
            Ok(LocalDumpPart::End(_) | LocalDumpPart::WrongIncarnation { .. }) => break,
            Err(_) => return false,
        }
    }
    understood
}
