//! Publishes events from a separate process while queries are measured.

use super::child::{Role, cpu_time, stdin_ended};
use super::fleet::{EVENT_BLOCKS, MODEL, applied, batch, hello, ingest_client, register};
use anyhow::{Context, Result};
use bench_figures::random::mixed;
use futures::{StreamExt, future};
use kvasir_proto::pb;
use kvasir_proto::pb::published_event::Event;
use kvasir_sim::client::{self, Indexer};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::select;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_stream::wrappers::ReceiverStream;

/// Number of publishers, each with its own worker and stream.
const PUBLISHERS: u64 = 64;
/// Maximum number of a publisher's unacknowledged batches; then it waits.
const AHEAD_MAX: usize = 64;
/// Events per chain, and number of chains that a publisher keeps before it replaces the oldest.
const CHAIN_EVENTS: u64 = 16;
const CHAINS_HELD: u64 = 8;
/// Interval of the bursts in which batches are sent.
const TICK: Duration = Duration::from_millis(4);
/// Run time of publishers before they count as steady.
const SETTLE: Duration = Duration::from_millis(1_500);

/// The process of the publishers, as seen by the load generator.
#[derive(Debug)]
pub struct Publishers {
    role: Role,
    process_id: u32,
}

/// Progress of the publishers and the index at a moment.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    at: Instant,
    cpu: Duration,
    operations: u64,
}

impl Publishers {
    /// Starts the publishers, and waits until they are steady.
    pub async fn start(server: SocketAddr, rate: u64) -> Result<Self> {
        let server = server.to_string();
        let rate = rate.to_string();
        let mut role = Role::start(&["publish", &server, &rate])?;
        role.line().await.context("publishers that are ready")?;
        sleep(SETTLE).await;
        let process_id = role.process_id().context("a process")?;
        Ok(Self { role, process_id })
    }

    /// Current progress.
    pub async fn mark(&self, indexer: &mut Indexer) -> Result<Mark> {
        let stats = indexer.get_stats(pb::GetStatsRequest::default()).await?.into_inner();
        let counters = stats.counters.iter();
        let applied = counters.filter(|at| at.unit == "block" && at.outcome == "applied");
        let operations = applied.map(|at| at.count).sum();
        Ok(Mark { at: Instant::now(), cpu: cpu_time(self.process_id)?, operations })
    }

    /// Stops the publishers.
    pub async fn stop(self) -> Result<()> {
        let last = self.role.finish().await?;
        anyhow::ensure!(last == "done", "publishers: {last}");
        Ok(())
    }
}

impl Mark {
    /// Block operations applied per second since `before`, and the number of cores used by the publishers.
    pub fn since(self, before: Self) -> (f64, f64) {
        let seconds = (self.at - before.at).as_secs_f64();
        let operations = self.operations.saturating_sub(before.operations);
        let cores = self.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds;
        (operations as f64 / seconds, cores)
    }
}

/// Runs the publishers until standard input ends.
pub async fn publish(server: SocketAddr, rate: u64, ready: impl FnOnce()) -> Result<()> {
    let mut indexer = client::connect(server).await?;
    for publisher in 0..PUBLISHERS {
        register(&mut indexer, &worker_id(publisher)).await?;
    }
    ready();
    let (stop, stopped) = watch::channel(false);
    let rate = rate as f64 / PUBLISHERS as f64 / EVENT_BLOCKS as f64;
    let publishers = (0..PUBLISHERS).map(|at| Publisher::run(at, server, rate, stopped.clone()));
    let until = async {
        stdin_ended().await;
        // Without receivers, all publishers have ended.
        let _ended = stop.send(true);
        Ok(())
    };
    future::try_join(future::try_join_all(publishers), until).await?;
    for publisher in 0..PUBLISHERS {
        let worker_id = worker_id(publisher);
        let model = MODEL.to_owned();
        let request = pb::RemoveWorkerRequest { worker_id, model, tenant: String::new() };
        indexer.remove_worker(request).await?;
    }
    Ok(())
}

fn worker_id(publisher: u64) -> String {
    format!("publisher-{publisher}")
}

/// One source: stores chain after chain, and removes old ones tail first to keep its size.
struct Publisher {
    number: u64,
    event: u64,
}

impl Publisher {
    async fn run(
        number: u64,
        server: SocketAddr,
        rate: f64,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<()> {
        // One connection each, like engines.
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{server}"))?;
        let channel = channel.tcp_nodelay(true).connect().await?;
        let (sender, requests) = mpsc::channel(AHEAD_MAX);
        sender.send(hello(worker_id(number), 1)).await?;
        let mut publisher = ingest_client(channel);
        let requests = ReceiverStream::new(requests);
        let mut answers = publisher.publish_events(requests).await?.into_inner();
        let acknowledged = async {
            while let Some(answer) = answers.next().await {
                applied(answer?)?;
            }
            anyhow::Ok(())
        };
        let send = async move {
            let mut source = Self { number, event: 0 };
            let begin = Instant::now();
            let mut sequence = 0_u64;
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                select! {
                    _ = stopped.changed() => return anyhow::Ok(()),
                    _ = ticks.tick() => {}
                }
                while (sequence as f64) < begin.elapsed().as_secs_f64() * rate {
                    sender.send(batch(sequence, vec![source.next_event()])).await?;
                    sequence += 1;
                }
            }
        };
        future::try_join(acknowledged, send).await?;
        Ok(())
    }

    fn next_event(&mut self) -> pb::PublishedEvent {
        // The first chains are only stored. Then one chain is stored and one removed in turn.
        let first = CHAINS_HELD * CHAIN_EVENTS;
        let at = self.event;
        self.event += 1;
        let (chain, event, store) = if at < first {
            (at / CHAIN_EVENTS, at % CHAIN_EVENTS, true)
        } else {
            let round = (at - first) / CHAIN_EVENTS;
            let step = (at - first) % CHAIN_EVENTS;
            if round.is_multiple_of(2) {
                (round / 2, CHAIN_EVENTS - 1 - step, false)
            } else {
                (CHAINS_HELD + round / 2, step, true)
            }
        };
        let name = |block: u64| mixed((self.number + 1) << 48 | chain << 24 | block);
        let blocks = EVENT_BLOCKS as u64;
        let begin = event * blocks;
        let end = (event + 1) * blocks;
        let names: Vec<u64> = (begin..end).map(name).collect();
        let event = if store {
            let parent_name = begin.checked_sub(1).map(name);
            let local_hashes = names.iter().map(|name| mixed(*name)).collect();
            Event::Stored(pb::BlocksStored {
                parent_name,
                names,
                local_hashes,
                ..Default::default()
            })
        } else {
            Event::Removed(pb::BlocksRemoved { names, ..Default::default() })
        };
        pb::PublishedEvent { event: Some(event) }
    }
}
