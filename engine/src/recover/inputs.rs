use super::config::Recourse;
use super::progress::{Base, Progress, Trust};
use super::recovery::{Recovery, Round, Stream};
use super::step::{Admission, Numbered, Step};
use crate::order::Item;
use kvasir_proto::types::{Cursor, Incarnation};
use std::mem;

/// Consecutive rounds with holes before a dump is requested instead.
const HOLES_MAX: u32 = 2;

// === messages of the source ===

impl<I: Item, C> Recovery<I, C> {
    /// Handles a new stream of `incarnation`, whose hello may state the incarnation's first and newest number. Doubts
    /// the current incarnation if the new one is not admitted.
    pub(super) fn on_connected(
        &mut self,
        incarnation: Incarnation,
        in_order: bool,
        first: Option<u64>,
        head: Option<u64>,
    ) {
        if !self.accepts(incarnation, in_order, first) {
            self.doubt();
            return;
        }
        let rewinds = self.config.recourse == Recourse::Rewind;
        let Some(progress) = &mut self.progress else { return };
        if let (Base::Before(believed), Some(stated)) = (progress.base, first)
            && stated < believed
        {
            // The index has applied no batch yet. Therefore the first number that the source states counts.
            progress.base = Base::Before(stated);
        }
        if rewinds {
            // Batches that an earlier stream announced but did not send may never come.
            (progress.head, progress.refused) = (progress.applied(), None);
        }
        progress.target = head.filter(|head| progress.believes(*head));
        self.note_announced(head);
    }

    pub(super) fn on_disconnected(&mut self) {
        if self.stream != Stream::Down {
            self.stream = Stream::Down;
            self.seen_at = self.core.now;
        }
    }

    /// Handles the report that the stream is no longer behind.
    pub(super) fn on_caught_up(&mut self) {
        if self.stream != Stream::Behind {
            return;
        }
        self.stream = Stream::Live;
        (self.seen_at, self.progress_at) = (self.core.now, self.core.now);
        if self.progress.is_some_and(|progress| !progress.is_behind() && !progress.needs_dump) {
            self.core.verified_at = Some(self.core.now);
        }
    }

    pub(super) fn on_announced(&mut self, incarnation: Incarnation, head: Option<u64>) {
        if self.accepts(incarnation, false, None) {
            self.note_announced(head);
        } else {
            self.doubt();
        }
    }

    /// Reacts to an implausible message: it belongs to an old incarnation or to one too many new ones, or its
    /// number is too high. If the source can be queried, it must state its current incarnation.
    fn doubt(&mut self) {
        let asks = self.config.recourse == Recourse::Ask;
        let trusted = |progress: &&mut Progress| asks && progress.trust == Trust::Full;
        if let Some(progress) = self.progress.as_mut().filter(trusted) {
            progress.trust = Trust::Doubted;
        }
    }

    /// Records the newest number that the source announces. Nothing newer exists if it is already applied.
    fn note_announced(&mut self, head: Option<u64>) {
        let (Some(progress), Some(head)) = (&mut self.progress, head) else { return };
        if !progress.believes(head) {
            self.doubt();
            return;
        }
        let was_behind = progress.is_behind();
        progress.note_head(head);
        if !was_behind {
            self.progress_at = self.core.now;
        }
        if self.stream == Stream::Live && !progress.is_behind() && !progress.needs_dump {
            self.core.verified_at = Some(self.core.now);
        }
    }

    /// Handles a live batch. In this order: a batch of another incarnation that is not admitted is stale; a received
    /// number is a duplicate; a batch with missing predecessors is buffered or refused, depending on the recourse.
    pub(super) fn on_live(&mut self, incarnation: Incarnation, batch: Numbered<I>) {
        self.core.receive();
        let sequence = batch.sequence;
        if !self.accepts(incarnation, false, None) {
            self.core.counts.stale += 1;
            return;
        }
        let Some(progress) = &mut self.progress else { return };
        if progress.covers(sequence) || self.core.buffer.holds(sequence) {
            self.core.counts.duplicate += 1;
            return;
        }
        let expected = progress.expected();
        let is_near = progress.believes(sequence);
        let was_behind = progress.is_behind();
        progress.note_head(sequence);
        if !was_behind {
            self.progress_at = self.core.now;
        }
        let follows = expected.is_none_or(|expected| expected == sequence);
        // A source that answers requests only needs plausible numbers: missing batches are requested. A source that
        // rewinds must send the expected batch next. From other sources, batches are all the index can get.
        let refuses = match self.config.recourse {
            Recourse::Ask => !is_near,
            Recourse::Rewind => !(is_near && follows),
            Recourse::Nothing => false,
        };
        if refuses {
            let missing = if is_near { Some(sequence) } else { expected };
            let missing = missing.filter(|at| !progress.is_beyond(*at));
            if self.config.recourse == Recourse::Rewind {
                progress.refused = progress.refused.max(missing);
            }
            self.refuse(sequence);
            self.doubt();
        } else if is_near && !progress.is_beyond(sequence) {
            self.core.buffer_batch(batch);
        } else {
            self.core.counts.stale += 1;
        }
    }

    /// Refuses a live batch, and reports the expected number to its publisher.
    fn refuse(&mut self, sequence: u64) {
        self.refused += 1;
        let expected = self.expected().unwrap_or(0);
        self.core.push(Step::Refuse { sequence, expected });
    }

    /// Whether a message of `incarnation` is accepted. A new incarnation ends the current one.
    fn accepts(&mut self, incarnation: Incarnation, in_order: bool, first: Option<u64>) -> bool {
        if !self.is_present(incarnation) {
            if self.admission(incarnation, in_order, self.core.now) != Admission::Admitted {
                return false;
            }
            // A replacement's stated first number counts only after an answer, unless the transport preserves
            // the order of incarnations.
            let is_known = !in_order && (self.progress.is_some() || self.past.len() > 0);
            let asks = self.config.recourse == Recourse::Ask;
            let returned = asks && self.past.contains(incarnation);
            self.begin_incarnation(incarnation, first.filter(|_| !(asks && is_known)));
            if let Some(progress) = self.progress.as_mut().filter(|_| returned) {
                progress.trust = Trust::Returned;
            }
            self.asks.succeeded();
        }
        if self.stream == Stream::Down {
            self.stream = Stream::Live;
        }
        self.seen_at = self.core.now;
        true
    }

    /// Begins an incarnation, after ending the current one. Its blocks in the index are dropped.
    fn begin_incarnation(&mut self, incarnation: Incarnation, first: Option<u64>) {
        debug_assert!(!self.is_present(incarnation), "an incarnation begins once");
        self.end_incarnation();
        if let Some(before) = self.progress {
            self.past.add(before.incarnation, self.core.now);
        }
        self.past.remove(incarnation);
        let base = first.map_or(Base::Open, Base::Before);
        // Without a first number, missing batches cannot be recognised. A dump states the number up to which it is
        // complete.
        let needs_dump = base == Base::Open && self.config.recourse == Recourse::Ask;
        self.progress = Some(Progress { needs_dump, ..Progress::new(incarnation, base) });
        self.progress_at = self.core.now;
        self.core.push(Step::NewIncarnation { incarnation });
    }
}

// === answers of the source ===

impl<I: Item, C> Recovery<I, C> {
    /// Handles a batch of the current range request. If it does not follow the previous batch, the round ends.
    pub(super) fn on_range_batch(&mut self, number: u64, batch: Numbered<I>) {
        self.core.receive();
        let sequence = batch.sequence;
        let (Some(round), Some(progress)) = (self.asks.current(number), &mut self.progress) else {
            self.core.counts.stale += 1;
            return;
        };
        self.seen_at = self.core.now;
        if progress.is_beyond(sequence) {
            self.core.counts.duplicate += 1;
            return;
        }
        match progress.base {
            // The request was for all batches from the first of the incarnation on.
            Base::Open => progress.base = Base::Before(sequence),
            Base::Before(_) | Base::At(_) => {}
        }
        if progress.expected() != Some(sequence) {
            progress.note_head(sequence);
            // The next round fetches it again.
            self.core.counts.duplicate += 1;
            self.core.push(Step::Cancel { round: number });
            self.found_hole(number);
            return;
        }
        *round = Round::Range { brought: true };
        progress.note_head(sequence);
        if self.core.buffer.holds(sequence) {
            self.core.counts.duplicate += 1;
        } else {
            self.core.buffer.insert(batch);
        }
    }

    /// Handles the end of a range. If the source has more batches than the answer, the range is requested again.
    /// Otherwise the answer is complete.
    pub(super) fn on_range_end(&mut self, number: u64, head: Option<u64>) {
        let Some(progress) = self.progress.as_mut().filter(|_| self.asks.current(number).is_some())
        else {
            return;
        };
        self.seen_at = self.core.now;
        // All batches of the answer are applied by now, but the source has more.
        if let Some(head) = head.filter(|head| !progress.is_beyond(*head)) {
            progress.note_head(head);
            self.found_hole(number);
            return;
        }
        let Some(round) = self.asks.finish(number) else { return };
        // Other announced batches do not exist, unless they arrived meanwhile.
        progress.head = head.max(progress.applied()).max(self.core.buffer.highest_number());
        progress.target = progress.target.min(progress.head);
        let brought_nothing = round == (Round::Range { brought: false });
        if self.core.buffer.len() > 0 && brought_nothing && !self.drop_refuted() {
            self.round_brought_nothing();
            return;
        }
        let Some(progress) = &mut self.progress else { return };
        self.asks.succeeded();
        (progress.holes, progress.trust) = (0, Trust::Full);
        if self.core.buffer.len() == 0 && self.stream == Stream::Live {
            self.core.verified_at = Some(self.core.now);
        }
    }

    /// Drops the batches that were buffered when the request began: the source has no batch after the cursor,
    /// so they are not its own. Returns whether there were any.
    fn drop_refuted(&mut self) -> bool {
        let asked_with = mem::take(&mut self.asked_with);
        let held = self.core.buffer.len();
        let buffer = &mut self.core.buffer;
        let refuted: Vec<u64> = asked_with.into_iter().filter(|at| buffer.remove(*at)).collect();
        let back = self.core.buffer.highest_number();
        debug_assert_eq!(held, self.core.buffer.len() + refuted.len(), "each is dropped once");
        if let Some(progress) = &mut self.progress {
            progress.head = progress.applied().max(back);
            progress.target = progress.target.min(progress.head);
        }
        refuted.iter().for_each(|at| self.refuse(*at));
        !refuted.is_empty()
    }

    /// Handles missing batches in an answer: requests the range again, and later a dump.
    fn found_hole(&mut self, number: u64) {
        let (Some(round), Some(progress)) = (self.asks.finish(number), &mut self.progress) else {
            return;
        };
        if round == (Round::Range { brought: true }) {
            self.asks.succeeded();
            progress.holes = 0;
            return;
        }
        progress.holes += 1;
        progress.needs_dump |= progress.holes >= HOLES_MAX;
        self.round_brought_nothing();
    }

    /// Handles the answer that the source no longer retains the requested batches: only a dump helps.
    pub(super) fn on_range_gone(&mut self, number: u64) {
        if self.asks.finish(number).is_none() {
            return;
        }
        self.seen_at = self.core.now;
        if let Some(progress) = &mut self.progress {
            progress.needs_dump = true;
        }
    }

    /// Handles the answer that the source is in incarnation `present`.
    pub(super) fn on_other_incarnation(&mut self, number: u64, present: Incarnation) {
        if self.asks.finish(number).is_none() {
            return;
        }
        if self.is_present(present) {
            // The source contradicts itself.
            self.round_brought_nothing();
            return;
        }
        self.switch_to(present);
    }

    /// Begins the incarnation that the source's answer stated.
    fn switch_to(&mut self, present: Incarnation) {
        self.seen_at = self.core.now;
        self.begin_incarnation(present, None);
        self.asks.restarted();
    }

    pub(super) fn on_dump_chunk(&mut self, number: u64, chunk: C) {
        if self.begin_dump(number) {
            self.seen_at = self.core.now;
            self.core.push(Step::Chunk { chunk });
        }
    }

    /// Records that part of a dump is about to enter the index. Returns `false` if the part belongs to
    /// another round.
    fn begin_dump(&mut self, number: u64) -> bool {
        let Some(round) = self.asks.current(number) else { return false };
        debug_assert!(self.progress.is_some(), "a round belongs to an incarnation");
        let before = mem::replace(round, Round::Dump { begun: true });
        if before != (Round::Dump { begun: true }) {
            if let Some(progress) = &mut self.progress {
                progress.needs_dump = true;
            }
            self.core.push(Step::BeginDump);
        }
        true
    }

    /// Handles the end of the current dump, and ignores the end of any other. A dump of another incarnation begins that
    /// incarnation. Otherwise the index now has exactly the dump's blocks, and batches up to the watermark are dropped.
    pub(super) fn on_dump_end(
        &mut self,
        number: u64,
        incarnation: Incarnation,
        watermark: Option<u64>,
    ) {
        if self.asks.current(number).is_none() {
            return;
        }
        if !self.is_present(incarnation) {
            self.asks.finish(number);
            self.switch_to(incarnation);
            return;
        }
        // An empty dump has no parts. Begin it here, so that its end drops the blocks of the index.
        self.begin_dump(number);
        self.asks.finish(number);
        self.asks.succeeded();
        self.seen_at = self.core.now;
        let Some(progress) = &mut self.progress else { return };
        let base = watermark.map_or(Base::Open, Base::At);
        // Announcements remain valid. The dump replaces everything else.
        *progress = Progress {
            head: progress.head,
            target: progress.target,
            ..Progress::new(incarnation, base)
        };
        if let Some(watermark) = watermark {
            progress.note_head(watermark);
            // The dump includes these batches.
            self.core.counts.duplicate += self.core.buffer.drop_through(watermark);
        }
        self.progress_at = self.core.now;
        self.core.repair();
        let cursor = watermark.map(|sequence| Cursor { incarnation, sequence, fingerprint: None });
        // Nothing newer is known or waits: the index has the source's newest state.
        if self.stream == Stream::Live && !progress.is_behind() && self.core.buffer.len() == 0 {
            self.core.verified_at = Some(self.core.now);
        }
        self.core.push(Step::FinishDump { cursor });
    }

    /// Handles the failure of a round.
    pub(super) fn on_round_failed(&mut self, number: u64) {
        match self.asks.finish(number) {
            // The round broke off midway. The next one resumes after its last batch.
            Some(Round::Range { brought: true }) => self.asks.succeeded(),
            Some(_) => self.round_brought_nothing(),
            None => {}
        }
    }

    /// Records a round without progress. The loss policy applies after too many in a row.
    fn round_brought_nothing(&mut self) {
        if self.asks.failed() {
            self.give_up();
        }
    }
}
