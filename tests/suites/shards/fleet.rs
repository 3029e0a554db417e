//! The engines, the servers of all shards, and one server that has everything, which says what a whole
//! answer is.

use kvasir_proto::hash::bucket;
use kvasir_proto::pb;
use kvasir_proto::shard::{ShardCount, ShardMap};
use kvasir_proto::types::WorkerId;
use kvasir_sim::client;
use kvasir_sim::engine::{EngineConfig, MockEngine, Prompt as EnginePrompt};
use kvasir_sim::server::Server;
use router_client::{Answer, ClientConfig, HedgeConfig, IndexerClient, Prompt};
use router_client::{ShardedClient, ShardedConfig};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::time::Instant;

pub(crate) const MODEL: &str = "m";
pub(crate) const BLOCK_SIZE: u32 = 16;
/// Nothing in these tests takes nearly as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Prompts that are asked for; what engines hold of them does not change.
const PROMPTS: u32 = 24;
/// Blocks of each.
const PROMPT_BLOCKS: u32 = 12;

/// One engine, by the name of its worker.
pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) mock: MockEngine,
}

pub(crate) struct Fleet {
    pub(crate) workers: Vec<Worker>,
    /// Servers by shard and replica.
    pub(crate) shards: Vec<Vec<Server>>,
    flags: Vec<Vec<String>>,
    all: Server,
    /// Ports of servers, kept from others while their servers are dead.
    ports: Vec<TcpSocket>,
    prompts: Vec<Vec<u32>>,
}

/// The first names of which each of `shards` shards has `each`, where the map is even.
pub(crate) fn names(shards: u32, each: usize) -> Vec<String> {
    let map = ShardMap::even(ShardCount::new(shards).expect("a number"));
    let mut taken = Vec::new();
    let mut counts = vec![0; shards as usize];
    for name in (0..).map(|number| format!("worker-{number:02}")) {
        let shard = usize::from(map.owner(bucket(&WorkerId::new(&name).expect("a name"))));
        if counts[shard] < each {
            counts[shard] += 1;
            taken.push(name);
        }
        if counts.iter().all(|count| *count == each) {
            return taken;
        }
    }
    unreachable!("names do not end")
}

pub(crate) fn url(server: &Server) -> String {
    format!("http://{}", server.addresses.grpc)
}

/// A free port that nobody else is given: a socket that is bound and does not listen lets those listen
/// there who ask for this port.
fn reserve(ports: &mut Vec<TcpSocket>) -> SocketAddr {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option of sockets");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let address = socket.local_addr().expect("an address");
    ports.push(socket);
    address
}

async fn start(addresses: (SocketAddr, SocketAddr), flags: &[String]) -> Server {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Server::start_with(addresses.0, addresses.1, &flags).await.expect("a server")
}

impl Fleet {
    /// `shards` shards of `replicas` servers each, with two workers a shard. `flags` are added to
    /// those of every server of a shard.
    pub(crate) async fn start(shards: u32, replicas: usize, flags: &[&str]) -> Self {
        let mut workers = Vec::new();
        for name in names(shards, 2) {
            let mock = MockEngine::start(EngineConfig::default()).await.expect("an engine");
            workers.push(Worker { name, mock });
        }
        let attached = workers.iter().map(|worker| {
            format!(
                "--worker=id={},model={MODEL},block-size={BLOCK_SIZE},engine=vllm,endpoint={},\
                 replay={}",
                worker.name,
                worker.mock.endpoint(),
                worker.mock.replay_endpoint()
            )
        });
        let attached: Vec<String> = attached.collect();
        let mut ports = Vec::new();
        let addresses = (reserve(&mut ports), reserve(&mut ports));
        let all = start(addresses, &attached).await;
        let mut servers = Vec::new();
        let mut all_flags = Vec::new();
        for shard in 0..shards {
            let own = [format!("--shard={shard}/{shards}")];
            let own = own.into_iter().chain(flags.iter().map(|flag| (*flag).to_owned()));
            let own: Vec<String> = own.chain(attached.clone()).collect();
            let mut of_shard = Vec::new();
            for _ in 0..replicas {
                let addresses = (reserve(&mut ports), reserve(&mut ports));
                of_shard.push(start(addresses, &own).await);
            }
            servers.push(of_shard);
            all_flags.push(own);
        }
        let prompts = (0..PROMPTS).map(|prompt| tokens(prompt, PROMPT_BLOCKS)).collect();
        let fleet = Self { workers, shards: servers, flags: all_flags, all, ports, prompts };
        fleet.fill().await;
        for server in fleet.shards.iter().flatten().chain([&fleet.all]) {
            fleet.wait_until_exact(server).await;
        }
        fleet
    }

    /// Each engine runs some of the prompts, whole or in part: each prompt has several holders.
    async fn fill(&self) {
        for (number, worker) in (0..).zip(&self.workers) {
            for (prompt, tokens) in (0..).zip(&self.prompts) {
                let blocks = (number * 5 + prompt * 3) % (PROMPT_BLOCKS + 4);
                let length = (blocks * BLOCK_SIZE) as usize;
                let tokens = tokens.iter().copied().take(length).chain([number]).collect();
                let prompt = EnginePrompt { tokens, answer: vec![1] };
                worker.mock.run(prompt).await.expect("a small prompt");
            }
        }
    }

    /// The engine of `worker` runs a prompt that nobody asks for.
    pub(crate) async fn run_other(&self, worker: usize, number: u32) {
        let prompt = EnginePrompt { tokens: tokens(1_000 + number, 4), answer: vec![1] };
        self.workers[worker].mock.run(prompt).await.expect("a small prompt");
    }

    /// Names of the workers that `shard` has where the map is even.
    pub(crate) fn workers_of(&self, shard: u8) -> Vec<&str> {
        let count = u32::try_from(self.shards.len()).expect("few");
        let map = ShardMap::even(ShardCount::new(count).expect("a number"));
        let owner = |name: &str| map.owner(bucket(&WorkerId::new(name).expect("a name")));
        let names = self.workers.iter().map(|worker| worker.name.as_str());
        names.filter(|name| owner(name) == shard).collect()
    }

    pub(crate) fn prompt(&self, number: usize) -> Prompt<'_> {
        Prompt::new(MODEL, BLOCK_SIZE, &self.prompts[number])
    }

    pub(crate) fn prompts(&self) -> usize {
        self.prompts.len()
    }

    /// What the server that has everything says to each prompt.
    pub(crate) async fn whole_answers(&self) -> Vec<Answer> {
        let config = ClientConfig { deadline: PATIENCE, ..ClientConfig::default() };
        let client = IndexerClient::connect(&url(&self.all), config).expect("a URL");
        let mut answers = Vec::new();
        for prompt in 0..self.prompts() {
            answers.push(client.find(&self.prompt(prompt)).await.expect("an answer"));
        }
        answers
    }

    pub(crate) fn client(&self, deadline: Duration, hedge: HedgeConfig) -> ShardedClient {
        let client = ClientConfig { deadline, ..ClientConfig::default() };
        let urls = self.shards.iter().map(|replicas| replicas.iter().map(url).collect::<Vec<_>>());
        ShardedClient::connect(urls, &ShardedConfig { client, hedge }).expect("URLs")
    }

    /// Starts a server that was killed anew, where it was.
    pub(crate) async fn restart(&mut self, shard: usize, replica: usize) {
        // A process that was told to end may still be at it.
        self.shards[shard][replica].kill().await;
        let addresses = self.shards[shard][replica].addresses;
        let server = start((addresses.grpc, addresses.http), &self.flags[shard]).await;
        assert_eq!(server.addresses, addresses, "the ports are ours");
        self.shards[shard][replica] = server;
    }

    /// Waits until a server has what the engines of its workers have published by now, and says how
    /// long that took.
    pub(crate) async fn wait_until_exact(&self, server: &Server) -> Duration {
        let begun = Instant::now();
        let mut indexer = client::connect(server.addresses.grpc).await.expect("a server");
        let request = pb::ListWorkersRequest::default();
        let workers = client::list_workers(&mut indexer, request).await.expect("a list");
        assert!(!workers.is_empty());
        for worker in workers {
            self.wait_for_worker(server, &worker.worker_id).await;
        }
        begun.elapsed()
    }

    /// Waits until a server has what the engine of this worker has published by now.
    pub(crate) async fn wait_for_worker(&self, server: &Server, name: &str) {
        let mut indexer = client::connect(server.addresses.grpc).await.expect("a server");
        let worker = self.workers.iter().find(|worker| worker.name == name).expect("it is ours");
        let last = worker.mock.truth().await.expect("an engine").last_sequence;
        let last = last.expect("it has published");
        let exact = |source: &pb::SourceInfo| client::is_exact_at(source, last);
        client::wait_for_sources(&mut indexer, (MODEL, name), "exact", PATIENCE, exact)
            .await
            .expect("an exact worker");
    }

    pub(crate) async fn stop(mut self) {
        for server in self.shards.iter_mut().flatten().chain([&mut self.all]) {
            server.stop().await;
        }
        for worker in self.workers {
            worker.mock.stop().await;
        }
        drop(self.ports);
    }
}

/// Tokens of so many blocks, others for each number; the first three blocks are the same for groups of
/// four.
fn tokens(number: u32, blocks: u32) -> Vec<u32> {
    let token = |at: u32| {
        let family = if at < 3 * BLOCK_SIZE { number / 4 } else { 1_000_000 + number };
        family.wrapping_mul(1_000_003).wrapping_add(at) % 50_000
    };
    (0..blocks * BLOCK_SIZE).map(token).collect()
}
