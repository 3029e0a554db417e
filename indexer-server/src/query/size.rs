//! Estimates the cost of a query before the server answers it.

use crate::partitions::Partition;
use kvasir_proto::convert::{FindQuery, QueryInput};

/// Upper limits of a small query. A pure rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Small {
    /// Maximum work, in units of about 0.1 us.
    work: usize,
    /// Maximum number of ranks in the answer.
    pub(super) matches: usize,
}

/// Queries within these limits take at most a millisecond and are answered immediately. Larger queries wait for a
/// permit.
pub(super) const SMALL: Small = Small { work: 8_192, matches: 4_096 };

/// Tokens hashed per unit of work.
const UNIT_TOKENS: usize = 32;
/// Ranks listed per unit of work.
const UNIT_LISTED: usize = 8;
/// Ranks per unit of work whose sets of holders are compared, for one block.
const UNIT_COMPARED: usize = 16_384;
/// Pools per unit of work that are searched in one set of holders.
const UNIT_POOLS: usize = 8;
/// Ranks per unit of work in which one name is looked up, where ranks have their own names.
const UNIT_NAMES: usize = 8;

/// Blocks of a prompt per unit of work that are checked in one rank with several KV-cache groups. A prompt of 512 blocks
/// takes 2 to 3 us for each.
const UNIT_GROUPED: usize = 16;

impl Small {
    pub(super) fn are_exceeded(self, query: &FindQuery, partition: &Partition) -> bool {
        let fleet = Fleet {
            ranks: partition.ranks(),
            grouped_ranks: partition.grouped_ranks(),
            pools: usize::try_from(partition.pools()).unwrap_or(usize::MAX),
        };
        self.is_answer_larger(query, fleet.ranks)
            || work(query, partition.block_size(), fleet) > self.work
    }

    /// Whether the answer is known to have more ranks than allowed.
    fn is_answer_larger(self, query: &FindQuery, ranks: usize) -> bool {
        let asked_for = query.top_k.unwrap_or(usize::MAX);
        let is_filtered = query.workers.is_some();
        query.minimum_overlap_blocks == 0 && !is_filtered && ranks.min(asked_for) > self.matches
    }
}

/// The ranks and pools that a query compares.
#[derive(Debug, Clone, Copy, Default)]
struct Fleet {
    ranks: usize,
    /// The part of `ranks` with several KV-cache groups.
    grouped_ranks: usize,
    pools: usize,
}

/// Estimates the maximum work of a query for a fleet.
fn work(query: &FindQuery, block_size: u32, fleet: Fleet) -> usize {
    let Fleet { ranks, grouped_ranks, pools } = fleet;
    let block_tokens = usize::try_from(block_size).unwrap_or(usize::MAX).max(1);
    let (tokens, blocks, names) = match &query.input {
        QueryInput::Tokens { tokens, .. } => (tokens.count(), tokens.count() / block_tokens, 0),
        QueryInput::Locals(locals) => (0, locals.len(), 0),
        QueryInput::Names(names) => (0, names.len(), names.len()),
    };
    // For each block, pools are searched, and the ranks that read each pool are compared, too.
    let pools = if query.shared { pools } else { 0 };
    tokens / UNIT_TOKENS
        + ranks / UNIT_LISTED
        + blocks.saturating_mul(ranks).saturating_mul(pools.saturating_add(1)) / UNIT_COMPARED
        + blocks.saturating_mul(pools) / UNIT_POOLS
        + names.saturating_mul(ranks) / UNIT_NAMES
        + blocks.saturating_mul(grouped_ranks) / UNIT_GROUPED
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::types::{BlockName, LocalHash, PartitionKey, TierSet};

    fn fleet(ranks: usize, pools: usize) -> Fleet {
        Fleet { ranks, pools, ..Fleet::default() }
    }

    fn query(input: QueryInput) -> FindQuery {
        FindQuery {
            partition: PartitionKey::new("m", "").expect("a short name"),
            block_size: None,
            input,
            tiers: TierSet::ALL,
            workers: None,
            minimum_overlap_blocks: 1,
            top_k: None,
            shared: false,
            next_tokens: None,
            explain: false,
            prompt_tokens: None,
        }
    }

    #[test]
    fn prompts_of_large_fleets_are_small_and_names_of_many_ranks_are_not() {
        let locals = |blocks| query(QueryInput::Locals(vec![LocalHash(1); blocks]));
        // A prompt of 128 Ki tokens, 4,096 ranks.
        assert!(work(&locals(8_192), 16, fleet(4_096, 64)) < SMALL.work);
        assert!(work(&locals(1), 16, fleet(200_000, 0)) > SMALL.work);
        let names = |names| query(QueryInput::Names(vec![BlockName(1); names]));
        assert!(work(&names(64), 16, fleet(512, 0)) < SMALL.work);
        assert!(work(&names(7_000), 16, fleet(64, 0)) > SMALL.work);
    }

    #[test]
    fn long_prompts_are_large_for_many_ranks_with_several_groups() {
        let locals = query(QueryInput::Locals(vec![LocalHash(1); 512]));
        let grouped =
            |grouped_ranks| work(&locals, 16, Fleet { grouped_ranks, ..fleet(grouped_ranks, 0) });
        assert!(grouped(200) < SMALL.work);
        assert!(grouped(400) > SMALL.work);
    }

    #[test]
    fn long_prompts_with_many_pools_are_large() {
        let shared = |pools, ranks| {
            let locals = QueryInput::Locals(vec![LocalHash(1); 8_192]);
            work(&FindQuery { shared: true, ..query(locals) }, 16, fleet(ranks, pools))
        };
        assert!(shared(1, 4_096) < SMALL.work);
        assert!(shared(64, 4_096) > SMALL.work);
        assert!(shared(64, 64) > SMALL.work);
    }

    #[test]
    fn answers_with_all_ranks_are_large_where_these_are_many() {
        let mut all = query(QueryInput::Locals(vec![LocalHash(1)]));
        assert!(!SMALL.is_answer_larger(&all, 100_000), "as many as hold the first block");
        all.minimum_overlap_blocks = 0;
        assert!(SMALL.is_answer_larger(&all, SMALL.matches + 1));
        assert!(!SMALL.is_answer_larger(&all, SMALL.matches));
        all.top_k = Some(10);
        assert!(!SMALL.is_answer_larger(&all, 100_000));
    }
}
