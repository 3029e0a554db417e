//! Converts changes of the machine's cache to events of vLLM.

use crate::engine::scheduler::MAIN_GROUP;
use crate::engine::timed::CacheChange;
use crate::engine::wire::EngineEvent;
use kvasir_proto::types::Tier;

/// Maximum number of blocks in one batch, which keeps a batch below every limit on events.
pub const BATCH_BLOCKS_MAX: usize = 1_024;

/// Batches for changes of device memory, in their order. An engine in real time has no lower tiers. `request` returns the
/// tokens of a request, prompt and answer, and its salt.
#[must_use]
pub fn batches<'a>(
    changes: &[CacheChange],
    block_size: usize,
    request: impl Fn(usize) -> (&'a [u32], Option<&'a str>),
) -> Vec<Vec<EngineEvent>> {
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    let mut blocks = 0;
    let mut push = |event: EngineEvent, count: usize| {
        if blocks + count > BATCH_BLOCKS_MAX {
            batches.push(std::mem::take(&mut batch));
            blocks = 0;
        }
        batch.push(event);
        blocks += count;
    };
    for change in changes {
        match change {
            CacheChange::Removed { tier: Tier::Device, name, remaining } => {
                let name = *name;
                let remaining = *remaining;
                push(EngineEvent::Removed { group: MAIN_GROUP, name, remaining }, 1);
            }
            CacheChange::Stored { tier: Tier::Device, id, first, names, parent } => {
                let mut first = *first;
                let mut parent = *parent;
                let (all, salt) = request(*id);
                for names in names.chunks(BATCH_BLOCKS_MAX) {
                    let end = first + names.len();
                    let tokens = all[first * block_size..end * block_size].to_vec();
                    let salt = salt.map(str::to_owned);
                    let group = MAIN_GROUP;
                    let names = names.to_vec();
                    let count = names.len();
                    let last = names.last().copied();
                    push(EngineEvent::Stored { group, names, parent, tokens, salt }, count);
                    (first, parent) = (end, last);
                }
            }
            CacheChange::Stored { .. }
            | CacheChange::Removed { .. }
            | CacheChange::StateStored { .. }
            | CacheChange::StateRemoved { .. } => {}
        }
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_prompt_is_cut_into_batches_that_continue_each_other() {
        let tokens: Vec<u32> = (0..5_000).collect();
        let names: Vec<u64> = (100..2_600).collect();
        let stored =
            CacheChange::Stored { tier: Tier::Device, id: 7, first: 0, names, parent: None };
        let removed = CacheChange::Removed { tier: Tier::Device, name: 9, remaining: 1 };
        let batches = batches(&[removed, stored], 2, |id| {
            assert_eq!(id, 7);
            (&tokens, None)
        });
        let lens: Vec<_> = batches.iter().map(Vec::len).collect();
        assert_eq!(lens, [1, 1, 1, 1], "the removal does not fit beside 1,024 blocks");
        let EngineEvent::Stored { names, parent, tokens: part, .. } = &batches[2][0] else {
            panic!("{:?}", batches[2])
        };
        assert_eq!((names[0], *parent), (1_124, Some(1_123)));
        assert_eq!(*part, tokens[2_048..4_096]);
    }
}
