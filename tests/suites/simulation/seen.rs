//! What happened in a run, by what it is called: a test can tell that it was reached.

use std::collections::BTreeMap;

/// What the usual seeds must reach.
pub const REACHED: [&str; 65] = [
    "a bare engine expires",
    "a bare engine is healed by a clear",
    "a bare engine starts again",
    "a bare engine's batch is applied",
    "a bare engine's batches are lost, blocks are dropped",
    "a bare engine's batches are lost, blocks are kept",
    "a bare engine's message is lost",
    "a bare engine's new life is noticed",
    "a bare engine's restart is noticed",
    "a batch cannot be read",
    "a batch is applied",
    "a batch of a range comes",
    "a batch of an earlier stream is refused",
    "a checkpoint is complete",
    "a dump breaks off half-way",
    "a dump ends",
    "a dump is asked for",
    "a dump waits for its turn",
    "a message is lost",
    "a new life begins",
    "a pool holds what its readers lack",
    "a position does not fit on a full disk",
    "a publisher sends again",
    "a publisher skips what its journal lost",
    "a question is not answered",
    "a range ends",
    "a range is asked for",
    "a range is too old",
    "a removed worker is forgotten on disk",
    "a replay breaks off",
    "a server has read the stream to its end",
    "a server is killed",
    "a server is killed in the middle of a checkpoint",
    "a server loses its disk",
    "a server loses the broker",
    "a server notices that the stream is another one",
    "a source expires",
    "a source goes on from a checkpoint",
    "a source of no known life is dropped",
    "a stream breaks",
    "a worker is restored",
    "a worker's lease is over",
    "an agent and its engine start again",
    "an agent cuts a dump off",
    "an answer is cut off",
    "an engine empties its cache beside its agent",
    "an exact bare engine is compared",
    "an exact source is compared",
    "an image does not fit on a full disk",
    "an image is cut between two changes",
    "an image is on disk, and nobody was told",
    "an image of changes is cut",
    "an old life is refused",
    "an uplink skips what its journal lost",
    "batches are lost, blocks are dropped",
    "batches are lost, blocks are kept",
    "blocks are shed",
    "suspect blocks are dropped",
    "messages fell off the stream before they were read",
    "the broker is killed",
    "the broker loses what it had not on disk",
    "the broker takes a message once",
    "the stream is made anew",
    "what was shed is asked for",
    "who is asked lives another life",
];

/// How often each thing happened.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Seen(BTreeMap<&'static str, u64>);

impl Seen {
    pub fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub fn merge(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    /// Those of a list that never happened.
    pub fn missing<'a>(&self, list: &[&'a str]) -> Vec<&'a str> {
        list.iter().filter(|what| !self.0.contains_key(**what)).copied().collect()
    }

    pub fn lines(&self) -> String {
        self.0.iter().map(|(what, times)| format!("{times:>9} {what}\n")).collect()
    }
}
