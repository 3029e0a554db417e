//! A server: its disk, and its process as long as that lives.

use crate::fault::Fault;
use crate::follower::{Follower, On, Via};
use crate::link::Link;
use crate::seen::Seen;
use kvasir_engine::recover::RecoveryConfig;
use kvasir_engine::sequence::SequencerConfig;
use kvasir_feed::journal::DumpId;
use kvasir_index::{ChangeLimits, CutReceipt, Index, Limits, Restore, SourceId, WorkerImage};
use kvasir_proto::types::{CopyMode, DpRank, SourceStatus, WorkerId};
use kvasir_tests::image_store::{Loss, StoredImages};
use kvasir_tests::oracle::Roles;
use kvasir_tests::script::ScriptRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::time::Duration;

/// A place in the broker's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub stream: u64,
    pub number: u64,
}

#[derive(Debug, Default)]
pub struct Disk {
    pub workers: BTreeMap<WorkerId, StoredImages>,
    pub position: Option<Position>,
    pub is_full: bool,
}

/// What is known of an agent's worker that a server has to do with.
#[derive(Debug, Clone)]
pub struct AgentPlan {
    pub worker: WorkerId,
    pub name: String,
    pub mode: CopyMode,
    pub recovery: RecoveryConfig,
    /// Whether its registration promises signs of life.
    pub lease: Option<Duration>,
}

/// What a server is configured with of a bare engine's endpoint.
#[derive(Debug, Clone)]
pub struct BarePlan {
    pub worker: WorkerId,
    pub name: String,
    pub mode: CopyMode,
    pub rank: DpRank,
    pub sequencing: SequencerConfig,
}

/// Who a server may have to do with.
#[derive(Debug, Clone, Default)]
pub struct Plans {
    pub agents: Vec<AgentPlan>,
    pub bares: Vec<BarePlan>,
    /// Which of their workers are pools, and who reads these.
    pub roles: Roles,
}

/// How far a server has read the broker's stream.
#[derive(Debug)]
pub struct Consumer {
    pub stream: u64,
    /// Number of the next message.
    pub next: u64,
    /// Messages that are not answered yet.
    pub pending: BTreeSet<u64>,
    /// Whether what it reads is not the newest.
    pub is_behind: bool,
}

/// A checkpoint under way.
#[derive(Debug)]
pub struct Checkpoint {
    position: Option<Position>,
    todo: VecDeque<WorkerId>,
    batch: Vec<(WorkerId, WorkerImage, CutReceipt)>,
    /// Decides between which changes of a worker its image is cut.
    rng: ScriptRng,
    /// Workers of which this process had an image on disk when it began.
    written: BTreeSet<WorkerId>,
}

impl Checkpoint {
    /// Between two changes of a worker its image may be cut.
    pub fn between(&mut self, index: &mut Index, worker: &WorkerId, seen: &mut Seen) {
        let Some(place) = self.todo.iter().position(|at| at == worker) else { return };
        if self.rng.random_ratio(1, 4) && self.cut(worker, index, seen) {
            self.todo.remove(place);
            seen.add("an image is cut between two changes");
        }
    }

    /// Cuts an image, if there is anything to say; whether the index knows the worker.
    fn cut(&mut self, worker: &WorkerId, index: &mut Index, seen: &mut Seen) -> bool {
        let whole = !self.written.contains(worker);
        let Some(view) = index.worker(worker) else { return false };
        if !view.has_changed() && !whole {
            return true;
        }
        let mut cut = index.begin_cut(worker, whole).expect("it is known");
        while !index.cut_step(&mut cut, 50).done {}
        let (image, receipt) = cut.finish();
        seen.add(if image.whole { "a whole image is cut" } else { "an image of changes is cut" });
        self.batch.push((worker.clone(), image, receipt));
        true
    }
}

pub struct Live {
    pub index: Index,
    pub followers: BTreeMap<usize, Follower>,
    /// Agents whose workers are registered.
    pub registered: BTreeSet<usize>,
    pub links: BTreeMap<usize, Link>,
    pub is_connected: bool,
    pub consumer: Consumer,
    pub checkpoint: Option<Checkpoint>,
    /// Workers of which this process has an image on disk.
    written: BTreeSet<WorkerId>,
    pub looked_at: Duration,
}

pub struct Server {
    pub disk: Disk,
    pub live: Option<Live>,
    /// Counts its processes.
    pub process: u64,
    changes: ChangeLimits,
}

impl Consumer {
    /// The highest number up to which all messages were answered.
    fn position(&self) -> Position {
        let number = self.pending.first().copied().unwrap_or(self.next) - 1;
        Position { stream: self.stream, number }
    }
}

impl Server {
    pub fn new(rng: &mut ScriptRng) -> Self {
        let changes = match rng.random_range(0..3) {
            0 => ChangeLimits { pages_max: 1, names_max: 2 },
            _ => ChangeLimits::default(),
        };
        Self { disk: Disk::default(), live: None, process: 0, changes }
    }

    /// Starts a process, and brings back what is on disk.
    pub fn start(
        &mut self,
        plans: &Plans,
        now: Duration,
        fault: Fault,
        rng: &mut ScriptRng,
        seen: &mut Seen,
    ) {
        self.process += 1;
        let limits = Limits { changes: Some(self.changes), ..Limits::default() };
        let mut index = Index::new(limits);
        plans.roles.pools.iter().for_each(|pool| index.set_pool(pool));
        plans.roles.reads.iter().for_each(|(worker, pools)| index.set_reads(worker, pools));
        let mut brought: BTreeMap<(WorkerId, String), (SourceId, SourceStatus)> = BTreeMap::new();
        for (worker, kept) in &self.disk.workers {
            if kept.sources.is_empty() {
                continue;
            }
            let saved = kept.saved(worker, rng).expect("what an index saved");
            restore(&mut index, saved, seen);
            let view = index.worker(worker).expect("it was restored");
            brought.extend(view.sources().map(|(id, name, status)| {
                ((worker.clone(), name.to_owned()), (id, status.clone()))
            }));
        }
        let (stream, next) = match self.disk.position {
            Some(Position { stream, number }) => (stream, number + 1),
            None => (0, 1),
        };
        let consumer = Consumer { stream, next, pending: BTreeSet::new(), is_behind: true };
        let mut live = Live {
            index,
            followers: BTreeMap::new(),
            registered: BTreeSet::new(),
            links: BTreeMap::new(),
            is_connected: false,
            consumer,
            checkpoint: None,
            written: BTreeSet::new(),
            looked_at: now,
        };
        live.resume_agents(&plans.agents, (now, fault), &self.disk, &mut brought, seen);
        for (number, plan) in plans.bares.iter().enumerate() {
            let source = brought.remove(&(plan.worker.clone(), plan.name.clone()));
            let (id, status) = match source {
                Some((id, status)) => (id, Some(status)),
                None => {
                    let added =
                        live.index.add_source(&plan.worker, &plan.name, plan.rank, plan.mode);
                    (added.expect("within all limits"), None)
                }
            };
            let on = &mut On { index: &mut live.index, seen, fault, now, checkpoint: None };
            let worker = plan.worker.clone();
            live.links.insert(number, Link::new(worker, id, plan.sequencing, status, on));
        }
        assert!(brought.is_empty(), "whose is this: {brought:?}");
        self.live = Some(live);
    }

    /// The process is killed. What it was writing may be on disk, worker by worker, or not.
    /// Returns the dumps that nobody reads any more: of which agent, its process, which.
    pub fn kill(
        &mut self,
        fault: Fault,
        rng: &mut ScriptRng,
        seen: &mut Seen,
    ) -> Vec<(usize, u64, DumpId)> {
        let Some(live) = self.live.take() else { return Vec::new() };
        let rounds =
            live.followers.iter().filter_map(|(agent, at)| Some((*agent, at.round.as_ref()?)));
        let dumps = rounds.filter_map(|(agent, round)| {
            let serving = round.serving?;
            Some((agent, serving.process, serving.dump?))
        });
        let dumps = dumps.collect();
        let Some(checkpoint) = live.checkpoint else { return dumps };
        seen.add("a server is killed in the middle of a checkpoint");
        let written = rng.random_range(0..=checkpoint.batch.len());
        for (worker, image, _) in checkpoint.batch.into_iter().take(written) {
            seen.add("an image is on disk, and nobody was told");
            let kept = self.disk.workers.entry(worker).or_default();
            if fault == Fault::TornImage {
                kept.sources = image.sources;
            } else {
                kept.merge(image, Loss::Nothing);
            }
        }
        dumps
    }
}

fn restore(index: &mut Index, saved: kvasir_index::Saved, seen: &mut Seen) {
    seen.add("a worker is restored");
    let mut restore = Restore::new(saved).expect("what an index saved");
    while !restore.step(index, 50).expect("within all limits").done {}
    let restored = restore.restored();
    assert_eq!((restored.unplaced, restored.dropped), (0, 0), "{restored:?}");
}

impl Live {
    fn resume_agents(
        &mut self,
        plans: &[AgentPlan],
        (now, fault): (Duration, Fault),
        disk: &Disk,
        brought: &mut BTreeMap<(WorkerId, String), (SourceId, SourceStatus)>,
        seen: &mut Seen,
    ) {
        for (number, plan) in plans.iter().enumerate() {
            if !disk.workers.contains_key(&plan.worker) {
                continue;
            }
            self.registered.insert(number);
            let source = brought.remove(&(plan.worker.clone(), plan.name.clone()));
            let Some((id, status)) = source else { continue };
            let on = &mut On { index: &mut self.index, seen, fault, now, checkpoint: None };
            let goes_on = status.applied.is_some();
            let named = (&plan.worker, plan.name.as_str(), plan.mode);
            let mut follower = Follower::new(named, plan.recovery, Some((id, status)), on);
            if goes_on {
                on.seen.add("a source goes on from a checkpoint");
                self.followers.insert(number, follower);
            } else {
                on.seen.add("a source of no known life is dropped");
                follower.drop_source(on);
            }
        }
    }

    /// The position of the broker's stream up to which nothing is to be read again.
    pub fn position(&self) -> Option<Position> {
        (self.consumer.stream > 0).then(|| self.consumer.position())
    }

    pub fn answered(&mut self, via: Via) {
        if let Via::Log(number) = via {
            self.consumer.pending.remove(&number);
        }
    }

    /// Workers that are registered.
    fn roster(&self, plans: &Plans) -> BTreeSet<WorkerId> {
        let agents = self.registered.iter().map(|&number| plans.agents[number].worker.clone());
        agents.chain(plans.bares.iter().map(|plan| plan.worker.clone())).collect()
    }

    pub fn begin_checkpoint(
        &mut self,
        plans: &Plans,
        fault: Fault,
        disk: &mut Disk,
        rng: &mut ScriptRng,
    ) {
        let position = self.position();
        if fault == Fault::PositionFirst {
            disk.position = position;
        }
        let todo = self.roster(plans).into_iter().collect();
        let rng = ScriptRng::seed_from_u64(rng.random());
        let written = self.written.clone();
        self.checkpoint = Some(Checkpoint { position, todo, batch: Vec::new(), rng, written });
    }

    /// Goes on with the checkpoint: cuts a worker, writes what was cut, or ends.
    pub fn step_checkpoint(
        &mut self,
        plans: &Plans,
        fault: Fault,
        disk: &mut Disk,
        rng: &mut ScriptRng,
        seen: &mut Seen,
    ) {
        let Some(mut checkpoint) = self.checkpoint.take() else { return };
        let writes =
            !checkpoint.batch.is_empty() && (checkpoint.todo.is_empty() || rng.random_ratio(1, 3));
        if writes {
            let batch = mem::take(&mut checkpoint.batch);
            if self.write(batch, fault, disk, seen) {
                self.checkpoint = Some(checkpoint);
            }
        } else if !checkpoint.todo.is_empty() && rng.random_ratio(2, 3) {
            // The next worker is cut later, perhaps in the middle of its changes.
            self.checkpoint = Some(checkpoint);
        } else if let Some(worker) = checkpoint.todo.pop_front() {
            if !checkpoint.cut(&worker, &mut self.index, seen) && !disk.is_full {
                // Nothing feeds it: that is known, too.
                self.written.insert(worker.clone());
                disk.workers.insert(worker, StoredImages::default());
            }
            self.checkpoint = Some(checkpoint);
        } else if disk.is_full {
            seen.add("a position does not fit on a full disk");
        } else {
            let roster = self.roster(plans);
            let before = disk.workers.len();
            disk.workers.retain(|worker, _| roster.contains(worker));
            self.written.retain(|worker| roster.contains(worker));
            if disk.workers.len() < before {
                seen.add("a removed worker is forgotten on disk");
            }
            let late = fault == Fault::PositionLate;
            disk.position = if late { self.position() } else { checkpoint.position };
            seen.add("a checkpoint is complete");
        }
    }

    /// Whether there was room.
    fn write(
        &mut self,
        batch: Vec<(WorkerId, WorkerImage, CutReceipt)>,
        fault: Fault,
        disk: &mut Disk,
        seen: &mut Seen,
    ) -> bool {
        for (worker, image, receipt) in batch {
            if !disk.is_full {
                self.written.insert(worker.clone());
                disk.workers.entry(worker).or_default().merge(image, Loss::Nothing);
            } else if fault != Fault::ForgetImage {
                seen.add("an image does not fit on a full disk");
                self.index.abandon_cut(receipt);
            }
        }
        !disk.is_full
    }
}
