//! `kvasir check`: checks engines once, and prints a table.

use crate::config::Config;
use crate::parts::Parts;
use crate::report::Report;
use anyhow::bail;
use futures::{StreamExt, stream};
use indexer_server::app::App;
use kvasir_discovery::{Observer, Seen, Watch};
use kvasir_process::telemetry::new_registry;
use std::io::{self, Write};
use std::pin::pin;
use tokio::select;
use tokio::sync::oneshot;

/// Maximum number of engines that are checked concurrently.
const CHECKED_MAX: usize = 8;

/// Checks the engines with a separate index, and prints the reports. `config` comes from
/// [`read_for_check`](crate::config::read_for_check).
///
/// # Errors
/// If an engine fails its check.
pub async fn run(config: Config, signal: impl Future<Output = ()>) -> anyhow::Result<()> {
    let index = Box::pin(App::build_within(config.index.clone(), &mut new_registry())).await?;
    let parts = Parts::new(&config, index.local())?;
    let started = index.started();
    let (stop, stopped) = oneshot::channel::<()>();
    let mut index = pin!(index.run(async { drop(stopped.await) }));
    let failed = select! {
        ended = &mut index => return Ok(ended?),
        () = signal => bail!("stopped before all engines were checked"),
        failed = async {
            started.cancelled().await;
            check(&parts).await
        } => failed?,
    };
    let _stops = stop.send(());
    index.await?;
    match failed {
        0 => Ok(()),
        failed => bail!("failed checks: {failed}"),
    }
}

/// Engines that answer.
struct Answering(Vec<Seen>);

impl Observer for Answering {
    fn end_round(&mut self, _watch: &Watch) {}

    fn check(&mut self, seen: &Seen) -> bool {
        self.0.push(seen.clone());
        true
    }
}

/// Checks all engines, and prints the report of each. Returns the number of engines that failed.
async fn check(parts: &Parts) -> anyhow::Result<usize> {
    let mut answering = Answering(Vec::new());
    let mut watch = Watch::default();
    parts.engines.round(&mut watch, &mut answering).await;
    let mut silent = watch.faults();
    let Answering(seen) = answering;
    let checks = seen.iter().filter_map(|seen| Some(parts.checker.as_ref()?.check(seen)));
    let absent = silent.drain(..).map(|(engine, why)| Report::failed(engine, "engine", why));
    // A check may wait for its engine: each report is printed as soon as it is there.
    let mut reports = pin!(stream::iter(checks).buffered(CHECKED_MAX).chain(stream::iter(absent)));
    let mut failed = 0;
    while let Some(report) = reports.next().await {
        let mut output = io::stdout().lock();
        write!(output, "{report}")?;
        output.flush()?;
        failed += usize::from(report.fault().is_some());
    }
    Ok(failed)
}
