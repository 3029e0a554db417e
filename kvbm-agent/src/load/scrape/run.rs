use super::{ScrapeConfig, ScrapeError, read_metrics};
use crate::load::{LoadBoard, LoadError};
use kvasir_engine::scrape::{Target, fetch};
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Progress of reading an engine's metrics.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScrapeStatus {
    /// Number of successful reads.
    pub scrapes: u64,
    /// Number of failed reads.
    pub failures: u64,
    /// Error of the last read; `None` if it succeeded.
    pub error: Option<Arc<str>>,
}

/// Reads an engine's metrics until `stop` is cancelled, and reports its progress in `status`. Skips ranks with
/// contradictory metrics.
///
/// # Errors
/// If the configuration is refused, immediately.
pub fn scrape(
    board: Arc<LoadBoard>,
    config: ScrapeConfig,
    block_size: u32,
    status: watch::Sender<ScrapeStatus>,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send, LoadError> {
    let target = config.target()?;
    Ok(async move {
        let mut ticks = interval(config.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let attempt = async {
                ticks.tick().await;
                attempt(&board, &target, &config, block_size).await
            };
            let seen = select! {
                () = stop.cancelled() => return,
                seen = attempt => seen,
            };
            record_outcome(&status, &config.url, seen);
        }
    })
}

/// Reads the engine's metrics once, and reports the load of each rank. If a load is invalid, reports the others and
/// returns the last error.
async fn attempt(
    board: &LoadBoard,
    target: &Target,
    config: &ScrapeConfig,
    block_size: u32,
) -> Result<(), ScrapeError> {
    let body = fetch(target, config.timeout, config.body_bytes_max).await?;
    let ranks = read_metrics(config.engine, &body, block_size)?;
    let mut seen = Ok(());
    for (rank, metrics) in ranks {
        if let Err(error) = board.publish(rank, metrics, Duration::ZERO) {
            seen = Err(ScrapeError::Load { rank, error });
        }
    }
    seen
}

/// Counts a read in the status, as a success or a failure. Logs only the first failure of an outage.
fn record_outcome(status: &watch::Sender<ScrapeStatus>, url: &str, seen: Result<(), ScrapeError>) {
    let error: Option<Arc<str>> = seen.err().map(|error| error.to_string().into());
    // Logged once per outage, not at every read.
    if let Some(error) = error.as_deref().filter(|_| status.borrow().error.is_none()) {
        tracing::warn!(url, error, "the engine's metrics cannot be read");
    }
    status.send_modify(|status| {
        match &error {
            None => status.scrapes += 1,
            Some(_) => status.failures += 1,
        }
        status.error = error;
    });
}
