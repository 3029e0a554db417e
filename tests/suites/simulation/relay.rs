//! What goes over the broker.

use crate::agent::{Content, Delivery, Message};
use crate::broker::Taken;
use crate::follower::{Hello, Via};
use crate::world::World;
use rand::Rng;
use std::time::Duration;

/// Batches that a publisher to the stream has under way.
const UNACKED_MAX: usize = 5;
/// Longest wait for an acknowledgement.
const ACK_TIMEOUT: Duration = Duration::from_secs(2);

impl World {
    /// An agent connects to the broker, or publishes what it has; whether it did anything.
    pub fn publish(&mut self, agent: usize) -> bool {
        let at = &mut self.agents[agent];
        if at.delivery == Delivery::Direct || !at.is_up || !self.broker.is_up {
            return false;
        }
        if !at.publisher.connected {
            at.publisher.connected = true;
            at.publish_heartbeat();
            return true;
        }
        let oldest = at.publisher.unacked.front();
        if oldest.is_some_and(|(_, sent_at)| self.now >= *sent_at + ACK_TIMEOUT) {
            at.publish_again(&mut self.seen);
        }
        let before = at.publisher.sent.len();
        at.publish(self.now, UNACKED_MAX, &mut self.seen);
        at.publisher.sent.len() > before
    }

    /// The broker reads the next message of an agent; whether there was one.
    pub fn broker_takes(&mut self, agent: usize) -> bool {
        let at = &mut self.agents[agent];
        if !self.broker.is_up {
            return false;
        }
        let Some(message) = at.publisher.sent.pop_front() else { return false };
        let keeps = at.delivery == Delivery::Log && matches!(message.content, Content::Batch(_));
        if keeps {
            let process = at.process;
            let incarnation = message.incarnation;
            let Content::Batch(batch) = &message.content else { return true };
            let sequence = batch.sequence;
            if self.broker.append(message, process) == Taken::Duplicate {
                self.seen.add("the broker takes a message once");
                self.agents[agent].publisher.acks.push_back((incarnation, sequence));
            }
            return true;
        }
        for server in 0..self.servers.len() {
            let is_connected = self.servers[server].live.as_ref().is_some_and(|at| at.is_connected);
            if is_connected && self.rng.random_ratio(self.loss_percent, 100) {
                self.seen.add("a message is lost");
            } else if is_connected {
                self.passing[server].push_back(message.clone());
            }
        }
        true
    }

    /// The broker puts on disk what it has, and acknowledges it; whether there was anything.
    pub fn broker_syncs(&mut self) -> bool {
        if !self.broker.is_up {
            return false;
        }
        let synced = self.broker.sync();
        let any = !synced.is_empty();
        for (process, (agent, incarnation, sequence)) in synced {
            let at = &mut self.agents[agent];
            if at.process == process && at.publisher.connected {
                at.publisher.acks.push_back((incarnation, sequence));
            }
        }
        any
    }

    /// An agent reads the next acknowledgement; whether there was one.
    pub fn deliver_ack(&mut self, agent: usize) -> bool {
        let publisher = &mut self.agents[agent].publisher;
        let Some((incarnation, sequence)) = publisher.acks.pop_front() else { return false };
        if publisher.life == Some(incarnation) {
            publisher.unacked.retain(|(unacked, _)| *unacked != sequence);
        }
        true
    }

    /// A server connects to the broker; whether it was not connected.
    pub fn server_connects(&mut self, server: usize) -> bool {
        let last = self.broker.last();
        let Some(live) = &mut self.servers[server].live else { return false };
        if live.is_connected || !self.broker.is_up {
            return false;
        }
        live.is_connected = true;
        let reached = live.position();
        let consumer = &mut live.consumer;
        match reached {
            Some(at) if at.stream == self.broker.stream && at.number <= last => {
                consumer.next = at.number + 1;
            }
            before => {
                if before.is_some() {
                    self.seen.add("a server notices that the stream is another one");
                }
                (consumer.stream, consumer.next) = (self.broker.stream, self.broker.first);
                consumer.pending.clear();
            }
        }
        let is_behind = consumer.next <= last;
        consumer.is_behind = is_behind;
        for agent in 0..self.agents.len() {
            match self.agents[agent].delivery {
                Delivery::Direct => {}
                // Nothing counts as heard before it is heard again.
                Delivery::Core => self.with_follower(server, agent, |follower, on| {
                    follower.close(follower.stream, on);
                }),
                Delivery::Log => self.tell_lag(server, agent, is_behind),
            }
        }
        true
    }

    fn tell_lag(&mut self, server: usize, agent: usize, is_behind: bool) {
        self.with_follower(server, agent, |follower, on| follower.lag(is_behind, on));
    }

    /// A server's connection to the broker is gone, with what was on its way.
    pub fn server_loses_broker(&mut self, server: usize) {
        self.passing[server].clear();
        let Some(live) = &mut self.servers[server].live else { return };
        if !live.is_connected {
            return;
        }
        (live.is_connected, live.consumer.is_behind) = (false, true);
        self.seen.add("a server loses the broker");
        for agent in 0..self.agents.len() {
            if self.agents[agent].delivery != Delivery::Direct {
                self.tell_lag(server, agent, true);
            }
        }
    }

    /// A server reads the next message that the broker does not keep; whether there was one.
    pub fn deliver_passing(&mut self, server: usize) -> bool {
        let Some(message) = self.passing[server].pop_front() else { return false };
        self.hear(server, message, Via::Nobody);
        true
    }

    /// A server reads the next message of the stream; whether there was one.
    pub fn deliver_kept(&mut self, server: usize) -> bool {
        let Some(live) = &mut self.servers[server].live else { return false };
        if !live.is_connected || !self.broker.is_up {
            return false;
        }
        if live.consumer.next < self.broker.first {
            self.seen.add("messages fell off the stream before they were read");
            live.consumer.next = self.broker.first;
        }
        let number = live.consumer.next;
        let Some(message) = self.broker.message(number).cloned() else { return false };
        live.consumer.next += 1;
        live.consumer.pending.insert(number);
        let catches_up = live.consumer.is_behind && number >= self.broker.last();
        self.hear(server, message, Via::Log(number));
        if catches_up && let Some(live) = &mut self.servers[server].live {
            self.seen.add("a server has read the stream to its end");
            live.consumer.is_behind = false;
            for agent in 0..self.agents.len() {
                if self.agents[agent].delivery == Delivery::Log {
                    self.tell_lag(server, agent, false);
                }
            }
        }
        true
    }

    /// A server takes a message that stands by itself.
    fn hear(&mut self, server: usize, message: Message, via: Via) {
        let agent = message.agent;
        self.make_follower(server, agent);
        self.connections_made += 1;
        let number = self.connections_made;
        let Some(live) = &self.servers[server].live else { return };
        let is_log = self.agents[agent].delivery == Delivery::Log;
        let is_behind = live.consumer.is_behind && is_log;
        let in_order = matches!(via, Via::Log(_));
        let mut refused = false;
        self.with_follower(server, agent, |follower, on| {
            if follower.stream_life != Some(message.incarnation) {
                let has_other = follower.stream_life.is_some();
                let early = match &message.content {
                    Content::Batch(_) => false,
                    Content::Heartbeat(head) => is_behind || (has_other && head.is_some()),
                };
                if is_log && early {
                    // The log tells of that life in its turn.
                    return;
                }
                refused = !follower.open(number, Hello { in_order, ..message.hello() }, on);
                if !refused && is_behind {
                    follower.lag(true, on);
                }
            }
            let stream = follower.stream;
            match message.content {
                _ if refused => {}
                Content::Batch(batch) => follower.batch(stream, batch, via, on),
                Content::Heartbeat(head) => follower.heartbeat(stream, head, on),
            }
        });
        if refused && let Some(live) = &mut self.servers[server].live {
            live.answered(via);
        }
    }
}
