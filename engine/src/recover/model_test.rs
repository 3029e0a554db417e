//! A model of the network and of an index between an agent (`agent_test.rs`) and a real [`Recovery`].
//!
//! What a batch does to the index depends on what was there before and is not the same when done
//! twice: a batch that is lost, repeated or out of order shows in what is held.

use super::agent_test::{Chunk, Copies, Kind, Life, Reply, Token, incarnation, life_of, serve};
use super::{
    Admission, Ask, Input, NUMBERS_AHEAD_MAX, Numbered, OutcomeCounts, PAST_INCARNATIONS_MAX,
    Recourse, Recovery, RecoveryConfig, Step,
};
use kvasir_proto::{
    limits::UNSTATED_FIRST_SEQUENCE_MAX,
    types::{Cursor, Incarnation, SourceState, SourceStatus},
};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// Something on its way to the server, besides answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Batch(Token),
    Head {
        life: usize,
        head: Option<u64>,
    },
    /// A number that no batch of the life has, in a batch and in a head.
    Absurd {
        life: usize,
        sequence: u64,
    },
}

/// A round under way. Not served until its first message is read.
#[derive(Debug, Clone)]
struct Round {
    number: u64,
    ask: Ask,
    served: Option<VecDeque<Reply>>,
}

/// The index, as far as one source goes.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    /// Copies of each name, and whether they are suspect.
    held: BTreeMap<u8, (u32, bool)>,
    incarnation: Option<Incarnation>,
    /// Last batch that is in.
    at: Option<u64>,
    newest_life: usize,
    /// Lives that were over once.
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
    /// On their way, in the order in which they were sent.
    pub(super) sent: Vec<Sent>,
    round: Option<Round>,
    handed_in: u64,
    refusals: u64,
    pub(super) wanted: Option<u64>,
    pub(super) recourse: Recourse,
    /// Whether a stream is open that the source does not leave.
    pub(super) stream: bool,
    /// New lives for which there was no room.
    pub(super) crowded: u64,
    strange: Strange,
}

/// What an honest source does not do.
#[derive(Debug, Clone, Copy, Default)]
struct Strange {
    /// Somebody sent numbers that could be believed.
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

    /// A server that starts with a checkpoint taken after batch `sequence` of the present life.
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

    /// What the source holds after batch `upto` of a life.
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

    /// The agent starts anew. What is on its way still comes.
    pub(super) fn restart(&mut self, first: u64) {
        self.lives.push(Life { first, batches: Vec::new() });
        if self.recourse == Recourse::Rewind {
            // Its stream ends with it.
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

    /// The message at a place of those on their way arrives.
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

    /// Somebody sends a number of the present life that no batch of it will ever have, and that is too high for
    /// whatever was applied: `far` times.
    pub(super) fn lie(&mut self, far: u64) {
        let ahead = NUMBERS_AHEAD_MAX.saturating_mul(far).saturating_add(1);
        let sequence = UNSTATED_FIRST_SEQUENCE_MAX.saturating_add(ahead);
        self.sent.push(Sent::Absurd { life: self.life(), sequence });
    }

    /// Somebody sends a number of the present life that no batch of it has, and may have some day.
    pub(super) fn lie_near(&mut self, ahead: u64) {
        self.strange.lies_near = true;
        let sequence = self.newest().unwrap_or(0) + 10_000 + ahead;
        self.sent.push(Sent::Absurd { life: self.life(), sequence });
    }

    /// More lives begin at once than are remembered, each with a stream.
    pub(super) fn flicker(&mut self) {
        self.strange.flickered = true;
        for _ in 0..=PAST_INCARNATIONS_MAX {
            self.restart(0);
            self.connect(self.life(), [true, false]);
        }
    }

    /// The agent opens a stream, and says so much of its life. What an agent sent that is gone may
    /// be read late.
    pub(super) fn connect(&mut self, life: usize, [first, head]: [bool; 2]) {
        let incarnation = incarnation(life);
        let admission = self.recovery.admission(incarnation, false, self.now);
        self.crowded += u64::from(admission == Admission::TooMany);
        if admission != Admission::Admitted {
            // It is refused: no stream is open that was not open before.
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

    /// The next message of the answer arrives.
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

    /// A batch of a range is lost on its way; `false` if there is none. Chunks of a dump follow from
    /// each other by their transport: it breaks off, or none is lost.
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

    /// Goes on to the next deadline, if it is within `limit`.
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
                // A stream of a source that is gone is ended.
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
            // Where nobody answered for long, an old life may be applied that was never received before.
            // So may one that was forgotten, for the source itself has begun too many others.
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

    /// Exact means: the index holds what the source held after the cursor's batch.
    pub(super) fn check_exact_is_true(&self) {
        if self.state() != SourceState::Exact {
            return;
        }
        let life = life_of(self.index.incarnation.expect("exact: of a life"));
        let applied = self.recovery.status().applied.map(|cursor| cursor.sequence);
        assert_eq!(applied, self.index.at);
        assert_eq!(self.held(), self.truth(life, applied), "exact, and it is not: {self:#?}");
    }

    /// No more faults: what is on its way arrives, time passes, the agent says now and then that it
    /// is there.
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

    /// What a publisher does that is told where to go on.
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

    /// After [`World::quiesce`]: what is held is what the source holds.
    pub(super) fn check_quiet(&self) {
        assert_eq!(self.state(), SourceState::Exact, "{self:#?}");
        let status = self.recovery.status();
        assert_eq!(status.applied.map(|cursor| cursor.sequence), self.newest(), "{self:#?}");
        assert_eq!(status.buffered_batches, 0);
        assert_eq!(self.held(), self.truth(self.life(), self.newest()), "{self:#?}");
        assert!(status.verified_at.is_some() || self.newest().is_none());
    }
}
