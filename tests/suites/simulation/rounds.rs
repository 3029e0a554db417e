//! Questions of servers to agents, and their answers, part by part.

use crate::follower::{Follower, Part};
use crate::world::World;
use rand::Rng;

/// Parts of an answer on their way.
const PARTS_AHEAD_MAX: usize = 8;

impl World {
    /// An agent goes on with an answer; whether there was anything to do.
    pub fn serve(&mut self, server: usize, agent: usize) -> bool {
        let records_max = self.rng.random_range(1..12);
        let Some(live) = &mut self.servers[server].live else { return false };
        let round = live.followers.get_mut(&agent).and_then(|follower| follower.round.as_mut());
        let Some(round) = round.filter(|round| round.parts.len() < PARTS_AHEAD_MAX) else {
            return false;
        };
        if round.serving.is_some_and(|serving| serving.ended) {
            return false;
        }
        self.agents[agent].serve(round, records_max, &mut self.seen)
    }

    /// The next part of an answer arrives; whether there was one.
    pub fn deliver_part(&mut self, server: usize, agent: usize) -> bool {
        let mut delivered = false;
        self.with_follower(server, agent, |follower, on| {
            let part = follower.round.as_mut().and_then(|round| round.parts.pop_front());
            if let Some(part) = part {
                delivered = true;
                follower.part(part, on);
            }
        });
        delivered
    }

    /// An answer breaks off.
    pub fn break_round(&mut self, server: usize, agent: usize) {
        self.with_follower(server, agent, break_off);
    }

    /// Answers that take too long break off.
    pub fn break_rounds(&mut self) {
        for server in 0..self.servers.len() {
            for agent in 0..self.agents.len() {
                self.break_round(server, agent);
            }
        }
    }
}

fn break_off(follower: &mut Follower, on: &mut crate::follower::On<'_>) {
    if follower.round.is_some() {
        on.seen.add("an answer is cut off");
        follower.part(Part::Failed, on);
    }
}
