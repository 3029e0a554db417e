//! The index of one partition: its data and configuration.

use crate::cursor::ShedCursor;
use crate::holder::Holder;
use crate::limits::Limits;
use crate::listing::Listing;
use crate::roles::Roles;
use crate::source::{Source, SourceId, Worker};
use crate::totals::Totals;
use crate::trie::Trie;
use kvasir_proto::types::WorkerId;
use std::collections::BTreeMap;

/// Prefix index of one partition. See the crate's documentation for its guarantees.
#[derive(Debug, Default)]
pub struct Index {
    pub(crate) limits: Limits,
    pub(crate) trie: Trie,
    pub(crate) holders: Vec<Option<Box<Holder>>>,
    pub(crate) free_holders: Vec<u32>,
    /// Bitmap of ranks by index: set for existing ranks that are not of pools.
    pub(crate) present: Vec<u64>,
    pub(crate) roles: Roles,
    pub(crate) listing: Listing,
    pub(crate) workers: BTreeMap<WorkerId, Worker>,
    pub(crate) sources: BTreeMap<SourceId, Source>,
    pub(crate) next_source: u32,
    pub(crate) next_dump: u64,
    /// Totals of all ranks.
    pub(crate) totals: Totals,
    pub(crate) shedding: ShedCursor,
    /// Maximum bytes for new workers, sources and ranks; `None` without a limit.
    pub(crate) room_bytes: Option<usize>,
}

impl Index {
    /// Creates an empty index.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Sets the maximum bytes for new workers, sources and ranks, whatever blocks they will have; `None`, the
    /// default, for no limit. New ones use it up until it is set again.
    pub const fn set_room_bytes(&mut self, bytes: Option<usize>) {
        self.room_bytes = bytes;
    }
}
