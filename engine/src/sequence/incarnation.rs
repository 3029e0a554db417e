use kvasir_proto::types::{Fingerprint, Incarnation};
use xxhash_rust::xxh3::xxh3_128;

/// Upper bits that only ids of stated incarnations have. A checkpoint persists only the id.
const STATED: u128 = 0x7374_6174 << 96;
const STATED_MASK: u128 = 0xffff_ffff << 96;

/// Id of an incarnation that a publisher states with every batch. The same bytes give the same id on every
/// server and after a restart. Empty or all-zero bytes state no incarnation.
pub fn stated(epoch: &[u8]) -> Option<Incarnation> {
    let states = epoch.iter().any(|&byte| byte != 0);
    states.then(|| Incarnation(STATED | xxh3_128(epoch) & !STATED_MASK))
}

/// Whether the publisher stated this incarnation.
pub(super) const fn is_stated(incarnation: Incarnation) -> bool {
    incarnation.0 & STATED_MASK == STATED
}

/// Id of an incarnation that the publisher did not state.
const fn derived(hash: u128) -> Incarnation {
    let id = Incarnation(hash);
    let id = if is_stated(id) { Incarnation(!hash) } else { id };
    debug_assert!(!is_stated(id), "only a statement makes a stated id");
    id
}

/// Id of the incarnation with this first applied batch. The same batch gives the same id on every server.
pub(super) fn of_first_batch(sequence: u64, fingerprint: Fingerprint) -> Incarnation {
    let mut bytes = [0_u8; 24];
    let (head, tail) = bytes.split_at_mut(8);
    let (middle, tail) = tail.split_at_mut(8);
    head.copy_from_slice(&sequence.to_le_bytes());
    middle.copy_from_slice(&fingerprint.ts_bits.to_le_bytes());
    tail.copy_from_slice(&fingerprint.payload_hash.to_le_bytes());
    derived(xxh3_128(&bytes))
}
