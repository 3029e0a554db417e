use super::{
    config::REPLAY_REPLIES_MAX,
    incarnation,
    progress::{Position, Progress},
    replays::Round,
    sequencer::{Connection, Sequencer},
    step::{Received, Step},
};
use crate::order::Item;
use kvasir_proto::types::Incarnation;
use std::mem;

impl<I: Item> Sequencer<I> {
    pub(super) fn on_connected(&mut self) {
        if matches!(self.connection, Connection::Up { .. }) {
            self.on_disconnected();
        }
        self.connection = Connection::Up { live_seen: false };
        self.replays.reset();
        // Bytes of a process that is gone come over the connections to it only.
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
        // The publisher still has the batches that were held back, and only the next connection can
        // show whether it is still in the same incarnation.
        self.core.drop_held();
        self.progress = self.progress.unproven();
        self.last_live = self.progress.position();
        self.caught_up = false;
    }

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
                if self.last_live.is_some_and(|last| last.is(sequence, fingerprint)) {
                    self.core.counts.duplicate += 1;
                    return;
                }
                self.follow_number(&received)
            }
        };
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
        self.core.hold(received);
    }

    /// Follows the incarnation that a batch states; `true` if that ended the current one.
    fn enter(&mut self, incarnation: Incarnation) -> bool {
        let current = self.progress.incarnation();
        if current == Some(incarnation) {
            self.progress = self.progress.accepted();
        } else if self.progress.is_fresh() && !current.is_some_and(incarnation::is_stated) {
            // Nothing of it was applied yet: only its name was missing.
            self.progress = Progress::Fresh(Some(self.name_incarnation(incarnation)));
        } else {
            self.end_incarnation(Some(incarnation));
            // What ended by its numbers alone may turn out to live on.
            self.ended = current;
            return true;
        }
        false
    }

    /// Begins a stated incarnation anew if a live batch of it shows that the position is wrong; whether it did.
    fn start_over(&mut self, sequence: u64, incarnation: Incarnation) -> bool {
        let is_wrong = self.is_far_behind(sequence);
        if is_wrong {
            self.end_incarnation(Some(incarnation));
        }
        is_wrong
    }

    /// Follows the number of a live batch that states no incarnation; `true` if that ended the current
    /// one.
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

    /// Numbers of one incarnation only grow on the live stream, and a number that replay covered names
    /// the same batch here.
    fn shows_restart(&self, received: &Received<I>) -> bool {
        let Received { sequence, fingerprint, .. } = *received;
        self.is_far_behind(sequence)
            || self.last_live.is_some_and(|last| sequence <= last.sequence)
            || self.progress.position().is_some_and(|cursor| {
                cursor.sequence == sequence && !cursor.is(sequence, fingerprint)
            })
    }

    pub(super) fn on_reply(&mut self, number: u64, received: Received<I>) {
        self.core.receive();
        let last_attempt = self.replays.is_last_attempt();
        let Received { sequence, fingerprint, incarnation, .. } = received;
        let is_believable = self.believes(sequence, incarnation);
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
        // A batch that was published and does not come may have been dropped by a full send queue: ask again.
        // The cursor's batch is such a batch, unless the incarnation is stated: then the number alone proves
        // the order. If nothing of the incarnation was applied yet, the publisher no longer retains what
        // is missing before the first reply.
        let continues = incarnation.is_some() && sequence == self.next;
        let skipped = before.is_some_and(|before| sequence > before.saturating_add(1));
        let unproved = !round.proved && self.progress.position().is_some();
        let hole = !continues && (skipped || unproved);
        if hole && !last_attempt {
            self.core.counts.duplicate += 1;
            self.break_off(number);
            return;
        }
        let follows = (mem::replace(&mut round.proved, true) || continues) && !hole;
        round.brought = true;
        if !follows {
            self.leap_to(sequence);
        }
        self.core.buffer.insert(received);
    }

    /// Follows the incarnation that a reply states; `true` if it is not the round's.
    fn refuse_reply_of(&mut self, incarnation: Incarnation, number: u64) -> bool {
        if self.ended == Some(incarnation) {
            self.core.counts.stale += 1;
            self.break_off(number);
            return true;
        }
        let restarted = self.enter(incarnation);
        // The round is over; the next one asks for the batch again.
        self.core.counts.duplicate += u64::from(restarted);
        restarted
    }

    /// Resumes with a reply that does not follow from the cursor: all below it is given up. Live
    /// batches that were held back for it may be of another incarnation than the reply; they are dropped.
    fn leap_to(&mut self, sequence: u64) {
        debug_assert!(sequence >= self.next, "the cursor never goes back");
        self.core.counts.stale += self.core.buffer.drop_through(sequence);
        self.given_up_below = sequence;
        self.progress = self.progress.accepted();
        if sequence == self.next && !self.progress.is_fresh() {
            // Nothing is missing, and still it cannot be proved to be the next.
            self.core.degrade();
        }
    }

    pub(super) fn on_replay_end(&mut self, number: u64) {
        let Some(round) = self.replays.rounds.finish(number) else { return };
        let nothing_retained = round.cursor.is_some_and(|cursor| round.last < Some(cursor));
        if nothing_retained && self.progress.is_unproven() {
            // The newest batch is older than the cursor.
            self.replays.rounds.restarted();
            self.end_incarnation(None);
        } else if nothing_retained || self.core.buffer.len() > 0 {
            // On a connection that has proved its incarnation, an empty replay shows only that the publisher
            // retains nothing.
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

    /// A round ended well and nothing is known to be missing.
    fn complete(&mut self, round: &Round) {
        // The end of a replay can be missing like any other part of it. Either the live stream
        // has continued from there, or a second round shows that nothing followed.
        let proved_by_live = self.connection == Connection::Up { live_seen: true };
        if round.brought && !proved_by_live && self.replays.confirm(self.core.now) {
            return;
        }
        self.caught_up = true;
        self.core.verified_at = Some(self.core.now);
        self.replays.probe_later(self.core.now);
    }

    /// Ends a round early and plans another.
    fn break_off(&mut self, number: u64) {
        if let Some(round) = self.replays.rounds.finish(number) {
            self.core.push(Step::CancelReplay { round: number });
            self.attempt_again(&round);
        }
    }

    /// Plans another round after one that did not end well, or gives up.
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

    /// Resumes with a cursor that cannot be proved: what was applied up to it is suspect.
    pub(super) fn accept_unproved(&mut self) {
        self.progress = self.progress.accepted();
        self.core.degrade();
    }
}
