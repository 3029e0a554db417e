use super::tree::{PlaceId, Tree};
use kvasir_proto::convert::{
    StorageBatch, StorageChange, StorageContent, StorageImagePart, WorkerAddress,
};
use kvasir_proto::types::Incarnation;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How completely a place is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamState {
    /// Batches are missing: an image is needed.
    Lacking,
    /// An image is in transit.
    Imaging,
    /// All published batches were applied.
    Exact,
}

impl StreamState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Lacking, Self::Imaging, Self::Exact];

    /// Name of the state, in metrics and `/tree`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lacking => "lacking",
            Self::Imaging => "imaging",
            Self::Exact => "exact",
        }
    }
}

/// Outcome of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// The batch was applied.
    Taken,
    /// This batch, or a later one, was seen before.
    Stale,
    /// Earlier batches are missing, so this one was skipped: an image is needed.
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
    /// When an image was last requested.
    asked: Option<Duration>,
}

/// Applies the batches of all places in the order of their numbers.
#[derive(Debug, Default)]
pub struct Streams {
    streams: BTreeMap<PlaceId, Stream>,
}

impl Streams {
    /// Applies a batch to the tree.
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
        // A late message of an earlier run brings its incarnation back, until the current run's next message.
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

    /// Workers from which to request images at `now`: they lack batches, and were not asked within `interval`. Marks
    /// them as asked.
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
                // Blocks refused for lack of room are requested once there is room.
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

    /// Drops places that sent no message for `timeout`. Returns their number.
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

    /// How completely a place is known; `None` if it is unknown.
    #[must_use]
    pub fn state(&self, place: PlaceId) -> Option<StreamState> {
        self.streams.get(&place).map(|stream| stream.state)
    }

    /// Number of places in a state.
    #[must_use]
    pub fn count(&self, state: StreamState) -> usize {
        self.streams.values().filter(|stream| stream.state == state).count()
    }
}

impl Stream {
    /// Begins the publisher's new incarnation. The place's blocks stay until the first image.
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
