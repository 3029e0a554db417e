use super::pool::PoolOutcome;
use super::{EnginePool, RelayConfig, RelayError};
use futures::FutureExt;
use kvasir_engine::expiry::Expired;
use kvasir_engine::link::{self, Common, LinkConfig, Resume, SourceCommand};
use kvasir_engine::normalise::{DropKind, Drops};
use kvasir_feed::disk::{Flaws, SourceKind, SourcePosition};
use kvasir_feed::hub::{Hub, Inlet};
use kvasir_proto::types::{
    BatchOutcome, Direction, DpRank, KvEvent, Reason, SourceStatus, StateReason,
};
use std::mem;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio::{join, select};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// Maximum number of queued commands between an engine's link and the hub.
const COMMANDS_MAX: usize = 64;
/// Time between two checks whether a rank reserved for another source is free.
const TURN_LOOK: Duration = Duration::from_millis(50);
/// Backoff after a panic in a link, before the link is reset.
const FAULT_PAUSE: Duration = Duration::from_secs(5);

/// Reader of one engine's sockets.
#[derive(Debug)]
pub struct Relay {
    config: LinkConfig,
    /// Position of an earlier agent. The engine's own copy of that batch shows whether the engine survived.
    resume: Option<Resume>,
    sink: HubSink,
}

/// Applies a link's commands to the hub.
#[derive(Debug)]
struct HubSink {
    inlet: Inlet,
    /// Pool of the store that workers share, if one is configured.
    pool: Option<EnginePool>,
    /// Whether the current incarnation has not published yet.
    fresh: bool,
    /// Reasons for the source's inexact state that were logged.
    noted: Vec<Reason>,
}

impl Relay {
    /// Registers the engine as a source of the agent, without connecting yet.
    ///
    /// # Errors
    /// If a socket address cannot be used, or the hub refuses the source.
    pub fn open(
        hub: &Arc<Hub>,
        config: RelayConfig,
        pool: Option<EnginePool>,
    ) -> Result<Self, RelayError> {
        let name = config.endpoint.clone();
        let copy_mode = config.copy_mode;
        let config = config.link(hub.feed().block_size(), pool.is_some())?;
        let inlet = hub.open_persisted(&name, copy_mode, SourceKind::Relay)?;
        let resume = inlet.pending().map(|persisted| Resume {
            status: persisted.status(),
            names: inlet.take_names(),
            ranks: persisted.ranks,
        });
        let fresh = resume.is_none();
        Ok(Self { config, resume, sink: HubSink { inlet, pool, fresh, noted: Vec::new() } })
    }

    /// Follows the engine until cancelled; its blocks then stay in the agent's stream. A panic, which an engine's bytes
    /// may cause, drops only that engine's blocks.
    pub async fn run(mut self, common: Common, cancel: CancellationToken) {
        loop {
            let (commands, queue) = mpsc::channel(COMMANDS_MAX);
            let config = self.config.clone();
            let common = common.clone();
            let link = link::run(config, self.resume.take(), commands, common, cancel.clone());
            // The span adds the source's name to log lines. Its level is the highest, so that every filter that admits
            // the lines admits the span.
            let span = tracing::error_span!("engine", source = self.sink.inlet.name());
            let link = link.instrument(span);
            let work = async { join!(link, self.sink.forward(queue, &cancel)).1 };
            if AssertUnwindSafe(work).catch_unwind().await.is_ok() {
                return;
            }
            tracing::error!(source = self.sink.inlet.name(), "the link failed: it is reset");
            self.sink.fresh = true;
            self.sink.clear_pool();
            self.sink.inlet.clear();
            self.sink.inlet.show(SourceStatus::default());
            self.sink.update_pool();
            select! {
                () = cancel.cancelled() => return,
                () = sleep(FAULT_PAUSE) => {}
            }
        }
    }
}

impl HubSink {
    /// Handles the link's commands, in order, until the link ends and all are handled. Before a batch, waits until its
    /// rank is free.
    async fn forward(
        &mut self,
        mut commands: mpsc::Receiver<SourceCommand>,
        cancel: &CancellationToken,
    ) {
        while let Some(command) = commands.recv().await {
            if let SourceCommand::Apply { rank, .. } = &command {
                self.wait_for_turn(*rank, cancel).await;
            }
            self.handle_command(command);
        }
    }

    /// Waits while a rank is reserved for another source. The engine's own buffer has the batches of this time.
    async fn wait_for_turn(&self, rank: DpRank, cancel: &CancellationToken) {
        while self.inlet.check_turn(rank).is_err() {
            select! {
                () = cancel.cancelled() => return,
                () = sleep(TURN_LOOK) => {}
            }
        }
    }

    /// Applies one command of the link to the hub.
    fn handle_command(&mut self, command: SourceCommand) {
        match command {
            SourceCommand::Apply {
                cursor,
                rank,
                events,
                pool_events,
                drops,
                names,
                learned,
                reasons,
                unmatchable_blocks: _,
            } => {
                // Before the position is written: publishing twice has no effect.
                self.publish_in_pool(rank, pool_events, &events);
                // In the same write as the batch, because a killed process cannot record them later.
                let flaws = flaws_of(&reasons, &drops);
                let position = SourcePosition { cursor, learned, names, flaws };
                self.apply(position, rank, events, &drops);
                // A clear in the batch ends earlier reasons, not these.
                self.note_reasons(reasons);
            }
            SourceCommand::Expire(Expired { rank, event, .. }) => self.expire(rank, event),
            SourceCommand::ExpireInPool(Expired { rank, event, .. }) => {
                let expired = self.publish_in_pool(rank, vec![event], &[]);
                self.inlet.count(|counts| counts.expired += expired);
            }
            SourceCommand::Clear | SourceCommand::Expired => {
                self.fresh = true;
                self.inlet.clear();
            }
            SourceCommand::ClearLost | SourceCommand::MarkSuspect => {
                let source = self.inlet.name();
                tracing::warn!(source, "batches were lost: the engine's blocks are dropped");
                self.inlet.count(|counts| counts.losses += 1);
                self.clear_pool();
                self.inlet.lose();
            }
            // The agent retains no suspect blocks.
            SourceCommand::DropSuspects => {}
            SourceCommand::Outcome { outcome: BatchOutcome::OtherTopic, batches } => {
                self.inlet.count(|counts| counts.other_topic += batches);
            }
            SourceCommand::Outcome { .. }
            | SourceCommand::Replays { .. }
            | SourceCommand::Unreachable => {}
            SourceCommand::Excess { connections, .. } => {
                self.inlet.count(|counts| counts.connections_cut += connections);
            }
            SourceCommand::Status(status) => self.inlet.show(status),
        }
        self.update_pool();
    }

    /// Records why the agent's stream differs from the engine: the source is partial until a clear. Logs each reason
    /// only once.
    fn note_reasons(&mut self, reasons: Vec<(Reason, u64, String)>) {
        for (reason, count, example) in reasons {
            let of_example = example.as_str().into();
            let since = Duration::ZERO;
            self.inlet.note_reason(&StateReason { reason, count, example: of_example, since });
            if !self.noted.contains(&reason) {
                self.noted.push(reason);
                tracing::warn!(source = self.inlet.name(), %reason, example, "the source is not exact");
            }
        }
    }

    /// Removes blocks whose time to live is over. The engine has published no removal.
    fn expire(&self, rank: DpRank, event: KvEvent) {
        let blocks = event.operations() as u64;
        match self.inlet.take(rank, vec![event]) {
            Ok(_taken) => self.inlet.count(|counts| counts.expired += blocks),
            Err(error) => self.inlet.count_refused(blocks, &error),
        }
    }

    /// Publishes an engine's events about the shared store. Returns the number of published block operations: 0 without
    /// a pool or events, or if the pool refuses them.
    fn publish_in_pool(&self, rank: DpRank, events: Vec<KvEvent>, own: &[KvEvent]) -> u64 {
        let Some(pool) = self.pool.as_ref().filter(|_| !events.is_empty()) else { return 0 };
        let operations: usize = events.iter().map(KvEvent::operations).sum();
        match pool.publish(rank, events, own) {
            Ok(PoolOutcome { published, unknown }) => {
                self.inlet.count(|counts| {
                    counts.pool_operations += published;
                    counts.pool_unknown += unknown;
                });
                published
            }
            Err(error) => {
                self.inlet.count(|counts| counts.refused += operations as u64);
                tracing::warn!(%error, source = self.inlet.name(), "cannot publish blocks of the engine's pool");
                0
            }
        }
    }

    fn update_pool(&self) {
        if let Some(pool) = &self.pool {
            pool.update_state();
        }
    }

    /// Clears the pool after a loss of events, because a removal may be among them. Call it before the loss is
    /// recorded, so that a process killed in between finds the loss again.
    fn clear_pool(&self) {
        if let Some(pool) = &self.pool {
            pool.clear();
        }
    }

    /// Passes a batch to the hub. Counts the batch as refused if the hub does not accept it.
    fn apply(
        &mut self,
        position: SourcePosition,
        rank: DpRank,
        events: Vec<KvEvent>,
        drops: &Drops,
    ) {
        let begins = mem::take(&mut self.fresh);
        let operations: usize = events.iter().map(KvEvent::operations).sum();
        let taken = self.inlet.take_at(rank, events, position);
        self.inlet.count(|counts| {
            counts.incarnations += u64::from(begins);
            counts.drops.merge(drops);
        });
        if let Err(error) = taken {
            self.inlet.count_refused(operations as u64, &error);
            tracing::debug!(%error, source = self.inlet.name(), rank, "an engine's batch is refused");
        }
    }
}

/// How the agent's stream differs from an engine's batch, given the batch's reasons and dropped operations.
fn flaws_of(reasons: &[(Reason, u64, String)], drops: &Drops) -> Flaws {
    let any = |direction| reasons.iter().any(|(reason, ..)| reason.direction() == direction);
    Flaws {
        has_lost: any(Direction::MayBeHigh),
        lacks_blocks: any(Direction::MayBeLow)
            || drops.iter().any(|(reason, _)| reason.kind() == DropKind::Rejected),
    }
}

#[cfg(test)]
#[path = "follow_test.rs"]
mod tests;
