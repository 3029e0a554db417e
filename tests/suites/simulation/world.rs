//! Everything together: engines, agents, a broker, servers, and what is on its way between them.

use crate::agent::{Agent, Delivery, Message};
use crate::bare::{Bare, Subscription};
use crate::broker::Broker;
use crate::direct::Connection;
use crate::fault::Fault;
use crate::follower::{Follower, On};
use crate::seen::Seen;
use crate::server::{AgentPlan, BarePlan, Plans, Server};
use crate::truth::Truth;
use kvasir_engine::recover::{LossPolicy, Recourse, RecoveryConfig};
use kvasir_engine::sequence::SequencerConfig;
use kvasir_tests::script::ScriptRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::time::Duration;

/// How long suspect blocks are kept.
pub const DEGRADED_TTL: Duration = Duration::from_secs(60);
/// Times a deadline may be handed in at one moment before it counts as one that never passes.
const TICKS_MAX: usize = 10_000;

pub struct World {
    pub rng: ScriptRng,
    pub now: Duration,
    pub fault: Fault,
    pub seen: Seen,
    pub plans: Plans,
    pub agents: Vec<Agent>,
    pub bares: Vec<Bare>,
    pub broker: Broker,
    pub servers: Vec<Server>,
    pub connections: Vec<Connection>,
    /// Counts streams, however they are carried.
    pub connections_made: u64,
    /// By bare engine and server.
    pub subscriptions: BTreeMap<(usize, usize), Subscription>,
    /// What the broker passes on to each server without keeping it.
    pub passing: Vec<VecDeque<Message>>,
    /// How often of a hundred something that is sent over the broker is lost.
    pub loss_percent: u32,
    /// How often of a hundred something may go wrong, where it could.
    pub mishaps_percent: u32,
    /// Whether agents that send through the stream can be asked: else the stream is all there is.
    pub stream_is_all: bool,
}

impl World {
    pub fn new(seed: u64, fault: Fault) -> Self {
        let mut rng = ScriptRng::seed_from_u64(seed);
        let stream_is_all = rng.random_ratio(1, 4);
        let servers: Vec<_> = (0..rng.random_range(1..=2)).map(|_| Server::new(&mut rng)).collect();
        let retained_max = if stream_is_all { usize::MAX } else { rng.random_range(1..60) };
        let broker = Broker::new(retained_max, !stream_is_all && rng.random_bool(0.5));
        let passing = servers.iter().map(|_| VecDeque::new()).collect();
        let loss_percent = *[0, 0, 5, 30].choose(&mut rng).expect("not empty");
        let mishaps_percent = *[10, 30, 100].choose(&mut rng).expect("not empty");
        let mut world = Self {
            rng,
            now: Duration::ZERO,
            fault,
            seen: Seen::default(),
            plans: Plans::default(),
            agents: Vec::new(),
            bares: Vec::new(),
            broker,
            servers,
            connections: Vec::new(),
            connections_made: 0,
            subscriptions: BTreeMap::new(),
            passing,
            loss_percent,
            mishaps_percent,
            stream_is_all,
        };
        for number in 0..world.rng.random_range(1..=3) {
            world.add_agent(number);
        }
        for number in 0..world.rng.random_range(0..=2) {
            world.add_bare(number);
        }
        world.draw_roles(seed);
        for server in 0..world.servers.len() {
            world.start_server(server);
        }
        world
    }

    /// Some workers are pools, which others read. Drawn apart, so that seeds stay what they are.
    fn draw_roles(&mut self, seed: u64) {
        let mut rng = ScriptRng::seed_from_u64(seed ^ 0x706f_6f6c);
        let agents = self.plans.agents.iter().map(|plan| &plan.worker);
        let bares = self.plans.bares.iter().map(|plan| &plan.worker);
        let workers: BTreeSet<_> = agents.chain(bares).cloned().collect();
        let roles = &mut self.plans.roles;
        for worker in &workers {
            if rng.random_ratio(1, 3) {
                roles.pools.insert(worker.clone());
            } else {
                let read = workers.iter().filter(|at| *at != worker && rng.random_ratio(2, 3));
                roles.reads.insert(worker.clone(), read.cloned().collect());
            }
        }
    }

    fn add_agent(&mut self, number: usize) {
        let rng = &mut self.rng;
        let delivery = match rng.random_range(0..3) {
            _ if self.stream_is_all && rng.random_bool(0.7) => Delivery::Log,
            0 => Delivery::Direct,
            1 => Delivery::Core,
            _ => Delivery::Log,
        };
        let answers = match delivery {
            Delivery::Direct => rng.random_bool(0.7),
            Delivery::Core => true,
            Delivery::Log => !self.stream_is_all,
        };
        let ranks = if rng.random_bool(0.5) { vec![0] } else { vec![0, 1] };
        let truth = Truth::new(&format!("agent-{number}"), "source", ranks, rng);
        let recourse = if answers { Recourse::Ask } else { Recourse::Rewind };
        let lease = (recourse == Recourse::Ask && rng.random_bool(0.5))
            .then(|| Duration::from_secs(rng.random_range(10..60)));
        let default = RecoveryConfig::default();
        let patience = match (delivery, recourse) {
            // Once it has expired, only the beginning of its life would bring it back.
            (Delivery::Log, Recourse::Rewind) => Duration::from_secs(3_600_000),
            _ => Duration::from_secs(rng.random_range(10..60)),
        };
        let recovery = RecoveryConfig {
            recourse,
            loss_policy: if rng.random_bool(0.5) { LossPolicy::Keep } else { LossPolicy::Clear },
            degraded_ttl: DEGRADED_TTL,
            worker_timeout: lease.unwrap_or(patience),
            expires_silent: lease.is_some(),
            buffer_batches_max: *[1, 3, 1_000].choose(rng).expect("not empty"),
            buffer_bytes_max: *[20, 1 << 20].choose(rng).expect("not empty"),
            attempts_max: rng.random_range(2..6),
            jitter_seed: rng.random(),
            ..default
        };
        self.plans.agents.push(AgentPlan {
            worker: truth.worker.clone(),
            name: truth.name.clone(),
            mode: truth.mode,
            recovery,
            lease,
        });
        self.agents.push(Agent::new(number, truth, delivery, answers, rng));
    }

    fn add_bare(&mut self, number: usize) {
        let rng = &mut self.rng;
        // Ranks of one worker, each with an endpoint of its own, or workers of their own.
        let ranks = if rng.random_bool(0.3) { vec![0, 1] } else { vec![0] };
        for rank in ranks {
            let truth = Truth::new(&format!("bare-{number}"), &format!("{rank}"), vec![rank], rng);
            let replay = rng.random_bool(0.8);
            let sequencing = SequencerConfig {
                replay,
                loss_policy: if rng.random_bool(0.5) {
                    LossPolicy::Keep
                } else {
                    LossPolicy::Clear
                },
                degraded_ttl: DEGRADED_TTL,
                worker_timeout: Duration::from_secs(rng.random_range(10..60)),
                probe_interval: Duration::from_secs(10),
                buffer_batches_max: *[2, 1_000].choose(rng).expect("not empty"),
                replay_attempts_max: rng.random_range(2..6),
                jitter_seed: rng.random(),
                ..SequencerConfig::default()
            };
            self.plans.bares.push(BarePlan {
                worker: truth.worker.clone(),
                name: truth.name.clone(),
                mode: truth.mode,
                rank,
                sequencing,
            });
            self.bares.push(Bare::new(truth, rng));
        }
    }

    pub fn start_server(&mut self, server: usize) {
        let Self { servers, plans, now, fault, rng, seen, .. } = self;
        servers[server].start(plans, *now, *fault, rng, seen);
        for agent in 0..self.agents.len() {
            self.hand_on(server, agent);
        }
    }

    /// Does something with the follower of an agent at a server, if there is one.
    pub fn with_follower(
        &mut self,
        server: usize,
        agent: usize,
        act: impl FnOnce(&mut Follower, &mut On<'_>),
    ) {
        let Self { servers, seen, fault, now, .. } = self;
        let Some(live) = &mut servers[server].live else { return };
        let Some(follower) = live.followers.get_mut(&agent) else { return };
        let checkpoint = live.checkpoint.as_mut();
        let on = &mut On { index: &mut live.index, seen, fault: *fault, now: *now, checkpoint };
        act(follower, on);
        self.hand_on(server, agent);
    }

    /// The follower of an agent at a server that lives; made if there is none.
    pub fn make_follower(&mut self, server: usize, agent: usize) {
        let Self { servers, plans, seen, fault, now, .. } = self;
        let Some(live) = &mut servers[server].live else { return };
        live.registered.insert(agent);
        if live.followers.contains_key(&agent) {
            return;
        }
        let plan = &plans.agents[agent];
        let checkpoint = live.checkpoint.as_mut();
        let on = &mut On { index: &mut live.index, seen, fault: *fault, now: *now, checkpoint };
        let named = (&plan.worker, plan.name.as_str(), plan.mode);
        live.followers.insert(agent, Follower::new(named, plan.recovery, None, on));
    }

    /// Removes a follower from a server, with all that its source stored.
    pub fn remove_follower(&mut self, server: usize, agent: usize) {
        let Self { servers, seen, fault, now, .. } = self;
        let Some(live) = &mut servers[server].live else { return };
        let Some(follower) = live.followers.remove(&agent) else { return };
        let checkpoint = live.checkpoint.as_mut();
        let on = &mut On { index: &mut live.index, seen, fault: *fault, now: *now, checkpoint };
        let follower = follower.end(on);
        self.carry(server, agent, follower.answers, follower.cancelled);
    }

    /// Carries answers to whoever waits for them.
    pub fn hand_on(&mut self, server: usize, agent: usize) {
        let Some(live) = &mut self.servers[server].live else { return };
        let Some(follower) = live.followers.get_mut(&agent) else { return };
        let answers = mem::take(&mut follower.answers);
        let cancelled = mem::take(&mut follower.cancelled);
        self.carry(server, agent, answers, cancelled);
    }

    /// Time passes, up to each deadline in turn.
    pub fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        let mut ticks = 0;
        while let Some(deadline) = self.deadline().filter(|at| *at <= end) {
            let moves = deadline > self.now;
            ticks = if moves { 0 } else { ticks + 1 };
            assert!(ticks < TICKS_MAX, "a deadline never passes");
            self.now = self.now.max(deadline);
            self.tick();
        }
        self.now = end;
        for server in 0..self.servers.len() {
            self.look(server);
        }
    }

    /// When a server has something to do next.
    pub fn deadline(&self) -> Option<Duration> {
        let live = self.servers.iter().filter_map(|server| server.live.as_ref());
        let deadlines = live.flat_map(|live| {
            let followers = live.followers.values().filter_map(|at| at.recovery.deadline());
            followers.chain(live.links.values().filter_map(|at| at.sequencer.deadline()))
        });
        deadlines.min()
    }

    /// Tells the time to all whose deadline has passed.
    fn tick(&mut self) {
        let now = self.now;
        let agents = self.agents.len();
        let bares = self.bares.len();
        for server in 0..self.servers.len() {
            for agent in 0..agents {
                self.with_follower(server, agent, |follower, on| follower.tick(now, on));
            }
            for bare in 0..bares {
                self.with_link((server, bare), |link, on| link.tick(now, on));
            }
        }
    }

    /// What a server does once a second: it forgets who has expired, removes workers whose lease is
    /// over, and has those healed of which blocks were shed.
    fn look(&mut self, server: usize) {
        let now = self.now;
        let Some(live) = &mut self.servers[server].live else { return };
        if now < live.looked_at + Duration::from_secs(1) {
            return;
        }
        live.looked_at = now;
        let followers: Vec<usize> = live.followers.keys().copied().collect();
        for agent in followers {
            let Some(live) = &mut self.servers[server].live else { return };
            let by = self.agents[agent].delivery;
            let is_deaf = match by {
                Delivery::Direct => false,
                Delivery::Core => !live.is_connected,
                Delivery::Log => live.consumer.is_behind,
            };
            let Some(follower) = live.followers.get_mut(&agent) else { continue };
            if is_deaf && follower.is_open {
                // Its silence is not its own.
                follower.heard_at = now;
            }
            let lease = self.plans.agents[agent].lease;
            if lease.is_some_and(|lease| now >= follower.heard_at + lease) {
                live.registered.remove(&agent);
                self.seen.add("a worker's lease is over");
                self.remove_follower(server, agent);
            } else if follower.idle {
                self.remove_follower(server, agent);
            } else {
                self.with_follower(server, agent, Follower::heal);
            }
        }
    }
}
