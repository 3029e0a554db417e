use super::config::REPLAY_REPLIES_MAX;
use super::incarnation;
use super::progress::{Position, Progress};
use super::replays::Round;
use super::sequencer::{Connection, Sequencer};
use super::step::{Received, Step};
use crate::order::Item;
use kvasir_proto::types::Incarnation;
use std::mem;

impl<I: Item> Sequencer<I> {
    /// Handles a new connection. With a replay socket, a round proves the cursor. Without one, the cursor is accepted
    /// unproved: immediately, or after a timeout if the publisher may still state its incarnation.
    pub(super) fn on_connected(&mut self) {
        if matches!(self.connection, Connection::Up { .. }) {
            self.on_disconnected();
        }
        self.connection = Connection::Up { live_seen: false };
        self.replays.reset();
        // Bytes of an ended process arrive only over its own connections.
        self.ended = None;
        if self.config.replay {
            self.replays.recover(self.core.now);
        } else if self.progress.is_unproven() {
            if self.progress.incarnation().is_some_and(incarnation::is_stated) {
                self.prove_by = Some(self.core.now + self.config.worker_timeout);
            } else {
                self.accept_unproved();
            }
        }
    }

    /// Handles the end of the connection. Drops buffered batches, and marks the cursor as unproven.
    pub(super) fn on_disconnected(&mut self) {
        if matches!(self.connection, Connection::Down { .. }) {
            return;
        }
        self.connection = Connection::Down { since: self.core.now, expired: false };
        self.prove_by = None;
        if let Some(round) = self.replays.rounds.abandon() {
            self.core.push(Step::CancelReplay { round });
        }
        self.replays.reset();
        // The publisher still has the buffered batches. Only the next connection can show whether its
        // incarnation continues.
        self.core.drop_held();
        self.progress = self.progress.unproven();
        self.last_live = self.progress.position();
        self.caught_up = false;
    }

    /// Handles a live batch. Stale: without a connection, of the ended incarnation, or with an implausible number.
    /// Otherwise the batch may show a restart; then it is buffered, unless its number was received before.
    pub(super) fn on_live(&mut self, received: Received<I>) {
        self.core.receive();
        let Received { sequence, fingerprint, incarnation, .. } = received;
        let is_believable = self.believes(sequence, incarnation);
        let Connection::Up { live_seen } = &mut self.connection else {
            self.core.counts.stale += 1;
            return;
        };
        if incarnation.is_some() && incarnation == self.ended {
            self.core.counts.stale += 1;
            return;
        }
        if !is_believable {
            self.core.counts.stale += 1;
            return;
        }
        *live_seen = true;
        let restarted = match incarnation {
            Some(incarnation) => self.enter(incarnation) || self.start_over(sequence, incarnation),
            None => {
                // A copy of the newest batch. Any other batch with a number that is not higher shows a restart.
                if self.last_live.is_some_and(|last| last.is(sequence, fingerprint)) {
                    self.core.counts.duplicate += 1;
                    return;
                }
                self.follow_number(&received)
            }
        };
        // The end of the incarnation reset `live_seen`, but this batch of the new one is live.
        if restarted {
            self.connection = Connection::Up { live_seen: true };
        }
        if self.last_live.is_none_or(|last| last.sequence < sequence) {
            self.last_live = Some(Position { sequence, fingerprint: Some(fingerprint) });
        }
        if sequence < self.next || self.core.buffer.holds(sequence) {
            self.core.counts.duplicate += 1;
            return;
        }
        self.core.buffer_batch(received);
    }

    /// Follows the incarnation that a batch states. Returns `true` if that ended the current one.
    fn enter(&mut self, incarnation: Incarnation) -> bool {
        let current = self.progress.incarnation();
        if current == Some(incarnation) {
            self.progress = self.progress.accepted();
        } else if self.progress.is_fresh() && !current.is_some_and(incarnation::is_stated) {
            // No batch of it was applied yet: only its id was missing.
            self.progress = Progress::Fresh(Some(self.name_incarnation(incarnation)));
        } else {
            self.end_incarnation(Some(incarnation));
            // An incarnation that ended because of its numbers alone may turn out to continue.
            self.ended = current;
            return true;
        }
        false
    }

    /// Restarts a stated incarnation if a live batch shows that the position is wrong. Returns whether it
    /// did.
    fn start_over(&mut self, sequence: u64, incarnation: Incarnation) -> bool {
        let is_wrong = self.is_far_behind(sequence);
        if is_wrong {
            self.end_incarnation(Some(incarnation));
        }
        is_wrong
    }

    /// Follows the number of a live batch without a stated incarnation. Returns `true` if that ended the
    /// current one.
    fn follow_number(&mut self, received: &Received<I>) -> bool {
        if self.progress.is_unproven() && !self.config.replay {
            self.accept_unproved();
        }
        let restarted = self.shows_restart(received);
        if restarted {
            self.end_incarnation(None);
        }
        restarted
    }

    /// Whether a live batch shows a restart. Within one incarnation, live numbers only increase, and a number
    /// that a replay covered belongs to the same batch.
    fn shows_restart(&self, received: &Received<I>) -> bool {
        let Received { sequence, fingerprint, .. } = *received;
        self.is_far_behind(sequence)
            || self.last_live.is_some_and(|last| sequence <= last.sequence)
            || self.progress.position().is_some_and(|cursor| {
                cursor.sequence == sequence && !cursor.is(sequence, fingerprint)
            })
    }

    /// Handles a batch of replay round `number`. A reply of another round or incarnation is stale. The first reply
    /// proves or refutes the cursor; later replies must follow without a hole, except on the last attempt.
    pub(super) fn on_reply(&mut self, number: u64, received: Received<I>) {
        self.core.receive();
        let last_attempt = self.replays.is_last_attempt();
        let Received { sequence, fingerprint, incarnation, .. } = received;
        let is_believable = self.believes(sequence, incarnation);
        // A reply of another incarnation ends this one, and the round with it.
        if let Some(incarnation) = incarnation
            && is_believable
            && self.replays.rounds.current(number).is_some()
            && self.refuse_reply_of(incarnation, number)
        {
            return;
        }
        let Some(round) = self.replays.rounds.current(number) else {
            self.core.counts.stale += 1;
            return;
        };
        if !is_believable {
            self.core.counts.stale += 1;
            self.break_off(number);
            return;
        }
        let before = round.last;
        round.last = before.max(Some(sequence));
        round.replies += 1;
        if round.replies > REPLAY_REPLIES_MAX {
            self.core.counts.duplicate += 1;
            self.break_off(number);
            return;
        }
        // A round starts at the cursor, inclusive. If the publisher's batch has the cursor's fingerprint, the
        // incarnation continues; another fingerprint shows a restart.
        if let Some(cursor) = self.progress.position().filter(|cursor| sequence <= cursor.sequence)
        {
            self.core.counts.duplicate += 1;
            if cursor.is(sequence, fingerprint) {
                round.proved = true;
                self.progress = self.progress.accepted();
            } else if cursor.sequence == sequence && incarnation.is_none() {
                self.end_incarnation(None);
            }
            return;
        }
        // A published batch that does not arrive may have been dropped by a full send queue, so the replay is
        // requested again. This includes the cursor's batch, unless the incarnation is stated: then the
        // number alone proves the order. If no batch of the incarnation was applied yet, the publisher no
        // longer retains the batches before the first reply.
        let continues = incarnation.is_some() && sequence == self.next;
        let skipped = before.is_some_and(|before| sequence > before.saturating_add(1));
        let unproved = !round.proved && self.progress.position().is_some();
        let hole = !continues && (skipped || unproved);
        if hole && !last_attempt {
            self.core.counts.duplicate += 1;
            self.break_off(number);
            return;
        }
        // The last attempt accepts a hole: `leap_to` counts the missing numbers as lost.
        let follows = (mem::replace(&mut round.proved, true) || continues) && !hole;
        round.brought = true;
        if !follows {
            self.leap_to(sequence);
        }
        self.core.buffer.insert(received);
    }

    /// Follows the incarnation that a reply states. Returns `true` if it is not the round's.
    fn refuse_reply_of(&mut self, incarnation: Incarnation, number: u64) -> bool {
        if self.ended == Some(incarnation) {
            self.core.counts.stale += 1;
            self.break_off(number);
            return true;
        }
        let restarted = self.enter(incarnation);
        // The round is over. The next one requests the batch again.
        self.core.counts.duplicate += u64::from(restarted);
        restarted
    }

    /// Resumes with a reply that does not follow the cursor. All numbers below it count as lost. Buffered
    /// live batches may belong to another incarnation than the reply, and are dropped.
    fn leap_to(&mut self, sequence: u64) {
        debug_assert!(sequence >= self.next, "the cursor never goes back");
        self.core.counts.stale += self.core.buffer.drop_through(sequence);
        self.given_up_below = sequence;
        self.progress = self.progress.accepted();
        if sequence == self.next && !self.progress.is_fresh() {
            // No number is missing, but the batch cannot be proved to be the next.
            self.core.degrade();
        }
    }

    /// Handles the end of a replay round: a restart, another attempt, or success.
    pub(super) fn on_replay_end(&mut self, number: u64) {
        let Some(round) = self.replays.rounds.finish(number) else { return };
        let nothing_retained = round.cursor.is_some_and(|cursor| round.last < Some(cursor));
        if nothing_retained && self.progress.is_unproven() {
            // The newest batch is older than the cursor.
            self.replays.rounds.restarted();
            self.end_incarnation(None);
        } else if nothing_retained || self.core.buffer.len() > 0 {
            // On a connection with a proved incarnation, an empty replay shows only that the publisher
            // retains no batches.
            self.attempt_again(&round);
        } else {
            self.complete(&round);
        }
    }

    pub(super) fn on_replay_failed(&mut self, number: u64) {
        if let Some(round) = self.replays.rounds.finish(number) {
            self.attempt_again(&round);
        }
    }

    /// Ends a successful round, with no batch known to be missing.
    fn complete(&mut self, round: &Round) {
        // The end of a replay can be missing like any other part. Either the live stream has continued from
        // there, or a second round shows that no batch followed.
        let proved_by_live = self.connection == Connection::Up { live_seen: true };
        if round.brought && !proved_by_live && self.replays.confirm(self.core.now) {
            return;
        }
        self.caught_up = true;
        self.core.verified_at = Some(self.core.now);
        self.replays.probe_later(self.core.now);
    }

    /// Cancels a round and plans another.
    fn break_off(&mut self, number: u64) {
        if let Some(round) = self.replays.rounds.finish(number) {
            self.core.push(Step::CancelReplay { round: number });
            self.attempt_again(&round);
        }
    }

    /// Plans another round after a failed one, or counts the missing batches as lost.
    fn attempt_again(&mut self, round: &Round) {
        if !self.replays.exhausted_by(round) {
            self.replays.recover(self.core.now);
            return;
        }
        self.replays.probe_later(self.core.now);
        if self.progress.is_unproven() {
            self.accept_unproved();
        }
        if let Some(front) = self.core.buffer.front() {
            self.given_up_below = front.sequence;
        }
    }

    /// Resumes with an unproved cursor: blocks from the batches up to it are suspect.
    pub(super) fn accept_unproved(&mut self) {
        self.progress = self.progress.accepted();
        self.core.degrade();
    }
}
