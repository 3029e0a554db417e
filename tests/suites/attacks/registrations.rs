//! Registrations: workers that hold no blocks, and as much of everything else as they may.

use crate::harness::{PATIENCE, Siege};
use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kvasir_proto::limits::{
    NAME_BYTES_MAX, PARTITIONS_MAX, WORKER_ENDPOINTS_MAX, WORKER_LABELS_MAX, WORKERS_MAX,
};
use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tonic::Code;

/// Limit on sockets to workers' endpoints, even if the process may open more files.
const SOCKETS_MAX: usize = 8_192;
/// Connections that register at a time.
const ATTACKERS: usize = 8;

/// Registers workers until there are as many as there may be, or one is refused: how many there are.
async fn fill(
    server: SocketAddr,
    worker: impl Fn(usize) -> pb::RegisterWorkerRequest,
) -> Result<usize> {
    let worker = &worker;
    let attackers = (0..ATTACKERS).map(async |attacker| {
        let mut indexer = client::connect(server).await?;
        let mut registered = 0;
        // The healthy client has a worker, too.
        for number in (attacker..WORKERS_MAX - 1).step_by(ATTACKERS) {
            match indexer.register_worker(worker(number)).await {
                Ok(_created) => registered += 1,
                Err(refused) => {
                    ensure!(refused.code() == Code::ResourceExhausted, "{refused}");
                    println!("after {registered}: {refused}");
                    break;
                }
            }
        }
        anyhow::Ok(registered)
    });
    let filled = timeout(4 * PATIENCE, try_join_all(attackers)).await;
    Ok(filled.context("the registrations are late")??.into_iter().sum())
}

/// A name that nobody else has, of some length.
fn long(number: usize, bytes: usize) -> String {
    format!("{number:0bytes$}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_workers_with_many_small_entries_as_there_may_be_fit() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let registered = fill(siege.grpc(), |number| pb::RegisterWorkerRequest {
        worker_id: long(number, NAME_BYTES_MAX),
        model: long(number % (PARTITIONS_MAX - 1), NAME_BYTES_MAX),
        tenant: long(number % (PARTITIONS_MAX - 1), NAME_BYTES_MAX),
        block_size: 16,
        profile: Some(pb::WorkerProfile {
            labels: (0..WORKER_LABELS_MAX).map(label).collect(),
            ..Default::default()
        }),
        ..Default::default()
    })
    .await?;
    println!("{registered} workers, memory {:?}", siege.memory()?);
    let page = metrics::get(siege.http(), "/metrics").await?.1;
    println!("{} bytes of metrics, memory {:?}", page.len(), siege.memory()?);
    siege.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_endpoints_as_there_may_be_fit() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
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
    let registered = fill(siege.grpc(), |number| pb::RegisterWorkerRequest {
        worker_id: long(number, NAME_BYTES_MAX),
        model: "m".to_owned(),
        block_size: 16,
        endpoints: subscribed(number),
        ..Default::default()
    })
    .await?;
    println!("{registered} workers, memory {:?}", siege.memory()?);
    ensure!(registered * WORKER_ENDPOINTS_MAX <= SOCKETS_MAX, "{registered} workers");
    siege.end().await
}

fn label(number: usize) -> pb::Label {
    pb::Label { key: number.to_string(), value: String::new() }
}

/// Registers workers of a tenant, each of its own model or all of one, until one is refused: how many there are, and the refusal.
async fn fill_tenant(
    server: SocketAddr,
    tenant: &str,
    model: impl Fn(usize) -> String,
) -> Result<(usize, tonic::Status)> {
    let mut indexer = client::connect(server).await?;
    for number in 0..WORKERS_MAX {
        let request = pb::RegisterWorkerRequest {
            worker_id: number.to_string(),
            model: model(number),
            tenant: tenant.to_owned(),
            block_size: 16,
            ..Default::default()
        };
        if let Err(refused) = indexer.register_worker(request).await {
            return Ok((number, refused));
        }
    }
    anyhow::bail!("nobody was refused")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_uses_up_its_share_leaves_others_theirs() -> Result<()> {
    let siege = Siege::begin(&["--tenant-share", "0.01"]).await?;
    let refusals = [
        ("models", PARTITIONS_MAX / 100, fill_tenant(siege.grpc(), "a", |n| n.to_string()).await?),
        ("workers", WORKERS_MAX / 100, fill_tenant(siege.grpc(), "b", |_| "m".to_owned()).await?),
    ];
    for (what, share, (registered, refused)) in refusals {
        ensure!(registered == share, "{registered} {what}, not {share}");
        ensure!(refused.code() == Code::ResourceExhausted, "{refused}");
        let named = [what, "--tenant-share", &share.to_string()];
        ensure!(named.iter().all(|word| refused.message().contains(word)), "{refused}");
    }
    // Whoever removes a worker has room for another one.
    let mut indexer = client::connect(siege.grpc()).await?;
    let removed = pb::RemoveWorkerRequest {
        worker_id: "7".to_owned(),
        model: "7".to_owned(),
        tenant: "a".to_owned(),
    };
    indexer.remove_worker(removed).await?;
    let (registered, _refused) = fill_tenant(siege.grpc(), "a", |n| n.to_string()).await?;
    ensure!(registered == PARTITIONS_MAX / 100, "the place of the removed worker: {registered}");
    siege.end().await
}
