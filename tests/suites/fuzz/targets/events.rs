//! Any bytes as an engine's payload: decoded and normalised without a panic, in bounded memory, and with every
//! operation kept or dropped. The first byte chooses the engine, and whether there is a pool.

use kvasir_engine::decode::{EngineKind, RawEvent, decode, timestamp_bits};
use kvasir_engine::normalise::{Normaliser, NormaliserConfig};
use kvasir_proto::types::KvEvent;
use std::collections::HashMap;

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
    let mut normaliser = Normaliser::new(NormaliserConfig {
        engine,
        block_size: 4,
        default_rank: 0,
        lora_names: HashMap::new(),
        medium_ttls: Vec::new(),
        has_pool: choice & 4 != 0,
    });
    let out = normaliser.normalise(batch);
    let all = out.events.iter().chain(&out.pool_events);
    let kept: usize = all.map(KvEvent::operations).sum();
    assert_eq!(kept as u64 + out.drops.total(), received as u64);
    true
}

fn operations(event: &RawEvent<'_>) -> usize {
    match event {
        RawEvent::Stored(stored) => stored.names.len(),
        RawEvent::Removed(removed) => removed.names.len(),
        RawEvent::Unreadable(unreadable) => unreadable.operations,
        RawEvent::Cleared | RawEvent::Unknown => 1,
    }
}
