//! A server under a byte budget: two workers flood it with more than it may keep, and everything that
//! it says about that agrees.

use anyhow::{Context, Result, ensure};
use kvasir_feed::uplink::{SourceIdentity, Uplink};
use kvasir_proto::pb;
use kvasir_proto::pb::dump_worker_response::Part;
use kvasir_proto::types::{
    BlockName, CopyMode, Incarnation, KvEvent, LocalHash, PartitionKey, StoredBlock, Tier, TierSet,
    WorkerId,
};
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use kvasir_tests::oracle::{Oracle, OracleLimits, Question, QuestionKey, SourceNo};
use std::net::SocketAddr;

const MODEL: &str = "m";
const BLOCK_SIZE: u32 = 16;
const WORKERS: [&str; 2] = ["a", "b"];
const LIMIT: u64 = 1 << 20;
/// Most that one hold of the writer allocates.
const HOLD_BYTES: u64 = 128 << 10;
/// Rounds in which each worker stores, and blocks of each of its chains.
const ROUNDS: u64 = 200;
const CHAINS_A_ROUND: u64 = 4;
const CHAIN_BLOCKS: u64 = 64;
/// Every so many rounds all is asked.
const ASK_EVERY: u64 = 40;
/// A worker goes on with what it stored so many rounds ago.
const GOES_ON_AFTER: u64 = 150;

/// A server, its workers' uplinks, and the reference that hears the same events.
struct Fleet {
    server: Server,
    indexer: Indexer,
    uplinks: Vec<Uplink>,
    oracle: Oracle,
    sources: Vec<SourceNo>,
}

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a short name")
}

/// Blocks `from` to `to` of a chain.
fn blocks(chain: u64, from: u64, to: u64) -> impl Iterator<Item = StoredBlock> {
    let number = move |at: u64| (chain << 16 | at) + 1;
    let block = |at: u64| StoredBlock { name: BlockName(at), local: LocalHash(at * 7) };
    (from..to).map(move |at| block(number(at)))
}

/// Some blocks of a chain, after those before them.
fn stored(chain: u64, from: u64, to: u64) -> KvEvent {
    let parent = from.checked_sub(1).and_then(|before| blocks(chain, before, from).next());
    let blocks = blocks(chain, from, to).collect();
    KvEvent::Stored { parent: parent.map(|block| block.name), tier: Tier::Device, blocks }
}

impl Fleet {
    async fn start() -> Result<Self> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::start_with(any, any, &["--max-index-bytes=1MiB"]).await?;
        let mut indexer = client::connect(server.addresses.grpc).await?;
        let limits = OracleLimits { chain_blocks_max: 65_536, rank_parked_max: 65_536 };
        let mut oracle = Oracle::new(limits);
        let mut uplinks = Vec::new();
        let mut sources = Vec::new();
        for name in WORKERS {
            let request = pb::RegisterWorkerRequest {
                worker_id: name.to_owned(),
                model: MODEL.to_owned(),
                block_size: BLOCK_SIZE,
                ..Default::default()
            };
            indexer.register_worker(request).await?;
            let source = SourceIdentity {
                partition: PartitionKey::new(MODEL, "").expect("a short name"),
                worker: worker(name),
                source: "agent".to_owned(),
                block_size: BLOCK_SIZE,
                incarnation: Incarnation(1),
            };
            let url = format!("http://{}", server.addresses.grpc);
            uplinks.push(Uplink::open(&url, source).await?);
            sources.push(oracle.add_source(&worker(name), 0, CopyMode::Set));
        }
        Ok(Self { server, indexer, uplinks, oracle, sources })
    }

    async fn publish(&mut self, worker: usize, events: &[KvEvent]) -> Result<()> {
        self.uplinks[worker].publish(0, events).await?;
        for event in events {
            self.oracle.apply(self.sources[worker], 0, event);
        }
        Ok(())
    }

    async fn stats(&mut self) -> Result<pb::GetStatsResponse> {
        Ok(self.indexer.get_stats(pb::GetStatsRequest {}).await?.into_inner())
    }

    async fn workers(&mut self) -> Result<Vec<pb::WorkerInfo>> {
        client::list_workers(&mut self.indexer, pb::ListWorkersRequest::default()).await
    }

    /// Asks for a chain; no answer is more than the reference's. Returns the blocks of each.
    async fn ask(&mut self, chain: u64) -> Result<Vec<(u32, pb::WorkerMatch)>> {
        let locals: Vec<_> = blocks(chain, 0, CHAIN_BLOCKS).map(|block| block.local).collect();
        let request = pb::FindMatchesRequest {
            model: MODEL.to_owned(),
            local_hashes: locals.iter().map(|local| local.0).collect(),
            minimum_overlap_blocks: Some(0),
            ..Default::default()
        };
        let question = Question {
            key: QuestionKey::Locals(locals),
            tiers: TierSet::ALL,
            workers: None,
            minimum_overlap: 0,
            shared: false,
        };
        let most = self.oracle.find(&question);
        let matches = self.indexer.find_matches(request).await?.into_inner().matches;
        ensure!(matches.len() == WORKERS.len(), "{matches:?}");
        let mut found = Vec::new();
        for at in matches {
            let most = most.iter().find(|most| most.worker.as_str() == at.worker_id);
            let most = most.context("a worker of the reference")?.blocks;
            ensure!(at.matched_blocks <= most, "{most} blocks at most: {at:?}");
            ensure!(at.matched_blocks == most || at.shed_blocks > 0, "{most} blocks: {at:?}");
            found.push((most, at));
        }
        Ok(found)
    }

    async fn dump(&mut self, name: &str) -> Result<(u64, pb::DumpEnd)> {
        let model = MODEL.to_owned();
        let worker_id = name.to_owned();
        let request = pb::DumpWorkerRequest { model, worker_id, ..Default::default() };
        let mut parts = self.indexer.dump_worker(request).await?.into_inner();
        let mut records = 0;
        while let Some(part) = parts.message().await? {
            match part.part {
                Some(Part::Chunk(chunk)) => records += chunk.records.len() as u64,
                Some(Part::Meanings(_)) => {}
                Some(Part::End(end)) => return Ok((records, end)),
                None => {}
            }
        }
        anyhow::bail!("a dump without an end")
    }

    /// Sizes, counters, metrics and workers say the same.
    async fn agree(&mut self) -> Result<pb::GetStatsResponse> {
        let stats = self.stats().await?;
        let [partition] = &*stats.partitions else { anyhow::bail!("{stats:?}") };
        ensure!(partition.index_bytes == stats.index_bytes, "{stats:?}");
        ensure!(stats.index_bytes_max == Some(LIMIT), "{stats:?}");
        let refused = stats.counters.iter().filter(|at| at.unit == "block" && at.outcome == "shed");
        let refused: u64 = refused.map(|at| at.count).sum();
        let lacking = stats.shed_pairs + stats.shed_parked + refused;
        ensure!(partition.shed_blocks == lacking, "{lacking} of {stats:?}");
        let workers = self.workers().await?;
        let ranks = workers.iter().flat_map(|worker| &worker.ranks);
        ensure!(ranks.map(|rank| rank.shed_blocks).sum::<u64>() == lacking, "{workers:?}");
        let samples = metrics::fetch(self.server.addresses.http).await?;
        for (name, value) in [
            ("kvasir_index_allocated_bytes", stats.index_bytes),
            ("kvasir_index_in_use_bytes", stats.index_bytes - stats.index_free_bytes),
            ("kvasir_index_limit_bytes", LIMIT),
            ("kvasir_index_shed_pairs_total", stats.shed_pairs),
            ("kvasir_index_shed_parked_total", stats.shed_parked),
        ] {
            let sample = samples.iter().find(|sample| sample.name == name);
            let sample = sample.with_context(|| format!("no {name} among {samples:?}"))?;
            ensure!(sample.value == value as f64, "{sample:?} is not {value}");
        }
        Ok(stats)
    }

    /// One round of the flood. All blocks are new, but for those that go on where an old chain, by then
    /// shed, ended.
    async fn flood(&mut self, round: u64) -> Result<()> {
        for (number, offset) in [(0, 0), (1, 1_000_000)] {
            let first = offset + round * CHAINS_A_ROUND;
            let chains = first..first + CHAINS_A_ROUND;
            let mut events: Vec<_> =
                chains.map(|chain| stored(chain, 0, CHAIN_BLOCKS / 2)).collect();
            if round >= GOES_ON_AFTER {
                let old = first - GOES_ON_AFTER * CHAINS_A_ROUND;
                events.push(stored(old, CHAIN_BLOCKS / 2, CHAIN_BLOCKS));
            }
            self.publish(number, &events).await?;
        }
        Ok(())
    }

    /// Asks for chains of every other round so far; how many answers have blocks, and how many lack some.
    async fn ask_all(&mut self, round: u64) -> Result<(u64, u64)> {
        let mut hits = 0;
        let mut losses = 0;
        for chain in (0..=round).step_by(2).map(|round| round * CHAINS_A_ROUND) {
            for (expected, found) in self.ask(chain).await? {
                hits += u64::from(found.matched_blocks > 0);
                losses += u64::from(found.matched_blocks < expected);
            }
        }
        Ok((hits, losses))
    }

    /// The answer for a worker, and the blocks that the reference has.
    async fn ask_of(&mut self, chain: u64, name: &str) -> Result<(u32, pb::WorkerMatch)> {
        let mut found = self.ask(chain).await?.into_iter();
        found.find(|at| at.1.worker_id == name).context("an answer for every worker")
    }

    /// Everything about a worker that lacks blocks says so.
    async fn is_partial(&mut self, info: &pb::WorkerInfo) -> Result<()> {
        let ([rank], [source]) = (&*info.ranks, &*info.sources) else { anyhow::bail!("{info:?}") };
        ensure!(source.state() == pb::WorkerState::Partial, "{info:?}");
        let (records, end) = self.dump(&info.worker_id).await?;
        ensure!(end.incomplete && end.state() == pb::WorkerState::Partial, "{end:?}");
        ensure!(records == rank.placed_blocks + rank.parked_blocks, "{records} of {info:?}");
        let (_, found) = self.ask_of(0, &info.worker_id).await?;
        ensure!(found.shed_blocks == rank.shed_blocks, "{found:?} of {info:?}");
        ensure!(found.state() == pb::WorkerState::Partial, "{found:?}");
        Ok(())
    }
}

#[tokio::test]
async fn a_flood_is_held_within_the_budget_and_answers_only_lose() -> Result<()> {
    let mut fleet = Fleet::start().await?;
    let mut most = 0;
    let mut hits = 0;
    let mut losses = 0;
    for round in 0..ROUNDS {
        fleet.flood(round).await?;
        most = most.max(fleet.stats().await?.index_bytes);
        if round % ASK_EVERY == 0 {
            let (more_hits, more_losses) = fleet.ask_all(round).await?;
            (hits, losses) = (hits + more_hits, losses + more_losses);
        }
    }
    let stats = fleet.agree().await?;
    println!("{most} bytes at most, {hits} hits, {losses} lost, {stats:?}");
    ensure!((LIMIT / 4 * 3..=LIMIT + HOLD_BYTES).contains(&most), "{most} bytes");
    ensure!(stats.shed_pairs > 10_000 && hits > 50 && losses > 20, "{hits} hits, {losses} lost");
    let refused = stats.counters.iter().any(|at| at.outcome == "shed" && at.count > 0);
    ensure!(refused, "no chain goes on that was shed: {:?}", stats.counters);
    for info in fleet.workers().await? {
        fleet.is_partial(&info).await?;
    }

    // What was stored last is held; and a clear makes whole again.
    let last = (ROUNDS - 1) * CHAINS_A_ROUND;
    let (expected, found) = fleet.ask_of(last, "a").await?;
    ensure!(found.matched_blocks == expected && expected > 0, "{found:?}");
    fleet.publish(0, &[KvEvent::Cleared, stored(last, 0, 8)]).await?;
    let info = client::find_worker(&mut fleet.indexer, MODEL, "a").await?.context("a worker")?;
    ensure!(info.sources[0].state() == pb::WorkerState::Exact, "{info:?}");
    ensure!((info.ranks[0].placed_blocks, info.ranks[0].shed_blocks) == (8, 0), "{info:?}");
    let (records, end) = fleet.dump("a").await?;
    ensure!(records == 8 && !end.incomplete, "{end:?}");
    fleet.server.stop().await;
    Ok(())
}
