//! Leases: a worker stays while nobody can be heard, and goes when it is silent itself.

use crate::agents::{Broker, INCARNATION, PATIENCE};
use crate::fleet::{Holder, check, configured, connect, flags, held, index, known, until};
use crate::scripted::Scripted;
use kvasir_proto::pb::{CreateCheckpointRequest, RegisterWorkerRequest};
use kvbm_agent::broker::Delivery;
use std::time::Duration;
use tokio::join;

/// Short, and yet longer than a busy machine keeps a process waiting.
const LEASE: Duration = Duration::from_secs(2);

async fn leased(broker: &Broker, number: u64, delivery: Delivery) -> Holder {
    let mut config = configured(broker, &format!("w.{number}"), delivery, None);
    config.heartbeat_interval = LEASE / 10;
    config.broker.as_mut().expect("a broker").registration.lease = Some(LEASE);
    let mut holder = Holder::with(config, number).await;
    holder.publish(50);
    holder
}

/// The broker is killed under an index, or is not there when an index begins with its checkpoint. Of two
/// workers one ends meanwhile.
async fn is_away_for_long(delivery: Delivery, name: &str, restarts: bool) {
    let mut broker = Broker::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let checkpoints = folder.path().to_string_lossy();
    let flags = flags(&broker, name, &["--checkpoint-dir", &checkpoints]);
    let holders = [leased(&broker, 0, delivery).await, leased(&broker, 1, delivery).await];
    let mut server = index(&flags).await;
    check(&server, &holders).await;
    if restarts {
        let mut indexer = connect(&server).await;
        let taken = indexer.create_checkpoint(CreateCheckpointRequest::default()).await;
        taken.expect("a checkpoint");
        server.kill().await;
    }
    broker.server.kill().await;
    if restarts {
        server = index(&flags).await;
    }
    // Leases are looked at every second.
    tokio::time::sleep(LEASE * 2).await;
    for holder in &holders {
        let worker = known(&server, &holder.worker).await;
        let worker = worker.unwrap_or_else(|| panic!("{name}: {} is gone", holder.worker));
        assert_eq!(worker.sources.len(), 1, "{worker:?}");
        assert_eq!(held(&server, &holder.worker).await, holder.engine.truth(), "{name}");
    }
    let [mut stays, Holder { worker, agent, .. }] = holders;
    assert!(agent.stop(PATIENCE).await);
    broker.server.restart().await.expect("the broker again");
    stays.publish(5);
    check(&server, std::slice::from_ref(&stays)).await;
    until("the lease is over", async || known(&server, &worker).await.is_none()).await;
    check(&server, &[stays]).await;
    server.stop().await;
}

#[tokio::test]
async fn a_broker_that_is_gone_takes_no_worker_along() {
    join!(
        is_away_for_long(Delivery::Core, "core", false),
        is_away_for_long(Delivery::Jetstream, "jetstream", false),
    );
}

#[tokio::test]
async fn what_a_checkpoint_has_stays_until_the_broker_is_there() {
    join!(
        is_away_for_long(Delivery::Core, "core", true),
        is_away_for_long(Delivery::Jetstream, "jetstream", true),
    );
}

/// What is announced without end would stay without end.
#[tokio::test]
async fn who_names_no_lease_has_one() {
    let broker = Broker::start().await;
    let mut server = index(&flags(&broker, "core", &[])).await;
    let mut source = Scripted::new(&broker, "w.1", 0).await;
    source.registration.lease = None;
    until("it is known", async || {
        source.heartbeat(INCARNATION, None).await;
        known(&server, source.worker()).await.is_some()
    })
    .await;
    let mut indexer = connect(&server).await;
    let named = |lease_ms| RegisterWorkerRequest { lease_ms, ..(&source.registration).into() };
    let refused = indexer.register_worker(named(0)).await.expect_err("another lease");
    assert!(refused.message().contains("lease_ms"), "{refused}");
    let same = indexer.register_worker(named(60_000)).await.expect("the same lease").into_inner();
    assert!(!same.created);
    server.stop().await;
}
