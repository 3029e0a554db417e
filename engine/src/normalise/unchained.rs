//! Detects SGLang before 0.5.6, which names a block by a Python `hash()` of its own tokens.
//!
//! Such a name does not cover the prefix: a page of text has the same name in every prompt. Names, parents
//! and removals of different blocks are mixed up, so the source is rejected. The layout does not show the
//! version: 0.5.6 to 0.5.8 send the same one, with chained names. The hash does: CPython's hash of a tuple of
//! integers is the same in every process. This module computes it and compares. Version 0.4 also gives root
//! blocks the hash of the empty tuple as their parent.

use kvasir_proto::types::BlockName;

const PRIME_1: u64 = 11_400_714_785_074_694_791;
const PRIME_2: u64 = 14_029_467_366_897_019_727;
const PRIME_5: u64 = 2_870_177_450_012_600_261;
/// CPython returns this instead of −1, which signals an error.
const INSTEAD_OF_MINUS_ONE: u64 = 1_546_275_796;

/// `hash(tuple(tokens))` of CPython 3.8 and later on 64 bits, for little-endian u32 tokens.
fn tuple_hash(tokens_le: &[u8]) -> u64 {
    let (tokens, _) = tokens_le.as_chunks::<4>();
    let lanes = tokens.iter().map(|token| u64::from(u32::from_le_bytes(*token)));
    let mixed = lanes.fold(PRIME_5, |hash, lane| {
        hash.wrapping_add(lane.wrapping_mul(PRIME_2)).rotate_left(31).wrapping_mul(PRIME_1)
    });
    let length = u64::try_from(tokens.len()).unwrap_or(u64::MAX);
    let hash = mixed.wrapping_add(length ^ (PRIME_5 ^ 3_527_539));
    if hash == u64::MAX { INSTEAD_OF_MINUS_ONE } else { hash }
}

/// Whether a stored block's name or parent shows that names are not chained. `tokens_le` are the block's
/// tokens.
pub(super) fn is_unchained(parent: Option<BlockName>, name: BlockName, tokens_le: &[u8]) -> bool {
    parent == Some(BlockName(tuple_hash(&[]))) || name == BlockName(tuple_hash(tokens_le))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens_le(tokens: &[u32]) -> Vec<u8> {
        tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
    }

    #[test]
    fn hashes_as_python_does() {
        let check = |tokens: &[u32], hash: i64| {
            assert_eq!(tuple_hash(&tokens_le(tokens)), hash.cast_unsigned(), "{tokens:?}");
        };
        // Printed by CPython 3.
        check(&[], 5_740_354_900_026_072_187);
        check(&[5], -7_813_438_383_599_366_905);
        check(&[1, 2, 3, 4], 590_899_387_183_067_792);
        check(&[2001, 2002, 2003, 2004], 6_604_420_136_538_268_996);
    }

    #[test]
    fn only_names_of_the_tokens_alone_are_unchained() {
        let tokens = tokens_le(&[1, 2, 3, 4]);
        let name = BlockName(590_899_387_183_067_792);
        let empty = BlockName(5_740_354_900_026_072_187);
        assert!(is_unchained(None, name, &tokens));
        assert!(is_unchained(Some(empty), BlockName(1), &tokens));
        assert!(!is_unchained(None, BlockName(1), &tokens));
        assert!(!is_unchained(Some(name), BlockName(2), &tokens));
    }
}
