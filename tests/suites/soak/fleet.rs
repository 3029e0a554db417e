//! The programs of the fleet.

use super::engines::{BLOCK_SIZE, Engine, MODEL, Way};
use super::namespaces::{self, Cut, NETWORK, Namespace, OUTSIDE};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb::ListWorkersRequest;
use kvasir_proto::pb::indexer_client;
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::place::free_port;
use kvasir_sim::server::{Addresses, Server, binary, binary_of};
use kvasir_tests::authority::{Authority, Paper, Validity, replace};
use kvasir_tests::nats::NatsServer;
use router_client::{
    ClientConfig, ClientFiles, Dialer, Identity, IndexerClient, ShardedClient, ShardedConfig,
};
use rustix::process::Signal;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::{Mutex, RwLock};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_rustls::TlsConnector;

/// Engines by how their events travel.
const ENGINES: [(Way, u16); 3] = [(Way::Direct, 192), (Way::Agent, 4), (Way::Broker, 4)];
/// Indexes, all with the same workers.
const INDEXES: u8 = 2;
/// Ports of an index, which has its namespace to itself.
const INDEX_PORTS: [u16; 2] = [50_051, 9_091];
/// Time to wait for what takes seconds.
pub const PATIENCE: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout of a query: enough to ask the other replica on a busy machine.
const QUERY_TIMEOUT: Duration = Duration::from_secs(4);

/// An index in its namespace.
#[derive(Debug)]
pub struct Index {
    namespace: Namespace,
    process: Server,
    flags: Vec<String>,
}

/// An agent of an engine.
#[derive(Debug)]
pub struct Agent {
    process: Server,
    flags: Vec<String>,
}

/// The fleet.
pub struct Fleet {
    /// Engines, in the order of their numbers.
    pub engines: Vec<Engine>,
    /// Whoever lets an engine work reads this; whoever wants all engines to rest writes it.
    pub rest: RwLock<()>,
    indexes: Vec<Mutex<Index>>,
    agents: Vec<Mutex<Agent>>,
    broker: Mutex<NatsServer>,
    authority: Authority,
    server: Paper,
    own: Paper,
    serial: AtomicU64,
    dialer: Dialer,
    /// A client of both indexes, as routers have.
    pub client: ShardedClient,
}

fn address(index: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 83, index, 2], port))
}

fn outside(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(OUTSIDE), port)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn owned(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|&flag| flag.to_owned()).collect()
}

/// URLs of all indexes.
fn urls() -> Vec<String> {
    (1..=INDEXES).map(|index| format!("https://{}", address(index, INDEX_PORTS[0]))).collect()
}

/// Starts a program at its addresses, and waits until it listens.
async fn start(program: Command, at: Addresses, flags: &[String]) -> Result<Server> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let process = Server::program_at(program, at, &flags).await?;
    ensure!(process.addresses == at, "it has its ports: {:?}", process.addresses);
    Ok(process)
}

impl Index {
    async fn create(number: u8, flags: Vec<String>) -> Result<Self> {
        let namespace = Namespace::create(number).await?;
        let [grpc, http] = INDEX_PORTS.map(|port| address(number, port));
        ensure!(grpc.ip() == IpAddr::V4(namespace.address), "{grpc} is its address");
        let process = start(namespace.command(binary()?), Addresses { grpc, http }, &flags);
        let process = process.await.with_context(|| format!("start index {number}"))?;
        Ok(Self { namespace, process, flags })
    }

    async fn kill(&mut self) -> Result<()> {
        self.process.kill().await;
        let at = self.process.addresses;
        self.process = start(self.namespace.command(binary()?), at, &self.flags).await?;
        Ok(())
    }
}

impl Agent {
    async fn create(flags: Vec<String>) -> Result<Self> {
        let at = Addresses { grpc: outside(free_port()?), http: outside(free_port()?) };
        let process = start(Command::new(binary_of("kvbm-agent")?), at, &flags).await?;
        Ok(Self { process, flags })
    }
}

impl Fleet {
    /// Starts everything, and waits until each index knows each worker.
    pub async fn start(folder: &Path) -> Result<Self> {
        namespaces::prepare(folder).await?;
        let hosts: Vec<_> = (1..=INDEXES).map(|at| address(at, 0).ip().to_string()).collect();
        let outside = OUTSIDE.to_string();
        let hosts: Vec<_> = hosts.iter().chain([&outside]).map(String::as_str).collect();
        let authority = Authority::for_hosts("soak", &hosts)?;
        let server = authority.sign(1, Validity::Valid)?;
        let own = authority.sign(2, Validity::Valid)?;
        let ca = authority.cert();
        let ca = text(&ca);
        let shows = ["--tls-cert", text(&server.cert), "--tls-key", text(&server.key)];
        let secured = owned(&[&shows[..], &["--tls-client-ca", ca, "--tls-ca", ca]].concat());
        let broker = broker(folder, &server).await?;
        let url = broker.url().replace("nats://", "tls://");
        let jetstream =
            owned(&["--nats-url", &url, "--nats-delivery", "jetstream", "--nats-tls-ca", ca]);

        let mut engines = Vec::new();
        let ways = ENGINES.iter().flat_map(|&(way, count)| (0..count).map(move |_| way));
        for (number, way) in (0..).zip(ways) {
            engines.push(Engine::start(number, way).await?);
        }
        let mut workers = Vec::new();
        for engine in engines.iter().filter(|at| at.way == Way::Direct) {
            let Engine { worker, sockets, .. } = engine;
            let worker =
                format!("id={worker},model={MODEL},block-size={BLOCK_SIZE},engine=vllm,{sockets}");
            workers.extend(["--worker".to_owned(), worker]);
        }
        let mut indexes = Vec::new();
        for number in 1..=INDEXES {
            let kept = folder.join(format!("index-{number}"));
            let kept = owned(&["--checkpoint-dir", text(&kept), "--endpoint-places", NETWORK]);
            let flags = [&secured[..], &jetstream, &kept, &workers].concat();
            indexes.push(Mutex::new(Index::create(number, flags).await?));
        }
        let mut agents = Vec::new();
        for engine in engines.iter().filter(|at| at.way != Way::Direct) {
            let size = BLOCK_SIZE.to_string();
            let Engine { worker, sockets, .. } = engine;
            let own = ["--worker-id", worker, "--model", MODEL, "--block-size", &size];
            let own = owned(&[&own[..], &["--engine", "vllm", "--source", sockets]].concat());
            let link = match engine.way {
                Way::Broker => jetstream.clone(),
                Way::Direct | Way::Agent => owned(&["--indexers", &urls().join(",")]),
            };
            let journal = folder.join(format!("journal-{worker}"));
            // A journal grows up to its limit; this one reaches it soon, so that further growth would be a leak.
            let kept = owned(&["--journal-dir", text(&journal), "--journal-bytes", "512KiB"]);
            let agent = Agent::create([&secured[..], &own, &link, &kept].concat()).await;
            agents.push(Mutex::new(agent.with_context(|| format!("agent of {worker}"))?));
        }
        let files = ClientFiles {
            ca: authority.cert(),
            identity: Some(Identity { cert: own.cert.clone(), key: own.key.clone() }),
        };
        let dialer = Dialer::open(files)?;
        let config = ClientConfig {
            deadline: QUERY_TIMEOUT,
            dialer: dialer.clone(),
            ..ClientConfig::default()
        };
        let config = ShardedConfig { client: config, ..ShardedConfig::default() };
        let fleet = Self {
            client: ShardedClient::connect([urls()], &config)?,
            engines,
            rest: RwLock::default(),
            indexes,
            agents,
            broker: Mutex::new(broker),
            authority,
            server,
            own,
            serial: AtomicU64::new(10),
            dialer,
        };
        for number in 0..fleet.indexes.len() {
            fleet.knows_all(number).await?;
        }
        Ok(fleet)
    }

    /// Waits until an index knows all workers.
    async fn knows_all(&self, index: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut client = self.indexer(index).await?;
            let listed = client::list_workers(&mut client, ListWorkersRequest::default()).await?;
            if listed.len() == self.engines.len() {
                return Ok(());
            }
            let output = self.indexes[index].lock().await.process.output();
            ensure!(Instant::now() < deadline, "{} workers: {output}", listed.len());
            sleep(POLL_INTERVAL).await;
        }
    }

    /// A client of one index, which asks no other.
    pub fn client_of(&self, index: usize) -> Result<IndexerClient> {
        let dialer = self.dialer.clone();
        let config = ClientConfig { deadline: QUERY_TIMEOUT, dialer, ..ClientConfig::default() };
        Ok(IndexerClient::connect(&urls()[index], config)?)
    }

    /// Number of indexes.
    pub const fn indexes(&self) -> usize {
        self.indexes.len()
    }

    /// A connection to one index.
    pub async fn indexer(&self, index: usize) -> Result<Indexer> {
        let channel = self.dialer.connect(&urls()[index]).await?;
        Ok(indexer_client::IndexerClient::new(channel.into_transport().context("a remote server")?))
    }

    /// Kills an index and starts it again.
    pub async fn kill_index(&self, index: usize) -> Result<()> {
        self.indexes[index].lock().await.kill().await
    }

    /// Cuts an index off for some time.
    pub async fn cut_off(&self, index: usize, how: Cut, time: Duration) -> Result<()> {
        let cut = self.indexes[index].lock().await;
        cut.namespace.cut(how).await?;
        let end = Instant::now() + time;
        let reached = timeout_at(end, self.indexer(index)).await;
        ensure!(!matches!(reached, Ok(Ok(_))), "index {index} can be reached, but is cut off");
        sleep_until(end).await;
        cut.namespace.heal(how).await
    }

    /// Kills the first agent whose events travel this way, and starts it again. The others are never killed.
    pub async fn kill_agent(&self, way: Way) -> Result<()> {
        let mut ways = self.engines.iter().map(|at| at.way).filter(|&at| at != Way::Direct);
        let first = ways.position(|at| at == way).context("an agent")?;
        let mut agent = self.agents[first].lock().await;
        agent.process.kill().await;
        let at = agent.process.addresses;
        let program = Command::new(binary_of("kvbm-agent")?);
        agent.process = start(program, at, &agent.flags).await?;
        Ok(())
    }

    /// Kills the broker and starts it again.
    pub async fn kill_broker(&self) -> Result<()> {
        self.broker.lock().await.restart().await
    }

    /// Gives all programs, and this one, new certificates, and waits until indexes and agents show theirs.
    pub async fn rotate_certificates(&self) -> Result<()> {
        for paper in [&self.own, &self.server] {
            let serial = self.serial.fetch_add(1, Ordering::Relaxed);
            let (cert, key) = self.authority.make(serial, Validity::Valid)?;
            replace(&paper.cert, &cert)?;
            replace(&paper.key, &key)?;
        }
        self.broker.lock().await.signal(Signal::HUP)?;
        let fresh = CertificateDer::from_pem_file(&self.server.cert)?;
        let deadline = Instant::now() + PATIENCE;
        for address in self.addresses().await {
            // In the meantime, our own certificate and key may not belong together.
            while self.shown(address).await.ok().as_ref() != Some(&fresh) {
                ensure!(Instant::now() < deadline, "{address} shows an old certificate");
                sleep(POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    /// gRPC addresses of indexes and agents.
    async fn addresses(&self) -> Vec<SocketAddr> {
        let mut addresses = Vec::new();
        for index in &self.indexes {
            addresses.push(index.lock().await.process.addresses.grpc);
        }
        for agent in &self.agents {
            addresses.push(agent.lock().await.process.addresses.grpc);
        }
        addresses
    }

    /// The certificate that a server shows.
    async fn shown(&self, address: SocketAddr) -> Result<CertificateDer<'static>> {
        let config = self.dialer.config_for(b"h2").context("a client with TLS")?;
        let stream = TcpStream::connect(address).await?;
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(address.ip().into(), stream).await?;
        let shown = stream.get_ref().1.peer_certificates().context("a certificate")?;
        Ok(shown.first().context("a certificate")?.clone().into_owned())
    }

    /// Process ids of the programs by name, while they run.
    pub async fn processes(&self) -> Vec<(String, u32)> {
        let mut found = Vec::new();
        for (number, index) in self.indexes.iter().enumerate() {
            let id = index.try_lock().ok().and_then(|at| at.process.process_id());
            found.extend(id.map(|id| (format!("index {number}"), id)));
        }
        for (number, agent) in self.agents.iter().enumerate() {
            let id = agent.try_lock().ok().and_then(|at| at.process.process_id());
            found.extend(id.map(|id| (format!("agent {number}"), id)));
        }
        found
    }

    /// The last lines of all programs.
    pub async fn outputs(&self) -> String {
        let mut text = String::new();
        for (number, index) in self.indexes.iter().enumerate() {
            let output = index.lock().await.process.output();
            let _ = writeln!(text, "index {number}:\n{output}");
        }
        for (number, agent) in self.agents.iter().enumerate() {
            let output = agent.lock().await.process.output();
            let _ = writeln!(text, "agent {number}:\n{output}");
        }
        text
    }

    /// Stops all programs.
    pub async fn stop(&self) {
        for agent in &self.agents {
            agent.lock().await.process.stop().await;
        }
        for index in &self.indexes {
            let mut index = index.lock().await;
            index.process.stop().await;
            index.namespace.end().await;
        }
    }
}

/// A NATS server with TLS.
async fn broker(folder: &Path, paper: &Paper) -> Result<NatsServer> {
    let files = [text(&paper.cert), text(&paper.key)];
    let secured = format!("tls {{ cert_file: {:?}, key_file: {:?} }}", files[0], files[1]);
    NatsServer::start_at(folder, outside(free_port()?), &secured).await
}
