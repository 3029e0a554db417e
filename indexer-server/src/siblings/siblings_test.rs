use super::fetch::fetch;
use super::{Copier, CopyError, DumpParts, ListPages, Offer, Sibling, SiblingMetrics, offers};
use crate::partitions::{
    IndexConfig, IndexMetrics, Partitions, Shard, Writer, WriterThreads, start_writers,
};
use futures::{StreamExt, stream};
use kvasir_index::Limits;
use kvasir_process::answer_timer::Late;
use kvasir_proto::convert::{
    DumpQuery, DumpedSource, ListedSource, ListedWorker, Registration, WorkerAddress,
    WorkerDumpPart,
};
use kvasir_proto::pb;
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, HeldBlock, Incarnation, Learned, LocalHash, NameMeaning,
    PartitionKey, Reason, SourceState, StateReason, WorkerId,
};
use prometheus_client::registry::Registry;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;

type Part = Result<WorkerDumpPart, CopyError>;

/// A sibling with scripted answers: a list of workers, then one dump per request.
#[derive(Debug, Default)]
struct FakeSibling {
    url: String,
    /// None: the sibling never answers.
    workers: Option<Vec<ListedWorker>>,
    dumps: Mutex<VecDeque<Vec<Part>>>,
    /// Whether the dump ends without an end of stream.
    falls_silent: bool,
}

impl Sibling for FakeSibling {
    fn url(&self) -> &str {
        &self.url
    }

    fn list(&self) -> ListPages {
        match self.workers.clone() {
            // One worker per page.
            Some(workers) => stream::iter(workers.into_iter().map(|at| Ok(vec![at]))).boxed(),
            None => stream::pending().boxed(),
        }
    }

    fn dump(&self, _: DumpQuery) -> DumpParts {
        let parts = self.dumps.lock().expect("nobody panicked").pop_front();
        let parts = stream::iter(parts.expect("it is not asked that often"));
        if self.falls_silent { parts.chain(stream::pending()).boxed() } else { parts.boxed() }
    }
}

fn fake(url: &str, dumps: impl IntoIterator<Item = Vec<Part>>) -> Arc<dyn Sibling> {
    let dumps = Mutex::new(dumps.into_iter().collect());
    Arc::new(FakeSibling { url: url.to_owned(), dumps, ..FakeSibling::default() })
}

fn address() -> WorkerAddress {
    let partition = PartitionKey::new("m", "").expect("a name");
    WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") }
}

fn cursor(sequence: u64) -> Cursor {
    Cursor { incarnation: Incarnation(7), sequence, fingerprint: None }
}

fn source(name: &str, applied: Option<Cursor>) -> DumpedSource {
    DumpedSource {
        name: name.to_owned(),
        copy_mode: CopyMode::Counted,
        applied,
        past: vec![Incarnation(3)],
        learned: Arc::new(Learned { main_group: Some(1), ..Learned::default() }),
        state: SourceState::Exact,
        reasons: Vec::new(),
        incomplete: false,
        ranks: vec![0],
    }
}

#[expect(clippy::unnecessary_wraps, reason = "parts come so")]
fn end(number: u32, records: u64, source: DumpedSource) -> Part {
    Ok(WorkerDumpPart::End { number, records, source })
}

/// A block whose parent is the block named one less, with `copies` in device memory.
fn held(name: u64, copies: u32) -> HeldBlock {
    HeldBlock {
        name: BlockName(name),
        parent: (name > 1).then(|| BlockName(name - 1)),
        local: Some(LocalHash(name * 7)),
        copies: [copies, 0, 0],
    }
}

#[expect(clippy::unnecessary_wraps, reason = "parts come so")]
fn chunk(rank: u32, records: &[(u32, HeldBlock)]) -> Part {
    Ok(WorkerDumpPart::Chunk { rank, records: records.to_vec() })
}

fn whole() -> Vec<Part> {
    vec![chunk(0, &[(0, held(1, 1))]), end(0, 1, source("s", Some(cursor(4))))]
}

fn start() -> (Arc<Partitions>, Writer, WriterThreads) {
    let config = IndexConfig::new(NonZeroUsize::MIN);
    let partitions = Arc::new(Partitions::new(config, Limits::default()));
    let metrics = IndexMetrics::register(&mut Registry::default(), Arc::clone(&partitions));
    let (writer, threads) = start_writers(&partitions, &metrics).expect("a thread");
    (partitions, writer, threads)
}

fn listed(sources: &[(SourceState, Option<u64>)], blocks: u64) -> ListedWorker {
    let request = pb::RegisterWorkerRequest {
        worker_id: "w".to_owned(),
        model: "m".to_owned(),
        block_size: 16,
        ..Default::default()
    };
    let sources = sources.iter();
    let sources = sources.map(|&(state, at)| ListedSource { state, applied: at.map(cursor) });
    let registration = Registration::try_from(request).expect("valid");
    ListedWorker { registration, sources: sources.collect(), blocks }
}

/// Order in which siblings are asked, depending on the worker as each lists it. None: the sibling hangs.
async fn order(listed: &[Option<ListedWorker>]) -> (Vec<String>, u64) {
    let siblings = listed.iter().enumerate().map(|(number, worker)| {
        let workers = worker.clone().map(|worker| vec![worker]);
        let listed = FakeSibling { url: number.to_string(), workers, ..FakeSibling::default() };
        Arc::new(listed) as Arc<dyn Sibling>
    });
    let metrics = SiblingMetrics::default();
    let mut offers = offers(&siblings.collect::<Vec<_>>(), &metrics).await;
    let from = offers.pop().map_or_else(Vec::new, |Offer { from, .. }| from);
    assert!(offers.is_empty(), "one worker, one offer");
    (from.iter().map(|sibling| sibling.url().to_owned()).collect(), metrics.lists_failed.get())
}

#[tokio::test(start_paused = true)]
async fn who_has_most_is_asked_first() {
    use SourceState::{CatchingUp, Cold, Degraded, Exact};
    let fewer = listed(&[(Exact, Some(9)), (Cold, None)], 90);
    let degraded = listed(&[(Exact, Some(90)), (Degraded, Some(90))], 90);
    let behind = listed(&[(Exact, Some(3)), (Exact, Some(4))], 90);
    let ahead = listed(&[(Exact, Some(3)), (Exact, Some(5))], 9);
    let more = listed(&[(Exact, Some(3)), (Exact, Some(5))], 10);
    let nothing = listed(&[(CatchingUp, None)], 50);
    let all = [fewer, degraded, behind, ahead, nothing, more.clone(), more].map(Some);
    let (asked, unheard) = order(&all).await;
    assert_eq!((asked, unheard), (["5", "6", "3", "2", "1", "0"].map(str::to_owned).to_vec(), 0));
    // A sibling that hangs does not block the list.
    let one = [None, Some(listed(&[(Exact, Some(1))], 1)), None];
    assert_eq!(order(&one).await, (vec!["1".to_owned()], 2));
}

#[tokio::test(start_paused = true)]
async fn a_dump_is_taken_whole_or_not_at_all() {
    let taken = |parts: Vec<Part>| fetch(stream::iter(parts).boxed());
    assert!(taken(whole()).await.is_ok());
    let at = || source("s", Some(cursor(4)));
    let record = |number| chunk(0, &[(number, held(1, 1))]);
    for (parts, expected) in [
        (vec![], "no source of the worker has a cursor at the sibling"),
        (vec![end(0, 0, source("s", None))], "no source of the worker has a cursor at the sibling"),
        (vec![record(0)], "malformed answer: a source has no end"),
        (vec![record(0), end(0, 2, at())], "malformed answer: records of a source are missing"),
        (vec![end(0, 0, at()), record(0)], "malformed answer: records after an end"),
        (vec![end(0, 0, at()), end(1, 0, at())], "malformed answer: a source has two ends"),
        (vec![record(128)], "malformed answer: a source has too high a number"),
        (vec![record(0), Err(CopyError::Unknown)], "the sibling has removed the worker"),
    ] {
        assert_eq!(taken(parts).await.expect_err(expected).to_string(), expected);
    }
    let silent = stream::iter(vec![record(0)]).chain(stream::pending()).boxed();
    assert_eq!(fetch(silent).await.expect_err("no end").to_string(), "no answer for 10s");
}

#[tokio::test(start_paused = true)]
async fn the_next_sibling_is_asked_where_a_copy_breaks_off() {
    let (_partitions, writer, _threads) = start();
    let copier = Copier::new(writer, SiblingMetrics::default());
    let cut = || vec![Err(CopyError::CutOff("the worker was cleared".to_owned()))];
    let silent: Arc<dyn Sibling> = Arc::new(FakeSibling {
        url: "silent".to_owned(),
        dumps: Mutex::new(vec![vec![]].into()),
        falls_silent: true,
        ..FakeSibling::default()
    });
    let changing = fake("changing", [cut(), cut(), cut()]);
    let last = fake("last", [whole(), whole()]);
    let gone = fake("gone", vec![vec![Err(CopyError::Unknown)]; 2]);
    let from = [Arc::clone(&silent), changing, last];
    assert!(copier.fetch(&address(), &from).await.is_ok());
    // The silent sibling is not asked again.
    let from = [silent, Arc::clone(&from[2])];
    assert!(copier.fetch(&address(), &from).await.is_ok());
    let only = copier.fetch(&address(), &from[..1]).await.expect_err("nobody");
    assert_eq!(only.to_string(), "no sibling that has it answers");
    let from = [Arc::clone(&gone), fake("cut", [cut(), cut(), cut()])];
    let error = copier.fetch(&address(), &from).await.expect_err("nobody");
    assert_eq!(error.to_string(), "the worker was cleared");
    // The worker is gone only if no sibling returns another error.
    let unknown = copier.fetch(&address(), &[gone]).await;
    assert_eq!(unknown, Err(CopyError::Unknown));
    assert_eq!(copier.metrics().failures.get(), 3);
}

#[tokio::test]
async fn what_was_fetched_is_in_the_index_with_its_sources() {
    let (partitions, writer, threads) = start();
    let partition = partitions.get_or_create(&address().partition, 16).expect("a partition");
    let copier = Copier::new(writer, SiblingMetrics::default());
    let lost = DumpedSource { state: SourceState::Degraded, ..source("lost", Some(cursor(6))) };
    let short =
        DumpedSource { incomplete: true, ranks: vec![0, 2], ..source("short", Some(cursor(5))) };
    let parts = vec![
        chunk(0, &[(0, held(1, 2)), (0, held(2, 1)), (1, held(1, 1)), (2, held(9, 1))]),
        chunk(2, &[(3, held(1, 1)), (0, held(1, 1))]),
        // Changes during the dump.
        chunk(0, &[(0, held(2, 0)), (0, held(3, 1))]),
        Ok(WorkerDumpPart::Meanings { number: 0, names: vec![(0, BlockName(1), salted())] }),
        end(0, 5, DumpedSource { ranks: vec![0, 2], ..source("whole", Some(cursor(4))) }),
        end(1, 1, DumpedSource { reasons: doubtful(), ..lost }),
        end(2, 1, source("cold", None)),
        end(3, 1, short),
    ];
    let fetched = fetch(stream::iter(parts).boxed()).await.expect("a whole dump");
    let copied = copier.place(&partition, &address(), fetched).await.expect("room for it");
    let names: Vec<_> = copied.sources.iter().map(|source| source.name.as_str()).collect();
    assert_eq!(names, ["whole", "lost", "short"]);
    let meanings: Vec<_> = copied.sources.iter().map(|source| &source.names[..]).collect();
    assert_eq!(meanings, [&[(0, BlockName(1), salted())][..], &[], &[]]);
    let reasons: Vec<_> = copied.sources.iter().map(|source| &source.status.reasons[..]).collect();
    assert_eq!(reasons, [&[][..], &doubtful(), &[]]);
    // The copied worker can be copied again, and is in the next checkpoint.
    assert_eq!(copied.sources[0].source.meanings(), copied.sources[0].names);
    // Block 3 waits for the removed block 2. Block 9 came with a source without a cursor.
    assert_eq!((copied.blocks, copier.metrics().blocks.get()), (3, 3));
    let shard = partition.shard_of(&address().worker);
    let shown = Shard::sources(shard, &address().worker).into_iter();
    let shown: Vec<_> = shown
        .map(|(name, _, at)| (name, at.state, at.applied, at.past.len(), at.learned.main_group))
        .collect();
    let expected = [
        ("whole", SourceState::CatchingUp, 4),
        ("lost", SourceState::Degraded, 6),
        ("short", SourceState::Partial, 5),
    ];
    let expected =
        expected.map(|(name, state, at)| (name.to_owned(), state, Some(cursor(at)), 1, Some(1)));
    assert_eq!(shown, expected);
    threads.stop().await;
}

fn doubtful() -> Vec<StateReason> {
    let reason = Reason::UnknownEvent;
    let example = "type=X".into();
    let since = Duration::ZERO;
    vec![StateReason { reason, count: 2, example, since }]
}

fn salted() -> NameMeaning {
    let adapter = 1;
    let seed = 2;
    let copies = [1, 0, 0];
    NameMeaning { adapter, seed, matchable: true, has_own_keys: false, copies }
}

#[tokio::test(start_paused = true)]
async fn a_dump_that_brings_nothing_comes_to_an_end() {
    let slowly = |records: Vec<(u32, HeldBlock)>| {
        let parts = stream::repeat_with(move || chunk(0, &records));
        parts
            .then(|part| async {
                sleep(Duration::from_secs(9)).await;
                part
            })
            .boxed()
    };
    let empty = fetch(slowly(Vec::new())).await;
    assert_eq!(empty, Err(CopyError::Contradiction("a chunk is empty")));
    let little = fetch(slowly(vec![(0, held(1, 1))])).await;
    assert!(matches!(little, Err(CopyError::Late(Late::Slow { items: 2, .. }))), "{little:?}");
}
