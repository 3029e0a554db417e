//! One agent's source at a server: the real recovery, carried out on the real index as the server's
//! task does it.

use crate::fault::Fault;
use crate::seen::Seen;
use crate::server::Checkpoint;
use kvasir_engine::recover::{
    Admission, Ask, Input, Item, Numbered, Recovery, RecoveryConfig, Step,
};
use kvasir_feed::journal::DumpId;
use kvasir_index::{Index, SourceId};
use kvasir_proto::types::{
    CopyMode, DpRank, HeldBlock, Incarnation, KvEvent, SourceStatus, WorkerId,
};
use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

/// Positions dropped in one call of a sweep.
const SWEEP_BUDGET: usize = 3;

/// The payload of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    pub rank: DpRank,
    pub events: Vec<KvEvent>,
}

impl Item for Payload {
    fn bytes(&self) -> usize {
        self.events.iter().map(KvEvent::operations).sum()
    }
}

/// A part of a dump: names of one rank.
pub type Chunk = (DpRank, Vec<HeldBlock>);

/// How a source introduces itself.
#[derive(Debug, Clone, Copy)]
pub struct Hello {
    pub incarnation: Incarnation,
    pub first: u64,
    pub head: Option<u64>,
    /// Whether the log brought it.
    pub in_order: bool,
}

/// Who waits for the answer to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// A connection, by its number.
    Connection(u64),
    /// The broker's stream, by the message's number.
    Log(u64),
    /// Nobody.
    Nobody,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Acked,
    Gap,
    Fenced,
}

/// A part of an answer of an agent.
#[derive(Debug, Clone)]
pub enum Part {
    Batch(Numbered<Payload>),
    Chunk(Chunk),
    RangeEnd(Option<u64>),
    RangeGone,
    OtherIncarnation(Incarnation),
    DumpEnd(Incarnation, Option<u64>),
    Failed,
}

/// A question under way.
#[derive(Debug)]
pub struct Round {
    pub number: u64,
    pub ask: Ask,
    /// What the agent has for it, once it was asked.
    pub serving: Option<Serving>,
    pub parts: VecDeque<Part>,
}

/// How far an agent's process has answered.
#[derive(Debug, Clone, Copy)]
pub struct Serving {
    pub process: u64,
    pub dump: Option<DumpId>,
    pub next: u64,
    pub to: u64,
    pub ended: bool,
}

/// What a follower works on.
pub struct On<'a> {
    pub index: &'a mut Index,
    pub seen: &'a mut Seen,
    pub fault: Fault,
    pub now: Duration,
    /// The checkpoint under way.
    pub checkpoint: Option<&'a mut Checkpoint>,
}

impl On<'_> {
    /// A worker was changed: now its image may be cut.
    pub fn between(&mut self, worker: &WorkerId) {
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.between(self.index, worker, self.seen);
        }
    }
}

pub struct Follower {
    pub recovery: Recovery<Payload, Chunk>,
    worker: WorkerId,
    name: String,
    mode: CopyMode,
    pub source: Option<SourceId>,
    pub stream: u64,
    /// Whether whoever opened the stream has not closed it.
    pub is_open: bool,
    pub stream_life: Option<Incarnation>,
    waiting: VecDeque<(u64, Via)>,
    pub answers: Vec<(Via, Answer)>,
    pub round: Option<Round>,
    /// Dumps that nobody reads any more, with the process that makes them.
    pub cancelled: Vec<(u64, DumpId)>,
    /// Whether nothing is known of it any more.
    pub idle: bool,
    pub heard_at: Duration,
    /// Whether the index holds a part of a dump.
    is_torn: bool,
}

impl Follower {
    pub fn new(
        (worker, name, mode): (&WorkerId, &str, CopyMode),
        config: RecoveryConfig,
        resumed: Option<(SourceId, SourceStatus)>,
        on: &mut On<'_>,
    ) -> Self {
        let mut follower = Self {
            recovery: Recovery::new(config, resumed.as_ref().map(|(_, status)| status), on.now),
            worker: worker.clone(),
            name: name.to_owned(),
            mode,
            source: resumed.map(|(source, _)| source),
            stream: 0,
            is_open: false,
            stream_life: None,
            waiting: VecDeque::new(),
            answers: Vec::new(),
            round: None,
            cancelled: Vec::new(),
            idle: false,
            heard_at: on.now,
            is_torn: false,
        };
        follower.work(on);
        follower
    }

    /// A stream of a number that no other has begins; whether it is accepted.
    pub fn open(&mut self, stream: u64, hello: Hello, on: &mut On<'_>) -> bool {
        let Hello { incarnation, first, head, in_order } = hello;
        if self.recovery.admission(incarnation, in_order, on.now) != Admission::Admitted {
            on.seen.add("an old life is refused");
            self.input(Input::Announced { incarnation, head: None }, on);
            return false;
        }
        self.heard_at = on.now;
        (self.stream, self.is_open) = (stream, true);
        self.stream_life = Some(incarnation);
        self.forget_waiting();
        self.input(Input::Connected { incarnation, first: Some(first), head, in_order }, on);
        self.idle = false;
        true
    }

    pub fn close(&mut self, stream: u64, on: &mut On<'_>) {
        if stream == self.stream {
            self.is_open = false;
            self.stream_life = None;
            self.forget_waiting();
            self.input(Input::Disconnected, on);
        }
    }

    /// What comes of its stream from now on is not the newest, or is again.
    pub fn lag(&mut self, is_behind: bool, on: &mut On<'_>) {
        if self.is_open {
            self.input(if is_behind { Input::Behind } else { Input::CaughtUp }, on);
        }
    }

    /// The life of a stream, if it is the one that is open.
    fn life_of(&self, stream: u64, fault: Fault) -> Option<Incarnation> {
        self.stream_life.filter(|_| stream == self.stream || fault == Fault::NoFence)
    }

    pub fn heartbeat(&mut self, stream: u64, head: Option<u64>, on: &mut On<'_>) {
        if let Some(incarnation) = self.life_of(stream, on.fault) {
            self.heard_at = on.now;
            self.input(Input::Announced { incarnation, head }, on);
        }
    }

    pub fn batch(&mut self, stream: u64, batch: Numbered<Payload>, via: Via, on: &mut On<'_>) {
        let Some(incarnation) = self.life_of(stream, on.fault) else {
            on.seen.add("a batch of an earlier stream is refused");
            self.answers.push((via, Answer::Fenced));
            return;
        };
        self.heard_at = on.now;
        let sequence = batch.sequence;
        if on.fault == Fault::LiveDuringDump && self.is_torn {
            self.apply(batch.item.clone(), sequence, on);
        }
        self.waiting.push_back((sequence, via));
        self.input(Input::Live { incarnation, batch }, on);
    }

    pub fn part(&mut self, part: Part, on: &mut On<'_>) {
        let Some(&Round { number: round, ask, .. }) = self.round.as_ref() else { return };
        self.heard_at = on.now;
        let broke_off = matches!((&part, ask), (Part::Failed, Ask::Dump { .. }));
        let input = match part {
            Part::Batch(batch) => Input::RangeBatch { round, batch },
            Part::Chunk(chunk) => Input::DumpChunk { round, chunk },
            Part::RangeEnd(head) => Input::RangeEnd { round, head },
            Part::RangeGone => Input::RangeGone { round },
            Part::OtherIncarnation(present) => Input::OtherIncarnation { round, present },
            Part::DumpEnd(incarnation, watermark) => {
                Input::DumpEnd { round, incarnation, watermark }
            }
            Part::Failed => Input::RoundFailed { round },
        };
        let input = match (input, ask) {
            (_, Ask::Dump { incarnation })
                if broke_off && self.is_torn && on.fault == Fault::BrokenDumpEnds =>
            {
                let watermark = self.recovery.status().head;
                Input::DumpEnd { round, incarnation, watermark }
            }
            (input, _) => input,
        };
        on.seen.add(match &input {
            Input::RangeBatch { .. } => "a batch of a range comes",
            Input::DumpChunk { .. } => "a part of a dump comes",
            Input::RangeEnd { .. } => "a range ends",
            Input::RangeGone { .. } => "a range is too old",
            Input::OtherIncarnation { .. } => "who is asked lives another life",
            Input::DumpEnd { .. } => "a dump ends",
            _ if self.is_torn => "a dump breaks off half-way",
            _ => "a question is not answered",
        });
        if !matches!(input, Input::RangeBatch { .. } | Input::DumpChunk { .. }) {
            self.end_round();
        }
        self.input(input, on);
    }

    pub fn input(&mut self, input: Input<Payload, Chunk>, on: &mut On<'_>) {
        self.recovery.handle(input, on.now);
        self.work(on);
    }

    pub fn tick(&mut self, now: Duration, on: &mut On<'_>) {
        if self.recovery.deadline().is_some_and(|at| at <= now) {
            self.input(Input::Tick, on);
        }
    }

    fn work(&mut self, on: &mut On<'_>) {
        while let Some(step) = self.recovery.next_step() {
            self.carry_out(step, on);
            on.between(&self.worker);
        }
        if self.stream_life.is_some_and(|life| !self.recovery.is_present(life)) {
            self.stream_life = None;
            self.forget_waiting();
        }
        self.show(on);
        for (sequence, via) in mem::take(&mut self.waiting) {
            if self.recovery.covers(sequence) {
                self.answers.push((via, Answer::Acked));
            } else {
                self.waiting.push_back((sequence, via));
            }
        }
    }

    fn show(&mut self, on: &mut On<'_>) {
        if let Some(source) = self.source {
            on.index.set_status(source, self.status(on.fault));
            on.between(&self.worker);
        }
    }

    /// Whoever waits is told that another stream took over.
    fn forget_waiting(&mut self) {
        let waiting = mem::take(&mut self.waiting).into_iter();
        self.answers.extend(waiting.map(|(_, via)| (via, Answer::Fenced)));
    }

    fn answer(&mut self, sequence: u64, answer: Answer) {
        let found = self.waiting.iter().position(|(waiting, _)| *waiting == sequence);
        if let Some((_, via)) = found.and_then(|at| self.waiting.remove(at)) {
            self.answers.push((via, answer));
        }
    }

    fn end_round(&mut self) {
        let serving = self.round.take().and_then(|round| round.serving);
        if let Some(Serving { process, dump: Some(dump), .. }) = serving {
            self.cancelled.push((process, dump));
        }
    }

    fn carry_out(&mut self, step: Step<Payload, Chunk>, on: &mut On<'_>) {
        match step {
            Step::Apply { cursor, item } => {
                if on.fault != Fault::SkipBatch || cursor.sequence % 16 != 7 {
                    self.apply(item, cursor.sequence, on);
                }
                self.answer(cursor.sequence, Answer::Acked);
            }
            Step::Refuse { sequence, .. } => {
                on.seen.add("a batch is refused for a gap");
                self.answer(sequence, Answer::Gap);
            }
            Step::NewIncarnation { .. } => {
                on.seen.add("a new life begins");
                if on.fault == Fault::KeepOldLife {
                    self.is_torn = false;
                } else {
                    self.drop_source(on);
                }
            }
            Step::Expired => {
                on.seen.add("a source expires");
                self.drop_source(on);
                self.idle = true;
            }
            Step::BeginDump => self.begin_dump(on),
            Step::Chunk { chunk: (rank, records) } => {
                let source = self.source(rank, on);
                on.index.set_names(source, rank, &records).expect("within all limits");
            }
            Step::FinishDump { .. } => {
                self.is_torn = false;
                if on.fault != Fault::KeepDoubtful {
                    self.sweep(true, on);
                }
            }
            Step::MarkSuspect => {
                on.seen.add("batches are lost, blocks are kept");
                self.is_torn = false;
                self.doubt(on);
            }
            Step::ClearLost => {
                on.seen.add("batches are lost, blocks are dropped");
                self.is_torn = false;
                self.clear(on);
            }
            Step::DropSuspects => {
                on.seen.add("suspect blocks are dropped");
                self.sweep(true, on);
            }
            Step::Ask { round, ask } => {
                on.seen.add(match ask {
                    Ask::Range { .. } => "a range is asked for",
                    Ask::Dump { .. } => "a dump is asked for",
                });
                self.round =
                    Some(Round { number: round, ask, serving: None, parts: VecDeque::new() });
            }
            Step::Cancel { .. } => self.end_round(),
        }
    }

    fn apply(&mut self, payload: Payload, sequence: u64, on: &mut On<'_>) {
        let Payload { rank, events } = payload;
        let source = self.source(rank, on);
        for event in &events {
            let counts = on.index.apply(source, rank, event).expect("within all limits");
            assert_eq!(counts.rejected, 0, "batch {sequence}");
        }
        on.index.set_status(source, self.status(on.fault));
        on.seen.add("a batch is applied");
    }

    fn begin_dump(&mut self, on: &mut On<'_>) {
        self.is_torn = true;
        let lacks = self.source.is_some_and(|source| on.index.lacks_blocks(source));
        if lacks {
            self.clear(on);
        } else {
            self.doubt(on);
        }
    }

    /// All that the source stored is suspect, and its status says why.
    fn doubt(&self, on: &mut On<'_>) {
        if let Some(source) = self.source {
            on.index.mark_suspect(source);
            on.index.set_status(source, self.status(on.fault));
        }
    }

    /// Drops all that the source stored, and its status says why.
    fn clear(&self, on: &mut On<'_>) {
        self.sweep(false, on);
        if let Some(source) = self.source {
            on.index.set_status(source, self.status(on.fault));
        }
    }

    /// Drops all that the source stored, or what is suspect of it, in steps.
    fn sweep(&self, suspect: bool, on: &mut On<'_>) {
        let Some(source) = self.source else { return };
        loop {
            let cleared = match suspect {
                true => on.index.drop_suspects(source, SWEEP_BUDGET),
                false => on.index.clear_source(source, None, SWEEP_BUDGET),
            };
            if cleared.expect("a known source").done {
                return;
            }
        }
    }

    fn source(&mut self, rank: DpRank, on: &mut On<'_>) -> SourceId {
        if let Some(source) = self.source {
            return source;
        }
        let added = on.index.add_source(&self.worker, &self.name, rank, self.mode);
        let added = added.expect("within all limits");
        self.source = Some(added);
        on.index.set_status(added, self.status(on.fault));
        added
    }

    pub fn drop_source(&mut self, on: &mut On<'_>) {
        self.is_torn = false;
        self.sweep(false, on);
        if let Some(source) = self.source.take() {
            on.index.remove_source(source).expect("it was cleared");
        }
    }

    /// The worker is removed.
    pub fn end(mut self, on: &mut On<'_>) -> Self {
        self.end_round();
        self.forget_waiting();
        self.drop_source(on);
        self
    }

    /// Blocks were shed and there is room for them again.
    pub fn heal(&mut self, on: &mut On<'_>) {
        if self.source.is_some_and(|source| on.index.lacks_blocks(source)) {
            on.seen.add("what was shed is asked for");
            self.input(Input::LacksBlocks, on);
        }
    }

    fn status(&self, fault: Fault) -> SourceStatus {
        let has_cursor = !self.is_torn || fault == Fault::CursorDuringDump;
        let status = self.recovery.status();
        SourceStatus { applied: status.applied.filter(|_| has_cursor), ..status }
    }
}
