//! An agent beside its engine: the real journal, and what carries its batches.

use crate::follower::{Hello, Part, Payload, Round, Serving};
use crate::seen::Seen;
use crate::truth::Truth;
use kvasir_engine::recover::{Ask, Numbered};
use kvasir_feed::journal::{
    Batch, DumpError, DumpStep, Journal, JournalConfig, JournalStatus, RangeError,
};
use kvasir_proto::types::Incarnation;
use kvasir_tests::script::ScriptRng;
use rand::Rng;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Batches of a range looked for at a time.
const LOOK_BATCHES: usize = 3;

/// How an agent's batches travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// A stream of its own to each server, acknowledged.
    Direct,
    /// By a broker that keeps nothing.
    Core,
    /// By a broker's stream.
    Log,
}

/// A message of an agent over a broker: it stands by itself.
#[derive(Debug, Clone)]
pub struct Message {
    pub agent: usize,
    pub incarnation: Incarnation,
    pub first: u64,
    pub content: Content,
}

#[derive(Debug, Clone)]
pub enum Content {
    Batch(Numbered<Payload>),
    Heartbeat(Option<u64>),
}

impl Message {
    pub const fn hello(&self) -> Hello {
        let head = match &self.content {
            Content::Batch(batch) => Some(batch.sequence),
            Content::Heartbeat(head) => *head,
        };
        Hello { incarnation: self.incarnation, first: self.first, head, in_order: false }
    }
}

/// What an agent has on its way to a broker.
#[derive(Debug, Default)]
pub struct Publisher {
    pub connected: bool,
    pub life: Option<Incarnation>,
    /// Number of the next batch to publish.
    pub next: u64,
    /// Numbers that are not acknowledged, and when they were published.
    pub unacked: VecDeque<(u64, Duration)>,
    pub sent: VecDeque<Message>,
    pub acks: VecDeque<(Incarnation, u64)>,
}

pub struct Agent {
    pub number: usize,
    pub truth: Truth,
    pub delivery: Delivery,
    /// Whether it answers questions.
    pub answers: bool,
    pub journal: Journal,
    config: JournalConfig,
    /// Counts its processes.
    pub process: u64,
    pub is_up: bool,
    pub publisher: Publisher,
    pub heartbeat_at: Duration,
    /// When it last opened a stream, by server.
    pub tried_at: BTreeMap<usize, Duration>,
}

impl Agent {
    pub fn new(
        number: usize,
        mut truth: Truth,
        delivery: Delivery,
        answers: bool,
        rng: &mut ScriptRng,
    ) -> Self {
        let batches_max = if answers { rng.random_range(1..20) } else { 1 << 20 };
        let copy_mode = truth.mode;
        let config = JournalConfig { copy_mode, batches_max, ..JournalConfig::DEFAULT };
        let (incarnation, first) = draw_incarnation(rng);
        truth.begin_incarnation(incarnation, first);
        Self {
            number,
            truth,
            delivery,
            answers,
            journal: Journal::new(incarnation, first, config),
            config,
            process: 0,
            is_up: true,
            publisher: Publisher::default(),
            heartbeat_at: Duration::ZERO,
            tried_at: BTreeMap::new(),
        }
    }

    /// Whether its cache may be emptied, or its engine end. Where the broker's stream is all that
    /// servers have, they may read of an earlier life after a checkpoint that knows a later one, and
    /// nobody says which is the present one.
    pub fn may_end(&self) -> bool {
        self.answers || self.delivery != Delivery::Log
    }

    /// The engine does something.
    pub fn act(&mut self, rng: &mut ScriptRng) {
        let batch = self.truth.act(rng);
        let sequence = self.journal.append(batch.rank, batch.events).expect("within all limits");
        assert_eq!(Some(sequence), self.truth.life().newest(), "numbers are consecutive");
    }

    /// The engine empties its cache; the agent lives on.
    pub fn begin_incarnation(&mut self, rng: &mut ScriptRng) {
        let (incarnation, first) = draw_incarnation(rng);
        self.truth.begin_incarnation(incarnation, first);
        self.journal.begin_incarnation(incarnation, first);
    }

    /// Engine and agent start again.
    pub fn restart(&mut self, rng: &mut ScriptRng) {
        let (incarnation, first) = draw_incarnation(rng);
        self.truth.begin_incarnation(incarnation, first);
        self.journal = Journal::new(incarnation, first, self.config);
        self.process += 1;
        self.is_up = true;
        self.publisher = Publisher::default();
    }

    pub fn hello(&self) -> Hello {
        let JournalStatus { incarnation, first, head, .. } = self.journal.status();
        Hello { incarnation, first, head, in_order: false }
    }

    fn message(&self, content: Content) -> Message {
        let Hello { incarnation, first, .. } = self.hello();
        Message { agent: self.number, incarnation, first, content }
    }

    /// Says over the broker that it is there.
    pub fn publish_heartbeat(&mut self) {
        if self.is_up && self.publisher.connected {
            let message = self.message(Content::Heartbeat(self.journal.head()));
            self.publisher.sent.push_back(message);
        }
    }

    /// Publishes what there is and may be under way.
    pub fn publish(&mut self, now: Duration, unacked_max: usize, seen: &mut Seen) {
        if !self.is_up || !self.publisher.connected {
            return;
        }
        let incarnation = self.journal.incarnation();
        if self.publisher.life != Some(incarnation) {
            self.publisher.life = Some(incarnation);
            self.publisher.next = self.journal.first();
            self.publisher.unacked.clear();
            self.publish_heartbeat();
        }
        let acked = self.delivery == Delivery::Log;
        while !acked || self.publisher.unacked.len() < unacked_max {
            let next = self.publisher.next;
            match self.journal.range(incarnation, next..=next, 1) {
                Ok(range) => {
                    let Some(batch) = range.batches.first() else { return };
                    let message = self.message(Content::Batch(numbered(batch)));
                    self.publisher.sent.push_back(message);
                    if acked {
                        self.publisher.unacked.push_back((next, now));
                    }
                    self.publisher.next = next + 1;
                }
                Err(RangeError::TooOld { oldest, .. }) => {
                    seen.add("a publisher skips what its journal lost");
                    self.publisher.next = oldest;
                }
                Err(error) => panic!("agent {}: {error}", self.number),
            }
        }
    }

    /// What was published and not acknowledged is published again.
    pub fn publish_again(&mut self, seen: &mut Seen) {
        if let Some(&(first, _)) = self.publisher.unacked.front() {
            seen.add("a publisher sends again");
            self.publisher.next = first;
            self.publisher.unacked.clear();
        }
    }

    /// The connection to the broker is gone, with what was on its way.
    pub fn lose_broker(&mut self, seen: &mut Seen) {
        self.publisher.connected = false;
        self.publisher.sent.clear();
        self.publisher.acks.clear();
        self.publish_again(seen);
    }

    /// Takes the next step of an answer, if it is not to wait.
    pub fn serve(&mut self, round: &mut Round, records_max: usize, seen: &mut Seen) -> bool {
        let serving = round.serving.get_or_insert(Serving {
            process: self.process,
            dump: None,
            next: match round.ask {
                Ask::Range { from, .. } => from,
                Ask::Dump { .. } => 0,
            },
            to: u64::MAX,
            ended: false,
        });
        if !self.is_up || serving.process != self.process {
            serving.ended = true;
            round.parts.push_back(Part::Failed);
            return true;
        }
        match round.ask {
            Ask::Range { incarnation, .. } => {
                self.serve_range(incarnation, serving, &mut round.parts);
                true
            }
            Ask::Dump { incarnation } => {
                self.serve_dump(incarnation, records_max, serving, &mut round.parts, seen)
            }
        }
    }

    fn serve_range(
        &self,
        incarnation: Incarnation,
        serving: &mut Serving,
        parts: &mut VecDeque<Part>,
    ) {
        let range = self.journal.range(incarnation, serving.next..=serving.to, LOOK_BATCHES);
        serving.ended = true;
        match range {
            Ok(range) => {
                serving.to = serving.to.min(range.head.unwrap_or(serving.to));
                parts.extend(range.batches.iter().map(|batch| Part::Batch(numbered(batch))));
                match range.batches.last().map(|batch| batch.sequence()) {
                    Some(last) if last < serving.to => {
                        (serving.next, serving.ended) = (last + 1, false);
                    }
                    _ => parts.push_back(Part::RangeEnd(range.head)),
                }
            }
            Err(RangeError::TooOld { .. } | RangeError::Ahead { .. }) => {
                parts.push_back(Part::RangeGone);
            }
            Err(RangeError::WrongIncarnation { present }) => {
                parts.push_back(Part::OtherIncarnation(present));
            }
        }
    }

    fn serve_dump(
        &mut self,
        incarnation: Incarnation,
        records_max: usize,
        serving: &mut Serving,
        parts: &mut VecDeque<Part>,
        seen: &mut Seen,
    ) -> bool {
        let dump = match serving.dump {
            Some(dump) => dump,
            None => match self.journal.begin_dump(Some(incarnation)) {
                Ok(dump) => *serving.dump.insert(dump),
                // It waits for its turn.
                Err(DumpError::Busy) => {
                    seen.add("a dump waits for its turn");
                    return false;
                }
                Err(DumpError::WrongIncarnation { present }) => {
                    serving.ended = true;
                    parts.push_back(Part::OtherIncarnation(present));
                    return true;
                }
                Err(error) => panic!("agent {}: {error}", self.number),
            },
        };
        match self.journal.step_dump(dump, records_max) {
            Ok(DumpStep::Records { rank, records }) => {
                if !records.is_empty() {
                    parts.push_back(Part::Chunk((rank, records)));
                }
            }
            Ok(DumpStep::Cut(cut)) => {
                (serving.ended, serving.dump) = (true, None);
                assert!(cut.incomplete.is_empty(), "within all limits");
                parts.extend(cut.records.into_iter().map(Part::Chunk));
                parts.push_back(Part::DumpEnd(cut.incarnation, cut.watermark));
            }
            Err(error) => {
                let is_cut_off = matches!(error, DumpError::Aborted(_) | DumpError::Over);
                assert!(is_cut_off, "{error}");
                seen.add("an agent cuts a dump off");
                (serving.ended, serving.dump) = (true, None);
                parts.push_back(Part::Failed);
            }
        }
        true
    }
}

pub fn numbered(batch: &Batch) -> Numbered<Payload> {
    let item = Payload { rank: batch.rank(), events: batch.events().to_vec() };
    Numbered { sequence: batch.sequence(), item }
}

fn draw_incarnation(rng: &mut ScriptRng) -> (Incarnation, u64) {
    let first = if rng.random_bool(0.5) { 0 } else { rng.random_range(0..1_000) };
    (Incarnation(rng.random()), first)
}
