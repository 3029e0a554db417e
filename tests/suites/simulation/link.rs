//! One bare engine's source at a server: the real sequencer, carried out on the real index as the
//! server's link does it.

use crate::follower::On;
use kvasir_engine::sequence::{Input, Item, Sequencer, SequencerConfig, Step};
use kvasir_index::SourceId;
use kvasir_proto::types::{Cursor, DpRank, KvEvent, SourceState, SourceStatus, WorkerId};
use std::collections::VecDeque;
use std::time::Duration;

/// The payload of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub life: usize,
    pub sequence: u64,
    pub rank: DpRank,
    pub events: Vec<KvEvent>,
    /// It cannot be read.
    pub garbled: bool,
}

impl Item for Sent {
    fn bytes(&self) -> usize {
        self.events.iter().map(KvEvent::operations).sum()
    }
}

/// A replay under way. Not served until its first reply is read.
#[derive(Debug)]
pub struct Replay {
    pub number: u64,
    pub from: u64,
    pub served: Option<(usize, VecDeque<u64>)>,
    /// Whether a reply has arrived.
    pub begun: bool,
}

pub struct Link {
    pub sequencer: Sequencer<Sent>,
    worker: WorkerId,
    pub source: SourceId,
    pub replay: Option<Replay>,
    /// As the index was told last.
    status: SourceStatus,
}

impl Link {
    /// A link that begins afresh, or goes on where the index holds what was applied by `status`.
    pub fn new(
        worker: WorkerId,
        source: SourceId,
        config: SequencerConfig,
        status: Option<SourceStatus>,
        on: &mut On<'_>,
    ) -> Self {
        let sequencer = Sequencer::new(config, status.as_ref(), on.now);
        let status = status.unwrap_or_default();
        let mut link = Self { sequencer, worker, source, replay: None, status };
        link.work(on);
        link
    }

    pub fn input(&mut self, input: Input<Sent>, on: &mut On<'_>) {
        self.sequencer.handle(input, on.now);
        self.work(on);
    }

    pub fn tick(&mut self, now: Duration, on: &mut On<'_>) {
        if self.sequencer.deadline().is_some_and(|at| at <= now) {
            self.input(Input::Tick, on);
        }
    }

    fn work(&mut self, on: &mut On<'_>) {
        while let Some(step) = self.sequencer.next_step() {
            self.carry_out(step, on);
            on.between(&self.worker);
        }
        self.status = self.sequencer.status();
        self.show(on);
        on.between(&self.worker);
    }

    fn show(&self, on: &mut On<'_>) {
        on.index.set_status(self.source, self.status.clone());
    }

    fn carry_out(&mut self, step: Step<Sent>, on: &mut On<'_>) {
        match step {
            Step::Apply { cursor, item } => self.apply(cursor, &item, on),
            Step::Restarted => {
                on.seen.add("a bare engine's restart is noticed");
                self.begin_incarnation(on);
            }
            Step::NewIncarnation { .. } => {
                on.seen.add("a bare engine's new life is noticed");
                self.begin_incarnation(on);
            }
            Step::Expired => {
                on.seen.add("a bare engine expires");
                self.begin_incarnation(on);
            }
            Step::ClearLost => {
                on.seen.add("a bare engine's batches are lost, blocks are dropped");
                self.note_lost();
                self.clear(on);
            }
            Step::MarkSuspect => {
                on.seen.add("a bare engine's batches are lost, blocks are kept");
                self.note_lost();
                on.index.mark_suspect(self.source);
                self.show(on);
            }
            Step::DropSuspects => {
                while !on.index.drop_suspects(self.source, 3).expect("a known source").done {}
            }
            Step::StartReplay { round, from } => {
                on.seen.add("a replay is asked for");
                self.replay = Some(Replay { number: round, from, served: None, begun: false });
            }
            Step::CancelReplay { .. } => self.replay = None,
        }
    }

    fn apply(&mut self, cursor: Cursor, item: &Sent, on: &mut On<'_>) {
        if item.garbled {
            on.seen.add("a batch cannot be read");
            self.sequencer.content_lost();
            return;
        }
        if item.events.contains(&KvEvent::Cleared) {
            self.sequencer.content_cleared();
        }
        for event in &item.events {
            on.index.apply(self.source, item.rank, event).expect("within all limits");
        }
        self.status.applied = Some(cursor);
        self.show(on);
        on.seen.add("a bare engine's batch is applied");
    }

    fn begin_incarnation(&mut self, on: &mut On<'_>) {
        self.status.state = self.status.state.max(SourceState::CatchingUp);
        self.status.applied = None;
        self.status.head = None;
        self.clear(on);
    }

    fn note_lost(&mut self) {
        self.status.state = self.status.state.max(SourceState::Degraded);
    }

    fn clear(&self, on: &mut On<'_>) {
        while !on.index.clear_source(self.source, None, 3).expect("a known source").done {}
        self.show(on);
    }
}
