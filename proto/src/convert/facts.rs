//! Facts about an engine in a registration.

use super::ConvertError;
use super::shared::check_range;
use crate::limits::{BLOCK_SIZE_TOKENS_MAX, QUERY_TOKENS_MAX};
use crate::pb;
use crate::types::EngineFacts;

/// Reads the facts of a registration. Without a message, none applies.
pub(super) fn read_engine_facts(
    stated: Option<&pb::EngineFacts>,
) -> Result<EngineFacts, ConvertError> {
    let Some(stated) = stated else { return Ok(EngineFacts::default()) };
    let prompt = QUERY_TOKENS_MAX as u64;
    let block = u64::from(BLOCK_SIZE_TOKENS_MAX);
    for (field, value, most) in [
        ("attention_chunk_tokens", stated.attention_chunk_tokens, prompt),
        ("replay_tokens", stated.replay_tokens, prompt),
        ("prefix_match_unit", stated.prefix_match_unit, block),
    ] {
        check_range(field, value.into(), 0, most).map_err(|error| error.within("engine_facts"))?;
    }
    Ok(EngineFacts {
        attention_chunk_tokens: stated.attention_chunk_tokens,
        eagle_drops_block: stated.eagle_drops_block,
        replay_tokens: stated.replay_tokens,
        prefix_match_unit: stated.prefix_match_unit,
        unannounced_groups: stated.unannounced_groups,
    })
}

/// Encodes facts. Without any fact, there is no message.
pub(super) fn engine_facts(facts: &EngineFacts) -> Option<pb::EngineFacts> {
    let message = pb::EngineFacts {
        attention_chunk_tokens: facts.attention_chunk_tokens,
        eagle_drops_block: facts.eagle_drops_block,
        replay_tokens: facts.replay_tokens,
        prefix_match_unit: facts.prefix_match_unit,
        unannounced_groups: facts.unannounced_groups,
    };
    (*facts != EngineFacts::default()).then_some(message)
}

/// The first fact in which two registrations differ, with both values as text.
pub(super) fn difference(
    mine: &EngineFacts,
    theirs: &EngineFacts,
) -> Option<(&'static str, String, String)> {
    let facts = |of: &EngineFacts| {
        [
            ("engine_facts.attention_chunk_tokens", of.attention_chunk_tokens.to_string()),
            ("engine_facts.eagle_drops_block", of.eagle_drops_block.to_string()),
            ("engine_facts.replay_tokens", of.replay_tokens.to_string()),
            ("engine_facts.prefix_match_unit", of.prefix_match_unit.to_string()),
            ("engine_facts.unannounced_groups", of.unannounced_groups.to_string()),
        ]
    };
    let pairs = facts(mine).into_iter().zip(facts(theirs));
    let mut differing = pairs.filter(|((_, mine), (_, theirs))| mine != theirs);
    differing.next().map(|((field, mine), (_, theirs))| (field, mine, theirs))
}
