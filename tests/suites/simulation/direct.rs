//! Streams of agents to servers: in order, acknowledged, and over when they break.

use crate::agent::{Delivery, numbered};
use crate::follower::{Answer, Hello, Payload, Via};
use crate::world::World;
use kvasir_engine::recover::Numbered;
use kvasir_feed::journal::{DumpId, RangeError};
use kvasir_proto::types::Incarnation;
use rand::Rng;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Batches of one stream under way.
const UNACKED_MAX: usize = 6;
/// Pause before an agent opens a stream again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// What an agent sends.
#[derive(Debug)]
pub enum Up {
    Hello(Hello),
    Batch(Numbered<Payload>),
    Heartbeat(Option<u64>),
}

/// What a server answers.
#[derive(Debug)]
pub enum Down {
    Accepted(Option<u64>),
    Acked(u64),
    Refused,
}

/// The agent's end.
#[derive(Debug)]
pub struct AgentEnd {
    pub life: Incarnation,
    /// Number of the next batch; none before the server has accepted.
    pub next: Option<u64>,
    pub unacked: BTreeSet<u64>,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    pub number: u64,
    pub agent: usize,
    pub server: usize,
    pub agent_end: Option<AgentEnd>,
    /// Whether the server has taken the hello.
    pub is_accepted: bool,
    pub server_is_gone: bool,
    pub up: VecDeque<Up>,
    pub down: VecDeque<Down>,
    /// Numbers by the order in which they arrived, to be answered.
    pub arrived: VecDeque<u64>,
}

impl World {
    /// Carries a follower's answers to its connections.
    pub fn carry(
        &mut self,
        server: usize,
        agent: usize,
        answers: Vec<(Via, Answer)>,
        cancelled: Vec<(u64, DumpId)>,
    ) {
        for (process, dump) in cancelled {
            if self.agents[agent].process == process {
                self.agents[agent].journal.cancel_dump(dump);
            }
        }
        for (via, answer) in answers {
            if let Some(live) = &mut self.servers[server].live {
                live.answered(via);
            }
            let Via::Connection(number) = via else { continue };
            let found = self.connections.iter_mut().find(|at| at.number == number);
            let Some(connection) = found.filter(|at| !at.server_is_gone) else { continue };
            if answer == Answer::Acked {
                if let Some(sequence) = connection.arrived.pop_front() {
                    connection.down.push_back(Down::Acked(sequence));
                }
            } else {
                self.seen.add("a stream is ended by its server");
                connection.down.push_back(Down::Refused);
            }
        }
    }

    /// An agent opens a stream to a server, unless it has one.
    pub fn connect(&mut self, agent: usize, server: usize) -> bool {
        let at = &self.agents[agent];
        let open =
            |at: &Connection| at.agent == agent && at.server == server && at.agent_end.is_some();
        let is_due = at.delivery == Delivery::Direct && at.is_up;
        let tried_at = at.tried_at.get(&server);
        let is_due = is_due && tried_at.is_none_or(|at| self.now >= *at + RECONNECT_PAUSE);
        if !is_due || self.servers[server].live.is_none() || self.connections.iter().any(open) {
            return false;
        }
        let hello = at.hello();
        self.agents[agent].tried_at.insert(server, self.now);
        self.connections_made += 1;
        self.connections.push(Connection {
            number: self.connections_made,
            agent,
            server,
            agent_end: Some(AgentEnd {
                life: hello.incarnation,
                next: None,
                unacked: BTreeSet::new(),
            }),
            is_accepted: false,
            server_is_gone: false,
            up: VecDeque::from([Up::Hello(hello)]),
            down: VecDeque::new(),
            arrived: VecDeque::new(),
        });
        true
    }

    /// An agent sends what there is and may be under way; whether that was anything.
    pub fn fill(&mut self, place: usize) -> bool {
        let connection = &mut self.connections[place];
        let agent = &self.agents[connection.agent];
        let Some(end) = &mut connection.agent_end else { return false };
        let mut sent = false;
        while let Some(next) = end.next.filter(|_| end.unacked.len() < UNACKED_MAX) {
            match agent.journal.range(end.life, next..=next, 1) {
                Ok(range) => {
                    let Some(batch) = range.batches.first() else { break };
                    connection.up.push_back(Up::Batch(numbered(batch)));
                    end.unacked.insert(next);
                    end.next = Some(next + 1);
                    sent = true;
                }
                Err(RangeError::TooOld { oldest, .. }) => {
                    self.seen.add("an uplink skips what its journal lost");
                    end.next = Some(oldest);
                }
                Err(_) => {
                    // A new life, or the server knows of batches that the journal does not.
                    connection.agent_end = None;
                    return true;
                }
            }
        }
        sent
    }

    pub fn heartbeat(&mut self, place: usize) {
        let connection = &mut self.connections[place];
        let hello = self.agents[connection.agent].hello();
        let end = connection.agent_end.as_ref();
        if end.is_some_and(|end| end.next.is_some() && end.life == hello.incarnation) {
            connection.up.push_back(Up::Heartbeat(hello.head));
        }
    }

    /// The server reads the next message of a connection, or its end; whether there was anything.
    pub fn deliver_up(&mut self, place: usize) -> bool {
        let connection = &mut self.connections[place];
        if connection.server_is_gone {
            return false;
        }
        let server = connection.server;
        let agent = connection.agent;
        let number = connection.number;
        let is_accepted = connection.is_accepted;
        let Some(message) = connection.up.pop_front() else {
            if connection.agent_end.is_some() {
                return false;
            }
            connection.server_is_gone = true;
            self.with_follower(server, agent, |follower, on| follower.close(number, on));
            return true;
        };
        match message {
            Up::Hello(hello) => self.accept(place, hello),
            Up::Batch(_) | Up::Heartbeat(_) if !is_accepted => {}
            Up::Batch(batch) => {
                connection.arrived.push_back(batch.sequence);
                let via = Via::Connection(number);
                let mut is_known = false;
                self.with_follower(server, agent, |follower, on| {
                    is_known = true;
                    follower.batch(number, batch, via, on);
                });
                if !is_known {
                    // The worker was removed.
                    self.connections[place].down.push_back(Down::Refused);
                }
            }
            Up::Heartbeat(head) => {
                self.with_follower(server, agent, |at, on| at.heartbeat(number, head, on));
            }
        }
        true
    }

    fn accept(&mut self, place: usize, hello: Hello) {
        let Connection { server, agent, number, .. } = self.connections[place];
        self.make_follower(server, agent);
        let mut accepted = false;
        let mut applied = None;
        self.with_follower(server, agent, |follower, on| {
            accepted = follower.open(number, hello, on);
            applied = follower.recovery.status().applied;
        });
        let connection = &mut self.connections[place];
        connection.is_accepted = accepted;
        connection.down.push_back(match accepted {
            true => Down::Accepted(applied.map(|cursor| cursor.sequence)),
            false => Down::Refused,
        });
    }

    /// The agent reads the next answer of a connection, or its end; whether there was anything.
    pub fn deliver_down(&mut self, place: usize) -> bool {
        let connection = &mut self.connections[place];
        let Some(end) = &mut connection.agent_end else {
            connection.down.clear();
            return false;
        };
        match connection.down.pop_front() {
            Some(Down::Accepted(applied)) => {
                let first = self.agents[connection.agent].journal.first();
                end.next = Some(applied.map_or(first, |applied| applied + 1));
            }
            Some(Down::Acked(sequence)) => {
                end.unacked.remove(&sequence);
            }
            Some(Down::Refused) => connection.agent_end = None,
            None if connection.server_is_gone => connection.agent_end = None,
            None => return false,
        }
        true
    }

    /// Forgets connections that are over at both ends.
    pub fn forget_connections(&mut self) {
        self.connections.retain(|at| at.agent_end.is_some() || !at.server_is_gone);
    }

    /// A connection breaks: some of what is on its way is lost. The server learns it later.
    pub fn break_connection(&mut self, place: usize) {
        let kept = self.rng.random_range(0..=self.connections[place].up.len());
        let connection = &mut self.connections[place];
        connection.agent_end = None;
        connection.up.truncate(kept);
        self.seen.add("a stream breaks");
    }
}
