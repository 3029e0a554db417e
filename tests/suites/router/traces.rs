//! One trace for a `SelectWorker` call, in a real collector.

use crate::fleet::{MODEL, loads, request, start_router, tokens, until};
use anyhow::{Context, Result, ensure};
use kvasir_proto::hash::bucket;
use kvasir_proto::pb;
use kvasir_proto::shard::{ShardCount, ShardMap};
use kvasir_proto::types::WorkerId;
use kvasir_sim::client;
use kvasir_sim::server::Server;
use kvasir_tests::collector::{Collector, Span};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use tonic::Request;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";
const SHARDS: usize = 2;

/// A server of a shard, with one worker of this shard.
async fn shard(number: usize, collector: &Collector) -> Result<Server> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let flags = [format!("--shard={number}/{SHARDS}"), collector.option()];
    let server = Server::start_with(any, any, &flags.each_ref().map(String::as_str)).await?;
    let map = ShardMap::even(ShardCount::new(2)?);
    let is_own = |name: &String| {
        WorkerId::new(name).is_ok_and(|id| usize::from(map.owner(bucket(&id))) == number)
    };
    let name = (0..).map(|at| format!("worker-{at}")).find(is_own).context("a name")?;
    let worker = pb::RegisterWorkerRequest {
        worker_id: name,
        model: MODEL.to_owned(),
        block_size: 16,
        ..Default::default()
    };
    client::connect(server.addresses.grpc).await?.register_worker(worker).await?;
    Ok(server)
}

/// Spans of the trace with this program and name, below one of these parents.
fn below<'s>(
    spans: &'s [Span],
    (service, name): (&str, &str),
    parents: &BTreeSet<&str>,
) -> Vec<&'s Span> {
    let is_wanted = |at: &&Span| {
        (at.trace.as_str(), at.service.as_str(), at.name.as_str()) == (TRACE, service, name)
            && parents.contains(at.parent.as_str())
    };
    spans.iter().filter(is_wanted).collect()
}

fn ids<'s>(spans: &[&'s Span]) -> BTreeSet<&'s str> {
    spans.iter().map(|at| at.id.as_str()).collect()
}

#[tokio::test]
async fn a_selection_is_one_trace_over_all_shards() -> Result<()> {
    let collector = Collector::start().await?;
    let mut first = shard(0, &collector).await?;
    let mut second = shard(1, &collector).await?;
    let index = format!("{};{}", first.addresses.grpc, second.addresses.grpc);
    let flags = [&collector.option(), "--timing", "index-deadline=10s"];
    let (mut process, mut router) = start_router(&index, &flags).await?;
    let mut watched = router.clone();
    until("both workers are known", async || {
        Ok((loads(&mut watched).await?.len() == 2).then_some(()))
    })
    .await?;
    let mut call = Request::new(request(tokens(0, 4)));
    call.metadata_mut().insert("traceparent", format!("00-{TRACE}-{CLIENT}-01").parse()?);
    let chosen = router.select_worker(call).await?.into_inner();
    ensure!(chosen.index() == pb::IndexOutcome::Answered, "{chosen:?}");
    let queries = collector.wait_for(|spans| {
        let client = BTreeSet::from([CLIENT]);
        let call = below(spans, ("router", "/kvasir.v1.Router/SelectWorker"), &client);
        let select = below(spans, ("router", "select_worker"), &ids(&call));
        let asked = below(spans, ("router", "find_matches"), &ids(&select));
        let path = "/kvasir.v1.Indexer/FindMatches";
        let answered = below(spans, ("indexer-server", path), &ids(&asked));
        let parents: BTreeSet<_> = answered.iter().map(|at| at.parent.clone()).collect();
        let is_list = |at: &Span| at.name.contains("ListWorkers");
        let lists = spans.iter().filter(|at| is_list(at)).count();
        (parents.len() == SHARDS).then_some((answered.len(), lists))
    });
    assert_eq!(queries.await?, (SHARDS, 0), "each shard was asked once, and lists have no spans");
    process.stop().await;
    first.stop().await;
    second.stop().await;
    Ok(())
}
