//! What a run needs of an index, so that the runner can also be tried on doubles that are wrong on
//! purpose.

use kvasir_proto::types::{BlockCounts, BlockName, DpRank, KvEvent, WorkerId};
use kvasir_tests::oracle::{Found, Held, Oracle, OracleStats, Question, Roles};
use kvasir_tests::script::SourceSpec;
use std::collections::BTreeMap;
use std::fmt::{self, Debug};

/// Result of one call of a bounded operation.
pub struct Piece {
    pub removed: u64,
    pub done: bool,
}

/// Why a dump gave nothing.
pub enum Refusal {
    /// The dump was aborted: something happened that it cannot describe.
    Aborted(String),
    /// Anything else.
    Other(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aborted(reason) => write!(f, "aborted: {reason}"),
            Self::Other(what) => write!(f, "refused: {what}"),
        }
    }
}

/// One record of a dump.
pub type DumpedRecord<S> = ((DpRank, S, BlockName), Held);

/// End of a dump.
pub struct DumpedTail<S> {
    pub records: Vec<DumpedRecord<S>>,
    /// Sources of the worker, by name.
    pub ends: Vec<(S, String)>,
}

/// Sizes, and what must be 0 once everything is gone.
pub struct Sizes {
    pub stats: OracleStats,
    pub leftovers: BTreeMap<&'static str, u64>,
    pub bytes: u64,
}

/// Blocks placed and parked, by worker and rank.
pub type RankSizes = BTreeMap<(WorkerId, DpRank), (u64, u64)>;

pub trait Subject: Sized {
    type Source: Copy + Ord + Debug;
    type Scan;

    /// From now on these workers are pools, and the others read these; no worker had another role before.
    fn set_roles(&mut self, roles: &Roles);
    fn add_source(&mut self, spec: &SourceSpec) -> Result<Self::Source, String>;
    fn remove_source(&mut self, source: Self::Source) -> Result<(), String>;
    fn apply(
        &mut self,
        source: Self::Source,
        rank: DpRank,
        event: &KvEvent,
    ) -> Result<BlockCounts, String>;
    fn clear(
        &mut self,
        source: Self::Source,
        rank: Option<DpRank>,
        budget: usize,
    ) -> Result<Piece, String>;
    fn mark_suspect(&mut self, source: Self::Source);
    fn drop_suspects(&mut self, source: Self::Source, budget: usize) -> Result<Piece, String>;
    fn find(&mut self, question: &Question) -> Result<Vec<Found>, String>;
    fn begin_dump(
        &mut self,
        worker: &WorkerId,
        rank: Option<DpRank>,
    ) -> Result<Self::Scan, Refusal>;
    /// Appends at most `records_max` records; whether there are more.
    fn read_dump(
        &mut self,
        scan: &mut Self::Scan,
        records_max: usize,
        out: &mut Vec<DumpedRecord<Self::Source>>,
    ) -> Result<bool, Refusal>;
    fn finish_dump(&mut self, scan: Self::Scan) -> Result<DumpedTail<Self::Source>, Refusal>;
    fn cancel_dump(&mut self, scan: Self::Scan);
    fn sizes(&self) -> Sizes;
    /// What its sizes are to be where the oracle holds the same.
    fn expected_stats(&self, oracle: &Oracle) -> OracleStats {
        oracle.stats()
    }
    fn ranks(&self) -> RankSizes;
    fn validate(&self) -> Result<(), String>;
}
