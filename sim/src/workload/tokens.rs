//! Token ids as a pure function of a seed, a stream and a position.
//!
//! The text of a conversation is thus described by two numbers. Every turn's prompt is a prefix of the same stream, so
//! prompts share exactly the intended prefixes.

/// Upper bound of token ids: the vocabulary of a current model.
pub const VOCABULARY: u64 = 128_000;

/// Appends `range` of a stream of tokens to `out`.
pub fn append(seed: u64, stream: u64, range: std::ops::Range<usize>, out: &mut Vec<u32>) {
    let base = mix(seed ^ mix(stream));
    out.reserve(range.len());
    out.extend(range.map(|position| token(base, position as u64)));
}

fn token(base: u64, position: u64) -> u32 {
    // A 64-bit value scaled to the vocabulary: fits 32 bits.
    ((u128::from(mix(base.wrapping_add(position))) * u128::from(VOCABULARY)) >> 64) as u32
}

/// One round of `SplitMix64`: neighbouring inputs give unrelated outputs.
#[must_use]
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(seed: u64, stream: u64, range: std::ops::Range<usize>) -> Vec<u32> {
        let mut out = Vec::new();
        append(seed, stream, range, &mut out);
        out
    }

    #[test]
    fn a_range_is_a_part_of_its_stream() {
        assert_eq!(tokens(1, 2, 0..100)[40..60], tokens(1, 2, 40..60));
    }

    #[test]
    fn streams_and_seeds_differ() {
        assert_ne!(tokens(1, 2, 0..16), tokens(1, 3, 0..16));
        assert_ne!(tokens(1, 2, 0..16), tokens(2, 2, 0..16));
        assert_ne!(tokens(1, 2, 0..16), tokens(1, 2, 1..17));
    }

    #[test]
    fn tokens_stay_in_the_vocabulary() {
        assert!(tokens(7, 7, 0..10_000).into_iter().all(|token| u64::from(token) < VOCABULARY));
    }
}
