//! Copies of an index's workers for another index: the list of workers and their dumps, in both directions.

use super::ingest::read_reasons;
use super::local::read_record;
use super::meaning::{KnownName, read_meanings, read_source_learned, source_learned};
use super::shared::{
    check_count, check_range, check_required_name, copy_mode, read_copy_mode, read_incarnation,
    read_state, state, state_reason,
};
use super::{ConvertError, Problem, Registration, WorkerAddress, cursor, incarnation, read_cursor};
use crate::limits::{
    DUMP_CHUNK_RECORDS_DEFAULT, DUMP_CHUNK_RECORDS_MAX, TOLD_PAST_INCARNATIONS_MAX,
    WORKER_RANKS_MAX, WORKER_SOURCES_MAX,
};
use crate::pb;
use crate::pb::dump_worker_response::Part;
use crate::types::{
    CopyMode, Cursor, DpRank, Fingerprint, HeldBlock, Incarnation, Learned, PartitionKey,
    SourceState, StateReason, WorkerId,
};
use std::sync::Arc;

/// A checked `DumpWorkerRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpQuery {
    /// The partition to read.
    pub partition: PartitionKey,
    /// The worker.
    pub worker: WorkerId,
    /// Only this rank; none for all ranks.
    pub rank: Option<DpRank>,
    /// Maximum number of records in one chunk, at least 1.
    pub chunk_records: usize,
}

impl TryFrom<pb::DumpWorkerRequest> for DumpQuery {
    type Error = ConvertError;

    fn try_from(request: pb::DumpWorkerRequest) -> Result<Self, ConvertError> {
        let requested = request.chunk_records.map_or(DUMP_CHUNK_RECORDS_DEFAULT as u64, u64::from);
        check_range("chunk_records", requested, 1, DUMP_CHUNK_RECORDS_MAX as u64)?;
        Ok(Self {
            partition: PartitionKey::new(&request.model, &request.tenant)?,
            worker: WorkerId::new(&request.worker_id)?,
            rank: request.dp_rank,
            chunk_records: usize::try_from(requested).unwrap_or(DUMP_CHUNK_RECORDS_MAX),
        })
    }
}

impl From<DumpQuery> for pb::DumpWorkerRequest {
    fn from(query: DumpQuery) -> Self {
        Self {
            model: query.partition.model().to_owned(),
            tenant: query.partition.tenant().to_owned(),
            worker_id: query.worker.as_str().to_owned(),
            dp_rank: query.rank,
            chunk_records: u32::try_from(query.chunk_records).ok(),
        }
    }
}

/// A checked `DumpWorkerResponse`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerDumpPart {
    /// Records of one rank, at most [`DUMP_CHUNK_RECORDS_MAX`], each with the number of its source.
    Chunk {
        /// The rank.
        rank: DpRank,
        /// The records.
        records: Vec<(u32, HeldBlock)>,
    },
    /// Meanings of a source's names, at most [`DUMP_MEANINGS_MAX`](crate::limits::DUMP_MEANINGS_MAX).
    Meanings {
        /// The source's number.
        number: u32,
        /// The names.
        names: Vec<KnownName>,
    },
    /// The dump of one source is complete.
    End {
        /// Number of the source.
        number: u32,
        /// Number of the source's records in the dump.
        records: u64,
        /// Status of the source.
        source: DumpedSource,
    },
}

/// A checked `DumpEnd`: the status of a source at the time of the dump's cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpedSource {
    /// Name of the source.
    pub name: String,
    /// How repeated announcements count.
    pub copy_mode: CopyMode,
    /// The last batch that the records include.
    pub applied: Option<Cursor>,
    /// The latest superseded incarnations, oldest first; at most [`TOLD_PAST_INCARNATIONS_MAX`].
    pub past: Vec<Incarnation>,
    /// Facts that the engine has shown in its events.
    pub learned: Arc<Learned>,
    /// State of the source.
    pub state: SourceState,
    /// Reasons why the state is worse than exact.
    pub reasons: Vec<StateReason>,
    /// Whether announced blocks are missing.
    pub incomplete: bool,
    /// Dumped ranks that the source feeds, at most [`WORKER_RANKS_MAX`].
    pub ranks: Vec<DpRank>,
}

/// A checked `WorkerInfo`: the fields that another server needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedWorker {
    /// The worker's registration.
    pub registration: Registration,
    /// The worker's sources, at most [`WORKER_SOURCES_MAX`].
    pub sources: Vec<ListedSource>,
    /// Number of the worker's blocks over all ranks, parked blocks included.
    pub blocks: u64,
}

/// A checked `SourceInfo`: the fields that another server needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedSource {
    /// State of the source.
    pub state: SourceState,
    /// Cursor of the source, without a fingerprint.
    pub applied: Option<Cursor>,
}

// === impl WorkerDumpPart ===

impl TryFrom<pb::DumpWorkerResponse> for WorkerDumpPart {
    type Error = ConvertError;

    fn try_from(response: pb::DumpWorkerResponse) -> Result<Self, ConvertError> {
        match response.part {
            Some(Part::Chunk(chunk)) => read_chunk(chunk).map_err(|error| error.within("chunk")),
            Some(Part::Meanings(meanings)) => {
                let number = meanings.source_index;
                let names = read_meanings(&meanings).map_err(|error| error.within("meanings"))?;
                Ok(Self::Meanings { number, names })
            }
            Some(Part::End(end)) => read_end(end).map_err(|error| error.within("end")),
            None => Err(ConvertError::new("part", Problem::Required)),
        }
    }
}

fn read_chunk(chunk: pb::DumpChunk) -> Result<WorkerDumpPart, ConvertError> {
    check_count("records", chunk.records.len(), DUMP_CHUNK_RECORDS_MAX)?;
    let records = chunk.records.into_iter().enumerate().map(|(index, record)| {
        let held = read_record(&record);
        let held = held.map_err(|error| error.within(format_args!("records[{index}]")))?;
        Ok((record.source_index, held))
    });
    let records = records.collect::<Result<_, ConvertError>>()?;
    Ok(WorkerDumpPart::Chunk { rank: chunk.dp_rank, records })
}

fn read_end(end: pb::DumpEnd) -> Result<WorkerDumpPart, ConvertError> {
    check_required_name("source", &end.source)?;
    check_count("past_incarnations", end.past_incarnations.len(), TOLD_PAST_INCARNATIONS_MAX)?;
    check_count("dp_ranks", end.dp_ranks.len(), WORKER_RANKS_MAX)?;
    let mode = read_copy_mode("copy_mode", end.copy_mode)?;
    let past = end.past_incarnations.iter().enumerate();
    let past = past.map(|(at, id)| read_incarnation(&format!("past_incarnations[{at}]"), id));
    let applied = match (&end.watermark, end.fingerprint) {
        (Some(watermark), fingerprint) => {
            let applied = read_cursor(watermark).map_err(|error| error.within("watermark"))?;
            let fingerprint = fingerprint.map(|at| Fingerprint {
                ts_bits: at.timestamp_bits,
                payload_hash: at.payload_hash,
            });
            Some(Cursor { fingerprint, ..applied })
        }
        (None, None) => None,
        (None, Some(_)) => {
            return Err(ConvertError::new("fingerprint", Problem::Unexpected("without watermark")));
        }
    };
    let source = DumpedSource {
        name: end.source,
        copy_mode: mode.ok_or_else(|| ConvertError::new("copy_mode", Problem::Required))?,
        applied,
        past: past.collect::<Result<_, _>>()?,
        learned: Arc::new(read_source_learned(end.main_group, end.learned.as_ref())?),
        state: read_state("state", end.state)?,
        reasons: read_reasons(end.reasons)?,
        incomplete: end.incomplete,
        ranks: end.dp_ranks,
    };
    Ok(WorkerDumpPart::End { number: end.source_index, records: end.records, source })
}

/// The message that ends one source's part of a dump: the source's number, its count of records and its status.
#[must_use]
pub fn dumped_source(number: u32, records: u64, source: DumpedSource) -> pb::DumpEnd {
    let fingerprint = source.applied.and_then(|applied| applied.fingerprint);
    pb::DumpEnd {
        source_index: number,
        source: source.name,
        watermark: source.applied.map(cursor),
        records,
        state: state(source.state).into(),
        incomplete: source.incomplete,
        copy_mode: copy_mode(source.copy_mode).into(),
        fingerprint: fingerprint.map(|at| pb::BatchFingerprint {
            timestamp_bits: at.ts_bits,
            payload_hash: at.payload_hash,
        }),
        past_incarnations: source.past.into_iter().map(incarnation).collect(),
        main_group: source.learned.main_group,
        learned: Some(source_learned(&source.learned)),
        dp_ranks: source.ranks,
        reasons: source.reasons.iter().map(|seen| state_reason(seen, None)).collect(),
    }
}

// === impl ListedWorker ===

impl ListedWorker {
    /// Address of the worker.
    #[must_use]
    pub fn address(&self) -> WorkerAddress {
        self.registration.address()
    }
}

impl TryFrom<pb::WorkerInfo> for ListedWorker {
    type Error = ConvertError;

    fn try_from(worker: pb::WorkerInfo) -> Result<Self, ConvertError> {
        let required = || ConvertError::new("registration", Problem::Required);
        let registration = Registration::try_from(worker.registration.ok_or_else(required)?)
            .map_err(|error| error.within("registration"))?;
        check_count("sources", worker.sources.len(), WORKER_SOURCES_MAX)?;
        let sources = worker.sources.iter().enumerate().map(|(index, source)| {
            read_source(source).map_err(|error| error.within(format_args!("sources[{index}]")))
        });
        let blocks = worker.ranks.iter();
        let blocks = blocks.map(|rank| rank.placed_blocks.saturating_add(rank.parked_blocks));
        Ok(Self {
            registration,
            sources: sources.collect::<Result<_, _>>()?,
            blocks: blocks.fold(0, u64::saturating_add),
        })
    }
}

fn read_source(source: &pb::SourceInfo) -> Result<ListedSource, ConvertError> {
    let applied = source.applied.as_ref().map(read_cursor).transpose();
    Ok(ListedSource {
        state: read_state("state", source.state)?,
        applied: applied.map_err(|error| error.within("applied"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Reason;
    use std::time::Duration;

    #[test]
    fn chunk_records_are_bounded() {
        let request = |chunk_records| pb::DumpWorkerRequest {
            model: "m".to_owned(),
            worker_id: "w".to_owned(),
            chunk_records,
            ..Default::default()
        };
        let check = |chunk_records, expected: Result<usize, &str>| {
            let query = DumpQuery::try_from(request(chunk_records));
            let found = query.map(|query| query.chunk_records).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned));
        };
        check(None, Ok(2_048));
        check(Some(1), Ok(1));
        check(Some(8_192), Ok(8_192));
        check(Some(0), Err("chunk_records is 0, must be 1 to 8192"));
        check(Some(8_193), Err("chunk_records is 8193, must be 1 to 8192"));
    }

    fn dumped() -> DumpedSource {
        let fingerprint = Fingerprint { ts_bits: 5, payload_hash: 6 };
        DumpedSource {
            name: "tcp://engine:5557".to_owned(),
            copy_mode: CopyMode::Counted,
            applied: Some(Cursor {
                incarnation: Incarnation(7),
                sequence: 9,
                fingerprint: Some(fingerprint),
            }),
            past: vec![Incarnation(1), Incarnation(u128::MAX)],
            learned: Arc::new(Learned { main_group: Some(0), ..Learned::default() }),
            state: SourceState::Degraded,
            reasons: vec![StateReason {
                reason: Reason::Contradiction,
                count: 4,
                example: "name=1".into(),
                since: Duration::ZERO,
            }],
            incomplete: true,
            ranks: vec![0, 3],
        }
    }

    fn read(end: pb::DumpEnd) -> Result<WorkerDumpPart, String> {
        let response = pb::DumpWorkerResponse { part: Some(Part::End(end)) };
        WorkerDumpPart::try_from(response).map_err(|error| error.to_string())
    }

    #[test]
    fn an_end_is_read_as_it_was_written() {
        let agent = DumpedSource {
            applied: dumped().applied.map(|at| Cursor { fingerprint: None, ..at }),
            copy_mode: CopyMode::Set,
            ..dumped()
        };
        let cold = DumpedSource { applied: None, state: SourceState::Cold, ..dumped() };
        for source in [dumped(), agent, cold] {
            let written = dumped_source(2, 33, source.clone());
            assert_eq!(read(written), Ok(WorkerDumpPart::End { number: 2, records: 33, source }));
        }
    }

    #[test]
    fn an_end_that_breaks_the_contract_is_refused() {
        let refused = |spoil: fn(&mut pb::DumpEnd), expected: &str| {
            let mut end = dumped_source(2, 33, dumped());
            spoil(&mut end);
            assert_eq!(read(end).expect_err(expected), expected);
        };
        refused(|end| end.source.clear(), "end.source is required");
        refused(|end| end.state = 0, "end.state is required");
        refused(|end| end.state = 99, "end.state has the unknown value 99");
        refused(|end| end.copy_mode = 0, "end.copy_mode is required");
        refused(|end| end.watermark = None, "end.fingerprint must not be set without watermark");
        refused(
            |end| end.past_incarnations = vec![incarnation(Incarnation(1)); 9],
            "end.past_incarnations has 9 entries, the limit is 8: send fewer",
        );
        refused(
            |end| end.past_incarnations[1] = vec![1, 2].into(),
            "end.past_incarnations[1] has 2 bytes, must be exactly 16",
        );
        refused(
            |end| end.dp_ranks = vec![0; 1_025],
            "end.dp_ranks has 1025 entries, the limit is 1024: send fewer",
        );
        refused(
            |end| end.reasons = vec![pb::StateReason::default(); 65],
            "end.reasons has 65 entries, the limit is 64: send fewer",
        );
        let nothing = WorkerDumpPart::try_from(pb::DumpWorkerResponse { part: None });
        assert_eq!(nothing.expect_err("no part").to_string(), "part is required");
    }

    #[test]
    fn records_are_read_with_the_number_of_their_source() {
        let record = |local_hash| pb::BlockRecord {
            name: 4,
            parent_name: Some(3),
            local_hash,
            source_index: 1,
            device_copies: 2,
            ..Default::default()
        };
        let read = |records| {
            let part = Some(Part::Chunk(pb::DumpChunk { dp_rank: 5, records }));
            WorkerDumpPart::try_from(pb::DumpWorkerResponse { part })
        };
        let held = HeldBlock {
            name: crate::types::BlockName(4),
            parent: Some(crate::types::BlockName(3)),
            local: Some(crate::types::LocalHash(8)),
            copies: [2, 0, 0],
        };
        let expected = WorkerDumpPart::Chunk { rank: 5, records: vec![(1, held)] };
        assert_eq!(read(vec![record(Some(8))]), Ok(expected));
        let refused = read(vec![record(Some(8)), record(None)]).expect_err("no local hash");
        let expected = "chunk.records[1].parent_name must not be set without local_hash";
        assert_eq!(refused.to_string(), expected);
        let many = read(vec![record(Some(8)); 8_193]).expect_err("too many").to_string();
        assert_eq!(many, "chunk.records has 8193 entries, the limit is 8192: send fewer");
    }

    #[test]
    fn a_listed_worker_needs_its_registration() {
        let registration = pb::RegisterWorkerRequest {
            worker_id: "w".to_owned(),
            model: "m".to_owned(),
            block_size: 16,
            lease_ms: 5_000,
            ..Default::default()
        };
        let source = pb::SourceInfo { state: 2, ..Default::default() };
        let rank = pb::RankInfo { placed_blocks: 7, parked_blocks: 2, ..Default::default() };
        let worker = pb::WorkerInfo {
            registration: Some(registration.clone()),
            sources: vec![source],
            ranks: vec![rank; 2],
            ..Default::default()
        };
        let listed = ListedWorker::try_from(worker.clone()).expect("valid");
        assert_eq!(Ok(&listed.registration), Registration::try_from(registration).as_ref());
        let source = ListedSource { state: SourceState::CatchingUp, applied: None };
        assert_eq!((listed.sources, listed.blocks), (vec![source], 18));

        let refused = |spoil: fn(&mut pb::WorkerInfo), expected: &str| {
            let mut worker = worker.clone();
            spoil(&mut worker);
            let error = ListedWorker::try_from(worker).expect_err(expected);
            assert_eq!(error.to_string(), expected);
        };
        refused(|at| at.registration = None, "registration is required");
        refused(|at| at.sources[0].state = 0, "sources[0].state is required");
        refused(
            |at| at.registration = Some(pb::RegisterWorkerRequest::default()),
            "registration.worker_id is required",
        );
    }
}
