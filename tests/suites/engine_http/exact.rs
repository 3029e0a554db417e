//! An index that hears the events holds what the engines hold, whoever leaves, and wherever blocks come from.

use crate::drive::{SEEDS, drive, engines, settled};
use crate::harness::{BLOCK, MODEL, PATIENCE};
use kvasir_sim::client;
use kvasir_sim::server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_holds_what_engines_hold_after_requests_that_end_early() {
    let mut server = Server::start_anywhere().await.expect("a server");
    let mut indexer = client::connect(server.addresses.grpc).await.expect("a client");
    for seed in SEEDS {
        let engines = engines().await;
        let names = [0, 1].map(|number| format!("{seed}-{number}"));
        for (name, engine) in names.iter().zip(&engines) {
            let at = engine.engine().endpoints();
            let worker = (MODEL, &**name);
            let endpoints = (&*at.live, &*at.replay);
            let registered = client::register_endpoints(&mut indexer, worker, BLOCK, endpoints);
            registered.await.expect("a worker");
        }
        drive(&engines, seed).await;
        for (name, engine) in names.iter().zip(&engines) {
            let truth = settled(engine).await;
            let worker = (MODEL, &**name);
            let last = truth.last_sequence.expect("batches");
            let exact = client::wait_until_exact_at(&mut indexer, worker, last, PATIENCE);
            exact.await.expect("an exact worker");
            let held = client::dump_device_copies(&mut indexer, MODEL, name).await;
            assert_eq!(held.expect("a dump"), truth.copies, "{name}");
        }
        for engine in engines {
            engine.stop().await.expect("an end");
        }
    }
    server.stop().await;
}
