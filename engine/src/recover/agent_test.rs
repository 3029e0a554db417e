//! The agent of the model: the incarnations ("lives") of its source, their content, and its answers to
//! rounds.

use super::{Ask, Item};
use kvasir_proto::types::Incarnation;
use std::collections::{BTreeMap, VecDeque};

/// Effect of a batch of the model on one of a few names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Adds one copy.
    Add(u8),
    /// Removes one copy.
    Take(u8),
    /// Removes all copies of all names.
    Clear,
}

/// Copies by name; never 0.
pub(super) type Copies = BTreeMap<u8, u32>;

/// One batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) life: usize,
    pub(super) sequence: u64,
    pub(super) kind: Kind,
}

impl Item for Token {
    fn bytes(&self) -> usize {
        10
    }
}

/// A part of a dump: absolute state of some names.
pub(super) type Chunk = Vec<(u8, u32)>;

/// One message of an answer.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    Batch(Token),
    RangeEnd(Option<u64>),
    Gone,
    OtherIncarnation(usize),
    Chunk(Chunk),
    DumpEnd(usize, Option<u64>),
    Failed,
}

/// One life of the agent.
#[derive(Debug, Clone)]
pub(super) struct Life {
    pub(super) first: u64,
    pub(super) batches: Vec<Kind>,
}

impl Life {
    pub(super) fn newest(&self) -> Option<u64> {
        (self.first + self.batches.len() as u64).checked_sub(1).filter(|_| !self.batches.is_empty())
    }

    /// Copies after batch `upto`.
    pub(super) fn truth(&self, upto: Option<u64>) -> Copies {
        let count = upto.map_or(0, |upto| upto + 1 - self.first);
        let mut copies = Copies::new();
        let batches = self.batches.iter().take(usize::try_from(count).unwrap());
        batches.for_each(|kind| change(&mut copies, *kind));
        copies
    }
}

pub(super) fn incarnation(life: usize) -> Incarnation {
    Incarnation(1_000 + life as u128)
}

pub(super) fn life_of(incarnation: Incarnation) -> usize {
    usize::try_from(incarnation.0 - 1_000).unwrap()
}

pub(super) fn change(copies: &mut Copies, kind: Kind) {
    match kind {
        Kind::Add(name) => *copies.entry(name).or_default() += 1,
        Kind::Take(name) => {
            if let Some(count) = copies.get_mut(&name) {
                *count -= 1;
            }
            copies.retain(|_, count| *count > 0);
        }
        Kind::Clear => copies.clear(),
    }
}

/// Answers a round. A dump may have begun `early` batches ago.
pub(super) fn serve(lives: &[Life], journal_max: usize, ask: Ask, early: u64) -> VecDeque<Reply> {
    let at = lives.len() - 1;
    let life = lives.last().unwrap();
    match ask {
        Ask::Range { incarnation, .. } | Ask::Dump { incarnation }
            if incarnation != self::incarnation(at) =>
        {
            VecDeque::from([Reply::OtherIncarnation(at)])
        }
        Ask::Range { from, .. } => serve_range(at, life, journal_max, from),
        Ask::Dump { .. } => serve_dump(at, life, early),
    }
}

fn serve_range(at: usize, life: &Life, journal_max: usize, from: u64) -> VecDeque<Reply> {
    let Some(newest) = life.newest() else { return VecDeque::from([Reply::RangeEnd(None)]) };
    let from = from.max(life.first);
    let oldest = (newest + 1).saturating_sub(journal_max as u64).max(life.first);
    if from < oldest || from > newest + 1 {
        return VecDeque::from([Reply::Gone]);
    }
    let batch = |sequence: u64| {
        let kind = life.batches[usize::try_from(sequence - life.first).unwrap()];
        Reply::Batch(Token { life: at, sequence, kind })
    };
    (from..=newest).map(batch).chain([Reply::RangeEnd(Some(newest))]).collect()
}

/// The copies at some moment, in chunks, then the changes up to the watermark.
fn serve_dump(at: usize, life: &Life, early: u64) -> VecDeque<Reply> {
    let back = |from: Option<u64>, by: u64| {
        from.and_then(|from| from.checked_sub(by)).filter(|from| *from >= life.first)
    };
    let watermark = back(life.newest(), early);
    let before = life.truth(back(watermark, 2));
    let after = life.truth(watermark);
    let scanned = before.iter().map(|(name, count)| Reply::Chunk(vec![(*name, *count)]));
    let of = |copies: &Copies, name| copies.get(&name).copied().unwrap_or_default();
    let tail = (0..=u8::MAX).filter(|name| of(&before, *name) != of(&after, *name));
    let tail: Chunk = tail.map(|name| (name, of(&after, name))).collect();
    let tail = Some(Reply::Chunk(tail.clone())).filter(|_| !tail.is_empty());
    scanned.chain(tail).chain([Reply::DumpEnd(at, watermark)]).collect()
}
