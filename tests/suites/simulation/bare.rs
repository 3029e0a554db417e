//! Bare engines: a publisher that numbers its batches from 0 in each life, and keeps the last ones.

use crate::follower::On;
use crate::link::{Link, Sent};
use crate::truth::Truth;
use crate::world::World;
use kvasir_engine::sequence::{Input, Received};
use kvasir_proto::types::{Fingerprint, Incarnation};
use kvasir_tests::script::ScriptRng;
use rand::Rng;
use std::collections::{BTreeSet, VecDeque};

pub struct Bare {
    pub truth: Truth,
    /// Batches kept for replays.
    ring_max: u64,
    /// Batches that cannot be read, by life and number.
    garbled: BTreeSet<(usize, u64)>,
    pub is_up: bool,
}

/// A server's subscription to an engine.
#[derive(Debug)]
pub struct Subscription {
    pub life: usize,
    pub queue: VecDeque<u64>,
}

impl Bare {
    pub fn new(mut truth: Truth, rng: &mut ScriptRng) -> Self {
        truth.begin_incarnation(Incarnation(0), 0);
        let ring_max = rng.random_range(1..30);
        Self { truth, ring_max, garbled: BTreeSet::new(), is_up: true }
    }

    pub fn life(&self) -> usize {
        self.truth.lives.len() - 1
    }

    pub fn restart(&mut self) {
        let life = self.truth.lives.len() as u128;
        self.truth.begin_incarnation(Incarnation(life), 0);
        self.is_up = true;
    }

    fn received(&self, life: usize, sequence: u64) -> Received<Sent> {
        let batch = self.truth.lives[life].batch(sequence);
        let garbled = self.garbled.contains(&(life, sequence));
        let rank = batch.rank;
        let events = batch.events.clone();
        Received {
            sequence,
            fingerprint: Fingerprint { ts_bits: life as u64, payload_hash: sequence },
            incarnation: None,
            item: Sent { life, sequence, rank, events, garbled },
        }
    }
}

impl World {
    /// Does something with the link of a server to a bare engine, if the server lives.
    pub fn with_link(
        &mut self,
        (server, bare): (usize, usize),
        act: impl FnOnce(&mut Link, &mut On<'_>),
    ) {
        let Self { servers, seen, fault, now, .. } = self;
        let Some(live) = &mut servers[server].live else { return };
        let Some(link) = live.links.get_mut(&bare) else { return };
        let checkpoint = live.checkpoint.as_mut();
        let on = &mut On { index: &mut live.index, seen, fault: *fault, now: *now, checkpoint };
        act(link, on);
    }

    /// An engine does something and publishes it, or clears its cache.
    pub fn bare_acts(&mut self, bare: usize, clears: bool, is_calm: bool) {
        let rng = &mut self.rng;
        let at = &mut self.bares[bare];
        if !at.is_up {
            return;
        }
        if clears {
            at.truth.clear(rng);
        } else {
            at.truth.act(rng);
        }
        let life = at.life();
        let sequence = at.truth.life().newest().expect("just published");
        if !is_calm && rng.random_ratio(1, 60) {
            at.garbled.insert((life, sequence));
        }
        for server in 0..self.servers.len() {
            let Some(open) = self.subscriptions.get_mut(&(bare, server)) else { continue };
            if open.life != life {
                continue;
            }
            if !is_calm && self.rng.random_ratio(self.loss_percent, 100) {
                self.seen.add("a bare engine's message is lost");
            } else {
                open.queue.push_back(sequence);
            }
        }
    }

    /// A server subscribes to an engine, or unsubscribes from a process that is gone; whether it
    /// did either.
    pub fn subscribe(&mut self, bare: usize, server: usize) -> bool {
        let life = self.bares[bare].life();
        let is_up = self.bares[bare].is_up;
        if self.servers[server].live.is_none() {
            return false;
        }
        match self.subscriptions.get(&(bare, server)) {
            Some(open) if (open.life != life || !is_up) && open.queue.is_empty() => {
                self.unsubscribe(bare, server);
                true
            }
            None if is_up => {
                let queue = VecDeque::new();
                self.subscriptions.insert((bare, server), Subscription { life, queue });
                self.with_link((server, bare), |link, on| link.input(Input::Connected, on));
                true
            }
            Some(_) | None => false,
        }
    }

    pub fn unsubscribe(&mut self, bare: usize, server: usize) {
        if self.subscriptions.remove(&(bare, server)).is_some() {
            self.seen.add("a subscription ends");
            self.with_link((server, bare), |link, on| link.input(Input::Disconnected, on));
        }
    }

    /// A server reads the next live batch of an engine; whether there was one.
    pub fn deliver_live(&mut self, bare: usize, server: usize) -> bool {
        let Some(open) = self.subscriptions.get_mut(&(bare, server)) else { return false };
        let (life, Some(sequence)) = (open.life, open.queue.pop_front()) else { return false };
        let received = self.bares[bare].received(life, sequence);
        self.with_link((server, bare), |link, on| link.input(Input::Live(received), on));
        true
    }

    /// The next reply of a replay arrives, or its end; whether a replay is under way.
    pub fn deliver_reply(&mut self, bare: usize, server: usize) -> bool {
        let Some(live) = &mut self.servers[server].live else { return false };
        let replay = live.links.get_mut(&bare).and_then(|link| link.replay.as_mut());
        let Some(replay) = replay else { return false };
        let at = &self.bares[bare];
        let round = replay.number;
        let present = at.life();
        let served = match &replay.served {
            _ if !at.is_up => None,
            Some((life, _)) if *life != present => None,
            Some(_) => replay.served.as_mut(),
            None => {
                let next = at.truth.life().next();
                let from = replay.from.max(next.saturating_sub(at.ring_max));
                Some(replay.served.insert((present, (from..next).collect())))
            }
        };
        let is_first = !std::mem::replace(&mut replay.begun, true);
        // The publisher's send queue is full: a reply never arrives. It is empty at first.
        let is_lost = !is_first && self.rng.random_ratio(self.loss_percent, 300);
        let input = match served.map(|(_, replies)| replies.pop_front()) {
            Some(Some(_)) if is_lost => return true,
            Some(Some(sequence)) => {
                Input::ReplayReply { round, received: at.received(present, sequence) }
            }
            Some(None) => Input::ReplayEnd { round },
            None => Input::ReplayFailed { round },
        };
        self.with_link((server, bare), |link, on| {
            if !matches!(input, Input::ReplayReply { .. }) {
                link.replay = None;
            }
            link.input(input, on);
        });
        true
    }

    pub fn break_replay(&mut self, bare: usize, server: usize) {
        self.with_link((server, bare), |link, on| {
            if let Some(replay) = link.replay.take() {
                on.seen.add("a replay breaks off");
                link.input(Input::ReplayFailed { round: replay.number }, on);
            }
        });
    }
}
