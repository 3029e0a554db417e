//! Priority queue of placements by end time: a heap in which every placement stores its own place.
#![expect(clippy::indexing_slicing, reason = "places are places of the heap")]

use super::pages::{NONE, Pages};
use crate::table::index_u32;

/// End time of a placement in nanoseconds since the origin, then the number of its recording. Unique.
pub(super) type Key = (u64, u64);

/// One recorded prompt at one holder: the last `owned` blocks of the path to `leaf`. Earlier blocks of the
/// path were recorded again by a placement that ends later.
#[derive(Debug, Default)]
pub(super) struct Placement {
    pub(super) holder: u32,
    pub(super) leaf: u32,
    pub(super) owned: u32,
    pub(super) key: Key,
    /// Links of the list of the holder's placements.
    pub(super) previous: u32,
    pub(super) next: u32,
    place: u32,
}

impl Placement {
    pub(super) const fn new(holder: u32, key: Key) -> Self {
        Self { holder, leaf: NONE, owned: 0, key, previous: NONE, next: NONE, place: NONE }
    }
}

/// The heap, with the placement that ends first at its top.
#[derive(Debug, Default)]
pub(super) struct Queue(Vec<u32>);

impl Queue {
    pub(super) fn first(&self) -> Option<u32> {
        self.0.first().copied()
    }

    pub(super) fn push(&mut self, placements: &mut Pages<Placement>, number: u32) {
        self.0.push(number);
        let last = self.0.len() - 1;
        placements[number].place = index_u32(last);
        self.rise(placements, last);
    }

    /// Removes a placement from the heap.
    pub(super) fn remove(&mut self, placements: &mut Pages<Placement>, number: u32) {
        let place = placements[number].place as usize;
        self.0.swap_remove(place);
        if let Some(&moved) = self.0.get(place) {
            placements[moved].place = index_u32(place);
            self.rise(placements, place);
            self.sink(placements, placements[moved].place as usize);
        }
        if self.0.len() * 4 <= self.0.capacity() {
            self.0.shrink_to_fit();
        }
    }

    /// Sifts an entry up the heap.
    fn rise(&mut self, placements: &mut Pages<Placement>, mut place: usize) {
        while place > 0 {
            let above = (place - 1) / 2;
            if placements[self.0[above]].key <= placements[self.0[place]].key {
                return;
            }
            self.swap(placements, place, above);
            place = above;
        }
    }

    /// Sifts an entry down the heap.
    fn sink(&mut self, placements: &mut Pages<Placement>, mut place: usize) {
        loop {
            let below = place * 2 + 1..(place * 2 + 3).min(self.0.len());
            let Some(least) = below.min_by_key(|&at| placements[self.0[at]].key) else { return };
            if placements[self.0[place]].key <= placements[self.0[least]].key {
                return;
            }
            self.swap(placements, place, least);
            place = least;
        }
    }

    fn swap(&mut self, placements: &mut Pages<Placement>, a: usize, b: usize) {
        self.0.swap(a, b);
        placements[self.0[a]].place = index_u32(a);
        placements[self.0[b]].place = index_u32(b);
    }

    pub(super) const fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<u32>()
    }

    /// Checks that every placement stores its place, and ends no earlier than the one above it.
    pub(super) fn validate(&self, placements: &Pages<Placement>) -> Result<(), String> {
        if self.0.len() != placements.used() {
            return Err(format!("{} queued of {}", self.0.len(), placements.used()));
        }
        for (place, &number) in self.0.iter().enumerate() {
            let placement = &placements[number];
            let above = self.0[place.saturating_sub(1) / 2];
            if placement.place as usize != place || placements[above].key > placement.key {
                return Err(format!("placement {number} is out of order"));
            }
        }
        Ok(())
    }
}
