//! Two tenants at one router.

use crate::calls::Caller;
use crate::fixture;
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::server::Server;
use prost::Message;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::Code;

/// Nothing in this test takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(30);
const SELECT: &str = "/kvasir.v1.Router/SelectWorker";

fn question(tenant: &str) -> pb::SelectWorkerRequest {
    pb::SelectWorkerRequest {
        model: "m1".to_owned(),
        tenant: tenant.to_owned(),
        request_id: format!("request-{tenant}"),
        token_ids: (0..16).collect(),
        ..Default::default()
    }
}

/// The workers that a caller is shown.
async fn shown(caller: &Caller, request: &pb::GetLoadsRequest) -> Result<Vec<String>> {
    let answers = caller.call("/kvasir.v1.Router/GetLoads", request).await?;
    let answer = pb::GetLoadsResponse::decode(answers.first().context("an answer")?.clone())?;
    Ok(answer.ranks.into_iter().map(|rank| rank.worker_id).collect())
}

/// Waits until the router knows a tenant's worker.
async fn until_selected(caller: &Caller, tenant: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while let Err(unknown) = caller.call(SELECT, &question(tenant)).await {
        ensure!(unknown.code() == Code::NotFound && Instant::now() < deadline, "{unknown:?}");
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn register(index: &Server, tenant: &str) -> Result<()> {
    let publisher = Caller::connect(index.addresses.grpc, Some("publish")).await?;
    let request = pb::RegisterWorkerRequest {
        worker_id: format!("w-{tenant}"),
        model: "m1".to_owned(),
        tenant: tenant.to_owned(),
        block_size: 16,
        ..Default::default()
    };
    publisher.call("/kvasir.v1.Indexer/RegisterWorker", &request).await?;
    Ok(())
}

#[tokio::test]
async fn a_tenant_sees_and_moves_only_its_own_requests_at_a_router() -> Result<()> {
    let (mut index, folder) = fixture::index(&[]).await?;
    for tenant in ["a", "b"] {
        register(&index, tenant).await?;
    }
    let mut router = fixture::router(&index, &folder).await?;
    let at = router.addresses.grpc;
    let a = Caller::connect(at, Some("query-a")).await?;
    let b = Caller::connect(at, Some("query-b")).await?;
    until_selected(&a, "a").await?;
    until_selected(&b, "b").await?;
    // What is another tenant's is denied as what is not there is.
    let free = pb::FreeRequest {
        model: "m1".to_owned(),
        tenant: "b".to_owned(),
        request_id: "request-b".to_owned(),
        ..Default::default()
    };
    let denials =
        [a.call(SELECT, &question("b")).await, a.call("/kvasir.v1.Router/Free", &free).await];
    for denied in denials {
        let denied = denied.err().context("it is let in")?;
        ensure!(denied.code() == Code::PermissionDenied, "{denied:?}");
        ensure!(!denied.message().contains("w-b"), "{denied:?}");
    }
    let all = pb::GetLoadsRequest::default();
    ensure!(shown(&a, &all).await? == ["w-a"] && shown(&b, &all).await? == ["w-b"]);
    let of_b = pb::GetLoadsRequest { tenant: Some("b".to_owned()), ..Default::default() };
    ensure!(shown(&a, &of_b).await?.is_empty(), "another tenant's load is shown");
    // Its owner frees the request: nobody else did.
    b.call("/kvasir.v1.Router/Free", &free).await?;
    router.stop().await;
    index.stop().await;
    Ok(())
}
