use crate::aged::AgedAgent;
use crate::engine::{Engine, over_socket, over_tcp, prompt};
use crate::place::{
    DISK_BLOCKS, HOST_BLOCKS, LOOK, MODEL, PATIENCE, Place, WORKER, flags_of, to_index,
};
use anyhow::{Context, Result};
use futures::FutureExt;
use kvasir_proto::pb;
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use tokio::time::{sleep, timeout};

fn host(stats: &pb::GetBlockStatsResponse) -> pb::BlockPoolStats {
    let host = stats.pools.iter().find(|pool| pool.tier() == pb::BlockTier::Host);
    *host.expect("host memory")
}

/// An engine that vanishes lets go of what it held; slots that it might still write stay until lease and grace are over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_vanishes_releases_what_it_held() -> Result<()> {
    let place = Place::start(&[]).await?;
    let mut watcher = Engine::open(over_tcp(place.agent.addresses.grpc)?).await?;
    for is_socket in [false, true] {
        let client = if is_socket {
            over_socket(&place.socket()).await?
        } else {
            over_tcp(place.agent.addresses.grpc)?
        };
        let mut engine = Engine::open(client).await?;
        let lost = watcher.stats().await?.sessions_lost;
        engine.save_held(&prompt(1 + u64::from(is_socket), 4)).await?;
        let request =
            pb::AllocateRequest { session_id: engine.session(), count: 3, lease_ms: 1_500 };
        engine.client.allocate(request).await?;
        let stats = watcher.stats().await?;
        assert_eq!((stats.sessions, host(&stats).active, host(&stats).writing), (2, 4, 3));
        drop(engine);
        let is_released = |stats: &pb::GetBlockStatsResponse| {
            (stats.sessions, stats.sessions_lost, host(stats).active) == (1, lost + 1, 0)
        };
        watcher.until("released", is_released).await?;
        watcher.until("free", |stats| host(stats).writing == 0).await?;
    }
    let slots = watcher.allocate(HOST_BLOCKS as u32).await?;
    assert_eq!(slots.len(), HOST_BLOCKS, "every slot can be had again");
    place.stop().await;
    Ok(())
}

/// Killed with SIGKILL, an agent ends its sessions' streams; the next one knows none of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_with_its_agent() -> Result<()> {
    let mut place = Place::start(&[]).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    engine.save(&prompt(1, 2)).await?;
    place.restart().await?;
    let end = timeout(PATIENCE, engine.stream.message()).await.context("the stream goes on")?;
    assert!(end.is_err(), "{end:?}");
    let mut next = Engine::open(over_socket(&place.socket()).await?).await?;
    let session_id = engine.session();
    let request = pb::AllocateRequest { session_id, count: 1, lease_ms: 1 };
    let refused = next.client.allocate(request).await.expect_err("another agent's session");
    assert_eq!(refused.code(), tonic::Code::NotFound, "{refused}");
    place.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_bounded() -> Result<()> {
    let place = Place::start(&[]).await?;
    let address = place.agent.addresses.grpc;
    let first = Engine::open(over_tcp(address)?).await?;
    let mut others = Vec::new();
    for _ in 0..7 {
        let mut client = over_tcp(address)?;
        for _ in 0..73 {
            let request = pb::OpenSessionRequest { model: MODEL.to_owned(), ..Default::default() };
            others.push(client.open_session(request).await?.into_inner());
        }
    }
    let refused = Engine::open(over_tcp(address)?).await.err().context("one more")?;
    assert!(format!("{refused:?}").contains("512 sessions are open"), "{refused:?}");
    first.end().await?;
    let mut next = Engine::open(over_tcp(address)?).await?;
    assert_eq!(next.stats().await?.sessions, 512);
    place.stop().await;
    Ok(())
}

/// The connection that a session's stream is on gets old: other calls go over another one, and the session lives on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_outlives_the_age_of_connections() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut index = Server::start_anywhere().await?;
    let mut flags = flags_of(folder.path(), WORKER, DISK_BLOCKS);
    flags.extend(to_index(&index));
    let agent = AgedAgent::start(&flags).await?;
    let mut engine = Engine::open(over_tcp(agent.addresses.grpc)?).await?;
    let held = engine.save_held(&prompt(1, 2)).await?;
    // As old as one that ends its endless streams, twice.
    let aged = async {
        let http = agent.addresses.http;
        while metrics::sum(http, "grpc_connections_aged_total", "").await? < 3.0 {
            engine.stats().await?;
            sleep(LOOK).await;
        }
        anyhow::Ok(())
    };
    timeout(PATIENCE, aged).await.context("connections get old")??;
    assert!(engine.stream.message().now_or_never().is_none(), "the stream goes on");
    let stats = engine.stats().await?;
    assert_eq!((stats.sessions, stats.sessions_lost, host(&stats).active), (1, 0, 2));
    engine.release(&held).await?;
    engine.end().await?;
    agent.stop().await?;
    index.stop().await;
    Ok(())
}

/// A Read that its session's end cuts off does not look complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_is_cut_off_says_so() -> Result<()> {
    let place = Place::start(&[]).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    let held = engine.save_held(&prompt(1, 1)).await?;
    // More than connection and queue take in while nobody reads.
    let slots = vec![held[0].slot; 1_000];
    let request = pb::ReadRequest { session_id: engine.session(), slots };
    let mut parts = engine.client.read(request).await?.into_inner();
    let first = parts.message().await?.context("a part")?;
    assert_eq!(first.slot, held[0].slot);
    let session_id = engine.session();
    engine.client.end_session(pb::EndSessionRequest { session_id }).await?;
    let mut taken = 1;
    let end = loop {
        match timeout(PATIENCE, parts.message()).await.context("it never ends")? {
            Ok(Some(_)) => taken += 1,
            Ok(None) => break None,
            Err(status) => break Some(status.code()),
        }
    };
    assert_eq!(end, Some(tonic::Code::NotFound), "after {taken} of 1,000 blocks");
    place.stop().await;
    Ok(())
}
