//! Measurements of the agent: one trial of one case each.

use super::cores::Cores;
use super::index::Index;
use super::report::Record;
use super::stream::{BLOCK_SIZE, Batch, EVENT_BLOCKS, Stream};
use super::way::{Cost, To, Way};
use anyhow::Result;
use bench_figures::random::mixed;
use kvasir_engine::decode::{EngineKind, decode};
use kvasir_engine::normalise::{Normaliser, NormaliserConfig};
use kvasir_proto::hash::{Namespace, local_hash};
use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Number of held blocks while the ring of recent batches fills, before memory is measured.
const LITTLE_HELD: u64 = 2_048;
/// Number of batches that fill this ring at its default limits.
const RING_BATCHES: u64 = 20_000;
/// Idle time before memory is measured, because an allocator returns memory late.
const REST: Duration = Duration::from_secs(2);
/// Number of blocks for measuring physical limits.
const LIMIT_BLOCKS: u64 = 1 << 18;

fn rates(record: Record, what: &str, cost: Cost) -> Record {
    record
        .with(&format!("{what}_per_cpu_second"), cost.operations / cost.cpu_seconds)
        .with(&format!("{what}_per_second"), cost.operations / cost.wall_seconds)
        .with(&format!("{what}_cores"), cost.cpu_seconds / cost.wall_seconds)
}

/// Blocks per second of the agent's processor time, while its engine fills up, and while each new block replaces an old
/// one.
pub async fn throughput(
    (to, batch_events, held): (To, u64, u64),
    length: Duration,
    cores: &Cores,
) -> Result<Record> {
    let stream = Stream::new(batch_events, held);
    let mut way = Way::start(to, Index::default(), stream, cores).await?;
    let before = way.mark()?;
    way.say_while(|stream| stream.held() + batch_events * EVENT_BLOCKS <= held).await?;
    way.settle().await?;
    let filled = way.mark()?;
    let end = Instant::now() + length;
    way.say_while(|_| Instant::now() < end).await?;
    way.settle().await?;
    let churned = way.mark()?;
    way.stop().await?;
    let case = format!("{}, {batch_events} events a batch", to.name());
    let record = Record::new(if to == To::BareFromDisk { "disk" } else { "throughput" }, case);
    let record = rates(record, "stored", filled.since(before));
    Ok(rates(record, "replaced", churned.since(filled)))
}

/// Resident memory per held block.
pub async fn memory(held: u64, cores: &Cores) -> Result<Record> {
    let stream = Stream::new(1, LITTLE_HELD);
    let mut way = Way::start(To::Bare, Index::default(), stream, cores).await?;
    sleep(REST).await;
    let begun = way.resident_bytes()?;
    let mut batches = 0;
    let mut some = |_: &Stream| {
        batches += 1;
        batches <= RING_BATCHES
    };
    way.say_while(&mut some).await?;
    way.settle().await?;
    sleep(REST).await;
    let little = way.resident_bytes()?;
    let ring = way.metric("journal_memory_bytes").await?;
    let few = way.metric("held_blocks").await?;
    way.stream.set_held_max(held);
    way.say_while(|stream| stream.held() + EVENT_BLOCKS <= held).await?;
    way.settle().await?;
    sleep(REST).await;
    let full = way.resident_bytes()?;
    let later_ring = way.metric("journal_memory_bytes").await?;
    let blocks = way.metric("held_blocks").await? - few;
    let own = way.metric("inventory_memory_bytes").await?;
    way.stop().await?;
    let grown = full as f64 - little as f64 - (later_ring - ring);
    let mebi = f64::from(1 << 20);
    Ok(Record::new("memory", format!("{held} held"))
        .with("bytes_per_block", grown / blocks)
        .with("accounted_bytes_per_block", own / (blocks + few))
        .with("blocks", blocks)
        .with("ring_mib", ring / mebi)
        .with("ring_resident_mib", (little as f64 - begun as f64) / mebi)
        .with("idle_mib", begun as f64 / mebi))
}

/// Cost of the indispensable parts on this machine, measured in this process.
pub fn limits(batch_events: u64, held: u64) -> Record {
    let per_block = |begin: Instant, blocks: u64| begin.elapsed().as_nanos() as f64 / blocks as f64;
    let tokens: Vec<u8> =
        (0..LIMIT_BLOCKS * BLOCK_SIZE as u64 / 2).flat_map(|at| mixed(at).to_le_bytes()).collect();
    let seed = Namespace::default().seed();
    let begin = Instant::now();
    for block in black_box(&tokens).chunks_exact(BLOCK_SIZE * 4) {
        black_box(local_hash(block, &[], seed));
    }
    let hashing = per_block(begin, LIMIT_BLOCKS);

    let mut stream = Stream::new(batch_events, LITTLE_HELD);
    let frames: Vec<_> =
        (0..LIMIT_BLOCKS / EVENT_BLOCKS / batch_events).map(|_| stream.next_batch()).collect();
    let operations = frames.iter().map(|batch| batch.operations).sum();
    let frames: Vec<_> = frames.iter().map(Batch::payload).collect();
    let mut normaliser =
        Normaliser::new(NormaliserConfig::new(EngineKind::Vllm, BLOCK_SIZE as u32));
    let begin = Instant::now();
    for frame in &frames {
        let batch = decode(black_box(frame), EngineKind::Vllm);
        black_box(batch.map(|batch| normaliser.normalise(batch)).ok());
    }
    let reading = per_block(begin, operations);

    let mut table: HashMap<u64, u64> = (0..held).map(|key| (mixed(key), key)).collect();
    let begin = Instant::now();
    for key in 0..LIMIT_BLOCKS {
        table.remove(&mixed(key));
        table.insert(mixed(key + held), key);
    }
    let naming = per_block(begin, 2 * LIMIT_BLOCKS);
    black_box(table.len());
    Record::new("limits", format!("{batch_events} events a batch"))
        .with("hashing_ns_per_stored_block", hashing)
        .with("reading_ns_per_operation", reading)
        .with("name_table_ns_per_operation", naming)
}
