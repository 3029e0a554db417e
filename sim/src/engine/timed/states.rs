//! States of a model with state layers (Mamba): an engine resumes a prompt only where it kept one (pure).

use std::collections::{BTreeMap, HashMap};

/// The states that an engine keeps, by the name of the last block before each. The least recently used one goes first.
#[derive(Debug, Default)]
pub(super) struct States {
    /// Maximum number of states; 0 for a model without state layers.
    slots: usize,
    used: HashMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
    clock: u64,
}

// === impl States ===

impl States {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots, ..Self::default() }
    }

    /// Number of the leading blocks after which a prompt can be resumed. All of them, for a model without state layers.
    pub(super) fn resumable(&self, names: &[u64]) -> usize {
        if self.slots == 0 {
            return names.len();
        }
        names.iter().rposition(|name| self.used.contains_key(name)).map_or(0, |at| at + 1)
    }

    /// Marks a state as used, if it is kept.
    pub(super) fn touch(&mut self, name: u64) {
        if let Some(used) = self.used.get_mut(&name) {
            self.clock += 1;
            self.by_use.remove(used);
            *used = self.clock;
            self.by_use.insert(self.clock, name);
        }
    }

    /// Keeps the state after a block. Returns whether it is new, and the state that it replaces.
    pub(super) fn keep_state(&mut self, name: u64) -> (bool, Option<u64>) {
        if self.slots == 0 || self.used.contains_key(&name) {
            self.touch(name);
            return (false, None);
        }
        let is_full = self.used.len() >= self.slots;
        let replaced = if is_full { self.by_use.pop_first().map(|(_, name)| name) } else { None };
        replaced.iter().for_each(|name| {
            self.used.remove(name);
        });
        self.clock += 1;
        self.used.insert(name, self.clock);
        self.by_use.insert(self.clock, name);
        (true, replaced)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_resumed_at_its_last_state() {
        assert_eq!(States::default().resumable(&[1, 2, 3]), 3);
        let mut states = States::new(2);
        assert_eq!(states.resumable(&[1, 2, 3]), 0);
        assert_eq!(states.keep_state(2), (true, None));
        assert_eq!(states.keep_state(2), (false, None));
        assert_eq!(states.keep_state(9), (true, None));
        assert_eq!(states.resumable(&[1, 2, 3]), 2);
        states.touch(2);
        assert_eq!(states.keep_state(3), (true, Some(9)));
        assert_eq!(states.resumable(&[1, 2, 3]), 3);
        states.clear();
        assert_eq!(states.resumable(&[1, 2, 3]), 0);
    }
}
