use super::*;
use crate::ingest::presence::Presence;
use crate::ingest::{Registered, testing};
use kvasir_proto::pb;

/// An address without a listener.
const NOWHERE: &str = "tcp://127.0.0.1:1";

fn registration(worker: &str, tenant: &str, (endpoint, topic): (&str, &str)) -> Registration {
    let endpoint = pb::EngineEndpoint {
        endpoint: endpoint.to_owned(),
        topic: topic.to_owned(),
        ..Default::default()
    };
    let request = pb::RegisterWorkerRequest {
        worker_id: worker.to_owned(),
        tenant: tenant.to_owned(),
        model: "m".to_owned(),
        block_size: 16,
        endpoints: vec![endpoint],
        ..Default::default()
    };
    request.try_into().expect("a valid registration")
}

fn on(worker: &str, socket: (&str, &str)) -> Registration {
    registration(worker, "", socket)
}

/// Sets the presence that a link of the worker has observed, independent of its socket.
fn show(ingest: &Ingest, of: &Registration, presence: Presence) {
    let worker = ingest.workers.get(&of.address()).expect("a worker");
    worker.subscriptions.iter().for_each(|at| at.presence.store(presence));
}

/// Registers a worker whose link never reaches its first attempt.
async fn pending(ingest: &Arc<Ingest>, registration: &Registration) {
    ingest.register(registration.clone()).await.expect("a free socket");
    let worker = Arc::clone(&ingest.workers.get(&registration.address()).expect("a worker"));
    worker.stop_links().await;
    show(ingest, registration, Presence::Pending);
}

fn refusal(refused: Result<Registered, IngestError>) -> String {
    match refused {
        Err(error @ IngestError::SocketInUse { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_socket_with_one_topic_is_of_one_worker() {
    let ingest = Arc::new(testing::ingest());
    let first = on("a", (NOWHERE, "kv@10.0.0.1"));
    pending(&ingest, &first).await;
    for topic in ["", "kv@", "kv@10.0.0.1", "kv@10.0.0.1@m"] {
        let text = refusal(ingest.register(on("b", (NOWHERE, topic))).await);
        let expected = "worker b (model m) cannot follow tcp://127.0.0.1:1: worker a (model m) follows it with topic \
                        \"kv@10.0.0.1\"";
        assert!(text.starts_with(expected), "{text}");
    }
    // The spelling of the host and the partition do not matter. An agent that replaces a registration is refused, too.
    let spelled = on("b", ("tcp://LOCALHOST:1", "kv@10.0.0.1"));
    refusal(ingest.register(spelled.clone()).await);
    refusal(ingest.configure(spelled.clone()).await);
    refusal(ingest.introduce(&spelled, false).await);
    let topic = ("tcp://127.0.0.1:1", "kv@10.0.0.1");
    let text = refusal(ingest.register(registration("c", "tenant", topic)).await);
    assert!(text.contains("another worker follows it") && !text.contains("worker a"), "{text}");
    // Another topic, another port.
    for socket in [(NOWHERE, "kv@10.0.0.12"), ("tcp://127.0.0.1:2", "kv@10.0.0.1")] {
        ingest.register(on(socket.0, socket)).await.expect("a socket or topic of its own");
    }
    ingest.register(first).await.expect("the same registration");
    assert_eq!(ingest.workers.len(), 3);
    ingest.stop().await;
}

#[tokio::test]
async fn a_worker_without_its_engine_yields() {
    let ingest = Arc::new(testing::ingest());
    let first = on("a", (NOWHERE, ""));
    let second = on("b", (NOWHERE, ""));
    for presence in [Presence::Away, Presence::Unproven, Presence::Renewed] {
        pending(&ingest, &first).await;
        show(&ingest, &first, Presence::There);
        refusal(ingest.register(second.clone()).await);
        show(&ingest, &first, presence);
        ingest.register(second.clone()).await.expect("the first worker yields");
        assert!(!ingest.contains(&first.address()), "{presence:?}");
        ingest.remove(second.address()).await.expect("a worker");
    }
    // A caller that registers the worker again knows its engine.
    pending(&ingest, &first).await;
    show(&ingest, &first, Presence::Renewed);
    ingest.register(first.clone()).await.expect("the same registration");
    refusal(ingest.register(second.clone()).await);
    ingest.stop().await;
}

#[tokio::test]
async fn a_worker_yields_to_one_of_its_tenant_that_takes_over() {
    let ingest = Arc::new(testing::ingest());
    let first = on("a", (NOWHERE, ""));
    for replace in [false, true] {
        pending(&ingest, &first).await;
        let foreign = registration("b", "tenant", (NOWHERE, ""));
        refusal(ingest.take_over(foreign, replace).await);
        let second = on("b", (NOWHERE, ""));
        let registered = ingest.take_over(second.clone(), replace).await;
        assert_eq!(registered, Ok(Registered::Created));
        assert!(!ingest.contains(&first.address()));
        ingest.remove(second.address()).await.expect("a worker");
    }
    ingest.stop().await;
}

#[test]
fn configured_workers_share_no_socket() {
    let workers = [on("a", ("tcp://host:1", "")), on("b", ("tcp://host:2", ""))];
    check_sockets(&workers).expect("two sockets");
    let workers = [on("a", ("tcp://host:1", "kv@a")), on("b", ("tcp://HOST.:1", "kv@b"))];
    check_sockets(&workers).expect("two topics");
    let workers = [on("a", ("tcp://host:1", "kv@ab")), on("b", ("tcp://HOST.:1", "kv@a"))];
    check_sockets(&workers).expect("two topics, though one begins like the other");
    let workers = [on("a", ("tcp://host:1", "kv@a")), on("b", ("tcp://HOST.:1", "kv@"))];
    let text = check_sockets(&workers).expect_err("one topic is part of the other").to_string();
    assert!(text.starts_with("worker b (model m) cannot follow tcp://HOST.:1: worker a"), "{text}");
}
