//! A model of the network and of an index between an agent (`agent_test.rs`) and a real [`Recovery`].
//!
//! A batch's effect depends on the earlier state and is not idempotent. A lost, repeated or misplaced batch
//! is therefore visible in the index.

use super::agent_test::{Chunk, Copies, Kind, Life, Reply, Token, incarnation, life_of, serve};
use super::{
    Admission, Ask, Input, NUMBERS_AHEAD_MAX, Numbered, OutcomeCounts, PAST_INCARNATIONS_MAX,
    Recourse, Recovery, RecoveryConfig, Step,
};
use kvasir_proto::limits::UNSTATED_FIRST_SEQUENCE_MAX;
use kvasir_proto::types::{Cursor, Incarnation, SourceState, SourceStatus};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A message on its way to the server, except answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Batch(Token),
    Head {
        life: usize,
        head: Option<u64>,
    },
    /// A number that does not exist in this life, in a batch or in a head.
    Absurd {
        life: usize,
        sequence: u64,
    },
}

/// The current round. Not served until its first message is read.
#[derive(Debug, Clone)]
struct Round {
    number: u64,
    ask: Ask,
    served: Option<VecDeque<Reply>>,
}

/// The index's state of one source.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    /// Copies of each name, and whether they are suspect.
    held: BTreeMap<u8, (u32, bool)>,
    incarnation: Option<Incarnation>,
    /// Last applied batch.
    at: Option<u64>,
    newest_life: usize,
    /// Lives that have ended once.
    left: Vec<Incarnation>,
    pub(super) new_lives: u64,
    pub(super) expiries: u64,
    pub(super) dumps: u64,
    pub(super) losses: u64,
}

#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) recovery: Recovery<Token, Chunk>,
    pub(super) now: Duration,
    pub(super) index: Index,
    pub(super) lives: Vec<Life>,
    pub(super) journal_max: usize,
    /// Messages in transit, in the order in which they were sent.
    pub(super) sent: Vec<Sent>,
    round: Option<Round>,
    handed_in: u64,
    refusals: u64,
    pub(super) wanted: Option<u64>,
    pub(super) recourse: Recourse,
    /// Whether a stream is open that the source keeps open.
    pub(super) stream: bool,
    /// New lives that were refused because the memory was full.
    pub(super) crowded: u64,
    strange: Strange,
}

/// Faults that an honest source does not have.
#[derive(Debug, Clone, Copy, Default)]
struct Strange {
    /// Plausible but wrong numbers were sent.
    lies_near: bool,
    /// More lives began than are remembered.
    flickered: bool,
}

impl World {
    pub(super) fn new(config: RecoveryConfig, journal_max: usize) -> Self {
        Self {
            recovery: Recovery::new(config, None, Duration::ZERO),
            now: Duration::ZERO,
            index: Index::default(),
            lives: vec![Life { first: 0, batches: Vec::new() }],
            journal_max,
            sent: Vec::new(),
            round: None,
            handed_in: 0,
            refusals: 0,
            wanted: None,
            recourse: config.recourse,
            stream: false,
            crowded: 0,
            strange: Strange::default(),
        }
    }

    /// A server that starts with a checkpoint taken after batch `sequence` of the current life.
    pub(super) fn resume(&mut self, config: RecoveryConfig, sequence: u64, past: &[usize]) {
        let incarnation = incarnation(self.life());
        let applied = Some(Cursor { incarnation, sequence, fingerprint: None });
        let past = past.iter().map(|life| self::incarnation(*life)).collect();
        let resume = SourceStatus { applied, past, ..SourceStatus::default() };
        self.recovery = Recovery::new(config, Some(&resume), self.now);
        let held = self.truth(self.life(), Some(sequence));
        self.index.held = held.into_iter().map(|(name, count)| (name, (count, false))).collect();
        self.index.incarnation = Some(incarnation);
        self.index.at = Some(sequence);
        self.index.newest_life = self.life();
    }

    pub(super) fn life(&self) -> usize {
        self.lives.len() - 1
    }

    pub(super) fn newest(&self) -> Option<u64> {
        self.lives.last().unwrap().newest()
    }

    /// The source's copies after batch `upto` of a life.
    pub(super) fn truth(&self, life: usize, upto: Option<u64>) -> Copies {
        self.lives[life].truth(upto)
    }

    // ---- the agent

    pub(super) fn publish(&mut self, kind: Kind, delivered: bool) {
        let at = self.life();
        let life = self.lives.last_mut().unwrap();
        let sequence = life.first + life.batches.len() as u64;
        life.batches.push(kind);
        if delivered {
            self.sent.push(Sent::Batch(Token { life: at, sequence, kind }));
        }
    }

    pub(super) fn announce(&mut self) {
        self.sent.push(Sent::Head { life: self.life(), head: self.newest() });
    }

    /// Restarts the agent. Messages in transit still arrive.
    pub(super) fn restart(&mut self, first: u64) {
        self.lives.push(Life { first, batches: Vec::new() });
        if self.recourse == Recourse::Rewind {
            // The agent's stream ends with it.
            self.sent.clear();
            self.disconnect();
        }
        if let Some(Round { served: Some(replies), .. }) = &mut self.round {
            let whole = matches!(replies.back(), Some(Reply::Failed));
            if !whole {
                replies.pop_back();
                replies.push_back(Reply::Failed);
            }
        }
    }

    // ---- the network

    /// Delivers the message at `place` among those in transit.
    pub(super) fn deliver(&mut self, place: usize) {
        let sent = self.sent.remove(place);
        self.receive(sent);
    }

    pub(super) fn receive(&mut self, sent: Sent) {
        if self.recourse == Recourse::Rewind && !self.stream {
            self.connect(self.life(), [true, false]);
        }
        match sent {
            Sent::Batch(token) => {
                self.handed_in += 1;
                let batch = Numbered { sequence: token.sequence, item: token };
                self.input(Input::Live { incarnation: incarnation(token.life), batch });
            }
            Sent::Head { life, head } => {
                self.input(Input::Announced { incarnation: incarnation(life), head });
            }
            Sent::Absurd { life, sequence } => {
                let incarnation = incarnation(life);
                let item = Token { life, sequence, kind: Kind::Clear };
                self.input(Input::Announced { incarnation, head: Some(sequence) });
                self.handed_in += 1;
                let batch = Numbered { sequence, item };
                self.input(Input::Live { incarnation, batch });
            }
        }
    }

    /// Sends, with the current life, a number that no batch will ever have, too high for any applied number:
    /// `far` times.
    pub(super) fn lie(&mut self, far: u64) {
        let ahead = NUMBERS_AHEAD_MAX.saturating_mul(far).saturating_add(1);
        let sequence = UNSTATED_FIRST_SEQUENCE_MAX.saturating_add(ahead);
        self.sent.push(Sent::Absurd { life: self.life(), sequence });
    }

    /// Sends, with the current life, a number that no batch has yet, but may have later.
    pub(super) fn lie_near(&mut self, ahead: u64) {
        self.strange.lies_near = true;
        let sequence = self.newest().unwrap_or(0) + 10_000 + ahead;
        self.sent.push(Sent::Absurd { life: self.life(), sequence });
    }

    /// Begins more lives at the same time than are remembered, each with a stream.
    pub(super) fn flicker(&mut self) {
        self.strange.flickered = true;
        for _ in 0..=PAST_INCARNATIONS_MAX {
            self.restart(0);
            self.connect(self.life(), [true, false]);
        }
    }

    /// Opens a stream of a life, optionally with its first number and head. Messages of an ended agent may be
    /// read late.
    pub(super) fn connect(&mut self, life: usize, [first, head]: [bool; 2]) {
        let incarnation = incarnation(life);
        let admission = self.recovery.admission(incarnation, false, self.now);
        self.crowded += u64::from(admission == Admission::TooMany);
        if admission != Admission::Admitted {
            // The stream is refused, so no further stream is open.
            self.input(Input::Announced { incarnation, head: None });
            return;
        }
        self.stream = true;
        self.input(Input::Connected {
            incarnation,
            first: first.then(|| self.lives[life].first),
            head: self.lives[life].newest().filter(|_| head),
            in_order: false,
        });
    }

    pub(super) fn disconnect(&mut self) {
        self.stream = false;
        self.input(Input::Disconnected);
    }

    // ---- rounds

    pub(super) fn has_round(&self) -> bool {
        self.round.is_some()
    }

    /// Delivers the next message of the answer.
    pub(super) fn deliver_reply(&mut self, early: u64) {
        let Round { number: round, ask, .. } = *self.round.as_ref().expect("a round is under way");
        let served = serve(&self.lives, self.journal_max, ask, early);
        let replies =
            self.round.as_mut().and_then(|round| round.served.get_or_insert(served).pop_front());
        let reply = replies.unwrap_or(Reply::Failed);
        let last = !matches!(reply, Reply::Batch(_) | Reply::Chunk(_));
        if last {
            self.round = None;
        }
        let input = match reply {
            Reply::Batch(token) => {
                self.handed_in += 1;
                let batch = Numbered { sequence: token.sequence, item: token };
                Input::RangeBatch { round, batch }
            }
            Reply::RangeEnd(head) => Input::RangeEnd { round, head },
            Reply::Gone => Input::RangeGone { round },
            Reply::OtherIncarnation(life) => {
                Input::OtherIncarnation { round, present: incarnation(life) }
            }
            Reply::Chunk(chunk) => Input::DumpChunk { round, chunk },
            Reply::DumpEnd(life, watermark) => {
                Input::DumpEnd { round, incarnation: incarnation(life), watermark }
            }
            Reply::Failed => Input::RoundFailed { round },
        };
        self.input(input);
    }

    /// Drops a batch of a range; `false` if there is none. The transport of a dump keeps chunks in order: it
    /// breaks off, or all arrive.
    pub(super) fn drop_reply(&mut self) -> bool {
        let replies = self.round.as_mut().and_then(|round| round.served.as_mut());
        let Some(replies) = replies else { return false };
        if !matches!(replies.front(), Some(Reply::Batch(_))) {
            return false;
        }
        replies.pop_front();
        true
    }

    pub(super) fn break_round(&mut self) {
        let number = self.round.take().expect("a round is under way").number;
        self.input(Input::RoundFailed { round: number });
    }

    // ---- the recovery

    pub(super) fn advance(&mut self, time: Duration) {
        self.now += time;
        self.input(Input::Tick);
    }

    /// Advances to the next deadline, if it is within `limit`.
    pub(super) fn advance_to_deadline(&mut self, limit: Duration) -> bool {
        match self.recovery.deadline() {
            Some(deadline) if deadline <= self.now + limit => {
                self.now = self.now.max(deadline);
                self.input(Input::Tick);
                true
            }
            _ => false,
        }
    }

    pub(super) fn input(&mut self, input: Input<Token, Chunk>) {
        self.recovery.handle(input, self.now);
        while let Some(step) = self.recovery.next_step() {
            self.execute(step);
        }
        let OutcomeCounts { applied, duplicate, stale, .. } = self.recovery.counts();
        let buffered = self.recovery.status().buffered_batches;
        let settled = applied + duplicate + stale + self.refusals;
        assert_eq!(self.handed_in, settled + buffered, "{self:#?}");
    }

    fn execute(&mut self, step: Step<Token, Chunk>) {
        let index = &mut self.index;
        match step {
            Step::NewIncarnation { incarnation } => {
                assert_ne!(index.incarnation, Some(incarnation));
                index.held.clear();
                index.at = None;
                index.left.extend(index.incarnation.replace(incarnation));
                index.new_lives += 1;
            }
            Step::Apply { cursor, item } => self.apply(cursor, item),
            Step::Refuse { sequence, expected } => {
                assert!(self.recourse != Recourse::Nothing && sequence > expected);
                self.refusals += 1;
                self.wanted = Some(expected);
            }
            Step::BeginDump => {
                index.held.values_mut().for_each(|(_, suspect)| *suspect = true);
            }
            Step::Chunk { chunk } => {
                for (name, count) in chunk {
                    index.held.insert(name, (count, false));
                    index.held.retain(|_, (count, _)| *count > 0);
                }
            }
            Step::FinishDump { cursor } => {
                index.held.retain(|_, (_, suspect)| !*suspect);
                index.at = cursor.map(|cursor| cursor.sequence);
                index.dumps += 1;
                assert!(cursor.is_none_or(|at| Some(at.incarnation) == index.incarnation));
            }
            Step::MarkSuspect => {
                index.held.values_mut().for_each(|(_, suspect)| *suspect = true);
                index.losses += 1;
            }
            Step::ClearLost => {
                index.held.clear();
                index.losses += 1;
            }
            Step::DropSuspects => index.held.retain(|_, (_, suspect)| !*suspect),
            Step::Expired => {
                index.held.clear();
                index.at = None;
                index.left.extend(index.incarnation.take());
                // The stream of an expired source ends.
                self.stream = false;
                index.expiries += 1;
            }
            Step::Ask { round, ask } => {
                assert!(self.recourse == Recourse::Ask && self.round.is_none(), "one at a time");
                self.round = Some(Round { number: round, ask, served: None });
            }
            Step::Cancel { round } => {
                let ended = self.round.take().map(|round| round.number);
                assert!(ended.is_none_or(|ended| ended == round), "{ended:?} is not {round}");
            }
        }
    }

    fn apply(&mut self, cursor: Cursor, item: Token) {
        let was_published = Some(item.sequence) <= self.lives[item.life].newest();
        assert!(was_published || self.strange.lies_near, "{item:?} was never published");
        let index = &mut self.index;
        assert_eq!(cursor.sequence, item.sequence);
        assert_eq!(Some(cursor.incarnation), index.incarnation, "fenced");
        assert_eq!(life_of(cursor.incarnation), item.life, "of another life");
        if self.recourse == Recourse::Ask {
            // After a long time without answers, an old life may be applied that was never received before.
            // The same applies to a forgotten life, because the source itself has begun too many others.
            let is_known = index.left.contains(&cursor.incarnation) && !self.strange.flickered;
            let unheard = index.losses > 0 && !is_known;
            let newest = index.newest_life;
            assert!(item.life >= newest || unheard, "{item:?} after life {newest}");
        }
        assert!(index.at.is_none_or(|at| at < item.sequence), "{item:?} at {:?}", index.at);
        (index.at, index.newest_life) = (Some(item.sequence), item.life);
        match item.kind {
            Kind::Add(name) => {
                let (count, suspect) = index.held.entry(name).or_default();
                (*count, *suspect) = (if *suspect { 1 } else { *count + 1 }, false);
            }
            Kind::Take(name) => {
                if let Some((count, _)) = index.held.get_mut(&name) {
                    *count -= 1;
                }
                index.held.retain(|_, (count, _)| *count > 0);
            }
            Kind::Clear => index.held.clear(),
        }
    }

    pub(super) fn state(&self) -> SourceState {
        self.recovery.status().state
    }

    pub(super) fn held(&self) -> Copies {
        self.index.held.iter().map(|(name, (count, _))| (*name, *count)).collect()
    }

    // ---- what must hold

    /// Checks that exact is true: the index has the source's copies after the cursor's batch.
    pub(super) fn check_exact_is_true(&self) {
        if self.state() != SourceState::Exact {
            return;
        }
        let life = life_of(self.index.incarnation.expect("exact: of a life"));
        let applied = self.recovery.status().applied.map(|cursor| cursor.sequence);
        assert_eq!(applied, self.index.at);
        assert_eq!(self.held(), self.truth(life, applied), "exact, and it is not: {self:#?}");
    }

    /// Ends all faults: messages in transit arrive, time passes, and the agent announces itself now and then.
    pub(super) fn quiesce(&mut self) {
        for _ in 0..12 {
            while !self.sent.is_empty() {
                self.deliver(0);
            }
            if self.recourse == Recourse::Rewind {
                self.send_from_wanted();
            }
            self.receive(Sent::Head { life: self.life(), head: self.newest() });
            self.settle(Duration::from_secs(11));
        }
    }

    /// Sends from the expected number on, as a publisher that can rewind.
    fn send_from_wanted(&mut self) {
        let at = self.life();
        self.connect(at, [true, true]);
        let life = self.lives[at].clone();
        let first = self.recovery.expected().unwrap_or(life.first);
        for (kind, sequence) in life.batches.iter().zip(life.first..) {
            if sequence >= first {
                self.receive(Sent::Batch(Token { life: at, sequence, kind: *kind }));
            }
        }
    }

    fn settle(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..100_000 {
            if self.has_round() {
                self.deliver_reply(0);
            } else if !self.advance_to_deadline(end - self.now.min(end)) {
                self.now = self.now.max(end);
                return;
            }
        }
        panic!("never comes to rest: {self:#?}");
    }

    /// Checks after [`World::quiesce`] that the index has the source's copies.
    pub(super) fn check_quiet(&self) {
        assert_eq!(self.state(), SourceState::Exact, "{self:#?}");
        let status = self.recovery.status();
        assert_eq!(status.applied.map(|cursor| cursor.sequence), self.newest(), "{self:#?}");
        assert_eq!(status.buffered_batches, 0);
        assert_eq!(self.held(), self.truth(self.life(), self.newest()), "{self:#?}");
        assert!(status.verified_at.is_some() || self.newest().is_none());
    }
}
