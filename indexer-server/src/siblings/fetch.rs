//! A dump, until all of it is there.

use super::{CopyError, DumpParts};
use futures::StreamExt;
use kvasir_proto::{
    convert::{DumpedSource, WorkerDumpPart},
    limits::WORKER_SOURCES_MAX,
    types::{DpRank, HeldBlock},
};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::{Instant, timeout, timeout_at};

/// Most records of one worker, which are held at once: a GiB of them.
pub const COPY_RECORDS_MAX: usize = 1 << 24;

/// A dump breaks off if its next part takes longer than this,
const PART_TIMEOUT: Duration = Duration::from_secs(10);
/// or if all of its parts were waited for longer than that and this for each record. However long it is, it is
/// not cut off while it makes progress.
const RECORD_TIME: Duration = Duration::from_millis(1);

/// A whole dump of a worker.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Its records in the order in which they came, each with the number of its source.
    pub(super) chunks: Vec<(DpRank, Vec<(u32, HeldBlock)>)>,
    /// Its sources, by their numbers.
    pub(super) sources: BTreeMap<u32, DumpedSource>,
}

/// Fetches a dump to its end. To be dropped at any time.
pub(super) async fn fetch(mut parts: DumpParts) -> Result<Fetched, CopyError> {
    let mut fetched = Fetched::default();
    let mut received: BTreeMap<u32, u64> = BTreeMap::new();
    let mut total = 0_usize;
    let begin = Instant::now();
    loop {
        let records = u32::try_from(total).unwrap_or(u32::MAX);
        let deadline = begin + PART_TIMEOUT + RECORD_TIME * records;
        let part = timeout_at(deadline, timeout(PART_TIMEOUT, parts.next())).await;
        let Ok(part) = part else { return Err(CopyError::Slow { records }) };
        let Some(part) = part.map_err(|_late| CopyError::Silent(PART_TIMEOUT))? else { break };
        match part? {
            WorkerDumpPart::Chunk { .. } if !fetched.sources.is_empty() => {
                return Err(CopyError::Contradiction("records come after an end"));
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
