use super::tree::{PlaceId, Tree};
use kvasir_proto::convert::{
    StorageBatch, StorageChange, StorageContent, StorageImagePart, WorkerAddress,
};
use kvasir_proto::types::Incarnation;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How far a place is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamState {
    /// Batches are missing: an image is needed.
    Lacking,
    /// An image is on its way.
    Imaging,
    /// All is known that was published.
    Exact,
}

impl StreamState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Lacking, Self::Imaging, Self::Exact];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lacking => "lacking",
            Self::Imaging => "imaging",
            Self::Exact => "exact",
        }
    }
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It was the next one.
    Taken,
    /// It was seen before, or a later one was.
    Stale,
    /// Others are missing before it, so it was left out: an image is needed.
    Gap,
    /// There are too many places.
    Refused,
}

#[derive(Debug)]
struct Stream {
    incarnation: Incarnation,
    /// Number of the next batch.
    next: u64,
    state: StreamState,
    heard: Duration,
    /// When an image was last asked for.
    asked: Option<Duration>,
}

/// The batches of all places, in the order of their numbers.
#[derive(Debug, Default)]
pub struct Streams {
    streams: BTreeMap<PlaceId, Stream>,
}

impl Streams {
    /// Takes a batch into the tree.
    pub fn apply(&mut self, tree: &mut Tree, batch: &StorageBatch, now: Duration) -> Applied {
        let Some(place) = tree.place(&batch.address, &batch.location) else {
            return Applied::Refused;
        };
        let stream = self.streams.entry(place).or_insert_with(|| Stream {
            incarnation: batch.incarnation,
            next: 1,
            state: StreamState::Lacking,
            heard: now,
            asked: None,
        });
        stream.heard = now;
        // A late message of an earlier run brings that back, until the next sign of life of the present one.
        if stream.incarnation != batch.incarnation {
            stream.begin(batch.incarnation);
        }
        if batch.sequence < stream.next {
            return Applied::Stale;
        }
        let is_next = batch.sequence == stream.next;
        stream.next = batch.sequence.saturating_add(1);
        let state = stream.state;
        stream.state = match &batch.content {
            StorageContent::Image(part)
                if part.begins || (is_next && state == StreamState::Imaging) =>
            {
                take_part(tree, place, part, now)
            }
            StorageContent::Changes(changes) if is_next && state == StreamState::Exact => {
                take_changes(tree, place, changes, now);
                StreamState::Exact
            }
            StorageContent::Image(_) | StorageContent::Changes(_) => StreamState::Lacking,
        };
        if stream.state == StreamState::Lacking { Applied::Gap } else { Applied::Taken }
    }

    /// The workers that must be asked for images at `now`: those that lack batches and were not asked within `interval`. They
    /// count as asked.
    pub fn due_requests(
        &mut self,
        tree: &Tree,
        now: Duration,
        interval: Duration,
    ) -> BTreeSet<WorkerAddress> {
        let has_room = tree.has_room(tree.len());
        let mut workers = BTreeSet::new();
        for (place, stream) in &mut self.streams {
            let is_lacking = match stream.state {
                StreamState::Lacking => true,
                // What there was no room for is asked for once there is.
                StreamState::Exact => has_room && tree.is_partial(*place),
                StreamState::Imaging => false,
            };
            let was_asked = stream.asked.is_some_and(|at| now.saturating_sub(at) < interval);
            if is_lacking && !was_asked {
                stream.asked = Some(now);
                workers.extend(tree.view(*place).map(|at| at.address.clone()));
            }
        }
        workers
    }

    /// Forgets places that gave no sign of life for `timeout`. Returns how many.
    pub fn expire(&mut self, tree: &mut Tree, now: Duration, timeout: Duration) -> usize {
        let silent = |stream: &Stream| now.saturating_sub(stream.heard) > timeout;
        let gone = self.streams.iter().filter(|(_, stream)| silent(stream));
        let gone: Vec<_> = gone.map(|(place, _)| *place).collect();
        for place in &gone {
            tree.forget(*place);
            self.streams.remove(place);
        }
        gone.len()
    }

    /// How far a place is known.
    #[must_use]
    pub fn state(&self, place: PlaceId) -> Option<StreamState> {
        self.streams.get(&place).map(|stream| stream.state)
    }

    /// Places in a state.
    #[must_use]
    pub fn count(&self, state: StreamState) -> usize {
        self.streams.values().filter(|stream| stream.state == state).count()
    }
}

impl Stream {
    /// The publisher began anew: what it had stays until its first image.
    fn begin(&mut self, incarnation: Incarnation) {
        (self.incarnation, self.next, self.state) = (incarnation, 1, StreamState::Lacking);
        self.asked = None;
    }
}

fn take_part(
    tree: &mut Tree,
    place: PlaceId,
    part: &StorageImagePart,
    now: Duration,
) -> StreamState {
    if part.begins {
        tree.begin_image(place);
    }
    part.blocks.iter().for_each(|block| tree.restore(place, block, now));
    if part.ends {
        tree.end_image(place);
        return StreamState::Exact;
    }
    StreamState::Imaging
}

fn take_changes(tree: &mut Tree, place: PlaceId, changes: &[StorageChange], now: Duration) {
    for change in changes {
        match change {
            StorageChange::Store(block) => tree.store(place, block, now),
            StorageChange::Remove(block) => tree.remove(place, block.sequence.0),
        }
    }
}

#[cfg(test)]
#[path = "streams_test.rs"]
mod tests;
