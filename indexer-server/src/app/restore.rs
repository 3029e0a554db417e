//! Brings back what the checkpoint has, while the server answers already.

use crate::{
    ingest::{Expected, Ingest, Resumed},
    snapshot::Restorer,
    telemetry::NotReady,
};
use kvasir_proto::{
    convert::{Registration, WorkerAddress},
    pb,
};
use prost::Message;
use std::sync::Arc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Workers of a checkpoint that are to be restored.
pub(super) type Plan = Vec<(WorkerAddress, Expected)>;

/// Registers all workers of a checkpoint, without feeding them yet. A configured worker that differs
/// from what the checkpoint says is left out, and begins afresh.
pub(super) async fn plan(
    ingest: &Ingest,
    stored: Vec<(WorkerAddress, Vec<u8>)>,
    configured: &[Registration],
) -> Plan {
    let mut plan = Plan::new();
    for (worker, registration) in stored {
        let registration = match read(&registration) {
            Ok(registration) => registration,
            Err(error) => {
                tracing::warn!(%worker, error, "not restored");
                continue;
            }
        };
        let same = |at: &&Registration| {
            (&at.partition, &at.worker) == (&registration.partition, &registration.worker)
        };
        let now = configured.iter().find(same);
        if let Some((field, stored, now)) = now.and_then(|now| registration.difference(now)) {
            tracing::warn!(
                %worker, field, stored, configured = now,
                "not restored: it is configured otherwise by now"
            );
            continue;
        }
        match ingest.expect(registration).await {
            Ok(Some(expected)) => plan.push((worker, expected)),
            Ok(None) => {}
            Err(error) => tracing::warn!(%worker, %error, "not restored"),
        }
    }
    plan
}

fn read(registration: &[u8]) -> Result<Registration, String> {
    let request = pb::RegisterWorkerRequest::decode(registration);
    let request = request.map_err(|error| format!("its registration cannot be read: {error}"))?;
    Registration::try_from(request).map_err(|error| error.to_string())
}

/// Restores all of them, one after the other, and lets events in for each as soon as it is back.
/// Ready, as far as `not_ready` goes, once the last is.
pub(super) async fn run(
    plan: Plan,
    restorer: Restorer,
    ingest: Arc<Ingest>,
    not_ready: NotReady,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    let total = plan.len();
    let (mut blocks, mut failed) = (0_u64, 0_usize);
    for (done, (worker, expected)) in plan.into_iter().enumerate() {
        if stop.is_cancelled() {
            return Ok(());
        }
        not_ready.say(format!("restoring: {done} of {total} workers, {blocks} blocks so far"));
        let restored = ingest.resume(expected, async |partition| {
            match restorer.restore(partition, &worker).await {
                Ok(restored) => {
                    blocks += restored.blocks;
                    let resumed = restored.sources.into_iter().map(|source| Resumed {
                        name: source.name,
                        copy_mode: source.copy_mode,
                        source: source.source,
                        status: source.status,
                    });
                    resumed.collect()
                }
                Err(error) => {
                    failed += 1;
                    tracing::error!(%worker, %error, "not restored: it begins empty");
                    Vec::new()
                }
            }
        });
        if let Err(error) = restored.await {
            tracing::error!(%worker, %error, "not restored: register it anew");
            // Who removed it meanwhile, or stops the server, has done so already.
            let _gone = ingest.remove(worker).await;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    tracing::info!(workers = total, failed, blocks, seconds, "restored from the checkpoint");
    drop(not_ready);
    Ok(())
}
