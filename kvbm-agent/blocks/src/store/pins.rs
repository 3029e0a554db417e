use super::PinsExhausted;
use crate::identity::SlotId;
use std::collections::BTreeMap;
use std::time::Duration;

/// Id of a pin in one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PinId {
    deadline: Duration,
    number: u64,
}

impl PinId {
    /// Creates the id from its [parts](Self::parts).
    #[must_use]
    pub const fn of_parts(deadline: Duration, number: u64) -> Self {
        Self { deadline, number }
    }

    /// Deadline and number, for clients that send the id back later.
    #[must_use]
    pub const fn parts(&self) -> (Duration, u64) {
        (self.deadline, self.number)
    }

    /// When the pin expires.
    #[must_use]
    pub const fn deadline(&self) -> Duration {
        self.deadline
    }
}

/// References to slots that expire at a deadline.
#[derive(Debug, Default)]
pub(super) struct Pins {
    by_deadline: BTreeMap<PinId, SlotId>,
    last_number: u64,
    max: usize,
}

impl Pins {
    pub(super) fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.by_deadline.len()
    }

    /// Pins a slot until `deadline`. Fails if all pins are in use.
    pub(super) fn insert(
        &mut self,
        slot: SlotId,
        deadline: Duration,
    ) -> Result<PinId, PinsExhausted> {
        if self.by_deadline.len() >= self.max {
            return Err(PinsExhausted { max: self.max });
        }
        self.last_number += 1;
        let pin = PinId { deadline, number: self.last_number };
        self.by_deadline.insert(pin, slot);
        Ok(pin)
    }

    pub(super) fn remove(&mut self, pin: PinId) -> Option<SlotId> {
        self.by_deadline.remove(&pin)
    }

    /// Removes one expired pin.
    pub(super) fn pop_expired(&mut self, now: Duration) -> Option<SlotId> {
        let first = self.by_deadline.first_entry()?;
        (first.key().deadline <= now).then(|| first.remove())
    }
}
