//! Blocks between agents of two tensor-parallel groups: decode ranks find the prefill ranks through the index, fetch the heads
//! that they need into another layout, and read every byte.

use crate::engine::{Engine, hashes, over_socket, prompt};
use crate::place::{BLOCK_SIZE, LOOK, MODEL, PATIENCE};
use crate::rank::{Form, Rank};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_sim::server::{Addresses, Server};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

const BLOCKS: u64 = 12;

/// An index with agents.
struct Fleet {
    folder: TempDir,
    index: Server,
    agents: Vec<Server>,
}

impl Fleet {
    async fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let index = Server::start_anywhere().await?;
        Ok(Self { folder, index, agents: Vec::new() })
    }

    fn socket(&self, rank: &Rank) -> PathBuf {
        self.folder.path().join(rank.worker())
    }

    /// Starts the agent of a rank. Its engine has the memory mapped.
    async fn agent(&mut self, rank: Rank) -> Result<Engine> {
        let peer = format!("listen={}", TcpListener::bind("127.0.0.1:0")?.local_addr()?);
        let socket = self.socket(&rank).display().to_string();
        let index = format!("http://{}", self.index.addresses.grpc);
        let block_size = BLOCK_SIZE.to_string();
        let mut flags = [
            ["--model", MODEL],
            ["--block-size", &block_size],
            ["--indexers", &index],
            ["--lease", "6s"],
            ["--blocks-host", "bytes=256KiB"],
            ["--blocks-socket", &socket],
            ["--blocks-peer", &peer],
        ]
        .concat();
        let of_rank = rank.flags();
        flags.extend(of_rank.iter().map(String::as_str));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        self.agents.push(Server::agent_at(Addresses { grpc: any, http: any }, &flags).await?);
        let contents = Arc::new(move |sequence| rank.bytes_of(sequence));
        Engine::with(over_socket(&self.socket(&rank)).await?, contents).await
    }

    /// The peer ports of all workers that have the whole prompt, once so many have it.
    async fn holders(&self, locals: &[u64], count: usize) -> Result<Vec<String>> {
        let mut index = client::connect(self.index.addresses.grpc).await?;
        let request = pb::FindMatchesRequest {
            model: MODEL.to_owned(),
            local_hashes: locals.to_vec(),
            ..Default::default()
        };
        let found = async {
            loop {
                let answer = index.find_matches(request.clone()).await;
                let matches = answer.map(|answer| answer.into_inner().matches).unwrap_or_default();
                let whole = |at: &&pb::WorkerMatch| at.matched_blocks as usize == locals.len();
                let holders: Vec<_> =
                    matches.iter().filter(whole).map(|at| at.worker_id.clone()).collect();
                if holders.len() == count {
                    return holders;
                }
                sleep(LOOK).await;
            }
        };
        let holders = timeout(PATIENCE, found).await.context("they are never found")?;
        let mut index = client::connect(self.index.addresses.grpc).await?;
        let workers = client::list_workers(&mut index, pb::ListWorkersRequest::default()).await?;
        let port = |worker: pb::WorkerInfo| {
            let labels = worker.registration?.profile?.labels;
            Some(labels.into_iter().find(|label| label.key == "blocks-peer")?.value)
        };
        let holds = |worker: &pb::WorkerInfo| holders.contains(&worker.worker_id);
        workers.into_iter().filter(holds).map(|at| port(at).context("a port")).collect()
    }

    async fn stop(mut self) {
        for agent in &mut self.agents {
            agent.stop().await;
        }
        self.index.stop().await;
    }
}

async fn fetch(engine: &mut Engine, peers: &[String], locals: &[u64]) -> Result<pb::FetchResponse> {
    let request = pb::FetchRequest {
        session_id: engine.session(),
        peers: peers.to_vec(),
        sequence_hashes: hashes(locals),
        ..Default::default()
    };
    Ok(engine.client.fetch(request).await?.into_inner())
}

/// A prefill group saves a prompt; each of these decode ranks fetches it. `needed` is the number of prefill ranks that one
/// needs.
async fn transfer(size: u32, decode: &[Rank], needed: usize) -> Result<()> {
    let mut fleet = Fleet::new().await?;
    let locals = prompt(1, BLOCKS);
    let mut saves = Vec::new();
    for number in 0..size {
        let mut engine = fleet.agent(Rank::of("prefill", number, size)).await?;
        engine.save(&locals).await?;
        saves.push(engine);
    }
    let peers = fleet.holders(&locals, size as usize).await?;
    for rank in decode {
        let mut engine = fleet.agent(*rank).await?;
        let fetched = fetch(&mut engine, &peers, &locals).await?;
        let whole = (locals.len() as u32, locals.len() as u32);
        ensure!((fetched.leading_blocks, fetched.fetched_blocks) == whole, "{fetched:?}");
        ensure!(fetched.fault() == pb::BlockFault::Unspecified, "{fetched:?}");
        ensure!(fetched.peers.len() == size as usize, "{fetched:?}");
        let sent = fetched.peers.iter().filter(|peer| u64::from(peer.blocks) == BLOCKS);
        ensure!(sent.count() == needed, "{fetched:?}");
        let others = fetched.peers.iter().filter(|peer| peer.blocks == 0);
        let mut errors = others.map(|peer| &peer.error);
        ensure!(errors.all(|error| error.contains("not needed")), "{fetched:?}");
        // Over gRPC and in the mapped memory.
        ensure!(engine.load(&locals).await? == locals.len(), "every byte is as it must be");
    }
    // The index knows of them, too.
    fleet.holders(&locals, size as usize + decode.len()).await?;
    fleet.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_prefill_ranks_serve_eight_decode_ranks() -> Result<()> {
    let layers = |number| {
        let rank = Rank::of("decode", number, 8);
        Rank { form: Form::Layers, alignment: 4_096, ..rank }
    };
    transfer(4, &[layers(0), layers(1), layers(6)], 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_prefill_ranks_serve_four_decode_ranks() -> Result<()> {
    let outers = Rank { form: Form::Outers, alignment: 1_024, ..Rank::of("decode", 3, 4) };
    transfer(8, &[Rank::of("decode", 1, 4), outers], 2).await
}

/// The same heads in another form; and whatever is missing or wrong is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_converted_is_said() -> Result<()> {
    let mut fleet = Fleet::new().await?;
    let locals = prompt(1, BLOCKS);
    let mut left = fleet.agent(Rank::of("prefill", 0, 2)).await?;
    left.save(&locals).await?;
    let peers = fleet.holders(&locals, 1).await?;
    let same = Rank { form: Form::Layers, alignment: 64, ..Rank::of("decode", 0, 2) };
    let mut engine = fleet.agent(same).await?;
    let fetched = fetch(&mut engine, &peers, &locals).await?;
    ensure!(u64::from(fetched.fetched_blocks) == BLOCKS, "{fetched:?}");
    ensure!(engine.load(&locals).await? == locals.len());
    // The other half is nowhere.
    let mut engine = fleet.agent(Rank::of("decode", 0, 1)).await?;
    let fetched = fetch(&mut engine, &peers, &locals).await?;
    ensure!((fetched.leading_blocks, fetched.bytes) == (0, 0), "{fetched:?}");
    ensure!(fetched.fault() == pb::BlockFault::Missing, "{fetched:?}");
    let error = fetched.peers.first().context("a peer")?.error.clone();
    ensure!(error.contains("part 1 of 2 of the heads"), "{error}");
    // None of what it has is needed.
    let mut engine = fleet.agent(Rank::of("decode", 1, 2)).await?;
    let fetched = fetch(&mut engine, &peers, &locals).await?;
    ensure!(fetched.leading_blocks == 0, "{fetched:?}");
    ensure!(fetched.fault() == pb::BlockFault::Missing, "{fetched:?}");
    let error = fetched.peers.first().context("a peer")?.error.clone();
    ensure!(error.contains("part 0 of 2 of the heads"), "{error}");
    fleet.stop().await;
    Ok(())
}
