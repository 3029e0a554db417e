use super::Connection;
use super::inlet::Inlet;
use super::starting::Starting;
use super::subjects::{self, subscribe};
use futures::StreamExt;
use kvasir_process::telemetry::NotReady;
use std::time::Duration;
use tokio::select;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

/// Interval of closing fenced sessions.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Backoff after a request that the broker refused.
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Receives messages as they are published, without replay.
pub(super) async fn run(
    mut connection: Connection,
    mut inlet: Inlet,
    not_ready: NotReady,
    stop: CancellationToken,
) {
    let mut starting = Some(Starting::new(not_ready, &inlet));
    let mut changes = inlet.ingest().map_changes();
    let mut ticks = interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let buckets = inlet.buckets();
        let all = [
            subjects::events(&connection.namespace, &buckets),
            subjects::heartbeats(&connection.namespace, &buckets),
        ]
        .concat();
        let mut messages = match subscribe(&connection, all).await {
            Ok(messages) => messages,
            Err(error) => {
                tracing::error!(%error, "the subscription failed: retrying");
                select! {
                    () = stop.cancelled() => return,
                    () = sleep(RETRY_PAUSE) => continue,
                }
            }
        };
        loop {
            select! {
                () = stop.cancelled() => return,
                Ok(()) = connection.link.changed() => {
                    let up = connection.link.borrow_and_update().up;
                    // Messages were missed: every source must open its session again.
                    if up { inlet.close_sessions().await } else { inlet.fall_behind().await }
                }
                Ok(()) = changes.changed() => break,
                Some(message) = messages.next() => {
                    let subject = message.subject;
                    let payload = message.payload;
                    let _nobody_waits = inlet.handle_message(&subject, payload, Duration::ZERO).await;
                }
                _ = ticks.tick() => {
                    inlet.close_fenced().await;
                    let up = connection.link.borrow().up;
                    if starting.as_mut().is_some_and(|starting| starting.is_over(&inlet, up)) {
                        starting = None;
                    }
                }
            }
        }
    }
}
