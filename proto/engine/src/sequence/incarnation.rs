use kvasir_proto::types::{Fingerprint, Incarnation};
use xxhash_rust::xxh3::xxh3_128;

/// Id of the life of which this is the first batch applied. The same batch gives the same id on
/// every server.
pub(super) fn of_first_batch(sequence: u64, fingerprint: Fingerprint) -> Incarnation {
    let mut bytes = [0_u8; 24];
    let (head, tail) = bytes.split_at_mut(8);
    let (middle, tail) = tail.split_at_mut(8);
    head.copy_from_slice(&sequence.to_le_bytes());
    middle.copy_from_slice(&fingerprint.ts_bits.to_le_bytes());
    tail.copy_from_slice(&fingerprint.payload_hash.to_le_bytes());
    Incarnation(xxh3_128(&bytes))
}
