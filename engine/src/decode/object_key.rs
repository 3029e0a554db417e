//! Parses block hashes from the object names of a shared store.
//!
//! Mooncake's master 0.3.14 publishes objects by key, without hashes. The key contains the engine's block
//! hash: vLLM's is `MODEL@…@HEX`, SGLang's is `HEX` with `_k` or `_v` and a rank.

use super::values::hexadecimal;
use kvasir_proto::types::{BlockName, EngineKind};

/// Lengths, in hexadecimal digits, of the hashes in keys: 64, 128, 160 and 256 bits.
const HASH_DIGITS: [usize; 4] = [16, 32, 40, 64];

/// The parsed content of an object's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObjectName {
    pub(super) name: BlockName,
    /// Whether the object has only the block's keys. Its values are a separate object, stored after it.
    pub(super) is_keys_only: bool,
}

/// The hash in a key: the last run of hexadecimal digits that has the length of a hash.
pub(super) fn name_in_key(key: &str, engine: EngineKind) -> Option<ObjectName> {
    let mut words = key.rsplit(|character: char| !character.is_ascii_alphanumeric());
    let is_hash = |word: &&str| {
        HASH_DIGITS.contains(&word.len()) && word.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    let name = words.find(is_hash).and_then(|digits| hexadecimal(digits.as_bytes(), engine))?;
    Some(ObjectName { name, is_keys_only: key.ends_with("_k") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_engines_contain_hashes() {
        let sha256 = "00112233445566778899aabbccddeeff00112233445566778899aabbccddee0f";
        let vllm = format!("org/model@pcp0@dcp0@pp_rank:0@tp_rank:1@{sha256}");
        let name = |key: &str, engine| name_in_key(key, engine).map(|object| object.name.0);
        assert_eq!(name(&vllm, EngineKind::Vllm), Some(0x8899_aabb_ccdd_ee0f));
        for (suffix, is_keys_only) in [("", false), ("_0", false), ("_k", true), ("_0_v", false)] {
            let key = format!("{sha256}{suffix}");
            let name = BlockName(0x0011_2233_4455_6677);
            let found = name_in_key(&key, EngineKind::Sglang);
            assert_eq!(found, Some(ObjectName { name, is_keys_only }), "{key}");
        }
        for key in ["", "plain-key", "a3f1_0", "demo@1234567890@0", "model@v1"] {
            assert_eq!(name(key, EngineKind::Vllm), None, "{key}");
        }
    }
}
