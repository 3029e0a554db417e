//! What is published from C is in the index, whatever is killed.

use crate::driver::{
    Driver, FULL, INVALID_ARGUMENT, OK, Options, PATIENCE, PATIENCE_MS, REFUSED, SHUT_DOWN,
    TIMEOUT, indexed_until,
};
use kvasir_proto::pb;
use kvasir_sim::server::{Addresses, Server};
use kvasir_sim::{client, place};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::sleep;

const WORKER: (&str, &str) = ("model", "worker-0");

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

async fn index() -> Server {
    Server::start_anywhere().await.expect("an index")
}

/// The worker's agent.
async fn agent(listen: SocketAddr, index: &Server) -> Server {
    let indexers = url(index.addresses.grpc);
    let flags = ["--worker-id", WORKER.1, "--model", WORKER.0, "--block-size", "4"];
    let flags = [&flags[..], &["--indexers", &indexers]].concat();
    let http = SocketAddr::from(([127, 0, 0, 1], 0));
    let addresses = Addresses { grpc: listen, http };
    Server::agent_at(addresses, &flags).await.expect("an agent")
}

async fn holds(index: &Server, names: impl IntoIterator<Item = u64>) {
    indexed_until(index, WORKER, &names.into_iter().collect(), PATIENCE).await;
}

/// Blocks of a prompt that the worker holds at each rank. The tokens of a block say its name.
async fn found(index: &Server, names: &[u32]) -> Vec<(u32, u32)> {
    let mut indexer = client::connect(index.addresses.grpc).await.expect("it listens");
    let request = pb::FindMatchesRequest {
        model: WORKER.0.to_owned(),
        token_ids: names.iter().flat_map(|name| [*name; 4]).collect(),
        ..Default::default()
    };
    let answer = indexer.find_matches(request).await.expect("an answer").into_inner();
    answer.matches.iter().map(|at| (at.dp_rank, at.matched_blocks)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_publish_and_the_index_holds_just_that() {
    let threads = 4_u64;
    let events = 500_u64;
    let mut index = index().await;
    let mut agent = agent(loopback(0), &index).await;
    let mut driver =
        Driver::open(Options { rank: 3, ..Options::new(url(agent.addresses.grpc)) }).await;
    driver.done(&format!("threads {threads} {events}")).await;
    driver.flush().await;
    let chains = (0..threads * events).filter(|chain| chain % 4 != 3);
    let names: BTreeSet<u64> = chains.flat_map(|chain| [1 + 2 * chain, 2 + 2 * chain]).collect();
    holds(&index, names.iter().copied()).await;
    assert_eq!(found(&index, &[1, 2]).await, [(3, 2)]);
    assert_eq!(found(&index, &[1, 3]).await, [(3, 1)]);
    assert_eq!(found(&index, &[7, 8]).await, [], "it was removed");
    assert_eq!(driver.status("held").await, names.len() as u64);
    let batches = threads * events * 5 / 4;
    assert_eq!(driver.status("acknowledged").await, batches);
    assert_eq!((driver.status("head").await, driver.status("rejected").await), (batches, 0));
    // The next event has the next id, whichever thread had the last.
    assert_eq!(driver.done("remove 1").await, batches.to_string());

    driver.done(&format!("shutdown {PATIENCE_MS}")).await;
    driver.done("shutdown 1").await;
    holds(&index, []).await;
    let (code, text) = driver.ask("clear").await;
    assert_eq!((code, &*text), (SHUT_DOWN, "the publisher was shut down"));
    driver.done("free").await;
    agent.stop().await;
    index.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_comes_late_and_is_killed_has_all() {
    let mut index = index().await;
    let listen = loopback(place::free_port().expect("a free port"));
    // It keeps next to nothing: what is not confirmed is told anew.
    let options = Options { journal_bytes_max: 1, ..Options::new(url(listen)) };
    let mut driver = Driver::open(options).await;
    let mut names = BTreeSet::new();
    for first in [1, 101, 201] {
        driver.done(&format!("store {first} 100")).await;
        names.extend(first..first + 100);
    }
    driver.done("remove 300").await;
    names.remove(&300);
    let (code, text) = driver.ask("flush 300").await;
    assert_eq!(code, TIMEOUT, "{text}");
    assert!(text.starts_with("4 batches are not acknowledged"), "{text}");
    assert_eq!(driver.status("connected").await, 0);

    let mut first = agent(listen, &index).await;
    assert_eq!(first.addresses.grpc, listen, "the port was taken meanwhile");
    driver.flush().await;
    holds(&index, names.iter().copied()).await;
    assert_eq!(driver.status("retold").await, 1);
    assert_eq!(driver.status("acknowledged").await, driver.status("head").await);

    // The agent's own life ends, and with it all that it knew; the engine goes on.
    for (round, blocks) in [(1, 1_000), (2, 4_000)] {
        first.kill().await;
        // More than twice what was told anew before, so that it is not kept any more.
        let new = 10_000 * round;
        driver.done(&format!("store {new} {blocks}")).await;
        driver.done(&format!("remove {round}")).await;
        names.extend(new..new + blocks);
        names.remove(&round);
        first = agent(listen, &index).await;
        driver.flush().await;
        holds(&index, names.iter().copied()).await;
    }
    let tail: Vec<u32> = (3..=99).collect();
    assert_eq!(found(&index, &tail).await, [], "their beginning is gone");
    assert_eq!(found(&index, &[10_000, 10_001]).await, [(0, 2)]);
    assert_eq!(driver.status("retold").await, 3);
    first.stop().await;
    index.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_says_why() {
    let mut index = index().await;
    let mut agent = agent(loopback(0), &index).await;
    let endpoint = || url(agent.addresses.grpc);

    let mut wrong = Driver::open(Options { block_size: 8, ..Options::new(endpoint()) }).await;
    wrong.done("clear").await;
    for call in ["connect", "flush"] {
        let (code, text) = wrong.ask(&format!("{call} {PATIENCE_MS}")).await;
        assert_eq!(code, REFUSED, "{text}");
        assert!(text.contains("block_size is 8") && text.contains("is 4"), "{text}");
    }
    assert_eq!(wrong.status("refused").await, 1);
    let (code, text) = wrong.ask("store 1 1").await;
    let expected = "4 tokens are given for 1 blocks of 8: give 8";
    assert_eq!((code, &*text), (INVALID_ARGUMENT, expected));

    let mut leased = Driver::open(Options { lease_ms: 5_000, ..Options::new(endpoint()) }).await;
    let (code, text) = leased.ask(&format!("connect {PATIENCE_MS}")).await;
    assert_eq!(code, REFUSED, "{text}");
    assert!(text.contains("an agent registers its worker by itself"), "{text}");

    let stranger = Options { worker: "worker-1", ..Options::new(endpoint()) };
    let mut stranger = Driver::open(stranger).await;
    let (code, text) = stranger.ask(&format!("connect {PATIENCE_MS}")).await;
    assert_eq!(code, REFUSED, "{text}");
    let expected = "worker-1 (model model) is not served here, worker-0 (model model) is: give its";
    assert!(text.contains(expected), "{text}");

    // A rank that is another source's already.
    let mut owner = Driver::open(Options::new(endpoint())).await;
    owner.done("store 1 2").await;
    owner.flush().await;
    let mut other = Driver::open(Options { source: "other", ..Options::new(endpoint()) }).await;
    other.done("store 5 3").await;
    other.flush().await;
    assert_eq!((other.status("rejected").await, owner.status("rejected").await), (3, 0));
    holds(&index, [1, 2]).await;
    agent.stop().await;
    index.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_there_is_no_room_for_is_reported() {
    let mut index = index().await;
    let mut agent = agent(loopback(0), &index).await;
    let options = Options { held_blocks_max: 10, ..Options::new(url(agent.addresses.grpc)) };
    let mut driver = Driver::open(options).await;
    // The last event is taken whole.
    driver.done("store 1 12").await;
    let (code, text) = driver.ask("store 13 1").await;
    assert_eq!(code, FULL, "{text}");
    assert!(text.starts_with("12 blocks are held, the limit is 10: "), "{text}");
    assert_eq!(driver.status("dropped").await, 1);
    for name in [10, 11, 12] {
        driver.done(&format!("remove {name}")).await;
    }
    assert_eq!(driver.ask("store 13 1").await, (OK, "4".to_owned()), "no id was used");
    driver.flush().await;
    holds(&index, (1..10).chain([13])).await;
    agent.stop().await;
    index.stop().await;
}

/// The same library, and no agent: the index is told directly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_takes_it_too() {
    let mut index = index().await;
    let grpc = index.addresses.grpc;
    let http = index.addresses.http;
    let options = Options { lease_ms: 5_000, journal_bytes_max: 1, ..Options::new(url(grpc)) };
    let mut driver = Driver::open(options).await;
    for first in [1, 11, 21] {
        driver.done(&format!("store {first} 10")).await;
    }
    driver.flush().await;
    holds(&index, 1..=30).await;
    index.kill().await;
    driver.done("remove 30").await;
    let mut index = Server::start(grpc, http).await.expect("an index");
    assert_eq!(index.addresses.grpc, grpc, "the port was taken meanwhile");
    driver.flush().await;
    holds(&index, 1..=29).await;
    assert_eq!(found(&index, &[1, 2, 3]).await, [(0, 3)]);

    // The engine ends: its worker is gone.
    driver.done(&format!("shutdown {PATIENCE_MS}")).await;
    let mut indexer = client::connect(grpc).await.expect("it listens");
    let gone = async {
        while client::find_worker(&mut indexer, WORKER.0, WORKER.1)
            .await
            .expect("an answer")
            .is_some()
        {
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("it is removed");
    index.stop().await;
}
