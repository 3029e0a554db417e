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

/// Records that an image is made of at a time.
const IMAGE_RECORDS: usize = 1_024;
const _: () = assert!(IMAGE_RECORDS <= EVENT_BLOCKS_MAX);

/// What one source has published and holds.
#[derive(Debug)]
pub struct Journal {
    config: JournalConfig,
    incarnation: Incarnation,
    /// Number of the first batch of this incarnation.
    first: u64,
    /// Number of its first batch that this process has published or will publish.
    pub(super) own_first: u64,
    /// Number of the next; none once the last was used.
    pub(super) next: Option<u64>,
    pub(super) ring: Ring,
    pub(super) inventory: Inventory,
}

/// Digests of what is held, by rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankDigests {
    /// The last batch whose effects are in them.
    pub watermark: Option<u64>,
    /// Of each rank.
    pub ranks: Vec<(DpRank, RankDigest)>,
}

/// State of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalStatus {
    /// The present incarnation.
    pub incarnation: Incarnation,
    /// Number that its first batch has or will have.
    pub first: u64,
    /// Number that the first batch of this process has or will have: larger, where the incarnation was restored from
    /// disk.
    pub own_first: u64,
    /// Oldest batch retained; none before the first.
    pub oldest: Option<u64>,
    /// Newest batch; none before the first.
    pub head: Option<u64>,
    /// Batches retained.
    pub batches: usize,
    /// Bytes of memory that they take.
    pub batch_bytes: usize,
    /// Names held, over all ranks.
    pub held_blocks: usize,
    /// Bytes of memory that they take.
    pub inventory_bytes: usize,
    /// How second announcements are read.
    pub copy_mode: CopyMode,
    /// Whether blocks were not taken, for the limit on held names.
    pub incomplete: bool,
}

impl Journal {
    /// The journal of an incarnation that begins: nothing is held, and the first batch will have the number
    /// `first`.
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

    /// The cache starts empty again: a new incarnation, of which nothing is known yet. Dumps under way are
    /// cut off.
    pub fn begin_incarnation(&mut self, incarnation: Incarnation, first: u64) {
        (self.incarnation, self.first, self.next) = (incarnation, first, Some(first));
        self.own_first = first;
        self.ring = Ring::new(&self.config);
        self.inventory.begin_incarnation();
    }

    /// Begins a new incarnation whose first batches publish all that is held. For a peer that lacks batches
    /// which are not retained any more, and that cannot fetch a dump. Numbering continues; dumps under way are cut
    /// off. Its work, and what the ring holds beyond its bounds, is bounded by what is held.
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

    /// The present incarnation.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Number of the first batch of this incarnation.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// The newest batch; none before the first.
    #[must_use]
    pub fn head(&self) -> Option<u64> {
        self.ring.head()
    }

    /// The batches retained, oldest first.
    #[must_use]
    pub fn retained(&self) -> Vec<Arc<Batch>> {
        self.ring.all()
    }

    /// The oldest batch retained; none before the first.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        self.ring.oldest()
    }

    /// Takes what happened at one rank, and gives it the next number. If it is more than one message carries
    /// ([`BATCH_WIRE_BYTES_MAX`], [`BATCH_EVENTS_MAX`](kvasir_proto::limits::BATCH_EVENTS_MAX)), it is cut and gets the
    /// next numbers, of which the last is returned.
    ///
    /// # Errors
    /// If the events break a limit, or too few numbers are left: then nothing has changed.
    pub fn append(&mut self, rank: DpRank, events: Vec<KvEvent>) -> Result<u64, AppendError> {
        self.append_each(rank, events, |_batch| {})
    }

    /// As [`append`](Self::append), and shows each batch that it became.
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

    /// Up to `batches_max` batches of a range of one incarnation, from its beginning. Numbers before the
    /// incarnation's first batch mean that batch.
    ///
    /// # Errors
    /// If it is another incarnation, if the first batch of the range is not retained any more, or if the range
    /// begins more than one beyond the newest batch.
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

    /// The state of names at a rank, held or not; none of a rank that holds nothing.
    #[must_use]
    pub fn held(&self, rank: DpRank, names: &[BlockName]) -> Vec<HeldBlock> {
        self.inventory.held(rank, names)
    }

    /// Begins a dump of everything held, of one incarnation or of the present one.
    ///
    /// # Errors
    /// If it is another incarnation, or another dump is under way.
    pub fn begin_dump(&mut self, incarnation: Option<Incarnation>) -> Result<DumpId, DumpError> {
        if incarnation.is_some_and(|meant| meant != self.incarnation) {
            return Err(DumpError::WrongIncarnation { present: self.incarnation });
        }
        self.inventory.begin_dump()
    }

    /// Reads up to `records_max` further records, or cuts the dump. Its work is bounded by
    /// `records_max`; cutting, by the most names that may change meanwhile
    /// ([`DUMP_DIRTY_NAMES_MAX`](kvasir_proto::limits::DUMP_DIRTY_NAMES_MAX)).
    ///
    /// # Errors
    /// If the dump was cut off, or is over.
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

    /// Gives a dump up. One that is over already stays over.
    pub fn cancel_dump(&mut self, dump: DumpId) {
        self.inventory.cancel_dump(dump);
    }

    /// [Digest](kvasir_proto::digest) of all that is held after the newest batch; none where blocks are
    /// missing for the limit on held names.
    #[must_use]
    pub fn digest(&self) -> Option<u64> {
        self.inventory.digest()
    }

    /// Digests by rank, after the newest batch of one incarnation.
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

    /// Its state.
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
