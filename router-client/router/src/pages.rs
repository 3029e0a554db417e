//! How many blocks engines have and how busy they are, by their own pages of metrics: for workers of which no agent reports it.

use crate::fleet::Listing;
use crate::reports::KvMetricsAggregator;
use futures::stream::{StreamExt, iter};
use kvasir_engine::scrape::{
    FetchError, ReadError, ScrapedEngine, Target, UrlError, fetch, read_metrics,
};
use kvasir_proto::convert::{WorkerAddress, WorkerLoad};
use kvasir_proto::types::{DpRank, PartitionKey, WorkerId, WorkerKey, WorkerMetrics};
use router_client::ListedWorker;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Label of a worker with the HTTP address of its engine.
pub const ADDRESS_LABEL: &str = "http";
/// How often pages are read: twice within the time after which a report is stale.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// A page that cannot be read is left alone for so long.
const FAILED_PAUSE: Duration = Duration::from_secs(60);
/// Longest wait for a page.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Most bytes of a page.
const PAGE_BYTES_MAX: usize = 8 << 20;
/// Most pages that are read at a time.
const READS_MAX: usize = 16;

/// Where the engines of workers are that do not say so by their label.
pub type StatedEngines = BTreeMap<WorkerId, String>;

/// The page of a worker's engine.
#[derive(Debug, Clone)]
struct Page {
    named: Named,
    ranks: BTreeSet<DpRank>,
    block_size: u32,
    url: String,
}

/// Why a page tells nothing.
#[derive(Debug, thiserror::Error)]
enum PageError {
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// What a page says of each rank.
type Answer = Result<BTreeMap<DpRank, WorkerMetrics>, PageError>;

/// A worker.
type Named = (PartitionKey, WorkerId);

/// What is known of the pages so far.
#[derive(Debug, Default)]
struct Readers {
    /// Workers whose pages were read: nobody else reports of them.
    read: BTreeSet<Named>,
    /// Workers whose pages could not be read, and until when these are left alone.
    failed: BTreeMap<Named, Instant>,
}

/// Reads the pages of all engines that the index lists, until the future is dropped.
pub async fn run(
    mut listed: watch::Receiver<Arc<Listing>>,
    stated: StatedEngines,
    reports: Arc<KvMetricsAggregator>,
) {
    let mut readers = Readers::default();
    let mut rounds = interval(READ_INTERVAL);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // The first list, and each change, is a round at once.
        select! {
            _ = rounds.tick() => {}
            // The sender lives as long as the process.
            changed = listed.changed() => if changed.is_err() { return },
        }
        let pages = readers.due(&listed.borrow_and_update(), &stated, &reports);
        let mut answers = iter(pages).map(read).buffer_unordered(READS_MAX);
        while let Some((page, answer)) = answers.next().await {
            readers.take(page, answer, &reports);
        }
    }
}

impl Readers {
    /// The pages that are to be read now. An engine whose agent reports its blocks is not asked.
    fn due(
        &mut self,
        listing: &Listing,
        stated: &StatedEngines,
        reports: &KvMetricsAggregator,
    ) -> Vec<Page> {
        let pages = listing.values().flat_map(BTreeMap::values);
        let mut pages: Vec<_> = pages.filter_map(|worker| Page::of(worker, stated)).collect();
        let there: BTreeSet<_> = pages.iter().map(|page| page.named.clone()).collect();
        let now = Instant::now();
        self.read.retain(|named| there.contains(named));
        self.failed.retain(|named, _| there.contains(named));
        pages.retain(|page| {
            let (partition, worker) = &page.named;
            let is_reported = |rank: &DpRank| {
                let rank = WorkerKey { worker: worker.clone(), rank: *rank };
                reports.blocks_of(partition, &rank).total.is_some()
            };
            let is_left_alone = self.failed.get(&page.named).is_some_and(|until| *until > now);
            let is_ours = self.read.contains(&page.named);
            !is_left_alone && (is_ours || !page.ranks.iter().any(is_reported))
        });
        pages
    }

    fn take(&mut self, page: Page, answer: Answer, reports: &KvMetricsAggregator) {
        let Page { named, ranks, url, .. } = page;
        let metrics = match answer {
            Ok(metrics) => metrics,
            Err(error) => {
                self.read.remove(&named);
                let worker = named.1.clone();
                if self.failed.insert(named, Instant::now() + FAILED_PAUSE).is_none() {
                    tracing::info!(%worker, url, %error, "the engine's metrics cannot be read");
                }
                return;
            }
        };
        // An engine of one rank calls it 0, whatever number the worker has given it.
        let only = match (metrics.len(), ranks.first()) {
            (1, Some(rank)) if ranks.len() == 1 => Some(*rank),
            _ => None,
        };
        for (rank, metrics) in metrics {
            let rank = only.unwrap_or(rank);
            if ranks.contains(&rank) {
                let (partition, worker) = named.clone();
                let address = WorkerAddress { partition, worker };
                // Beyond the limit on ranks it is dropped.
                let _taken =
                    reports.report(WorkerLoad { address, rank, metrics, age: Duration::ZERO });
            }
        }
        self.failed.remove(&named);
        self.read.insert(named);
    }
}

impl Page {
    /// The page of a worker's engine; none if nobody says where the engine is.
    fn of(worker: &ListedWorker, stated: &StatedEngines) -> Option<Self> {
        let label = || worker.profile.labels.get(ADDRESS_LABEL);
        let engine = stated.get(&worker.worker).or_else(label)?;
        Some(Self {
            named: (worker.partition.clone(), worker.worker.clone()),
            ranks: worker.ranks.clone(),
            block_size: worker.block_size,
            url: format!("{}/metrics", engine.trim_end_matches('/')),
        })
    }
}

/// Reads one page, of whichever engine it is.
async fn read(page: Page) -> (Page, Answer) {
    let metrics = async {
        let target = Target::parse(&page.url)?;
        let body = fetch(&target, READ_TIMEOUT, PAGE_BYTES_MAX).await?;
        match read_metrics(ScrapedEngine::Vllm, &body, page.block_size) {
            Err(ReadError::Nothing(_)) => {
                Ok(read_metrics(ScrapedEngine::Sglang, &body, page.block_size)?)
            }
            metrics => Ok(metrics?),
        }
    };
    let answer = metrics.await;
    (page, answer)
}
