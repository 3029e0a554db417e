//! The driver task: sends the plan's orders to the storages' threads, and reports their outcomes.

use super::convert::{failed, is_unreadable, outcome};
use super::executors::{ERASING_MAX, Executors};
use super::records::{Record, Records};
use super::relay::Relays;
use super::session::Seat;
use super::shared::Shared;
use super::waiters::Arrival;
use crate::block::Sealed;
use crate::cancel::Cancel;
use crate::error::TransferError;
use crate::executor::{Done, Job, Transfer};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use kvasir_blocks::plan::Side;
use kvasir_blocks::{BlockTier, Outcome, SlotState, TransferId, TransferOrder, Verdict};
use kvasir_proto::types::SequenceHash;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Interval between two checks of leases, pins and records to erase.
const TICK: Duration = Duration::from_millis(50);

/// Interval between two attempts to erase a record.
const ERASE_AGAIN: Duration = Duration::from_millis(250);

/// The open sessions, by number.
pub(super) type Seats = Mutex<BTreeMap<u64, Weak<Seat>>>;

/// Deadlines of a shutdown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    /// Deadline for executing queued transfers.
    pub(super) drain_until: Instant,
    /// Deadline for cancelled transfers to stop.
    pub(super) stop_until: Instant,
}

/// Result of a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) is_drained: bool,
    pub(super) cancelled: usize,
    pub(super) stuck: usize,
}

/// The purpose of one transfer in a batch.
#[derive(Debug, Clone, Copy)]
enum Work {
    Copy(TransferOrder),
    Fetch(TransferOrder, u32),
    Forward(TransferOrder, u32),
    Erase(Record),
}

type Step = (Vec<Option<Work>>, Transfer, Option<Done>);

pub(super) struct Driver {
    shared: Arc<Shared>,
    seats: Arc<Seats>,
    executors: Executors,
    relays: Relays,
    records: Records,
    running: FuturesUnordered<BoxFuture<'static, Step>>,
    /// Running transfers, with their cancellation tokens and blocks.
    cancels: HashMap<TransferId, (Cancel, SequenceHash)>,
    decayed: Duration,
    erased_again: Duration,
}

async fn step(works: Vec<Option<Work>>, mut transfer: Transfer) -> Step {
    let done = transfer.next().await;
    (works, transfer, done)
}

impl Driver {
    pub(super) fn new(
        shared: Arc<Shared>,
        seats: Arc<Seats>,
        executors: Executors,
        relays: Relays,
        records: Records,
    ) -> Self {
        let running = FuturesUnordered::new();
        let cancels = HashMap::new();
        let decayed = Duration::ZERO;
        let erased_again = Duration::ZERO;
        Self { shared, seats, executors, relays, records, running, cancels, decayed, erased_again }
    }

    /// Drives transfers until it receives a stop request, then stops as requested. Returns the transfers left over, and
    /// the executors.
    pub(super) async fn run(mut self, mut stops: mpsc::Receiver<Stop>) -> (Left, Executors) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = loop {
            tokio::select! {
                Some(step) = self.running.next(), if !self.running.is_empty() => self.on_step(step),
                () = self.shared.wake.notified() => {}
                _ = ticks.tick() => self.on_tick(),
                stop = stops.recv() => break stop,
            }
            self.start_ready();
        };
        let now = Instant::now();
        let stop = stop.unwrap_or(Stop { drain_until: now, stop_until: now });
        let left = self.stop(stop).await;
        (left, self.executors)
    }

    /// Finishes queued transfers until `drain_until`. Then cancels all other transfers, and waits until `stop_until`
    /// for their ends.
    async fn stop(&mut self, stop: Stop) -> Left {
        let mut ticks = interval(TICK);
        while !self.is_idle() && Instant::now() < stop.drain_until {
            tokio::select! {
                Some(step) = self.running.next(), if !self.running.is_empty() => self.on_step(step),
                _ = ticks.tick() => self.on_tick(),
            }
            self.start_ready();
        }
        let is_drained = self.is_idle();
        let mut running: Vec<TransferId> = self.cancels.keys().copied().collect();
        running.sort_unstable();
        for id in &running {
            self.shared.state.cancel(*id);
            self.cancel(*id);
        }
        for order in self.records.take_waiting().into_iter().chain(self.relays.take_waiting()) {
            self.report_result(&order, Outcome::Cancelled, None);
        }
        while !self.running.is_empty() {
            tokio::select! {
                Some(step) = self.running.next() => self.on_step(step),
                () = tokio::time::sleep_until(stop.stop_until) => break,
            }
        }
        self.notify_all();
        // From now on no slot is allocated.
        self.shared.orphans.lock().clear();
        Left { is_drained, cancelled: running.len(), stuck: self.running.len() }
    }

    fn is_idle(&self) -> bool {
        let lanes = self.shared.state.stats().lanes;
        let is_idle = lanes.values().all(|lane| lane.queued == 0 && lane.in_flight == 0);
        is_idle && self.running.is_empty() && self.records.is_idle()
    }

    /// Periodic work: cancels overdue transfers, frees expired leases, decays block frequencies, and retries
    /// erasures.
    fn on_tick(&mut self) {
        let now = self.shared.now();
        for id in self.shared.state.expire(now) {
            tracing::warn!(route = %id.route, number = id.number, "transfer takes too long, cancelled");
            self.cancel(id);
            // The transfer may never stop. Notify its waiters now.
            if let Some((_, sequence)) = self.cancels.get(&id).filter(|_| id.route.is_up()) {
                self.shared.waiters.notify_waiters(*sequence, Arrival::Overdue);
            }
        }
        let seats: Vec<_> = self.seats.lock().values().filter_map(Weak::upgrade).collect();
        for seat in seats {
            seat.expire(now);
        }
        // Slots of lost sessions: the engine may still write until its lease and the grace period are over.
        let grace = self.shared.config.lease_grace;
        let over: Vec<_> = {
            let is_over =
                |lease: &mut super::leases::Lease| lease.deadline.saturating_add(grace) <= now;
            self.shared.orphans.lock().extract_if(.., is_over).collect()
        };
        self.shared.counters.leases_over.add_len(over.len());
        drop(over);
        if now >= self.decayed.saturating_add(self.shared.config.decay_interval) {
            self.decayed = now;
            self.shared.state.decay();
        }
        if now >= self.erased_again.saturating_add(ERASE_AGAIN) {
            self.erased_again = now;
            let records = self.records.next_round();
            if records > 0 {
                tracing::warn!(records, "records of removed blocks can't be erased, trying again");
            }
        }
        *self.shared.waits.lock() = self.executors.waits();
    }

    /// Starts all transfers and erasures that may start now. Cancels onboard transfers without waiters.
    fn start_ready(&mut self) {
        // Cancels onboard transfers without waiters.
        for sequence in self.shared.waiters.take_deserted() {
            for id in self.shared.state.cancel_onboard(sequence) {
                self.cancel(id);
            }
        }
        self.erase_stale();
        // An order that fails immediately leaves its place to the next one.
        loop {
            let orders = self.shared.state.start(self.shared.now());
            if orders.is_empty() {
                break;
            }
            self.submit_orders(orders);
        }
        self.start_relays();
        // Without a transfer, no result would come: the waiters must search for the block again.
        for sequence in self.shared.waiters.awaited_blocks() {
            if !self.shared.state.is_onboarding(sequence) {
                self.shared.waiters.notify_waiters(sequence, Arrival::Look);
            }
        }
    }

    /// Sends orders to the threads: offloads in batches, onboards one by one, so that each can be cancelled alone.
    /// Orders that need a relay, or an erasure first, wait.
    fn submit_orders(&mut self, orders: Vec<TransferOrder>) {
        let mut batches: BTreeMap<BlockTier, (Vec<Option<Work>>, Vec<Job>)> = BTreeMap::new();
        for order in orders {
            if self.records.delay_if_erasing(&order) {
                continue;
            }
            if self.executors.is_relay(&order) {
                self.relays.wait(order);
                continue;
            }
            match self.executors.job(&order) {
                Err(error) => self.report_result(&order, failed(&error), Some(&error)),
                Ok((tier, job)) if order.id.route.is_up() => {
                    self.submit(tier, vec![Some(Work::Copy(order))], vec![job]);
                }
                Ok((tier, job)) => {
                    let (works, jobs) = batches.entry(tier).or_default();
                    works.push(Some(Work::Copy(order)));
                    jobs.push(job);
                }
            }
        }
        for (tier, (works, jobs)) in batches {
            self.submit(tier, works, jobs);
        }
    }

    /// Starts transfers between two storages that wait for a copy in memory, while relay slots are free.
    fn start_relays(&mut self) {
        while let Some((order, slot)) = self.relays.next() {
            match Executors::fetch(&order, &self.relays.arena, slot) {
                Ok((tier, job)) => {
                    self.submit(tier, vec![Some(Work::Fetch(order, slot))], vec![job]);
                }
                Err(error) => {
                    self.relays.give_back(slot);
                    self.report_result(&order, failed(&error), Some(&error));
                }
            }
        }
    }

    /// Starts to erase records of blocks that no longer exist, at most [`ERASING_MAX`] at a time.
    fn erase_stale(&mut self) {
        for record in self.records.begin_erasing(ERASING_MAX) {
            match self.is_stale(record) {
                None => self.records.erase_later(record),
                Some(false) => {}
                Some(true) => {
                    self.records.mark_erasing(record);
                    let (tier, job) = Executors::erase(record);
                    self.submit(tier, vec![Some(Work::Erase(record))], vec![job]);
                }
            }
        }
    }

    /// Returns whether a record is left over from a removed block, or `None` if the slot has a duplicate, which is
    /// about to be removed. (A transfer that writes into a slot erases the old record itself.)
    fn is_stale(&self, record: Record) -> Option<bool> {
        let state = &self.shared.state;
        match record {
            Record::Name(sequence) => Some(!state.events().holds(sequence, BlockTier::Volume)),
            Record::Slot(slot, _) => {
                let pool = state.pool(BlockTier::Disk);
                let slot = pool.and_then(|pool| pool.slot_state(kvasir_blocks::SlotId(slot)));
                let is_gone = matches!(slot, Some(SlotState::Free | SlotState::Withdrawn));
                (slot != Some(SlotState::Duplicate)).then_some(is_gone)
            }
        }
    }

    /// Submits jobs to a tier's threads. If the queue is full, all `works` end as cancelled.
    fn submit(&mut self, tier: BlockTier, works: Vec<Option<Work>>, jobs: Vec<Job>) {
        let Some(transfer) = self.executors.submit(tier, jobs) else {
            self.shared.counters.executor_refusals.up();
            for work in works.into_iter().flatten() {
                self.on_work(work, Err(TransferError::Cancelled));
            }
            return;
        };
        for work in works.iter().flatten() {
            if let Work::Copy(order) | Work::Fetch(order, _) | Work::Forward(order, _) = work {
                let of_order = (transfer.canceller(), order.identity.sequence);
                self.cancels.insert(order.id, of_order);
            }
        }
        self.running.push(Box::pin(step(works, transfer)));
    }

    /// Stops a transfer that the plan has cancelled. A transfer that has not begun ends immediately.
    fn cancel(&mut self, id: TransferId) {
        if let Some((cancel, _)) = self.cancels.get(&id) {
            cancel.cancel();
        } else if let Some(order) =
            self.relays.remove_order(id).or_else(|| self.records.remove_transfer(id))
        {
            // The transfer has not begun.
            self.report_result(&order, Outcome::Cancelled, None);
        }
    }

    /// Handles the result of one job of a batch. At the end of the batch, jobs without a result count as panicked.
    fn on_step(&mut self, (mut works, transfer, done): Step) {
        let Some(Done { index, job, result }) = done else {
            // All transfers have reported, or their threads are gone: nothing accesses their slots.
            for work in works.into_iter().flatten() {
                self.on_work(work, Err(TransferError::Panicked));
            }
            return;
        };
        // Release the memory slot before its block.
        drop(job);
        let work = works.get_mut(index).and_then(Option::take);
        self.running.push(Box::pin(step(works, transfer)));
        if let Some(work) = work {
            self.on_work(work, result);
        }
    }

    /// Handles the result of a job. A relayed transfer continues with its second half; the end of an erasure starts the
    /// transfers that waited for it.
    fn on_work(&mut self, work: Work, result: Result<Option<Sealed>, TransferError>) {
        match work {
            Work::Copy(order) => {
                self.report_result(&order, outcome(&order, &result), result.err().as_ref())
            }
            Work::Fetch(order, slot) => self.on_fetched(order, slot, result),
            Work::Forward(order, slot) => {
                self.relays.give_back(slot);
                let outcome = match outcome(&order, &result) {
                    // The bytes were correct when they were read from the source.
                    Outcome::Corrupt { .. } => Outcome::Corrupt { side: Side::Destination },
                    other @ (Outcome::Done { .. }
                    | Outcome::Short { .. }
                    | Outcome::Failed { .. }
                    | Outcome::Cancelled) => other,
                };
                self.report_result(&order, outcome, None);
            }
            Work::Erase(record) => {
                match result {
                    Ok(_) => self.shared.counters.erased.up(),
                    Err(error) => {
                        self.shared.counters.erase_failures.up();
                        tracing::debug!(?record, %error, "record can't be erased");
                        self.records.erase_later(record);
                    }
                }
                let kept_back = self.records.end_erasing(record);
                self.submit_orders(kept_back);
            }
        }
    }

    /// Handles the first half of a relayed transfer: starts the second half, or reports the failure or the
    /// cancellation.
    fn on_fetched(
        &mut self,
        order: TransferOrder,
        slot: u32,
        result: Result<Option<Sealed>, TransferError>,
    ) {
        let is_cancelled =
            self.cancels.get(&order.id).is_some_and(|(cancel, _)| cancel.is_cancelled());
        let fetched = match result {
            Err(error) => Err(error),
            Ok(_) if is_cancelled => Err(TransferError::Cancelled),
            Ok(_) => Executors::forward(&order, &self.relays.arena, slot),
        };
        match fetched {
            Ok((tier, job)) => {
                self.submit(tier, vec![Some(Work::Forward(order, slot))], vec![job]);
            }
            Err(error) => {
                self.relays.give_back(slot);
                self.report_result(&order, failed(&error), Some(&error));
            }
        }
    }

    /// Reports the result of a transfer to the plan and to the callers that wait for the block.
    fn report_result(
        &mut self,
        order: &TransferOrder,
        outcome: Outcome,
        error: Option<&TransferError>,
    ) {
        self.cancels.remove(&order.id);
        self.records.end_writing(order);
        let shared = Arc::clone(&self.shared);
        let route = order.id.route;
        // Hold the source before `finish` releases it, because its slot could be reused.
        let source = shared.state.pool(route.from).filter(|_| error.is_some()).and_then(|pool| {
            let found = pool.match_prefix(&[order.identity.sequence]).pop();
            found.filter(|block| block.slot() == order.source)
        });
        let Some(settled) = shared.state.finish(order.id, outcome, shared.now()) else { return };
        // The transfer may have written a record, although the pool does not have the block.
        if !self.is_kept(order)
            && let Some(record) =
                Record::written_by(order).filter(|at| at.tier() == BlockTier::Disk)
        {
            self.records.mark_stale(record);
        }
        if settled.verdict != Verdict::Committed {
            let verdict = &settled.verdict;
            let sequence = order.identity.sequence;
            tracing::debug!(%route, %sequence, ?verdict, ?error, "transfer copied no block");
        }
        if let Some(source) = source {
            let is_corrupt = settled.verdict == Verdict::Corrupt { side: Side::Source };
            let is_local = route.from != BlockTier::Volume;
            let is_gone = error.is_some_and(|error| is_unreadable(error, is_local));
            if is_corrupt {
                shared.report_corrupt(&source);
            } else if route.is_up() && is_gone && source.withdraw() {
                shared.counters.unreadable.up();
            }
            drop(source);
            if let Some(record) = Record::read_by(order).filter(|_| is_corrupt || is_gone) {
                self.records.mark_stale(record);
            }
        }
        if route.is_up() {
            let arrival = Arrival::Settled(settled.verdict, settled.copy);
            shared.waiters.notify_waiters(order.identity.sequence, arrival);
        }
    }

    /// Whether the pool finds the block of a finished transfer in this slot. It may be a duplicate.
    fn is_kept(&self, order: &TransferOrder) -> bool {
        let pool = self.shared.state.pool(order.id.route.to);
        pool.and_then(|pool| pool.slot_state(order.destination)) == Some(SlotState::Active)
    }

    fn notify_all(&self) {
        for sequence in self.shared.waiters.awaited_blocks() {
            self.shared.waiters.notify_waiters(sequence, Arrival::Look);
        }
    }
}
