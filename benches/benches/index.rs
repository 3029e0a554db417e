//! Micro-benchmarks of the index and of block hashing: `cargo bench -p kvasir-benches --bench index`.
//!
//! The fleet has 64 workers and 1,024 prompts of 1,024 blocks, in 32 families that share their first 32 blocks. Each
//! prompt is cached by two workers. All workers derive names from the content, like engines with deterministic hashes.
//! This gives 1 M distinct positions and 2 M (worker, block) pairs: far more than a CPU cache holds, so each answer
//! reads memory that it has not just read.

use bench_figures::random::mixed;
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use kvasir_benches::events::{self, blocks_of, removed, stored};
use kvasir_index::{DumpRecord, Index, Limits, Query, QueryKey, Scratch, SourceId};
use kvasir_proto::hash::{Namespace, local_hashes, sequence_hashes, tokens_le};
use kvasir_proto::types::{BlockName, CopyMode, KvEvent, LocalHash, TierSet, WorkerId};
use std::cell::{Cell, RefCell};
use std::sync::LazyLock;

const WORKERS: u64 = 64;
const PROMPTS: u64 = 1_024;
const FAMILIES: u64 = 32;
const SHARED_BLOCKS: usize = 32;
const PROMPT_BLOCKS: usize = 1_024;
/// Blocks per event, as sent by engines during a prefill.
const EVENT_BLOCKS: usize = 64;

fn main() {
    divan::main();
}

struct Fleet {
    index: Index,
    sources: Vec<SourceId>,
    prompts: Vec<Vec<LocalHash>>,
}

static FLEET: LazyLock<Fleet> = LazyLock::new(Fleet::build);

fn prompt(number: u64) -> Vec<LocalHash> {
    let family = number % FAMILIES;
    let local = |block: usize| {
        let owner = if block < SHARED_BLOCKS { family } else { FAMILIES + number };
        LocalHash(mixed(owner << 32 | block as u64))
    };
    (0..PROMPT_BLOCKS).map(local).collect()
}

impl Fleet {
    fn build() -> Self {
        let mut index = Index::new(Limits::default());
        let add = |worker| {
            let worker = WorkerId::new(&format!("worker-{worker}")).expect("a short name");
            index.add_source(&worker, "engine", 0, CopyMode::Counted).expect("a new source")
        };
        let sources: Vec<_> = (0..WORKERS).map(add).collect();
        let mut fleet = Self { index, sources, prompts: (0..PROMPTS).map(prompt).collect() };
        for (number, prompt) in fleet.prompts.iter().enumerate() {
            let events = stored(&blocks_of(prompt), EVENT_BLOCKS);
            for copy in [0, 7] {
                let source = fleet.sources[(number + copy) % fleet.sources.len()];
                for event in &events {
                    fleet.index.apply(source, 0, event).expect("a known source");
                }
            }
        }
        fleet
    }

    /// A different prompt each time, in an order that defeats prefetchers.
    fn some_prompt(&self, asked: &Cell<u64>) -> &[LocalHash] {
        asked.set(asked.get() + 1);
        &self.prompts[(mixed(asked.get()) % PROMPTS) as usize]
    }

    fn ask(&self, key: QueryKey<'_>, scratch: &mut Scratch) -> usize {
        let query = Query {
            key,
            tiers: TierSet::ALL,
            workers: None,
            minimum_overlap: 1,
            shared: None,
            prompt: None,
        };
        self.index.find(black_box(query), scratch);
        scratch.matches().len()
    }
}

/// Looks up the first blocks of a prompt that two workers have.
#[divan::bench(args = [64, 256, 512], sample_size = 16, sample_count = 500)]
fn lookup_hit(bencher: Bencher<'_, '_>, blocks: usize) {
    let fleet = &*FLEET;
    let asked = Cell::new(0);
    let mut scratch = Scratch::default();
    bencher.counter(ItemsCount::new(blocks)).bench_local(|| {
        fleet.ask(QueryKey::Locals(&fleet.some_prompt(&asked)[..blocks]), &mut scratch)
    });
}

/// Looks up the first blocks of a prompt by the engines' names.
#[divan::bench(args = [64, 512], sample_size = 4, sample_count = 500)]
fn lookup_hit_by_name(bencher: Bencher<'_, '_>, blocks: usize) {
    let fleet = &*FLEET;
    let asked = Cell::new(0);
    let names: Vec<Vec<BlockName>> = fleet
        .prompts
        .iter()
        .map(|prompt| blocks_of(&prompt[..blocks]).iter().map(|block| block.name).collect())
        .collect();
    let mut scratch = Scratch::default();
    bencher.counter(ItemsCount::new(blocks)).bench_local(|| {
        asked.set(asked.get() + 1);
        let names = &names[(mixed(asked.get()) % PROMPTS) as usize];
        fleet.ask(QueryKey::Names(names), &mut scratch)
    });
}

/// Looks up a prompt that differs after its family's shared blocks: many workers match a short prefix.
#[divan::bench(sample_size = 16, sample_count = 500)]
fn lookup_shared_prefix(bencher: Bencher<'_, '_>) {
    let fleet = &*FLEET;
    let asked = Cell::new(0);
    let mut scratch = Scratch::default();
    let mut query = vec![LocalHash(0); 512];
    bencher.bench_local(|| {
        let prompt = fleet.some_prompt(&asked);
        query[..SHARED_BLOCKS].copy_from_slice(&prompt[..SHARED_BLOCKS]);
        fleet.ask(QueryKey::Locals(&query), &mut scratch)
    });
}

/// Looks up a prompt that no worker has.
#[divan::bench(sample_size = 16, sample_count = 500)]
fn lookup_miss(bencher: Bencher<'_, '_>) {
    let fleet = &*FLEET;
    let asked = Cell::new(0);
    let mut scratch = Scratch::default();
    bencher.bench_local(|| {
        let prompt = &fleet.some_prompt(&asked)[SHARED_BLOCKS..];
        fleet.ask(QueryKey::Locals(prompt), &mut scratch)
    });
}

/// The events of one prompt, and the events that undo them.
struct Job {
    prepare: Vec<KvEvent>,
    timed: Vec<KvEvent>,
}

/// Number of prompts that an apply benchmark cycles through, so that its memory is not warm.
const JOBS: u64 = 128;

/// Times `timed` of one job after another on a separate fleet. Runs each job's `prepare` first, untimed.
fn bench_apply(bencher: Bencher<'_, '_>, worker: usize, jobs: &[Job]) {
    let fleet = RefCell::new(Fleet::build());
    let apply = |events: &[KvEvent]| {
        let Fleet { index, sources, .. } = &mut *fleet.borrow_mut();
        for event in events {
            black_box(index.apply(sources[worker], 0, event).expect("a known source"));
        }
    };
    jobs.iter().for_each(|job| apply(&job.prepare));
    let mut round = jobs.iter().cycle();
    let mut last: Option<&Job> = None;
    let next = || {
        // Restore the state before the previous job, well before that job is due again.
        last.iter().for_each(|job| apply(&job.prepare));
        last = round.next();
        last.expect("there are jobs")
    };
    bencher
        .counter(ItemsCount::new(PROMPT_BLOCKS))
        .with_inputs(next)
        .bench_local_values(|job| apply(&job.timed));
}

fn store_jobs(prompts: impl Iterator<Item = u64>) -> Vec<Job> {
    let job = |number| {
        let blocks = blocks_of(&prompt(number));
        Job { prepare: removed(&blocks, EVENT_BLOCKS), timed: stored(&blocks, EVENT_BLOCKS) }
    };
    prompts.map(job).collect()
}

fn removal_jobs(prompts: impl Iterator<Item = u64>) -> Vec<Job> {
    let turn = |Job { prepare, timed }| Job { prepare: timed, timed: prepare };
    store_jobs(prompts).into_iter().map(turn).collect()
}

/// Prompts that no worker of the fleet has.
fn new_prompts() -> impl Iterator<Item = u64> {
    PROMPTS..PROMPTS + JOBS
}

/// Prompts that two workers have, but not worker 30.
fn held_prompts() -> impl Iterator<Item = u64> {
    let by_30 = |number: &u64| [30, 23].contains(&(number % WORKERS));
    (0..PROMPTS).filter(move |number| !by_30(number)).take(JOBS as usize)
}

/// Stores a prompt that is new to the fleet.
#[divan::bench(sample_size = 1, sample_count = 500)]
fn apply_store_new(bencher: Bencher<'_, '_>) {
    bench_apply(bencher, 30, &store_jobs(new_prompts()));
}

/// Stores a prompt that two other workers have.
#[divan::bench(sample_size = 1, sample_count = 500)]
fn apply_store_shared(bencher: Bencher<'_, '_>) {
    bench_apply(bencher, 30, &store_jobs(held_prompts()));
}

/// Removes a prompt that only this worker has, tail first.
#[divan::bench(sample_size = 1, sample_count = 500)]
fn apply_remove_last(bencher: Bencher<'_, '_>) {
    bench_apply(bencher, 30, &removal_jobs(new_prompts()));
}

/// Removes a prompt that two other workers also have, tail first.
#[divan::bench(sample_size = 1, sample_count = 500)]
fn apply_remove_shared(bencher: Bencher<'_, '_>) {
    bench_apply(bencher, 30, &removal_jobs(held_prompts()));
}

/// Dumps all blocks of one worker: 32 prompts.
#[divan::bench(sample_size = 1, sample_count = 50)]
fn dump_worker(bencher: Bencher<'_, '_>) {
    let mut fleet = Fleet::build();
    let worker = WorkerId::new("worker-0").expect("a short name");
    let mut chunk: Vec<DumpRecord> = Vec::new();
    let records = 32 * PROMPT_BLOCKS;
    bencher
        .counter(ItemsCount::new(records))
        .bench_local(|| events::dump(&mut fleet.index, &worker, &mut chunk));
}

/// Hashes 4,096 tokens to local and sequence hashes.
#[divan::bench(args = [16, 64])]
fn hash_4096_tokens(bencher: Bencher<'_, '_>, block_size: usize) {
    let tokens: Vec<u32> = (0..4_096).map(|at| mixed(at) as u32 % 128_000).collect();
    let seed = Namespace::default().seed();
    let mut locals = Vec::new();
    bencher.counter(ItemsCount::new(tokens.len())).bench_local(|| {
        locals.clear();
        local_hashes(&tokens_le(black_box(&tokens)), block_size, seed, &[], &mut locals);
        sequence_hashes(&locals).last()
    });
}
