//! Measures the cost of TLS: the same streamed queries to a plain server and to one with TLS and client certificates,
//! in turn.

use super::closed::{self, Window};
use super::fleet::{self, Fleet};
use super::raw::Caller;
use super::run::{FIND, FIND_STREAM, FLAGS};
use super::shapes::{Question, SHAPES, Shape};
use anyhow::{Context, Result, ensure};
use bench_figures::number::median;
use kvasir_proto::pb::ListWorkersRequest;
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_sim::client;
use kvasir_sim::server::Server;
use kvasir_tls::{ClientFiles, Dialer, Identity};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Number of queries in flight in the stream.
const IN_FLIGHT: usize = 16;
const LENGTH: Duration = Duration::from_secs(2);
const QUICK_LENGTH: Duration = Duration::from_millis(500);
/// Timeout for the second server to copy the first one's workers.
const COPY_TIMEOUT: Duration = Duration::from_secs(120);
const COPY_LOOK: Duration = Duration::from_millis(100);

/// A server and its queries.
struct Subject {
    name: &'static str,
    server: Server,
    caller: Caller,
}

/// Runs all measurements and prints them.
///
/// # Errors
/// If a server cannot be started, or returns a wrong answer.
pub async fn run(trials: usize, quick: bool) -> Result<()> {
    let folder = TempDir::new()?;
    let papers = Papers::make(&folder)?;
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let plain = Server::start_with(any, any, &FLAGS).await?;
    let mut indexer = client::connect(plain.addresses.grpc).await?;
    let fleet = Fleet::new(quick);
    fleet::fill(&mut indexer, plain.addresses.grpc, |worker| fleet.events(worker)).await?;
    let sibling = format!("http://{}", plain.addresses.grpc);
    let flags = papers.flags();
    let flags: Vec<_> = FLAGS.into_iter().chain(flags.iter().map(String::as_str)).collect();
    let secured =
        Server::start_with(any, any, &[&flags[..], &["--siblings", &sibling]].concat()).await?;
    let files = ClientFiles { ca: papers.ca.clone(), identity: Some(papers.identity.clone()) };
    let dialer = Dialer::open(files)?;
    let channel = dialer.connect(&format!("https://{}", secured.addresses.grpc)).await?;
    let channel = channel.into_transport().context("a remote server")?;
    copied(&mut IndexerClient::new(channel.clone())).await?;
    let caller = Caller::connect(plain.addresses.grpc, FIND, FIND_STREAM).await?;
    let mut subjects = [
        Subject { name: "plain", server: plain, caller },
        Subject { name: "TLS", server: secured, caller: Caller::over(channel, FIND, FIND_STREAM) },
    ];
    let length = if quick { QUICK_LENGTH } else { LENGTH };
    println!("| questions | plain, µs of CPU each | TLS, µs of CPU each | more |");
    println!("| --- | --- | --- | --- |");
    for shape in SHAPES {
        measure(&mut subjects, shape, fleet, trials, length).await?;
    }
    for subject in &mut subjects {
        subject.server.stop().await;
    }
    Ok(())
}

async fn measure(
    subjects: &mut [Subject; 2],
    shape: Shape,
    fleet: Fleet,
    trials: usize,
    length: Duration,
) -> Result<()> {
    let mut asked = Vec::new();
    for subject in &mut *subjects {
        asked.push(shape.questions(fleet, &mut subject.caller).await?.index);
    }
    let mut costs = [const { Vec::new() }; 2];
    for trial in 0..trials {
        for turn in 0..2 {
            // The order of the servers is reversed in every other trial.
            let which = (trial + turn) % 2;
            let cost = cost(&subjects[which], &asked[which], length).await?;
            costs[which].push(cost);
        }
    }
    let [plain, tls] = costs.map(|costs| median(&costs));
    let more = (tls / plain - 1.0) * 100.0;
    println!("| {} | {plain:.1} | {tls:.1} | {more:+.1} % |", shape.name);
    Ok(())
}

/// Processor time of the server per query, in microseconds.
async fn cost(subject: &Subject, questions: &Arc<[Question]>, length: Duration) -> Result<f64> {
    let process_id = subject.server.process_id().context("a server that runs")?;
    let window = Window::after_warm_up(length);
    let (tally, used) = tokio::join!(
        closed::stream(&subject.caller, questions, IN_FLIGHT, window),
        window.cpu_time(process_id),
    );
    let tally = tally?;
    let served = tally.served;
    let failures = tally.failures;
    ensure!(failures == 0 && served > 0, "{}: {failures} failures, {served} served", subject.name);
    Ok(used?.as_secs_f64() * 1e6 / served as f64)
}

/// Waits until all workers are copied from the other server.
async fn copied(indexer: &mut client::Indexer) -> Result<()> {
    let deadline = Instant::now() + COPY_TIMEOUT;
    loop {
        let listed = client::list_workers(indexer, ListWorkersRequest::default()).await?;
        let is_there = |worker: &kvasir_proto::pb::WorkerInfo| !worker.ranks.is_empty();
        if listed.len() as u64 == fleet::WORKERS && listed.iter().all(is_there) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{} workers are copied", listed.len());
        sleep(COPY_LOOK).await;
    }
}

/// Files of an authority, and of one certificate that both sides present.
struct Papers {
    ca: PathBuf,
    identity: Identity,
}

impl Papers {
    fn make(folder: &TempDir) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        let cert = params.signed_by(&key, &authority)?;
        let path = |name: &str| folder.path().join(name);
        let papers = Self {
            ca: path("ca.pem"),
            identity: Identity { cert: path("own.pem"), key: path("own.key") },
        };
        fs::write(&papers.ca, authority.pem())?;
        fs::write(&papers.identity.cert, cert.pem())?;
        fs::write(&papers.identity.key, key.serialize_pem())?;
        Ok(papers)
    }

    fn flags(&self) -> Vec<String> {
        [
            ("--tls-cert", &self.identity.cert),
            ("--tls-key", &self.identity.key),
            ("--tls-client-ca", &self.ca),
            ("--tls-ca", &self.ca),
        ]
        .into_iter()
        .flat_map(|(flag, path)| [flag.to_owned(), path.display().to_string()])
        .collect()
    }
}
