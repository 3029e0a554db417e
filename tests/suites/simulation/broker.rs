//! The broker: it passes messages on, and keeps those of a stream.

use crate::agent::{Content, Message};
use kvasir_proto::types::Incarnation;
use std::collections::{HashSet, VecDeque};

/// A message of the stream.
#[derive(Debug)]
pub struct Entry {
    pub message: Message,
    /// The agent's process, to be acknowledged.
    pub process: u64,
    pub is_synced: bool,
}

/// What names a message.
type MessageId = (usize, Incarnation, u64);

#[derive(Debug)]
pub struct Broker {
    pub is_up: bool,
    /// Tells the stream from one that was made before under its name.
    pub stream: u64,
    /// Number of the oldest message kept.
    pub first: u64,
    pub log: VecDeque<Entry>,
    ids: HashSet<MessageId>,
    pub retained_max: usize,
    /// Whether messages reach servers before they are safe on disk.
    pub is_hasty: bool,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    New,
    Duplicate,
}

impl Broker {
    pub fn new(retained_max: usize, is_hasty: bool) -> Self {
        let log = VecDeque::new();
        let ids = HashSet::new();
        Self { is_up: true, stream: 1, first: 1, log, ids, retained_max, is_hasty }
    }

    pub fn append(&mut self, message: Message, process: u64) -> Taken {
        if let Some(id) = id(&message)
            && !self.ids.insert(id)
        {
            return Taken::Duplicate;
        }
        self.log.push_back(Entry { message, process, is_synced: false });
        while self.log.len() > self.retained_max {
            self.log.pop_front();
            self.first += 1;
        }
        Taken::New
    }

    /// The message of a number, if servers may have it.
    pub fn message(&self, number: u64) -> Option<&Message> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let entry = self.log.get(at).filter(|entry| entry.is_synced || self.is_hasty)?;
        Some(&entry.message)
    }

    /// Number of the newest message that servers may have; that before the first if there is none.
    pub fn last(&self) -> u64 {
        let entries = self.log.iter().take_while(|entry| entry.is_synced || self.is_hasty);
        self.first + entries.count() as u64 - 1
    }

    /// Puts all on disk; returns whose messages are to be acknowledged.
    pub fn sync(&mut self) -> Vec<(u64, MessageId)> {
        let unsynced = self.log.iter_mut().filter(|entry| !entry.is_synced);
        let synced = unsynced.filter_map(|entry| {
            entry.is_synced = true;
            Some((entry.process, id(&entry.message)?))
        });
        synced.collect()
    }

    /// What is not on disk is lost.
    pub fn crash(&mut self) -> usize {
        let before = self.log.len();
        let synced = self.log.iter().take_while(|entry| entry.is_synced).count();
        for id in self.log.drain(synced..).filter_map(|entry| id(&entry.message)) {
            self.ids.remove(&id);
        }
        self.is_up = false;
        before - self.log.len()
    }

    /// The window of duplicates is over.
    pub fn forget_ids(&mut self) {
        self.ids.clear();
    }

    /// Somebody makes the stream anew.
    pub fn reset(&mut self) {
        self.stream += 1;
        self.first = 1;
        self.log.clear();
        self.ids.clear();
    }
}

fn id(message: &Message) -> Option<MessageId> {
    match &message.content {
        Content::Batch(batch) => Some((message.agent, message.incarnation, batch.sequence)),
        Content::Heartbeat(_) => None,
    }
}
