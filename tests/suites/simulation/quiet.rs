//! No more faults: everything on its way arrives, all connect again, time passes.

use crate::world::{DEGRADED_TTL, World};
use kvasir_proto::types::SourceState;
use std::time::Duration;

/// Time between two signs of life of an agent.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// Messages that may be delivered before it counts as going on for ever.
const DELIVERIES_MAX: usize = 200_000;

impl World {
    pub fn quiesce(&mut self) {
        self.loss_percent = 0;
        self.broker.is_up = true;
        for agent in 0..self.agents.len() {
            if !self.agents[agent].is_up {
                self.restart_agent(agent);
            }
        }
        for bare in 0..self.bares.len() {
            if !self.bares[bare].is_up {
                self.bares[bare].restart();
            }
        }
        for server in 0..self.servers.len() {
            self.servers[server].disk.is_full = false;
            if self.servers[server].live.is_none() {
                self.start_server(server);
            }
        }
        self.settle(DEGRADED_TTL + DEGRADED_TTL / 2);
        if self.clear_lost() {
            self.settle(Duration::from_secs(30));
        }
    }

    /// What a bare engine alone cannot heal ends when its cache is cleared; and where it keeps
    /// nothing, only a later batch shows that the last one was lost.
    fn clear_lost(&mut self) -> bool {
        let mut cleared = false;
        for bare in 0..self.bares.len() {
            let keeps = self.plans.bares[bare].sequencing.replay;
            let lost = self.servers.iter().filter_map(|server| server.live.as_ref()).any(|live| {
                let status = live.index.status(live.links[&bare].source);
                status.is_none_or(|status| status.state != SourceState::Exact)
            });
            if lost || !keeps {
                self.seen.add("a bare engine is healed by a clear");
                self.bare_acts(bare, true, true);
                self.bare_acts(bare, false, true);
                cleared = true;
            }
        }
        cleared
    }

    fn settle(&mut self, time: Duration) {
        let end = self.now + time;
        let mut delivered = 0;
        loop {
            while self.deliver_all() {
                delivered += 1;
                assert!(delivered < DELIVERIES_MAX, "it never comes to rest");
            }
            if self.now >= end {
                return;
            }
            let next = self.deadline().unwrap_or(end).max(self.now);
            let next = next.min(self.now + Duration::from_secs(1));
            self.advance(next - self.now);
            self.beat();
        }
    }

    /// Agents say that they are there.
    fn beat(&mut self) {
        for agent in 0..self.agents.len() {
            if self.now < self.agents[agent].heartbeat_at + HEARTBEAT_INTERVAL {
                continue;
            }
            self.agents[agent].heartbeat_at = self.now;
            self.agents[agent].publish_heartbeat();
            for place in 0..self.connections.len() {
                if self.connections[place].agent == agent {
                    self.heartbeat(place);
                }
            }
        }
    }

    /// Everything that can happen at once happens; whether that was anything.
    fn deliver_all(&mut self) -> bool {
        let mut any = false;
        for place in 0..self.connections.len() {
            any |= self.fill(place);
            any |= self.deliver_up(place);
            any |= self.deliver_down(place);
        }
        self.forget_connections();
        any |= self.broker_syncs();
        for agent in 0..self.agents.len() {
            any |= self.publish(agent) | self.broker_takes(agent) | self.deliver_ack(agent);
        }
        for server in 0..self.servers.len() {
            any |= self.server_connects(server);
            any |= self.deliver_passing(server) | self.deliver_kept(server);
            for agent in 0..self.agents.len() {
                any |= self.connect(agent, server);
                any |= self.serve(server, agent) | self.deliver_part(server, agent);
            }
            for bare in 0..self.bares.len() {
                any |= self.subscribe(bare, server);
                any |= self.deliver_live(bare, server) | self.deliver_reply(bare, server);
            }
        }
        any
    }
}
