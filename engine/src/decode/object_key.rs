//! Parses block hashes from the object names of a shared store.
//!
//! Mooncake's master 0.3.14 publishes objects by key, without hashes. The key contains the engine's block
//! hash: vLLM's is `MODEL@…@HEX`, SGLang's is `HEX` with `_k` or `_v` and a rank. A block has one object per
//! tensor-parallel and pipeline rank, and SGLang's may have one for keys and one for values. No key states how many.

use super::values::hexadecimal;
use kvasir_proto::types::{BlockName, EngineKind};

/// Lengths, in hexadecimal digits, of the hashes in keys: 64, 128, 160 and 256 bits.
const HASH_DIGITS: [usize; 4] = [16, 32, 40, 64];

/// The hash in a key: the last run of hexadecimal digits that has the length of a hash.
pub(super) fn name_in_key(key: &str, engine: EngineKind) -> Option<BlockName> {
    let mut words = key.rsplit(|character: char| !character.is_ascii_alphanumeric());
    let is_hash = |word: &&str| {
        HASH_DIGITS.contains(&word.len()) && word.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    words.find(is_hash).and_then(|digits| hexadecimal(digits.as_bytes(), engine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_engines_contain_hashes() {
        let sha256 = "00112233445566778899aabbccddeeff00112233445566778899aabbccddee0f";
        let vllm = format!("org/model@pcp0@dcp0@pp_rank:0@tp_rank:1@{sha256}");
        let name = |key: &str, engine| name_in_key(key, engine).map(|name| name.0);
        assert_eq!(name(&vllm, EngineKind::Vllm), Some(0x8899_aabb_ccdd_ee0f));
        for suffix in ["", "_0", "__k", "_0_k", "_0_v"] {
            let key = format!("{sha256}{suffix}");
            assert_eq!(name(&key, EngineKind::Sglang), Some(0x0011_2233_4455_6677), "{key}");
        }
        for key in ["", "plain-key", "a3f1_0", "demo@1234567890@0", "model@v1"] {
            assert_eq!(name(key, EngineKind::Vllm), None, "{key}");
        }
    }
}
