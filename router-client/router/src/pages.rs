//! Scrapes engines' metrics pages for block capacity and load, for workers without an agent's report.

use crate::fleet::Listing;
use crate::reports::KvMetricsAggregator;
use futures::stream::{StreamExt, iter};
use kvasir_engine::scrape::{
    FetchError, ReadError, ScrapedEngine, Target, UrlError, fetch, read_metrics,
};
use kvasir_proto::convert::{WorkerAddress, WorkerLoad};
use kvasir_proto::types::{
    ADDRESS_LABEL, DpRank, PartitionKey, WorkerId, WorkerKey, WorkerMetrics,
};
use router_client::ListedWorker;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Interval of reading pages: half the default time after which a report is stale.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// Time before a page that could not be read is tried again.
const FAILED_PAUSE: Duration = Duration::from_secs(60);
/// Maximum wait for a page.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a page.
const PAGE_BYTES_MAX: usize = 8 << 20;
/// Maximum pages read concurrently.
const READS_MAX: usize = 16;

/// Configured addresses of workers' engines, which override the label.
pub type StatedEngines = BTreeMap<WorkerId, String>;

/// The metrics page of a worker's engine.
#[derive(Debug, Clone)]
struct Page {
    named: Named,
    ranks: BTreeSet<DpRank>,
    block_size: u32,
    url: String,
}

/// Why a page could not be used.
#[derive(Debug, thiserror::Error)]
enum PageError {
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A page's values by rank.
type Answer = Result<BTreeMap<DpRank, WorkerMetrics>, PageError>;

/// Identity of a worker.
type Named = (PartitionKey, WorkerId);

/// State of reading the pages.
#[derive(Debug, Default)]
struct Readers {
    /// Workers whose pages were read: the only source of their reports.
    read: BTreeSet<Named>,
    /// Workers whose pages could not be read, and when each is tried again.
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
        // The first list, and each change, starts a round immediately.
        select! {
            _ = rounds.tick() => {}
            // The sender lives as long as the process.
            changed = listed.changed() => if changed.is_err() { return },
        }
        let pages = readers.pages_to_read(&listed.borrow_and_update(), &stated, &reports);
        let mut answers = iter(pages).map(read_page).buffer_unordered(READS_MAX);
        while let Some((page, answer)) = answers.next().await {
            readers.apply_answer(page, answer, &reports);
        }
    }
}

impl Readers {
    /// Returns the pages to read now. Skips engines whose agents report their blocks, and pages that failed recently.
    fn pages_to_read(
        &mut self,
        listing: &Listing,
        stated: &StatedEngines,
        reports: &KvMetricsAggregator,
    ) -> Vec<Page> {
        let pages = listing.values().flat_map(BTreeMap::values);
        let mut pages: Vec<_> =
            pages.filter_map(|worker| Page::of_worker(worker, stated)).collect();
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

    /// Reports the loads of a page. After a failure, the page is skipped for [`FAILED_PAUSE`].
    fn apply_answer(&mut self, page: Page, answer: Answer, reports: &KvMetricsAggregator) {
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
        // An engine with one rank numbers it 0, whatever the worker's own rank number.
        let only = match (metrics.len(), ranks.first()) {
            (1, Some(rank)) if ranks.len() == 1 => Some(*rank),
            _ => None,
        };
        for (rank, metrics) in metrics {
            let rank = only.unwrap_or(rank);
            if ranks.contains(&rank) {
                let (partition, worker) = named.clone();
                let address = WorkerAddress { partition, worker };
                // Reports beyond the limit on ranks are dropped.
                let _taken =
                    reports.report(WorkerLoad { address, rank, metrics, age: Duration::ZERO });
            }
        }
        self.failed.remove(&named);
        self.read.insert(named);
    }
}

impl Page {
    /// Returns the page of a worker's engine, or `None` if its address is unknown.
    fn of_worker(worker: &ListedWorker, stated: &StatedEngines) -> Option<Self> {
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

/// Reads one page, of either kind of engine (vLLM or SGLang).
async fn read_page(page: Page) -> (Page, Answer) {
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
