use super::queue::{Candidate, Queue, Source};
use super::{
    AnyTier, FrequencyFilter, LaneLimits, LaneStats, Offered, Outcome, Route, Settled, Side,
    TransferId, TransferOrder, Verdict,
};
use crate::identity::{BlockIdentity, Checksum, Priority};
use crate::lifecycle::{Block, MutableBlock, QuarantinedBlock, RegisteredBlock, Registration};
use crate::planted::{Planted, is_planted};
use crate::pool::BlockPool;
use crate::store::RegisterError;
use kvasir_proto::types::SequenceHash;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One transfer in flight. A block is `None` only if a test breaks a rule on purpose (`planted`).
#[derive(Debug)]
struct Transfer<S, D> {
    source: Option<RegisteredBlock<S>>,
    destination: Option<QuarantinedBlock<D>>,
    identity: BlockIdentity,
    checksum: Option<Checksum>,
    priority: Priority,
    began: Duration,
    deadline: Duration,
    is_cancelled: bool,
}

/// Plans the copies from tier `S` to tier `D`.
#[derive(Debug)]
pub struct Lane<S, D> {
    destination: BlockPool<D>,
    block_bytes: u64,
    limits: LaneLimits,
    filter: Option<FrequencyFilter>,
    queue: Queue<S>,
    in_flight: BTreeMap<u64, Transfer<S, D>>,
    on_their_way: FxHashMap<SequenceHash, u64>,
    /// Running transfers, by deadline.
    deadlines: BTreeSet<(Duration, u64)>,
    last_number: u64,
    stats: LaneStats,
}

impl<S: AnyTier, D: AnyTier> Lane<S, D> {
    /// Creates a lane into `destination`, whose blocks have `block_bytes` bytes. A filter admits only blocks that were
    /// offered often enough.
    #[must_use]
    pub fn new(
        destination: BlockPool<D>,
        block_bytes: u64,
        limits: LaneLimits,
        filter: Option<FrequencyFilter>,
    ) -> Self {
        Self {
            destination,
            block_bytes,
            limits,
            filter,
            queue: Queue::new(limits.queued_blocks_max),
            in_flight: BTreeMap::new(),
            on_their_way: FxHashMap::default(),
            deadlines: BTreeSet::new(),
            last_number: 0,
            stats: LaneStats::default(),
        }
    }

    /// Source and destination tier.
    pub const ROUTE: Route = Route { from: S::TIER, to: D::TIER };

    /// Offers a block. The block may be evicted while it is queued.
    pub fn offer(&mut self, block: &RegisteredBlock<S>, priority: Priority) -> Offered {
        if let Some(refused) = self.refused(block.identity().sequence) {
            return refused;
        }
        self.enqueue(Candidate { source: Source::Weak(block.downgrade()), priority })
    }

    /// Requests a copy of a block. The block is kept while it is queued, and the frequency filter is bypassed.
    pub fn request(&mut self, block: RegisteredBlock<S>, priority: Priority) -> Offered {
        if let Some(refused) = self.refused_present(block.identity().sequence) {
            return refused;
        }
        self.enqueue(Candidate { source: Source::Held(block), priority })
    }

    /// Whether a block is queued or in transfer.
    #[must_use]
    pub fn is_pending(&self, sequence: SequenceHash) -> bool {
        self.queue.contains(sequence) || self.on_their_way.contains_key(&sequence)
    }

    fn refused(&mut self, sequence: SequenceHash) -> Option<Offered> {
        if let Some(refused) = self.refused_present(sequence) {
            return Some(refused);
        }
        let is_frequent = self.filter.as_mut().is_none_or(|filter| filter.admit(sequence));
        self.stats.skipped_infrequent += u64::from(!is_frequent);
        (!is_frequent).then_some(Offered::Infrequent)
    }

    /// Returns `Pending` if the block is queued or being copied, and `Present` if the destination has it. Counts both.
    /// Returns `None` for any other block.
    fn refused_present(&mut self, sequence: SequenceHash) -> Option<Offered> {
        let refused = if self.is_pending(sequence) {
            Offered::Pending
        } else if self.destination.contains(sequence) {
            Offered::Present
        } else {
            return None;
        };
        self.stats.skipped_present += 1;
        Some(refused)
    }

    /// Queues a block for a copy. A full queue refuses the block (`QueueFull`), or displaces a block of lower priority.
    fn enqueue(&mut self, candidate: Candidate<S>) -> Offered {
        match self.queue.push(candidate) {
            Err(_refused) => {
                self.stats.skipped_full += 1;
                Offered::QueueFull
            }
            Ok(displaced) => {
                self.stats.offered += 1;
                self.stats.skipped_full += u64::from(displaced.is_some());
                let displaced = displaced.map(|candidate| *candidate.source.identity());
                Offered::Queued { displaced }
            }
        }
    }

    /// Starts the next transfers and returns their orders, up to the limits and the destination's free room. Skips
    /// blocks that the destination has by now, or whose source is gone.
    pub fn start(&mut self, now: Duration) -> Vec<TransferOrder> {
        let mut orders = Vec::new();
        while orders.len() < self.limits.batch_blocks_max && self.has_room() {
            let Some((turn, candidate)) = self.queue.pop() else { break };
            let sequence = candidate.source.identity().sequence;
            if self.destination.contains(sequence) {
                self.stats.skipped_present += 1;
                continue;
            }
            let Some(source) = candidate.source.upgrade() else {
                self.stats.gone += 1;
                continue;
            };
            let Ok(destination) = self.destination.get_mutable_block() else {
                self.stats.no_room += 1;
                self.queue.put_back(turn, candidate);
                break;
            };
            orders.push(self.order(source, destination, candidate.priority, now));
        }
        orders
    }

    fn has_room(&self) -> bool {
        let transfers = self.in_flight.len();
        let bytes = self.block_bytes.saturating_mul(transfers as u64 + 1);
        transfers < self.limits.in_flight_transfers_max && bytes <= self.limits.in_flight_bytes_max
    }

    /// Creates a transfer and its order. The destination is quarantined, so that its slot is reused only after the
    /// transfer has ended.
    fn order(
        &mut self,
        source: RegisteredBlock<S>,
        destination: MutableBlock<D>,
        priority: Priority,
        now: Duration,
    ) -> TransferOrder {
        self.last_number += 1;
        let identity = *source.identity();
        let order = TransferOrder {
            id: TransferId { route: Self::ROUTE, number: self.last_number },
            identity,
            source: source.slot(),
            destination: destination.slot(),
            bytes: self.block_bytes,
            checksum: source.checksum(),
            deadline: now.saturating_add(self.limits.transfer_timeout),
        };
        let mut transfer = Transfer {
            source: Some(source),
            destination: None,
            identity,
            checksum: order.checksum,
            priority,
            began: now,
            deadline: order.deadline,
            is_cancelled: false,
        };
        if is_planted(Planted::CommitEarly) {
            drop(Self::commit(destination, &transfer, order.checksum));
        } else {
            transfer.destination = Some(destination.quarantine());
        }
        if is_planted(Planted::DropSourceEarly) {
            transfer.source = None;
        }
        self.deadlines.insert((order.deadline, self.last_number));
        self.on_their_way.insert(identity.sequence, self.last_number);
        self.in_flight.insert(self.last_number, transfer);
        self.stats.ordered += 1;
        order
    }

    /// Ends a transfer with its outcome: registers the copy if it is correct and on time, else frees its slot. Counts
    /// and ignores an unknown or already finished transfer, and returns `None`.
    pub fn finish(&mut self, id: TransferId, outcome: Outcome, now: Duration) -> Option<Settled> {
        let found = (id.route == Self::ROUTE).then(|| self.in_flight.remove(&id.number)).flatten();
        let Some(mut transfer) = found else {
            self.stats.unknown += 1;
            return None;
        };
        self.deadlines.remove(&(transfer.deadline, id.number));
        self.on_their_way.remove(&transfer.identity.sequence);
        let (mut verdict, read) = self.judge(&transfer, outcome);
        let mut copy = None;
        if let Some(destination) = transfer.destination.take() {
            if is_planted(Planted::LeakSlot) && verdict != Verdict::Committed {
                drop(destination);
            } else if verdict == Verdict::Committed {
                match Self::commit(destination.stopped(), &transfer, read) {
                    Ok(block) => copy = Some(D::wrap(block)),
                    Err(refused) => verdict = refused,
                }
            } else {
                drop(destination.stopped());
            }
        }
        if verdict == (Verdict::Corrupt { side: Side::Source })
            && let Some(source) = &transfer.source
            && !is_planted(Planted::KeepCorrupt)
        {
            source.withdraw();
        }
        self.count(verdict);
        let identity = transfer.identity;
        let took = now.saturating_sub(transfer.began);
        if is_planted(Planted::CommitTwice) {
            self.in_flight.insert(id.number, transfer);
        }
        Some(Settled { id, identity, verdict, copy, bytes: self.block_bytes, took })
    }

    /// Decides whether the copy may be registered. Returns the verdict, and for `Committed` the checksum of the bytes
    /// that were read.
    fn judge(&self, transfer: &Transfer<S, D>, outcome: Outcome) -> (Verdict, Option<Checksum>) {
        let is_late = transfer.is_cancelled && !is_planted(Planted::CommitLate);
        let verdict = match outcome {
            Outcome::Done { bytes, .. }
                if bytes != self.block_bytes && !is_planted(Planted::SkipLength) =>
            {
                Verdict::Short { bytes }
            }
            Outcome::Done { read, written, .. } => {
                let is_checked = !is_planted(Planted::SkipChecksum);
                if is_checked && transfer.checksum.is_some_and(|stated| stated != read) {
                    Verdict::Corrupt { side: Side::Source }
                } else if is_checked && written != read {
                    Verdict::Corrupt { side: Side::Destination }
                } else if is_late {
                    Verdict::Late
                } else {
                    return (Verdict::Committed, Some(read));
                }
            }
            Outcome::Short { bytes } => Verdict::Short { bytes },
            Outcome::Corrupt { side } => Verdict::Corrupt { side },
            Outcome::Failed { failure } => Verdict::Failed { failure },
            Outcome::Cancelled => Verdict::Cancelled,
        };
        (verdict, None)
    }

    /// Registers a copy in the destination pool. If the source has no checksum yet, stores the checksum of the bytes
    /// that were read.
    fn commit(
        block: MutableBlock<D>,
        transfer: &Transfer<S, D>,
        read: Option<Checksum>,
    ) -> Result<RegisteredBlock<D>, Verdict> {
        if let (Some(read), Some(source)) = (read, &transfer.source) {
            // From now on, this checksum also verifies the source.
            source.set_checksum(read);
        }
        let checksum = read.filter(|_| !is_planted(Planted::LoseChecksum));
        let Ok(complete) = block.complete(transfer.identity) else {
            debug_assert!(false, "a registered block has a consistent identity");
            return Err(Verdict::Refused { error: RegisterError::Conflict });
        };
        let complete = complete.with_checksum(checksum).with_priority(transfer.priority);
        let registered = complete.register();
        registered
            .map(Registration::into_block)
            .map_err(|refused| Verdict::Refused { error: refused.reason })
    }

    /// Counts the result of a transfer.
    fn count(&mut self, verdict: Verdict) {
        let stats = &mut self.stats;
        match verdict {
            Verdict::Committed => {
                stats.committed += 1;
                stats.committed_bytes += self.block_bytes;
            }
            Verdict::Short { .. } | Verdict::Failed { .. } => stats.failed += 1,
            Verdict::Corrupt { .. } => stats.corrupt += 1,
            Verdict::Cancelled => stats.cancelled += 1,
            Verdict::Late => stats.late += 1,
            Verdict::Refused { .. } => stats.refused += 1,
        }
    }

    /// Cancels a transfer. Its slots stay reserved until its outcome is reported. Returns false if the transfer is
    /// unknown or already cancelled.
    pub fn cancel(&mut self, id: TransferId) -> bool {
        let found = (id.route == Self::ROUTE).then(|| self.in_flight.get_mut(&id.number)).flatten();
        let Some(transfer) = found.filter(|transfer| !transfer.is_cancelled) else { return false };
        transfer.is_cancelled = true;
        self.deadlines.remove(&(transfer.deadline, id.number));
        if is_planted(Planted::ReuseQuarantined) {
            drop(transfer.destination.take().map(QuarantinedBlock::stopped));
        }
        true
    }

    /// Cancels the copy of a block: removes it from the queue, or cancels its transfer. Returns the transfer that its
    /// executor should stop.
    pub fn cancel_block(&mut self, sequence: SequenceHash) -> Option<TransferId> {
        if self.queue.remove(sequence).is_some() {
            return None;
        }
        let number = *self.on_their_way.get(&sequence)?;
        let id = TransferId { route: Self::ROUTE, number };
        self.cancel(id).then_some(id)
    }

    /// Cancels overdue transfers. Returns their ids, so that executors stop them.
    pub fn expire(&mut self, now: Duration) -> Vec<TransferId> {
        let mut expired = Vec::new();
        while let Some(&(deadline, number)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            let id = TransferId { route: Self::ROUTE, number };
            self.cancel(id);
            expired.push(id);
        }
        expired
    }

    /// The earliest deadline of a running transfer.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Decrements every count of the frequency filter.
    pub fn decay(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.decay();
        }
    }

    /// Gauges and counters.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        let in_flight = self.in_flight.len() as u64;
        LaneStats {
            queued: self.queue.len() as u64,
            in_flight,
            cancelling: in_flight - self.deadlines.len() as u64,
            in_flight_bytes: in_flight.saturating_mul(self.block_bytes),
            ..self.stats
        }
    }
}
