//! The index: what it consists of.

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

/// Index of one partition; see the crate's documentation for what it promises.
#[derive(Debug, Default)]
pub struct Index {
    pub(crate) limits: Limits,
    pub(crate) trie: Trie,
    pub(crate) holders: Vec<Option<Box<Holder>>>,
    pub(crate) free_holders: Vec<u32>,
    /// One bit a rank, by its index: it is there, and of no pool.
    pub(crate) present: Vec<u64>,
    pub(crate) roles: Roles,
    pub(crate) listing: Listing,
    pub(crate) workers: BTreeMap<WorkerId, Worker>,
    pub(crate) sources: BTreeMap<SourceId, Source>,
    pub(crate) next_source: u32,
    pub(crate) next_dump: u64,
    /// What all ranks have together.
    pub(crate) totals: Totals,
    pub(crate) shedding: ShedCursor,
    /// Bytes that workers, sources and ranks to come may take; none if any.
    pub(crate) room_bytes: Option<usize>,
}

impl Index {
    /// An empty index.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// How many bytes workers, sources and ranks to come may take, whatever these will hold; none, as at first, if any.
    /// What is added uses it up until it is set again.
    pub const fn set_room_bytes(&mut self, bytes: Option<usize>) {
        self.room_bytes = bytes;
    }
}
