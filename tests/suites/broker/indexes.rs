//! Real indexes that are fed by a real broker.

use crate::agents::Broker;
use crate::fleet::{NOBODY, check, connect, flags, fleet, index, kept};
use async_nats::jetstream::{self, Context, object_store};
use futures::TryStreamExt;
use kvasir_proto::broker::STREAM;
use kvasir_proto::pb::CreateCheckpointRequest;
use kvbm_agent::broker::Delivery;
use rustix::process::Signal;
use std::time::Duration;

#[tokio::test]
async fn what_is_published_is_in_the_index_and_a_broker_may_die() {
    for (delivery, name) in [(Delivery::Core, "core"), (Delivery::Jetstream, "jetstream")] {
        println!("{name}");
        let mut broker = Broker::start().await;
        let mut holders = fleet(&broker, delivery, None).await;
        // What was published before an index was there is had from the agents, or the stream.
        let mut server = index(&flags(&broker, name, &[])).await;
        check(&server, &holders).await;
        for holder in &mut holders {
            holder.publish(100);
        }
        broker.server.kill().await;
        for holder in &mut holders {
            holder.publish(50);
        }
        let first = &mut holders[0];
        first.restart(100, 17);
        broker.server.restart().await.expect("the broker again");
        for holder in &mut holders {
            holder.publish(20);
        }
        check(&server, &holders).await;
        server.stop().await;
    }
}

/// Nobody can be asked: what the index has after a kill, the checkpoint and the stream gave it.
#[tokio::test]
async fn a_killed_index_goes_on_where_its_checkpoint_stood_in_the_stream() {
    let broker = Broker::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let flags = kept(&broker, folder.path(), &[]);
    let mut holders = fleet(&broker, Delivery::Jetstream, Some(NOBODY)).await;
    for round in 0..8_u64 {
        println!("round {round}");
        let mut server = index(&flags).await;
        for holder in &mut holders {
            holder.publish(40);
        }
        if round % 3 == 1 {
            check(&server, &holders).await;
        }
        if round == 4 {
            let mut indexer = connect(&server).await;
            indexer
                .create_checkpoint(CreateCheckpointRequest::default())
                .await
                .expect("a checkpoint");
        }
        for holder in &mut holders {
            holder.publish(20);
        }
        server.kill().await;
        for holder in &mut holders {
            holder.publish(20);
        }
        if let Some(holder) = holders.get_mut(round as usize % 5) {
            holder.restart(1_000 + u128::from(round), 50 + round);
        }
    }
    let mut server = index(&flags).await;
    check(&server, &holders).await;
    server.stop().await;
}

/// A replica with an empty disk begins while all others are down and nobody can be asked, although the
/// stream does not have the beginning any more.
#[tokio::test]
async fn a_new_replica_begins_with_the_snapshot_and_the_rest_of_the_stream() {
    let broker = Broker::start().await;
    let folders = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
    let bounds = ["--nats-stream", "snapshot-threshold=200,age=2h"];
    let flags = |at: usize| kept(&broker, folders[at].path(), &bounds);
    let mut holders = fleet(&broker, Delivery::Jetstream, Some(NOBODY)).await;
    let mut elders = [index(&flags(0)).await, index(&flags(1)).await];
    let context = jetstream::new(broker.client().await);
    let piece = left_by_an_upload(&context).await;
    // The stream lets go of its beginning once both have it on disk and one has taken a snapshot.
    let mut first = 1;
    while first == 1 {
        for holder in &mut holders {
            holder.publish(20);
            holder.delivered().await;
        }
        for elder in &elders {
            check(elder, &holders).await;
            connect(elder)
                .await
                .create_checkpoint(CreateCheckpointRequest::default())
                .await
                .expect("a checkpoint");
        }
        let stream = context.get_stream(STREAM).await.expect("the stream");
        first = stream.cached_info().state.first_sequence;
        let age = stream.cached_info().config.max_age;
        assert_eq!(age, Duration::from_secs(7_200), "agents made it, indexes bound it");
    }
    let bucket = context.get_stream(format!("OBJ_{BUCKET}")).await.expect("snapshots");
    let pieces = bucket.info_with_subjects(&piece).await.expect("the subjects");
    assert_eq!(pieces.try_collect::<Vec<_>>().await.expect("the subjects"), [], "nobody's");
    for holder in &mut holders {
        holder.publish(10);
        holder.delivered().await;
    }
    for elder in &mut elders {
        elder.kill().await;
    }
    for holder in &mut holders {
        holder.publish(10);
    }
    let mut heir = index(&flags(2)).await;
    check(&heir, &holders).await;
    heir.stop().await;
}

/// Where the only shard's snapshots go.
const BUCKET: &str = "kvasir-snapshots-shard-0-of-1";

/// Puts a piece of a snapshot there that nobody will complete. Returns its subject.
async fn left_by_an_upload(context: &Context) -> String {
    let config = object_store::Config { bucket: BUCKET.to_owned(), ..Default::default() };
    context.create_object_store(config).await.expect("a bucket");
    let subject = format!("$O.{BUCKET}.C.broken-off");
    let sent = context.publish(subject.clone(), "a piece".into()).await.expect("it is sent");
    sent.await.expect("it is kept");
    subject
}

#[tokio::test]
async fn a_stream_that_was_emptied_or_made_anew_costs_questions_and_loses_nothing() {
    let broker = Broker::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut flags = kept(&broker, folder.path(), &[]);
    let mut holders = fleet(&broker, Delivery::Jetstream, None).await;
    let mut server = index(&flags).await;
    check(&server, &holders).await;
    server.kill().await;
    let context = jetstream::new(broker.client().await);
    // Emptied by somebody while the index was away.
    for holder in &mut holders {
        holder.publish(20);
        holder.delivered().await;
    }
    let stream = context.get_stream(STREAM).await.expect("the stream");
    assert_eq!(stream.cached_info().config.max_age, Duration::from_secs(3_600), "by default");
    stream.purge().await.expect("it is emptied");
    let mut server = index(&flags).await;
    for holder in &mut holders {
        holder.publish(5);
    }
    check(&server, &holders).await;
    // Made anew under an index that reads it.
    context.delete_stream(STREAM).await.expect("it is deleted");
    for holder in &mut holders {
        holder.publish(5);
    }
    check(&server, &holders).await;
    server.kill().await;
    // All is reset: the index begins anew, from the agents, and snapshots are gone.
    let piece = left_by_an_upload(&context).await;
    flags.push("--reset-states".to_owned());
    let mut server = index(&flags).await;
    check(&server, &holders).await;
    if let Ok(bucket) = context.get_stream(format!("OBJ_{BUCKET}")).await {
        let pieces = bucket.info_with_subjects(&piece).await.expect("the subjects");
        assert_eq!(pieces.try_collect::<Vec<_>>().await.expect("the subjects"), [], "{piece}");
    }
    server.stop().await;
}

/// An index that reads nothing for a while: its subscription overflows, and agents are asked.
#[tokio::test]
async fn an_index_that_is_too_slow_has_all_in_the_end() {
    for (delivery, name) in [(Delivery::Core, "core"), (Delivery::Jetstream, "jetstream")] {
        println!("{name}");
        let broker = Broker::start().await;
        let mut holders = fleet(&broker, delivery, None).await;
        let mut server = index(&flags(&broker, name, &[])).await;
        check(&server, &holders).await;
        server.signal(Signal::STOP).expect("a process");
        for holder in &mut holders {
            holder.publish(5_000);
            holder.delivered().await;
        }
        server.signal(Signal::CONT).expect("a process");
        for holder in &mut holders {
            holder.publish(5);
        }
        check(&server, &holders).await;
        server.stop().await;
    }
}
