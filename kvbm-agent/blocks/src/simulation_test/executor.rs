//! Executor with fault injection: copies a block in pieces, with every fault that an executor can have.

use super::storage::{BLOCK_BYTES, Bytes, Header, Storage, checksum};
use crate::plan::{Failure, Outcome, Side, TransferOrder};
use crate::tier::BlockTier;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

const PIECE_BYTES: usize = 8;

/// The injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ill {
    Nothing,
    /// Fewer bytes arrive. The executor reports this, or wrongly reports `Done`.
    Short {
        is_admitted: bool,
    },
    /// A bit flips during the read.
    FlippedRead,
    /// A bit flips during the write.
    FlippedWrite,
    Fails(Failure),
}

/// A running transfer.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) order: TransferOrder,
    pub(super) is_cancelled: bool,
    buffer: Bytes,
    copied: usize,
    ill: Ill,
    /// Whether the executor checks for cancellation.
    listens: bool,
}

const fn is_memory(tier: BlockTier) -> bool {
    matches!(tier, BlockTier::Device | BlockTier::Host)
}

impl Job {
    pub(super) fn new(order: TransferOrder, ill_percent: u32, random: &mut ChaCha8Rng) -> Self {
        let is_ill = random.random_range(0..100) < ill_percent;
        let ill = match random.random_range(0..6) {
            _ if !is_ill => Ill::Nothing,
            0 => Ill::Short { is_admitted: random.random() },
            1 if order.checksum.is_some() => Ill::FlippedRead,
            2 => Ill::FlippedWrite,
            3 => Ill::Fails(Failure::NoSpace),
            4 => Ill::Fails(Failure::Io),
            _ => Ill::Short { is_admitted: false },
        };
        let listens = random.random();
        let buffer = [0; BLOCK_BYTES];
        Self { order, is_cancelled: false, buffer, copied: 0, ill, listens }
    }

    /// Copies a piece. Returns the outcome after the last one.
    pub(super) fn step(
        &mut self,
        storage: &mut Storage,
        random: &mut ChaCha8Rng,
    ) -> Option<Outcome> {
        let from = self.order.id.route.from;
        let to = self.order.id.route.to;
        if self.copied == 0 && random.random() {
            // Some storages first mark the old bytes as invalid; others are killed before they can.
            storage.at(to, self.order.destination).header = None;
        }
        if self.is_cancelled && self.listens {
            return Some(Outcome::Cancelled);
        }
        if self.copied >= BLOCK_BYTES / 2 {
            match self.ill {
                Ill::Fails(failure) => return Some(Outcome::Failed { failure }),
                Ill::Short { is_admitted } => return Some(self.short(storage, is_admitted)),
                Ill::Nothing | Ill::FlippedRead | Ill::FlippedWrite => {}
            }
        }
        let piece = self.copied..self.copied + PIECE_BYTES;
        let read = storage.at(from, self.order.source).bytes;
        self.buffer[piece.clone()].copy_from_slice(&read[piece.clone()]);
        if self.ill == Ill::FlippedRead && self.copied == 0 {
            self.buffer[3] ^= 4;
        }
        let place = storage.at(to, self.order.destination);
        place.bytes[piece.clone()].copy_from_slice(&self.buffer[piece.clone()]);
        if self.ill == Ill::FlippedWrite && self.copied == 0 {
            place.bytes[5] ^= 16;
        }
        self.copied = piece.end;
        (self.copied == BLOCK_BYTES).then(|| self.done(storage, random))
    }

    /// In memory, the written bytes are verified. On a disk, the bytes that were read, or read back.
    fn done(&self, storage: &mut Storage, random: &mut ChaCha8Rng) -> Outcome {
        let to = self.order.id.route.to;
        let place = storage.at(to, self.order.destination);
        let there = checksum(&place.bytes);
        let on_the_way = checksum(&self.buffer);
        let bytes = BLOCK_BYTES as u64;
        if is_memory(to) {
            let read = if self.order.checksum.is_none() { on_the_way } else { there };
            return Outcome::Done { bytes, read, written: there };
        }
        if self.order.checksum.is_some_and(|stated| stated != on_the_way) && random.random() {
            return Outcome::Corrupt { side: Side::Source };
        }
        // Stores the stated checksum, if any. Otherwise wrong bytes would be valid after a restart.
        let stated = self.order.checksum.unwrap_or(on_the_way);
        place.header = Some(Header { identity: self.order.identity, checksum: stated });
        let written = if random.random() { there } else { on_the_way };
        Outcome::Done { bytes, read: on_the_way, written }
    }

    fn short(&self, storage: &mut Storage, is_admitted: bool) -> Outcome {
        let bytes = self.copied as u64;
        if is_admitted {
            return Outcome::Short { bytes };
        }
        let place = storage.at(self.order.id.route.to, self.order.destination);
        let read = self.order.checksum.unwrap_or_else(|| checksum(&place.bytes[..self.copied]));
        Outcome::Done { bytes, read, written: read }
    }
}
