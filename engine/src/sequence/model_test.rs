//! A model of an engine's publisher, of the network and of an index, around a real sequencer.

use super::{
    Input, Item, OutcomeCounts, Received, Sequencer, SequencerConfig, Step, incarnation,
    stated_incarnation,
};
use kvasir_proto::limits::{SEQUENCES_AHEAD_MAX, UNSTATED_FIRST_SEQUENCE_MAX};
use kvasir_proto::types::{Cursor, Fingerprint, Incarnation, SourceState, SourceStatus};
use std::collections::VecDeque;
use std::time::Duration;

/// Effect of a batch of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// Stores one more block: itself.
    Store,
    /// Drops all blocks.
    Clear,
    /// Unreadable; the engine stores one more block.
    Garbled,
    /// Numbered, but neither sent nor kept by the publisher; the engine stores one more block.
    Swallowed,
}

/// One batch, with its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Token {
    pub(super) life: u64,
    pub(super) sequence: u64,
    pub(super) kind: Kind,
}

impl Item for Token {
    fn bytes(&self) -> usize {
        10
    }
}

fn index(value: u64) -> usize {
    usize::try_from(value).unwrap()
}

pub(super) fn fingerprint(life: u64, sequence: u64) -> Fingerprint {
    Fingerprint { ts_bits: life, payload_hash: sequence }
}

/// Processes of the engine that state their life with each batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statement {
    Never,
    Always,
    /// Every second process: the engine was reconfigured before each restart.
    EverySecond,
    /// Only live batches.
    LiveOnly,
}

pub(super) fn stated(life: u64) -> Incarnation {
    stated_incarnation(&[b"life".as_slice(), &life.to_be_bytes()].concat()).unwrap()
}

/// The live connection.
#[derive(Debug, Clone)]
struct Subscription {
    life: u64,
    queue: VecDeque<Token>,
}

/// The current round of replay. Not served until its first reply is read.
#[derive(Debug, Clone)]
struct Round {
    number: u64,
    from: u64,
    served: Option<VecDeque<Token>>,
    /// Whether the first requested batch is known to be published.
    from_cursor: bool,
    /// Whether a reply has arrived.
    begun: bool,
}

/// The index's state of one source: batches with effect, and whether each is suspect.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    pub(super) held: Vec<(Token, bool)>,
    incarnation: Option<Incarnation>,
    last: Option<Token>,
    pub(super) new_lives: u64,
    pub(super) expiries: u64,
}

#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) sequencer: Sequencer<Token>,
    pub(super) now: Duration,
    pub(super) index: Index,
    /// Batches of every life so far; the last life is the current one.
    pub(super) lives: Vec<Vec<Kind>>,
    pub(super) ring_max: usize,
    subscription: Option<Subscription>,
    round: Option<Round>,
    handed_in: u64,
    pub(super) rounds: u64,
    replay: bool,
    pub(super) statement: Statement,
    /// The newest life that a statement has reported to the index.
    latest: u64,
}

impl World {
    pub(super) fn new(config: SequencerConfig, ring_max: usize) -> Self {
        let replay = config.replay;
        Self {
            sequencer: Sequencer::new(config, None, Duration::ZERO),
            now: Duration::ZERO,
            index: Index::default(),
            lives: vec![Vec::new()],
            ring_max,
            subscription: None,
            round: None,
            handed_in: 0,
            rounds: 0,
            replay,
            statement: Statement::Never,
            latest: 0,
        }
    }

    /// The batch as it arrives.
    fn received(&self, token: Token, live: bool) -> Received<Token> {
        let Token { life, sequence, .. } = token;
        let states = match self.statement {
            Statement::Never => false,
            Statement::Always => true,
            Statement::EverySecond => life % 2 == 1,
            Statement::LiveOnly => live,
        };
        let fingerprint = fingerprint(life, sequence);
        Received { sequence, fingerprint, incarnation: states.then(|| stated(life)), item: token }
    }

    /// A server that starts with a checkpoint taken after batch `sequence` of the current life.
    pub(super) fn resume(&mut self, config: SequencerConfig, sequence: u64) {
        let life = self.life();
        let states = self.statement == Statement::Always;
        let incarnation = if states { stated(life) } else { Incarnation(7) };
        let fingerprint = Some(fingerprint(life, sequence));
        let cursor = Cursor { incarnation, sequence, fingerprint };
        let resume = SourceStatus { applied: Some(cursor), ..SourceStatus::default() };
        self.sequencer = Sequencer::new(config, Some(&resume), self.now);
        let held = self.truth(life, Some(sequence));
        self.index.held = held.into_iter().map(|token| (token, false)).collect();
        self.index.incarnation = Some(incarnation);
    }

    pub(super) fn life(&self) -> u64 {
        self.lives.len() as u64 - 1
    }

    pub(super) fn newest(&self) -> Option<u64> {
        (self.lives.last().unwrap().len() as u64).checked_sub(1)
    }

    /// The engine's blocks after batch `upto` of a life.
    pub(super) fn truth(&self, life: u64, upto: Option<u64>) -> Vec<Token> {
        let mut held = Vec::new();
        let count = upto.map_or(0, |upto| index(upto) + 1);
        for (sequence, kind) in self.lives[index(life)].iter().take(count).enumerate() {
            match kind {
                Kind::Clear => held.clear(),
                Kind::Store | Kind::Garbled | Kind::Swallowed => {
                    held.push(Token { life, sequence: sequence as u64, kind: *kind });
                }
            }
        }
        held
    }

    // ---- the engine

    pub(super) fn publish(&mut self, kind: Kind, delivered: bool) {
        let life = self.life();
        let batches = self.lives.last_mut().unwrap();
        let token = Token { life, sequence: batches.len() as u64, kind };
        batches.push(kind);
        let subscription = self.subscription.as_mut().filter(|live| live.life == life);
        if let Some(live) = subscription.filter(|_| delivered && kind != Kind::Swallowed) {
            live.queue.push_back(token);
        }
    }

    /// Restarts the engine. Both connections stay readable while bytes are in transit.
    pub(super) fn restart(&mut self) {
        self.lives.push(Vec::new());
    }

    // ---- the live stream

    pub(super) fn is_subscribed(&self) -> bool {
        self.subscription.is_some()
    }

    pub(super) fn has_live(&self) -> bool {
        self.subscription.as_ref().is_some_and(|live| !live.queue.is_empty())
    }

    /// Whether the connection leads to an ended process.
    pub(super) fn is_stale(&self) -> bool {
        self.subscription.as_ref().is_some_and(|live| live.life != self.life())
    }

    pub(super) fn connect(&mut self) {
        assert!(self.subscription.is_none());
        self.subscription = Some(Subscription { life: self.life(), queue: VecDeque::new() });
        self.input(Input::Connected);
    }

    pub(super) fn disconnect(&mut self) {
        assert!(self.subscription.take().is_some());
        self.input(Input::Disconnected);
    }

    pub(super) fn deliver_live(&mut self) {
        let token = self.subscription.as_mut().and_then(|live| live.queue.pop_front());
        self.live(token.expect("a live batch on its way"));
    }

    pub(super) fn live(&mut self, token: Token) {
        self.handed_in += 1;
        self.input(Input::Live(self.received(token, true)));
    }

    /// Delivers a batch with a number that no engine has, live or as a reply of the current round: `far`
    /// times too far ahead. It must not have any effect.
    pub(super) fn lie(&mut self, far: u64, in_reply: bool) {
        let ahead = SEQUENCES_AHEAD_MAX.saturating_mul(far).saturating_add(1);
        let sequence = UNSTATED_FIRST_SEQUENCE_MAX.saturating_add(ahead);
        let token = Token { life: self.life(), sequence, kind: Kind::Clear };
        match self.round.as_ref().map(|round| round.number).filter(|_| in_reply) {
            Some(round) => {
                self.handed_in += 1;
                let received = self.received(token, false);
                self.input(Input::ReplayReply { round, received });
            }
            None => {
                let before = self.sequencer.status();
                self.live(token);
                assert_eq!(self.sequencer.status(), before, "it changes nothing");
            }
        }
    }

    // ---- replay

    pub(super) fn has_round(&self) -> bool {
        self.round.is_some()
    }

    fn serve(&mut self) -> Option<&mut VecDeque<Token>> {
        let life = self.life();
        let batches = self.lives.last().unwrap().iter().enumerate();
        let sent =
            batches.map(|(sequence, kind)| Token { life, sequence: sequence as u64, kind: *kind });
        let newest_first = sent.rev().filter(|token| token.kind != Kind::Swallowed);
        let round = self.round.as_mut()?;
        let replies = round.served.get_or_insert_with(|| {
            let kept = newest_first.take(self.ring_max);
            let mut asked: VecDeque<_> =
                kept.take_while(|token| token.sequence >= round.from).collect();
            asked.make_contiguous().reverse();
            asked
        });
        Some(replies)
    }

    /// Delivers the next reply: a batch, or the end.
    pub(super) fn deliver_reply(&mut self) {
        let round = self.round.as_mut().expect("a round is under way");
        round.begun = true;
        let number = round.number;
        match self.serve().and_then(VecDeque::pop_front) {
            Some(token) => {
                self.handed_in += 1;
                let received = self.received(token, false);
                self.input(Input::ReplayReply { round: number, received });
            }
            None => {
                self.round = None;
                self.input(Input::ReplayEnd { round: number });
            }
        }
    }

    /// Drops the next reply, because the publisher's send queue is full. A lost first reply can be recovered
    /// only if it is known that there should be one.
    pub(super) fn drop_reply(&mut self, even_the_first: bool) -> bool {
        let known = self.round.as_ref().is_some_and(|round| round.begun || round.from_cursor);
        let replies = self.serve().filter(|_| even_the_first || known);
        replies.is_some_and(|replies| replies.pop_front().is_some())
    }

    pub(super) fn break_replay(&mut self) {
        let number = self.round.take().expect("a round is under way").number;
        self.input(Input::ReplayFailed { round: number });
    }

    // ---- the sequencer

    pub(super) fn advance(&mut self, time: Duration) {
        self.now += time;
        self.input(Input::Tick);
    }

    /// Advances to the sequencer's next deadline, if it is within `limit`.
    pub(super) fn advance_to_deadline(&mut self, limit: Duration) -> bool {
        match self.sequencer.deadline() {
            Some(deadline) if deadline <= self.now + limit => {
                self.now = self.now.max(deadline);
                self.input(Input::Tick);
                true
            }
            _ => false,
        }
    }

    pub(super) fn input(&mut self, input: Input<Token>) {
        self.sequencer.handle(input, self.now);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(step) = self.sequencer.next_step() {
            self.execute(&step);
        }
        let OutcomeCounts { applied, duplicate, stale, .. } = self.sequencer.counts();
        let buffered = self.sequencer.status().buffered_batches;
        assert_eq!(self.handed_in, applied + duplicate + stale + buffered, "{self:#?}");
    }

    fn execute(&mut self, step: &Step<Token>) {
        let index = &mut self.index;
        match *step {
            Step::Restarted => {
                index.held.clear();
                index.last = None;
                index.incarnation = None;
            }
            Step::NewIncarnation { incarnation } => {
                // A statement ends the previous life by itself, or names one that had a derived id.
                let is_stated = incarnation::is_stated(incarnation);
                assert!(is_stated || index.incarnation.is_none(), "a life is named once");
                assert_ne!(index.incarnation, Some(incarnation), "a life is named once");
                index.held.clear();
                index.last = None;
                index.incarnation = Some(incarnation);
                index.new_lives += 1;
                let lives = 0..self.lives.len() as u64;
                if let Some(life) = lives.rev().find(|life| stated(*life) == incarnation) {
                    // Ids have no order. The first bytes of an ended process are believed until its
                    // connection ends, if none of its bytes were received before.
                    let is_late = self.subscription.as_ref().is_some_and(|live| live.life == life);
                    assert!(life >= self.latest || is_late, "back to {life} after {}", self.latest);
                    self.latest = life;
                }
            }
            Step::Apply { cursor, item } => {
                if let Some(last) = index.last {
                    assert!(last.sequence < item.sequence, "{last:?} before {item:?}");
                }
                assert_eq!(cursor.sequence, item.sequence);
                assert_eq!(cursor.fingerprint, Some(fingerprint(item.life, item.sequence)));
                if index.last.is_some() || index.incarnation.is_some() {
                    assert_eq!(Some(cursor.incarnation), index.incarnation, "fenced");
                }
                index.last = Some(item);
                match item.kind {
                    Kind::Store => index.held.push((item, false)),
                    Kind::Clear => {
                        index.held.clear();
                        self.sequencer.content_cleared();
                    }
                    Kind::Garbled => self.sequencer.content_lost(),
                    Kind::Swallowed => panic!("never sent"),
                }
            }
            Step::MarkSuspect => index.held.iter_mut().for_each(|(_, suspect)| *suspect = true),
            Step::ClearLost => index.held.clear(),
            Step::DropSuspects => index.held.retain(|(_, suspect)| !suspect),
            Step::Expired => {
                let new_lives = index.new_lives;
                let expiries = index.expiries + 1;
                *index = Index { new_lives, expiries, ..Index::default() };
            }
            Step::StartReplay { round, from } => {
                assert!(self.replay && self.round.is_none(), "one round at a time");
                self.rounds += 1;
                let from_cursor = self.sequencer.status().applied.is_some();
                let served = None;
                let begun = false;
                self.round = Some(Round { number: round, from, served, from_cursor, begun });
            }
            Step::CancelReplay { round } => {
                // Already removed if it was the end of the round that led to this.
                let ended = self.round.take().map(|round| round.number);
                assert!(ended.is_none_or(|ended| ended == round), "{ended:?} is not {round}");
            }
        }
    }

    pub(super) fn state(&self) -> SourceState {
        self.sequencer.status().state
    }

    pub(super) fn held(&self) -> Vec<Token> {
        self.index.held.iter().map(|(token, _)| *token).collect()
    }

    // ---- what must hold

    /// Checks that exact is true: the index has the blocks of one life of the engine after the cursor's
    /// batch. Not while bytes of an ended process are in transit: until the connection ends, their effect may
    /// be applied on top of a replay from the successor. If every batch states its life, they are
    /// distinguished.
    pub(super) fn check_exact_is_true(&self) {
        let is_mixed = self.is_stale() && self.statement != Statement::Always;
        if self.state() != SourceState::Exact || is_mixed {
            return;
        }
        let truth = match self.sequencer.status().applied.and_then(|cursor| {
            cursor.fingerprint.map(|fingerprint| (fingerprint.ts_bits, cursor.sequence))
        }) {
            Some((life, sequence)) => self.truth(life, Some(sequence)),
            None => Vec::new(),
        };
        assert_eq!(self.held(), truth, "exact, and it is not: {self:#?}");
    }

    /// Ends all faults: messages in transit arrive, connections are restored, and time passes.
    pub(super) fn quiesce(&mut self) {
        if self.lives.last().unwrap().last() == Some(&Kind::Swallowed) {
            // Only a later batch can show that a number was never sent.
            self.publish(Kind::Store, false);
        }
        for _ in 0..2 {
            self.settle(Duration::from_secs(40));
            if !self.replay {
                // Only a later batch can show that the last one was lost.
                self.publish(Kind::Store, true);
            }
        }
        self.settle(Duration::from_secs(40));
    }

    fn settle(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..100_000 {
            if self.has_live() {
                self.deliver_live();
            } else if self.is_stale() {
                self.disconnect();
            } else if !self.is_subscribed() {
                self.connect();
            } else if self.has_round() {
                self.deliver_reply();
            } else if !self.advance_to_deadline(end - self.now.min(end)) {
                self.now = self.now.max(end);
                return;
            }
        }
        panic!("never comes to rest: {self:#?}");
    }

    /// Checks after [`World::quiesce`] that the cursor is the newest batch and the state is true.
    pub(super) fn check_quiet(&mut self) -> SourceState {
        let state = self.state();
        let truth = self.truth(self.life(), self.newest());
        match state {
            SourceState::Exact => assert_eq!(self.held(), truth, "{self:#?}"),
            SourceState::Degraded => {}
            SourceState::CatchingUp
            | SourceState::Gap
            | SourceState::Partial
            | SourceState::Cold => panic!("not at rest: {self:#?}"),
        }
        let applied = self.sequencer.status().applied.map(|cursor| cursor.sequence);
        let kinds = self.lives.last().unwrap();
        let newest = kinds.iter().rposition(|kind| *kind != Kind::Swallowed);
        assert_eq!(applied, newest.map(|newest| newest as u64), "{self:#?}");
        // Suspect blocks are dropped in the end: the index has no block that the engine does not have.
        self.settle(Duration::from_secs(700));
        for (token, _) in &self.index.held {
            assert!(truth.contains(token), "phantom {token:?}: {self:#?}");
        }
        state
    }
}
