//! Tests every golden payload cut at every length and with every byte changed: the result is always a value,
//! in bounded memory.

use crate::frames::frames;
use kvasir_engine::decode::{Batch, EngineKind, PerBlock, RawEvent, RawTokens, decode};
use kvasir_engine::normalise::{Normaliser, NormaliserConfig};
use std::collections::BTreeMap;

/// Maximum memory of a batch per byte of its payload.
const BYTES_PER_PAYLOAD_BYTE: usize = 100;

fn per_block_bytes(list: Option<&PerBlock<'_>>) -> usize {
    list.map_or(0, |list| list.keys.capacity() * 32)
}

fn held_bytes(batch: &Batch<'_>) -> usize {
    let own = |event: &RawEvent<'_>| match event {
        RawEvent::Stored(stored) | RawEvent::StoredObject(stored) => {
            let tokens = match &stored.tokens {
                RawTokens::Ids(ids_le) => ids_le.capacity(),
                RawTokens::Wide(ids_le) => ids_le.capacity(),
                RawTokens::Pairs => 0,
            };
            size_of_val(&**stored)
                + stored.names.capacity() * 8
                + tokens
                + per_block_bytes(stored.extra_keys.as_ref())
                + per_block_bytes(stored.multimodal.as_ref())
        }
        RawEvent::Removed(removed) => removed.names.capacity() * 8,
        RawEvent::Moved(moved) => moved.names.capacity() * 8,
        RawEvent::Cleared(_)
        | RawEvent::Unknown(_)
        | RawEvent::Unnamed
        | RawEvent::Unreadable(_) => 0,
    };
    batch.events.capacity() * size_of::<RawEvent<'_>>()
        + batch.events.iter().map(own).sum::<usize>()
}

/// The distinct payloads; many versions send the same bytes.
fn payloads() -> BTreeMap<Vec<u8>, EngineKind> {
    frames().into_iter().map(|frame| (frame.payload, frame.engine)).collect()
}

fn normaliser(engine: EngineKind) -> Normaliser {
    Normaliser::new(NormaliserConfig::new(engine, 4))
}

/// Decodes and normalises. Returns `true` if it was a batch.
fn digest(payload: &[u8], engine: EngineKind, normaliser: &mut Normaliser) -> bool {
    let Ok(batch) = decode(payload, engine) else {
        return false;
    };
    let held = held_bytes(&batch);
    assert!(
        held <= payload.len() * BYTES_PER_PAYLOAD_BYTE,
        "{held} bytes held of {}: {payload:02x?}",
        payload.len()
    );
    let out = normaliser.normalise(batch);
    // An adapter's new number drops blocks of earlier batches.
    let kept: usize = out.events.iter().map(|e| e.operations()).sum();
    assert!(
        kept <= payload.len() || out.renumbered_adapters > 0,
        "{kept} operations from {payload:02x?}"
    );
    true
}

#[test]
fn every_truncation_is_an_error() {
    for (payload, engine) in payloads() {
        let mut normaliser = normaliser(engine);
        for length in 0..payload.len() {
            assert!(
                !digest(&payload[..length], engine, &mut normaliser),
                "{length}: {payload:02x?}"
            );
        }
        assert!(digest(&payload, engine, &mut normaliser), "{payload:02x?}");
    }
}

#[test]
fn every_changed_byte_is_a_value_or_an_error() {
    let mut batches = 0_u64;
    let mut errors = 0_u64;
    for (payload, engine) in payloads() {
        let mut normaliser = normaliser(engine);
        let mut changed = payload.clone();
        for at in 0..payload.len() {
            // One bit, every bit, and the marker of a list of about 2^32-1 members.
            for byte in [payload[at] ^ 1, !payload[at], 0xdd] {
                changed[at] = byte;
                if digest(&changed, engine, &mut normaliser) { batches += 1 } else { errors += 1 }
            }
            changed[at] = payload[at];
        }
    }
    // Both outcomes must occur, else the test is void.
    assert!(batches > 100_000 && errors > 20_000, "{batches} batches, {errors} errors");
}
