//! The reader of events: reconstructs the state that an index would have.

use super::Fault;
use crate::events::{Change, EventManager, Overflowed, Registration};
use crate::tier::BlockTier;
use kvasir_proto::types::SequenceHash;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Reader {
    last: u64,
    pub(super) held: BTreeMap<(BlockTier, SequenceHash), Registration>,
    pub(super) images: u64,
}

impl Reader {
    /// A reader without state, except for the number of images.
    pub(super) fn of_new_process(&self) -> Self {
        Self { images: self.images, ..Self::default() }
    }

    /// Reads at most `max` events.
    pub(super) fn read_events(&mut self, events: &EventManager, max: usize) -> Result<(), Fault> {
        let mut read = Vec::new();
        let Err(Overflowed) = events.read(max, &mut read) else {
            return read.iter().try_for_each(|event| {
                if event.number != self.last + 1 {
                    return Err(format!("event {} comes after {}", event.number, self.last));
                }
                self.last = event.number;
                let registration = event.registration;
                let key = (registration.tier, registration.identity.sequence);
                let is_new = match event.change {
                    Change::Register => self.held.insert(key, registration).is_none(),
                    Change::Remove => self.held.remove(&key) == Some(registration),
                };
                if is_new { Ok(()) } else { Err(format!("{event:?} is out of order")) }
            });
        };
        let image = events.image();
        self.images += 1;
        self.last = image.watermark;
        let key = |at: &Registration| (at.tier, at.identity.sequence);
        self.held = image.registrations.iter().map(|at| (key(at), *at)).collect();
        Ok(())
    }
}
