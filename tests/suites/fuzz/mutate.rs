//! Changes of inputs, by a seed.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Most changes of one input at a time.
const CHANGES_MAX: u32 = 6;
/// Longest stretch that is copied or removed, in bytes.
const STRETCH_BYTES_MAX: usize = 64;
/// Numbers at which things overflow or end.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, u32::MAX as u64, u64::MAX];

/// Makes inputs of those of a corpus.
pub struct Mutator<'a> {
    dice: ChaCha8Rng,
    corpus: &'a [Vec<u8>],
    bytes_max: usize,
}

impl<'a> Mutator<'a> {
    pub fn new(seed: u64, corpus: &'a [Vec<u8>], bytes_max: usize) -> Self {
        Self { dice: ChaCha8Rng::seed_from_u64(seed), corpus, bytes_max }
    }

    pub fn next(&mut self) -> Vec<u8> {
        let mut input = self.corpus.choose(&mut self.dice).cloned().unwrap_or_default();
        for _ in 0..self.dice.random_range(1..=CHANGES_MAX) {
            self.change(&mut input);
        }
        input.truncate(self.bytes_max);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.dice.random_range(0..=input.len());
        let stretch = self.dice.random_range(1..=STRETCH_BYTES_MAX);
        let end = (at + stretch).min(input.len());
        match self.dice.random_range(0..8) {
            0 => input.truncate(at),
            1 => input.insert(at, self.dice.random()),
            2 => drop(input.drain(at..end)),
            3 => {
                let copied = input[at..end].to_vec();
                let to = self.dice.random_range(0..=input.len());
                drop(input.splice(to..to, copied));
            }
            4 => {
                let other = self.corpus.choose(&mut self.dice).cloned().unwrap_or_default();
                let from = self.dice.random_range(0..=other.len());
                input.truncate(at);
                input.extend(&other[from..]);
            }
            5 => {
                let edge = EDGES.choose(&mut self.dice).copied().unwrap_or_default();
                let bytes =
                    if self.dice.random() { edge.to_le_bytes() } else { edge.to_be_bytes() };
                let width = [1, 2, 4, 8].choose(&mut self.dice).copied().unwrap_or(1);
                for (byte, new) in input[at..].iter_mut().zip(bytes.into_iter().take(width)) {
                    *byte = new;
                }
            }
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << self.dice.random_range(0..8);
                }
            }
        }
    }
}
