//! Any bytes as an engine's payload: decoded and normalised without a panic, in bounded memory, and with every
//! operation kept or dropped. The first byte chooses the engine, and whether there is a pool.

use kvasir_engine::decode::{EngineKind, RawEvent, decode, timestamp_bits};
use kvasir_engine::normalise::{Normaliser, NormaliserConfig};
use kvasir_proto::types::{Group, KvEvent};

pub(super) fn target(input: &[u8]) -> bool {
    let Some((&choice, payload)) = input.split_first() else { return false };
    let engine = match choice % 4 {
        0 => EngineKind::Vllm,
        1 => EngineKind::Sglang,
        2 => EngineKind::Trtllm,
        _ => EngineKind::Custom,
    };
    let Ok(batch) = decode(payload, engine) else { return false };
    assert_eq!(timestamp_bits(payload), Some(batch.ts_bits));
    assert!(batch.events.capacity() <= payload.len());
    let received: usize = batch.events.iter().map(operations).sum();
    let may_be_more = batch.events.iter().any(takes_more_operations);
    let has_pool = choice & 4 != 0;
    let config = NormaliserConfig { has_pool, ..NormaliserConfig::new(engine, 4) };
    let mut normaliser = Normaliser::new(config);
    let out = normaliser.normalise(batch);
    let all = out.events.iter().chain(&out.pool_events);
    let kept: usize = all.map(sent_operations).sum();
    let met = kept as u64 + out.drops.total();
    if may_be_more || out.renumbered_adapters > 0 {
        assert!(met >= received as u64);
    } else {
        assert_eq!(met, received as u64);
    }
    true
}

/// Number of an event's operations that the engine sent: declarations of KV-cache groups are added.
fn sent_operations(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored { blocks, .. } => {
            blocks.iter().filter(|&&block| Group::of_declaration(block).is_none()).count()
        }
        other => other.operations(),
    }
}

/// A block that moves is stored and removed; a look-ahead block has two positions.
fn takes_more_operations(event: &RawEvent<'_>) -> bool {
    match event {
        RawEvent::Moved(_) => true,
        RawEvent::Stored(stored) | RawEvent::StoredObject(stored) => stored.look_ahead.is_some(),
        RawEvent::Removed(_)
        | RawEvent::Cleared(_)
        | RawEvent::Unknown(_)
        | RawEvent::Unnamed
        | RawEvent::Unreadable(_) => false,
    }
}

fn operations(event: &RawEvent<'_>) -> usize {
    match event {
        RawEvent::Stored(stored) | RawEvent::StoredObject(stored) => stored.names.len(),
        RawEvent::Removed(removed) => removed.names.len(),
        RawEvent::Unreadable(unreadable) => unreadable.operations,
        RawEvent::Moved(moved) => moved.names.len(),
        RawEvent::Cleared(_) | RawEvent::Unknown(_) | RawEvent::Unnamed => 1,
    }
}
