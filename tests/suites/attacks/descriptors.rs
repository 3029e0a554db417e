//! Open files: there are only so many, and engines, clients and the server's own files share them.

use crate::harness::{LIVEZ_TIMEOUT, POLL_INTERVAL, RELEASE_TIMEOUT, Siege};
use anyhow::{Context, Result, ensure};
use kvasir_proto::limits::WORKER_ENDPOINTS_MAX;
use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tonic::Code;

/// A limit of open files that many systems have.
const OPEN_FILES: usize = 1_024;
/// Half of them.
const SOCKETS_MAX: usize = OPEN_FILES / 2;
/// Workers of the attacker, which have endpoints for more than all of them.
const WORKERS: usize = 18;

#[tokio::test]
async fn endpoints_leave_open_files_to_clients() -> Result<()> {
    let siege = Siege::around(Server::start_with_open_files(OPEN_FILES, &[]).await?).await?;
    let mut engines = Vec::new();
    for host in 1..=WORKER_ENDPOINTS_MAX as u8 {
        // Connections are made, and nobody accepts them.
        engines.push(TcpListener::bind((format!("127.0.0.{host}"), 0)).await?);
    }
    let endpoints = engines.iter().map(|at| Ok(format!("tcp://{}", at.local_addr()?)));
    let endpoints: Vec<_> = endpoints.collect::<Result<_>>()?;
    // Several workers may follow one socket, each its own topic.
    let subscribed = |number: usize| {
        let topic = format!("{number}@");
        let endpoints = endpoints.iter().cloned();
        let subscribe =
            |endpoint| pb::EngineEndpoint { endpoint, topic: topic.clone(), ..Default::default() };
        endpoints.map(subscribe).collect()
    };
    let worker = |number: usize| pb::RegisterWorkerRequest {
        worker_id: format!("w-{number}"),
        model: "m".to_owned(),
        block_size: 16,
        endpoints: subscribed(number),
        ..Default::default()
    };
    let mut indexer = client::connect(siege.grpc()).await?;
    let fitting = SOCKETS_MAX / WORKER_ENDPOINTS_MAX;
    for number in 0..WORKERS {
        let registered = indexer.register_worker(worker(number)).await;
        if number < fitting {
            registered.with_context(|| format!("worker {number} fits"))?;
            continue;
        }
        let refused = registered.err().with_context(|| format!("worker {number} is taken"))?;
        ensure!(refused.code() == Code::ResourceExhausted, "{refused}");
        ensure!(refused.message().contains("(ulimit -n"), "{refused}");
    }
    // What a worker had is free again as soon as it is removed.
    let worker_id = "w-0".to_owned();
    let model = "m".to_owned();
    let request = pb::RemoveWorkerRequest { worker_id, model, tenant: String::new() };
    indexer.remove_worker(request).await?;
    indexer.register_worker(worker(WORKERS)).await.context("there is room again")?;
    let mut another = client::connect(siege.grpc()).await.context("a new client")?;
    another.get_stats(pb::GetStatsRequest {}).await?;
    siege.end().await
}

/// A limit of open files below what the ports accept together.
const FEW_OPEN_FILES: usize = 96;
/// Connections to each port, more than are accepted.
const CONNECTIONS: usize = 100;

#[tokio::test]
async fn without_open_files_connections_are_closed_instead_of_waiting() -> Result<()> {
    let mut server = Server::start_with_open_files(FEW_OPEN_FILES, &[]).await?;
    let grpc = server.addresses.grpc;
    let http = server.addresses.http;
    let mut held = Vec::new();
    for address in [[grpc; CONNECTIONS], [http; CONNECTIONS]].concat() {
        held.push(TcpStream::connect(address).await?);
    }
    for _ in 0..3 {
        for address in [grpc, http] {
            let ended = timeout(LIVEZ_TIMEOUT, ask(address)).await;
            ended.with_context(|| format!("{address} leaves a client waiting"))?;
        }
    }
    ensure!(
        server.output().contains("cannot accept connections"),
        "it lacked no open file: {}",
        server.output()
    );
    drop(held);
    let alive = async {
        while metrics::get(http, "/livez").await.is_err() {
            sleep(POLL_INTERVAL).await;
        }
    };
    timeout(RELEASE_TIMEOUT, alive).await.context("the side port does not come back")?;
    client::connect(grpc).await?.get_stats(pb::GetStatsRequest {}).await?;
    server.stop().await;
    Ok(())
}

/// Asks and waits for the end of the connection, whatever it brings.
async fn ask(address: SocketAddr) {
    let Ok(mut stream) = TcpStream::connect(address).await else { return };
    if stream.write_all(b"GET /livez HTTP/1.0\r\n\r\n").await.is_ok() {
        let _refused = stream.read_to_end(&mut Vec::new()).await;
    }
}
