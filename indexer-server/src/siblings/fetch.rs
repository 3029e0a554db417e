//! Fetches a complete dump of a worker from a sibling.

use super::{CopyError, DumpParts};
use futures::StreamExt;
use kvasir_process::answer_timer::AnswerTimer;
use kvasir_proto::convert::{DumpedSource, KnownName, WorkerDumpPart};
use kvasir_proto::limits::WORKER_SOURCES_MAX;
use kvasir_proto::types::{DpRank, HeldBlock};
use std::collections::BTreeMap;

/// Maximum records of one worker, all in memory: about a GiB.
pub const COPY_RECORDS_MAX: usize = 1 << 24;

/// A complete dump of a worker.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Records in order of arrival, each with the number of its source.
    pub(super) chunks: Vec<(DpRank, Vec<(u32, HeldBlock)>)>,
    /// Sources by number.
    pub(super) sources: BTreeMap<u32, DumpedSource>,
    /// Meanings of the sources' names, by source number.
    pub(super) names: BTreeMap<u32, Vec<KnownName>>,
}

/// The next part of an answer.
type Next = Option<Result<WorkerDumpPart, CopyError>>;

fn records_of(part: &Next) -> usize {
    match part {
        Some(Ok(WorkerDumpPart::Chunk { records, .. })) => records.len(),
        Some(Ok(WorkerDumpPart::Meanings { names, .. })) => names.len(),
        Some(Ok(WorkerDumpPart::End { .. }) | Err(_)) | None => 0,
    }
}

/// Fetches a complete dump of a worker. Fails if the dump contradicts itself or exceeds a limit. Cancel-safe.
pub(super) async fn fetch(mut parts: DumpParts) -> Result<Fetched, CopyError> {
    let mut fetched = Fetched::default();
    let mut received: BTreeMap<u32, u64> = BTreeMap::new();
    let mut total = 0_usize;
    let mut answer_timer = AnswerTimer::default();
    loop {
        let Some(part) = answer_timer.next(parts.next(), records_of).await? else { break };
        match part? {
            WorkerDumpPart::Chunk { .. } if !fetched.sources.is_empty() => {
                return Err(CopyError::Contradiction("records after an end"));
            }
            WorkerDumpPart::Chunk { records, .. } if records.is_empty() => {
                return Err(CopyError::Contradiction("a chunk is empty"));
            }
            WorkerDumpPart::Chunk { rank, records } => {
                total += records.len();
                if total > COPY_RECORDS_MAX {
                    return Err(CopyError::TooMany(COPY_RECORDS_MAX));
                }
                for (number, _) in &records {
                    if usize::try_from(*number).is_ok_and(|at| at >= WORKER_SOURCES_MAX) {
                        return Err(CopyError::Contradiction("a source has too high a number"));
                    }
                    *received.entry(*number).or_default() += 1;
                }
                fetched.chunks.push((rank, records));
            }
            WorkerDumpPart::Meanings { .. } if !fetched.sources.is_empty() => {
                return Err(CopyError::Contradiction("names after an end"));
            }
            WorkerDumpPart::Meanings { names, .. } if names.is_empty() => {
                return Err(CopyError::Contradiction("a part without names"));
            }
            WorkerDumpPart::Meanings { number, mut names } => {
                total += names.len();
                if total > COPY_RECORDS_MAX {
                    return Err(CopyError::TooMany(COPY_RECORDS_MAX));
                }
                if usize::try_from(number).is_ok_and(|at| at >= WORKER_SOURCES_MAX) {
                    return Err(CopyError::Contradiction("a source has too high a number"));
                }
                fetched.names.entry(number).or_default().append(&mut names);
            }
            WorkerDumpPart::End { number, records, source } => {
                if received.remove(&number).unwrap_or_default() != records {
                    return Err(CopyError::Contradiction("records of a source are missing"));
                }
                let is_named = fetched.sources.values().any(|at| at.name == source.name);
                if is_named || fetched.sources.insert(number, source).is_some() {
                    return Err(CopyError::Contradiction("a source has two ends"));
                }
                if fetched.sources.len() > WORKER_SOURCES_MAX {
                    return Err(CopyError::Contradiction("there are too many sources"));
                }
            }
        }
    }
    if !received.is_empty() {
        return Err(CopyError::Contradiction("a source has no end"));
    }
    if fetched.sources.values().all(|source| source.applied.is_none()) {
        return Err(CopyError::Nothing);
    }
    Ok(fetched)
}
