use super::{
    Connection,
    inlet::Inlet,
    subjects::{self, subscribe},
};
use crate::telemetry::NotReady;
use futures::StreamExt;
use std::time::Duration;
use tokio::{
    select,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

/// How often sessions are looked after.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after something that the broker refused.
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Agents are heard of in this time: they say every 5 s that they are there.
const HEARD_WITHIN: Duration = Duration::from_secs(6);
/// A server is ready after this time whatever it lacks: its answers say what they are worth.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(60);

/// Takes in what is published from now on.
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
        let all = [subjects::events(&buckets), subjects::heartbeats(&buckets)].concat();
        let mut messages = match subscribe(&connection, all).await {
            Ok(messages) => messages,
            Err(error) => {
                tracing::error!(%error, "no subscription: trying again");
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
                    // What was published meanwhile is not known: sources have to be heard again.
                    if up { inlet.forget().await } else { inlet.behind().await }
                }
                Ok(()) = changes.changed() => break,
                Some(message) = messages.next() => {
                    let _nobody_waits = inlet.take(&message.subject, message.payload).await;
                }
                _ = ticks.tick() => {
                    inlet.sweep().await;
                    let up = connection.link.borrow().up;
                    starting = starting.take().filter(|starting| !starting.is_over(&inlet, up));
                }
            }
        }
    }
}

/// Until agents were heard and what they hold was fetched.
struct Starting {
    not_ready: NotReady,
    since: Instant,
    /// A checkpoint was restored: what it says is better than nothing.
    restored: bool,
}

impl Starting {
    fn new(not_ready: NotReady, inlet: &Inlet) -> Self {
        not_ready.say("waiting to hear of agents over NATS");
        Self { not_ready, since: Instant::now(), restored: inlet.knows_workers() }
    }

    fn is_over(&self, inlet: &Inlet, up: bool) -> bool {
        let passed = self.since.elapsed();
        if up && !inlet.is_settled() {
            self.not_ready.say("fetching what agents hold");
        }
        let heard = self.restored || passed >= HEARD_WITHIN;
        (up && heard && inlet.is_settled()) || passed >= READY_WITHIN
    }
}
