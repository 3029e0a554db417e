//! What happens next: drawn at random, one thing at a time.

use crate::world::World;
use rand::Rng;
use std::time::Duration;

/// Things that happen before all is to come to rest.
const STEPS_MAX: usize = 6_000;

impl World {
    /// Plays for a while.
    pub fn play(&mut self) {
        for _ in 0..self.rng.random_range(50..STEPS_MAX) {
            self.step();
            if self.rng.random_ratio(1, 8) {
                self.check_exact();
            }
        }
    }

    fn step(&mut self) {
        let server = self.some_server();
        let agent = self.some_agent();
        match self.rng.random_range(0..100) {
            0..=13 => self.agent_acts(agent),
            14..=39 => self.direct_step(server, agent),
            40..=62 => self.broker_step(server, agent),
            63..=74 => self.round_step(server, agent),
            75..=88 => self.bare_step(server),
            89..=93 => self.checkpoint_step(server),
            94..=97 => {
                let millis = self.rng.random_range(1..400);
                self.advance(Duration::from_millis(millis));
            }
            _ if self.rng.random_ratio(self.mishaps_percent, 100) => self.mishap(server, agent),
            _ => {}
        }
    }

    fn some_server(&mut self) -> usize {
        self.rng.random_range(0..self.servers.len())
    }

    fn some_agent(&mut self) -> usize {
        self.rng.random_range(0..self.agents.len())
    }

    fn agent_acts(&mut self, agent: usize) {
        if self.agents[agent].is_up {
            self.agents[agent].act(&mut self.rng);
        } else if self.rng.random_ratio(1, 10) {
            self.restart_agent(agent);
        }
    }

    fn direct_step(&mut self, server: usize, agent: usize) {
        self.forget_connections();
        self.connect(agent, server);
        if self.connections.is_empty() {
            return;
        }
        let place = self.rng.random_range(0..self.connections.len());
        match self.rng.random_range(0..20) {
            0..=4 => drop(self.fill(place)),
            5..=12 => drop(self.deliver_up(place)),
            13..=17 => drop(self.deliver_down(place)),
            18 => self.heartbeat(place),
            _ if self.rng.random_ratio(1, 4) => self.break_connection(place),
            _ => {}
        }
    }

    fn broker_step(&mut self, server: usize, agent: usize) {
        match self.rng.random_range(0..24) {
            0..=4 => drop(self.publish(agent)),
            5..=9 => drop(self.broker_takes(agent)),
            10..=11 => drop(self.broker_syncs()),
            12 => drop(self.deliver_ack(agent)),
            13 => self.agents[agent].publish_heartbeat(),
            14 => drop(self.server_connects(server)),
            15..=18 => drop(self.deliver_passing(server)),
            _ => drop(self.deliver_kept(server)),
        }
    }

    fn round_step(&mut self, server: usize, agent: usize) {
        match self.rng.random_range(0..40) {
            0..=18 => drop(self.serve(server, agent)),
            19..=38 => drop(self.deliver_part(server, agent)),
            _ => self.break_round(server, agent),
        }
    }

    fn bare_step(&mut self, server: usize) {
        if self.bares.is_empty() {
            return;
        }
        let bare = self.rng.random_range(0..self.bares.len());
        match self.rng.random_range(0..40) {
            0..=8 => self.bare_acts(bare, false, false),
            9..=14 => drop(self.subscribe(bare, server)),
            15..=24 => drop(self.deliver_live(bare, server)),
            25..=37 => drop(self.deliver_reply(bare, server)),
            38 => self.break_replay(bare, server),
            _ => self.unsubscribe(bare, server),
        }
    }

    pub fn checkpoint_step(&mut self, server: usize) {
        let Self { servers, plans, fault, rng, seen, .. } = self;
        let at = &mut servers[server];
        let Some(live) = &mut at.live else {
            if rng.random_ratio(1, 4) {
                self.start_server(server);
            }
            return;
        };
        if live.checkpoint.is_none() {
            live.begin_checkpoint(plans, *fault, &mut at.disk, rng);
        }
        for _ in 0..rng.random_range(1..4) {
            live.step_checkpoint(plans, *fault, &mut at.disk, rng, seen);
        }
        // What only one image says is told only if its server ends before the next.
        if rng.random_ratio(self.mishaps_percent, 3_000) {
            self.kill_server(server);
        }
    }

    /// Something goes wrong.
    fn mishap(&mut self, server: usize, agent: usize) {
        match self.rng.random_range(0..16) {
            0 | 1 => self.kill_server(server),
            2 | 3 if self.servers[server].live.is_none() => self.start_server(server),
            4..=6 if !self.agents[agent].may_end() => {}
            4 => self.restart_agent(agent),
            5 => self.stop_agent(agent),
            6 if self.agents[agent].is_up => {
                self.seen.add("an engine empties its cache beside its agent");
                self.agents[agent].begin_incarnation(&mut self.rng);
            }
            7 => self.broker_mishap(),
            8 => self.server_loses_broker(server),
            9 => {
                let full = self.rng.random_bool(0.5);
                self.servers[server].disk.is_full = full;
            }
            10 => self.shed(server),
            11 => self.bare_mishap(),
            12 => {
                let seconds = self.rng.random_range(1..100);
                if seconds > 10 {
                    self.break_rounds();
                }
                self.advance(Duration::from_secs(seconds));
            }
            13 => {
                let at = &mut self.agents[agent];
                at.lose_broker(&mut self.seen);
            }
            _ => {}
        }
    }

    pub fn kill_server(&mut self, server: usize) {
        if self.servers[server].live.is_none() {
            return;
        }
        self.seen.add("a server is killed");
        let Self { servers, fault, rng, seen, .. } = self;
        let cancelled = servers[server].kill(*fault, rng, seen);
        for (agent, process, dump) in cancelled {
            if self.agents[agent].process == process {
                self.agents[agent].journal.cancel_dump(dump);
            }
        }
        self.passing[server].clear();
        self.subscriptions.retain(|(_, at), _| *at != server);
        for connection in self.connections.iter_mut().filter(|at| at.server == server) {
            connection.server_is_gone = true;
            connection.up.clear();
        }
        if self.rng.random_ratio(1, 12) {
            self.seen.add("a server loses its disk");
            self.servers[server].disk = crate::server::Disk::default();
        }
    }

    fn stop_agent(&mut self, agent: usize) {
        self.seen.add("an agent and its engine stop");
        self.agents[agent].is_up = false;
        self.agents[agent].lose_broker(&mut self.seen);
        for place in 0..self.connections.len() {
            if self.connections[place].agent == agent {
                self.break_connection(place);
            }
        }
    }

    pub fn restart_agent(&mut self, agent: usize) {
        self.stop_agent(agent);
        self.seen.add("an agent and its engine start again");
        self.agents[agent].restart(&mut self.rng);
    }

    fn broker_mishap(&mut self) {
        if !self.broker.is_up {
            self.broker.is_up = true;
            return;
        }
        match self.rng.random_range(0..6) {
            0 | 1 => self.broker.forget_ids(),
            2 if !self.stream_is_all => {
                self.seen.add("the stream is made anew");
                self.broker.reset();
                self.drop_broker_connections();
            }
            _ => {
                self.seen.add("the broker is killed");
                if self.broker.crash() > 0 {
                    self.seen.add("the broker loses what it had not on disk");
                }
                self.drop_broker_connections();
            }
        }
    }

    fn drop_broker_connections(&mut self) {
        for agent in 0..self.agents.len() {
            self.agents[agent].lose_broker(&mut self.seen);
        }
        for server in 0..self.servers.len() {
            self.server_loses_broker(server);
        }
    }

    fn shed(&mut self, server: usize) {
        let is_all = self.stream_is_all || self.agents.iter().any(|agent| !agent.answers);
        if let Some(live) = self.servers[server].live.as_mut().filter(|_| !is_all) {
            let shed = live.index.shed(3);
            if shed.pairs + shed.parked > 0 {
                self.seen.add("blocks are shed");
            }
        }
    }

    fn bare_mishap(&mut self) {
        if self.bares.is_empty() {
            return;
        }
        let bare = self.rng.random_range(0..self.bares.len());
        if self.bares[bare].is_up && self.rng.random_bool(0.3) {
            self.bares[bare].is_up = false;
        } else {
            self.seen.add("a bare engine starts again");
            self.bares[bare].restart();
        }
    }
}
