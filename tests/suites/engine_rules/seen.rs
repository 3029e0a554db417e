//! What runs have come across, so that a test can tell that scripts reach what they should.

use crate::prompt::Prompt;
use crate::script::Action;
use crate::subject::Standing;
use crate::wire::{Event, StatedKeys};
use kvasir_proto::types::Tier;

macro_rules! counts {
    ($($name:ident),*) => {
        /// How often each thing was seen.
        #[derive(Debug, Default, Clone, Copy)]
        pub struct Seen {
            $(pub $name: u64,)*
        }

        impl Seen {
            pub fn merge(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// What was seen less often than that.
            pub fn rarer_than(&self, least: u64) -> Vec<&'static str> {
                let all = [$((stringify!($name), self.$name)),*];
                all.into_iter().filter(|(_, count)| *count < least).map(|(name, _)| name).collect()
            }
        }
    };
}

counts!(
    answers,
    exact_answers,
    exact_hits,
    answers_that_may_be_high,
    partial_answers,
    salted_hits,
    adapter_hits,
    image_hits,
    restarts,
    tier_clears,
    clears,
    moves,
    connector_stores_without_keys,
    look_ahead_stores,
    replaced_adapters
);

impl Seen {
    pub fn note_action(&mut self, action: &Action, events: &[Event]) {
        self.replaced_adapters += u64::from(matches!(action, Action::Replace { .. }));
        for event in events {
            match event {
                Event::Cleared => self.clears += 1,
                Event::ClearedTier { .. } => self.tier_clears += 1,
                Event::Moved { .. } => self.moves += 1,
                Event::Stored(stored) => {
                    let has_keys = matches!(stored.keys, StatedKeys::ByBlock(_));
                    let is_keyless = stored.tier == Tier::Host && !has_keys;
                    self.connector_stores_without_keys += u64::from(is_keyless);
                    self.look_ahead_stores += u64::from(stored.look_ahead.is_some());
                }
                _ => {}
            }
        }
    }

    /// Notes an answer with the blocks in it, and those that the engine can reuse.
    pub fn note_answer(
        &mut self,
        prompt: &Prompt,
        standing: &Standing,
        blocks: usize,
        expected: usize,
    ) {
        let is_exact = standing.is_exact();
        let is_hit = is_exact && blocks > 0 && blocks == expected;
        self.answers += 1;
        self.exact_answers += u64::from(is_exact);
        self.partial_answers += u64::from(!is_exact && standing.is_trusted());
        self.answers_that_may_be_high += u64::from(!standing.is_trusted());
        self.exact_hits += u64::from(is_hit);
        self.salted_hits += u64::from(is_hit && prompt.salt.is_some());
        self.adapter_hits += u64::from(is_hit && prompt.adapter.is_some());
        self.image_hits += u64::from(is_hit && !prompt.images.is_empty());
    }
}
