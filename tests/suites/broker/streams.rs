//! What an index makes of the stream when not all comes, comes late, or comes from another stream.

use crate::agents::{Broker, INCARNATION, MODEL, PATIENCE};
use crate::fleet::{
    Holder, NOBODY, check, configured, connect, flags, held, index, kept, known, until,
};
use crate::scripted::Scripted;
use async_nats::jetstream;
use kvasir_proto::broker::STREAM;
use kvasir_proto::pb::WorkerState;
use kvasir_proto::types::Incarnation;
use kvasir_sim::client;
use kvasir_sim::server::Server;
use kvbm_agent::broker::Delivery;
use std::slice;
use std::time::Duration;
use tokio::join;

/// A life that is over, of which the index has never heard.
const BEFORE: Incarnation = Incarnation(6);
/// So seldom that none comes by itself.
const SELDOM: Duration = Duration::from_secs(3_600);

/// An agent whose heartbeats do not come. With `local`, it is to be asked there.
async fn quiet(broker: &Broker, local: Option<&str>, batches: u64) -> Holder {
    let mut config = configured(broker, "w.1", Delivery::Jetstream, local);
    config.heartbeat_interval = SELDOM;
    let mut holder = Holder::with(config, 1).await;
    holder.publish(batches);
    holder
}

/// Sends the heartbeat that a quiet agent does not send again.
async fn beat(server: &Server, broker: &Broker, holder: &Holder, local: Option<&str>) {
    let mut agent = Scripted::new(broker, &holder.worker, 0).await;
    if let Some(local) = local {
        agent.registration.local_indexer = Some(local.to_owned());
    }
    beat_until_exact(server, &agent).await;
}

/// Heartbeats may overtake the batches of the stream, so the first one may be dropped.
async fn beat_until_exact(server: &Server, source: &Scripted) {
    until("a heartbeat was received", async || {
        source.heartbeat(INCARNATION, None).await;
        let worker = known(server, source.worker()).await;
        worker.is_some_and(|worker| {
            worker.sources.iter().any(|source| source.state() == WorkerState::Exact)
        })
    })
    .await;
}

/// Heartbeats are not in the stream, so they may come at any time.
async fn hears_late(head: Option<u64>, local: Option<&str>) {
    let broker = Broker::start().await;
    let mut holder = quiet(&broker, local, 100).await;
    let mut server = index(&flags(&broker, "jetstream", &[])).await;
    beat(&server, &broker, &holder, local).await;
    check(&server, slice::from_ref(&holder)).await;
    let mut late = Scripted::new(&broker, &holder.worker, 0).await;
    if let Some(local) = local {
        late.registration.local_indexer = Some(local.to_owned());
    }
    late.heartbeat(BEFORE, head).await;
    // It was heard once one that came after it is.
    let after = Scripted::new(&broker, "w.2", 0).await;
    after.heartbeat(INCARNATION, None).await;
    until("all was heard", async || known(&server, "w.2").await.is_some()).await;
    if head.is_some() {
        check(&server, slice::from_ref(&holder)).await;
    }
    holder.publish(10);
    check(&server, &[holder]).await;
    server.stop().await;
}

/// Where nobody can be asked, what a heartbeat begins would stay. One that names no batch is how a life
/// begins: then the agent says which is the present one.
#[tokio::test]
async fn a_late_heartbeat_of_an_incarnation_that_is_over_begins_none() {
    join!(hears_late(Some(5), Some(NOBODY)), hears_late(None, None));
}

/// The stream is deleted and made anew under an index that reads it, with less or more in it than before.
async fn made_anew(before: u64, after: u64, local: Option<&str>) {
    println!("{before} batches, then {after}");
    let broker = Broker::start().await;
    let mut holder = quiet(&broker, local, before).await;
    let mut server = index(&flags(&broker, "jetstream", &[])).await;
    beat(&server, &broker, &holder, local).await;
    check(&server, slice::from_ref(&holder)).await;
    let context = jetstream::new(broker.client().await);
    let stream = context.get_stream(STREAM).await.expect("the stream");
    context.delete_stream(STREAM).await.expect("it is deleted");
    // Agent and index make it, too. The server may refuse whoever is not the first.
    let config = &stream.cached_info().config;
    until("the stream is there again", async || context.get_or_create_stream(config).await.is_ok())
        .await;
    holder.publish(after);
    holder.delivered().await;
    check(&server, slice::from_ref(&holder)).await;
    holder.publish(5);
    check(&server, &[holder]).await;
    server.stop().await;
}

#[tokio::test]
async fn a_stream_that_was_made_anew_is_read_from_its_beginning() {
    join!(made_anew(300, 20, Some(NOBODY)), made_anew(20, 300, None));
}

/// The next start reads again what was held back for what it lacked.
#[tokio::test]
async fn what_is_held_back_at_the_end_does_not_count_as_read() {
    let broker = Broker::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let flags = kept(&broker, folder.path(), &[]);
    let source = Scripted::new(&broker, "w.1", 40).await;
    let _mute = source.mute(&broker).await;
    let mut server = index(&flags).await;
    let context = jetstream::new(broker.client().await);
    until("the stream is there", async || context.get_stream(STREAM).await.is_ok()).await;
    source.publish(INCARNATION, (0..10).chain(20..40)).await;
    until("batches are held back", async || {
        let worker = known(&server, source.worker()).await;
        worker.is_some_and(|worker| worker.sources.iter().any(|of| of.buffered_batches == 20))
    })
    .await;
    server.stop().await;
    let mut server = index(&flags).await;
    source.publish(INCARNATION, 10..20).await;
    beat_until_exact(&server, &source).await;
    let mut indexer = connect(&server).await;
    let exact = client::wait_until_exact_at(&mut indexer, (MODEL, source.worker()), 39, PATIENCE);
    exact.await.expect("nothing is missing");
    assert_eq!(held(&server, source.worker()).await, *source.truth());
    server.stop().await;
}
