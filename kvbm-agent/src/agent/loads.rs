use super::AgentError;
use crate::load::scrape::{ScrapeStatus, scrape};
use crate::load::{LoadBoard, LoadConfig};
use crate::service::{ServiceConfig, WorkerLoadsService};
use kvasir_feed::feed::Feed;
use kvasir_tasks::group::TaskGroup;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Loads of a running agent's worker.
pub(super) struct StartedLoads {
    pub(super) board: Arc<LoadBoard>,
    pub(super) scraped: Option<watch::Receiver<ScrapeStatus>>,
}

/// Starts the task that expires old loads. If the configuration has `scrape`, also starts to read the engine's metrics.
pub(super) fn start(
    feed: &Feed,
    config: &LoadConfig,
    tasks: &mut TaskGroup,
) -> Result<StartedLoads, AgentError> {
    config.check()?;
    let board = Arc::new(LoadBoard::new(config.totals, config.stale_after));
    let mut scraped = None;
    if let Some(config) = config.scrape.clone() {
        let (status, receiver) = watch::channel(ScrapeStatus::default());
        scraped = Some(receiver);
        let board = Arc::clone(&board);
        let scraping = scrape(board, config, feed.block_size(), status, tasks.token())?;
        tasks.spawn("scrape", scraping);
    }
    let shared = Arc::clone(&board);
    let stop = tasks.token();
    tasks.spawn("loads", async move { shared.run(stop).await });
    Ok(StartedLoads { board, scraped })
}

impl StartedLoads {
    /// Creates the service for the worker's loads. Its streams end once `stop` is cancelled, and repeat all loads every
    /// `refresh_interval`.
    pub(super) fn service(
        &self,
        feed: &Feed,
        config: ServiceConfig,
        refresh_interval: Duration,
        stop: CancellationToken,
    ) -> Arc<WorkerLoadsService> {
        let address = feed.address().clone();
        let board = Arc::clone(&self.board);
        let service = WorkerLoadsService::new(address, board, config, refresh_interval, stop);
        Arc::new(service)
    }
}
