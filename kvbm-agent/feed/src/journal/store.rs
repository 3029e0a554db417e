use super::image::image;
use super::inventory::Inventory;
use super::ring::Ring;
use super::split::split;
use super::{
    AppendError, Batch, BatchRange, DigestError, DumpCut, DumpError, DumpId, DumpStep,
    JournalConfig, RangeError,
};
use kvasir_proto::digest::RankDigest;
use kvasir_proto::limits::{BATCH_WIRE_BYTES_MAX, EVENT_BLOCKS_MAX};
use kvasir_proto::types::{BlockName, CopyMode, DpRank, HeldBlock, Incarnation, KvEvent};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Records per part of an image.
const IMAGE_RECORDS: usize = 1_024;
const _: () = assert!(IMAGE_RECORDS <= EVENT_BLOCKS_MAX);

/// Published batches and held blocks of one source.
#[derive(Debug)]
pub struct Journal {
    config: JournalConfig,
    incarnation: Incarnation,
    /// Number of the incarnation's first batch.
    first: u64,
    /// Number of the first batch that this process has published, or will publish.
    pub(super) own_first: u64,
    /// Number of the next batch; `None` once the numbers are used up.
    pub(super) next: Option<u64>,
    pub(super) ring: Ring,
    pub(super) inventory: Inventory,
}

/// Digests of the held blocks, by rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankDigests {
    /// Last batch that the digests include.
    pub watermark: Option<u64>,
    /// Digest of each rank.
    pub ranks: Vec<(DpRank, RankDigest)>,
}

/// Status of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalStatus {
    /// The current incarnation.
    pub incarnation: Incarnation,
    /// Number of the incarnation's first batch, published or not.
    pub first: u64,
    /// Number of this process's first batch, published or not. Larger than `first` if the incarnation was restored from
    /// disk.
    pub own_first: u64,
    /// Oldest retained batch; `None` before the first.
    pub oldest: Option<u64>,
    /// Newest batch; `None` before the first.
    pub head: Option<u64>,
    /// Number of retained batches.
    pub batches: usize,
    /// Memory of the retained batches, in bytes.
    pub batch_bytes: usize,
    /// Number of held names over all ranks.
    pub held_blocks: usize,
    /// Memory of the held names, in bytes.
    pub inventory_bytes: usize,
    /// How repeated stores of a block are counted.
    pub copy_mode: CopyMode,
    /// Whether blocks were refused because of the limit on held names.
    pub incomplete: bool,
}

impl Journal {
    /// Creates the journal of a new incarnation without blocks. The first batch will have the number `first`.
    #[must_use]
    pub fn new(incarnation: Incarnation, first: u64, config: JournalConfig) -> Self {
        Self {
            config,
            incarnation,
            first,
            own_first: first,
            next: Some(first),
            ring: Ring::new(&config),
            inventory: Inventory::new(&config),
        }
    }

    /// Begins a new incarnation with an empty cache. Aborts a dump in progress.
    pub fn begin_incarnation(&mut self, incarnation: Incarnation, first: u64) {
        (self.incarnation, self.first, self.next) = (incarnation, first, Some(first));
        self.own_first = first;
        self.ring = Ring::new(&self.config);
        self.inventory.begin_incarnation();
    }

    /// Begins a new incarnation whose first batches publish all held blocks. This serves a peer that lacks evicted
    /// batches, and cannot fetch a dump. Numbering continues, and a dump in progress is aborted. The held blocks bound
    /// the work, and the size of the ring beyond its limits.
    pub fn republish(&mut self, incarnation: Incarnation) {
        let mut ring = Ring::new(&self.config);
        let first = self.next.unwrap_or(0);
        let mut next = Some(first);
        self.inventory.read_all(IMAGE_RECORDS, |rank, records| {
            let lists = image(records).into_iter();
            let pieces = lists.flat_map(|events| split(events, BATCH_WIRE_BYTES_MAX));
            for events in pieces.filter(|events| !events.is_empty()) {
                let Some(sequence) = next else { return };
                ring.push_image(Batch::new(sequence, rank, events));
                next = sequence.checked_add(1);
            }
        });
        (self.incarnation, self.first, self.next, self.ring) = (incarnation, first, next, ring);
    }

    /// The current incarnation.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Number of the incarnation's first batch.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// Number of the newest batch; `None` before the first.
    #[must_use]
    pub fn head(&self) -> Option<u64> {
        self.ring.head()
    }

    /// The retained batches, oldest first.
    #[must_use]
    pub fn retained(&self) -> Vec<Arc<Batch>> {
        self.ring.list_batches()
    }

    /// Number of the oldest retained batch; `None` before the first.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        self.ring.oldest()
    }

    /// Appends events of one rank under the next number. Events that exceed one message ([`BATCH_WIRE_BYTES_MAX`],
    /// [`BATCH_EVENTS_MAX`](kvasir_proto::limits::BATCH_EVENTS_MAX)) are split under several numbers. Returns the last
    /// number.
    ///
    /// # Errors
    /// If the events break a limit, or too few numbers are left. Then the journal is unchanged.
    pub fn append(&mut self, rank: DpRank, events: Vec<KvEvent>) -> Result<u64, AppendError> {
        self.append_each(rank, events, |_batch| {})
    }

    /// Appends events, as [`append`](Self::append), and passes each resulting batch to `show`.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn append_each(
        &mut self,
        rank: DpRank,
        events: Vec<KvEvent>,
        mut show: impl FnMut(&Arc<Batch>),
    ) -> Result<u64, AppendError> {
        let first = self.next.ok_or(AppendError::Exhausted)?;
        let pieces = split(Batch::checked(events)?, BATCH_WIRE_BYTES_MAX);
        let last = first.checked_add(pieces.len().saturating_sub(1) as u64);
        let last = last.ok_or(AppendError::Exhausted)?;
        self.inventory.check_rank(rank)?;
        for (sequence, events) in (first..=last).zip(pieces) {
            for event in &events {
                self.inventory.apply(rank, event);
            }
            let batch = Arc::new(Batch::new(sequence, rank, events));
            show(&batch);
            self.ring.push(batch);
        }
        self.next = last.checked_add(1);
        debug_assert_eq!(self.ring.head(), Some(last));
        Ok(last)
    }

    /// Up to `batches_max` batches from the beginning of a range, in one incarnation. Numbers before the incarnation's
    /// first batch mean that batch.
    ///
    /// # Errors
    /// If it is another incarnation, the first batch of the range is no longer retained, or the range begins more than
    /// one after the newest batch.
    pub fn range(
        &self,
        incarnation: Incarnation,
        range: RangeInclusive<u64>,
        batches_max: usize,
    ) -> Result<BatchRange, RangeError> {
        if incarnation != self.incarnation {
            return Err(RangeError::WrongIncarnation { present: self.incarnation });
        }
        self.ring.range(self.first, range, batches_max)
    }

    /// State of names at a rank, held or not; empty for a rank without held blocks.
    #[must_use]
    pub fn held(&self, rank: DpRank, names: &[BlockName]) -> Vec<HeldBlock> {
        self.inventory.held(rank, names)
    }

    /// Begins a dump of all held blocks. Without `incarnation`, the dump is of the current incarnation.
    ///
    /// # Errors
    /// If it is another incarnation, or another dump is in progress.
    pub fn begin_dump(&mut self, incarnation: Option<Incarnation>) -> Result<DumpId, DumpError> {
        if incarnation.is_some_and(|meant| meant != self.incarnation) {
            return Err(DumpError::WrongIncarnation { present: self.incarnation });
        }
        self.inventory.begin_dump()
    }

    /// Reads up to `records_max` further records, or cuts the dump. The work is bounded by `records_max`; that of the
    /// cut, by the maximum number of names that may change meanwhile
    /// ([`DUMP_DIRTY_NAMES_MAX`](kvasir_proto::limits::DUMP_DIRTY_NAMES_MAX)).
    ///
    /// # Errors
    /// If the dump was aborted, or is finished.
    pub fn step_dump(&mut self, dump: DumpId, records_max: usize) -> Result<DumpStep, DumpError> {
        if let Some((rank, records)) = self.inventory.step_dump(dump, records_max)? {
            return Ok(DumpStep::Records { rank, records });
        }
        Ok(DumpStep::Cut(DumpCut {
            records: self.inventory.cut_dump(),
            incarnation: self.incarnation,
            watermark: self.ring.head(),
            incomplete: self.inventory.incomplete().collect(),
        }))
    }

    /// Cancels a dump. Has no effect on a finished one.
    pub fn cancel_dump(&mut self, dump: DumpId) {
        self.inventory.cancel_dump(dump);
    }

    /// [Digest](kvasir_proto::digest) of all held blocks after the newest batch; `None` if blocks are missing because
    /// of the limit on held names.
    #[must_use]
    pub fn digest(&self) -> Option<u64> {
        self.inventory.digest()
    }

    /// Returns the digests of all ranks, after the newest batch of one incarnation.
    ///
    /// # Errors
    /// If it is another incarnation, or blocks are missing.
    pub fn digests(&self, incarnation: Incarnation) -> Result<RankDigests, DigestError> {
        if incarnation != self.incarnation {
            return Err(DigestError::WrongIncarnation { present: self.incarnation });
        }
        if self.inventory.is_incomplete() {
            return Err(DigestError::Incomplete);
        }
        Ok(RankDigests { watermark: self.ring.head(), ranks: self.inventory.digests() })
    }

    /// Returns the status of the journal.
    #[must_use]
    pub fn status(&self) -> JournalStatus {
        JournalStatus {
            incarnation: self.incarnation,
            first: self.first,
            own_first: self.own_first,
            oldest: self.ring.oldest(),
            head: self.ring.head(),
            batches: self.ring.len(),
            batch_bytes: self.ring.bytes(),
            held_blocks: self.inventory.held_blocks(),
            inventory_bytes: self.inventory.bytes(),
            copy_mode: self.config.copy_mode,
            incomplete: self.inventory.is_incomplete(),
        }
    }
}
