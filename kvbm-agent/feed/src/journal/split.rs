//! Splits a batch that exceeds one message into several.

use super::batch::{BATCH_OVERHEAD_BYTES, EVENT_OVERHEAD_BYTES, block_bytes, event_bytes};
use kvasir_proto::limits::BATCH_EVENTS_MAX;
use kvasir_proto::types::KvEvent;
use std::mem;

/// Splits events into batches of at most [`BATCH_EVENTS_MAX`] events and `bytes_max` bytes on the wire. Applied in
/// order, the batches have the effect of `events`. Without events, returns one empty batch.
pub(super) fn split(events: Vec<KvEvent>, bytes_max: usize) -> Vec<Box<[KvEvent]>> {
    let mut pieces =
        Pieces { bytes_max, bytes: BATCH_OVERHEAD_BYTES, events: vec![], done: vec![] };
    for event in events {
        pieces.add(event);
    }
    pieces.close();
    pieces.done
}

struct Pieces {
    bytes_max: usize,
    /// The batch being filled, and its bytes.
    bytes: usize,
    events: Vec<KvEvent>,
    done: Vec<Box<[KvEvent]>>,
}

impl Pieces {
    /// Adds an event to the current batch. Splits the event at the limit of bytes, and continues in the next batch.
    fn add(&mut self, mut event: KvEvent) {
        if self.events.len() >= BATCH_EVENTS_MAX {
            self.close();
        }
        loop {
            let room = self.bytes_max.saturating_sub(self.bytes);
            if event_bytes(&event) <= room {
                self.bytes += event_bytes(&event);
                self.events.push(event);
                return;
            }
            let mut fit = room.saturating_sub(EVENT_OVERHEAD_BYTES) / block_bytes(&event);
            if self.events.is_empty() {
                // Ensures progress if the limit is too small for any block.
                fit = fit.max(1);
            }
            match cut(&mut event, fit) {
                Some(rest) => {
                    self.events.push(mem::replace(&mut event, rest));
                    self.close();
                }
                // It cannot be split: a batch of its own, even above the limit.
                None if self.events.is_empty() => {
                    self.events.push(event);
                    return self.close();
                }
                // No block fits: again, in an empty batch.
                None => self.close(),
            }
        }
    }

    fn close(&mut self) {
        debug_assert!(self.events.len() <= BATCH_EVENTS_MAX, "{} events", self.events.len());
        // Omits an empty last batch. Without any events, there is one empty batch.
        if !self.events.is_empty() || self.done.is_empty() {
            self.done.push(mem::take(&mut self.events).into_boxed_slice());
        }
        self.bytes = BATCH_OVERHEAD_BYTES;
    }
}

/// Keeps the first `fit` blocks in an event, and returns the other blocks as a second event. Returns `None` if one of
/// the two would be empty.
fn cut(event: &mut KvEvent, fit: usize) -> Option<KvEvent> {
    if fit == 0 || fit >= event.operations() {
        return None;
    }
    match event {
        KvEvent::Stored { tier, blocks, .. } => {
            let rest = blocks.split_off(fit);
            blocks.shrink_to_fit();
            // The chain continues after the cut.
            let parent = blocks.last().map(|block| block.name);
            Some(KvEvent::Stored { parent, tier: *tier, blocks: rest })
        }
        KvEvent::StoredNames { tier, names } => {
            let rest = names.split_off(fit);
            names.shrink_to_fit();
            Some(KvEvent::StoredNames { tier: *tier, names: rest })
        }
        KvEvent::Removed { tier, names } => {
            let rest = names.split_off(fit);
            names.shrink_to_fit();
            Some(KvEvent::Removed { tier: *tier, names: rest })
        }
        KvEvent::Gone { tier, names } => {
            let rest = names.split_off(fit);
            names.shrink_to_fit();
            Some(KvEvent::Gone { tier: *tier, names: rest })
        }
        KvEvent::Cleared | KvEvent::ClearedTier(_) => None,
    }
}
