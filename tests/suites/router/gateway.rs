//! The example gateway, as it is.

use crate::fleet::{BLOCK_SIZE, Fleet, MODEL, tokens};
use anyhow::{Result, anyhow, ensure};
use kvasir_proto::pb;
use router_client::Prompt;

#[expect(dead_code, reason = "the test calls what its main calls")]
#[path = "../../../router-client/examples/gateway.rs"]
mod example;

#[tokio::test]
async fn the_example_sends_requests_where_their_prefix_is() -> Result<()> {
    let mut fleet = Fleet::start(3, &[]).await?;
    fleet.compute(2, tokens(0, 8)).await?;
    // Idle and broken: requests without a prefix go there first, and then elsewhere.
    let broken = pb::RegisterWorkerRequest {
        worker_id: "broken".to_owned(),
        model: MODEL.to_owned(),
        block_size: BLOCK_SIZE as u32,
        ..Default::default()
    };
    fleet.indexer.register_worker(broken).await?;
    let server = fleet.server.addresses.grpc.to_string();
    let failed = |error: Box<dyn std::error::Error>| anyhow!("{error}");
    let (router, block_size) = example::connect(&server, MODEL).await.map_err(failed)?;
    let prompt = [tokens(0, 8), tokens(9_000, 2)].concat();
    let served = example::serve(&router, &Prompt::new(MODEL, block_size, &prompt)).await;
    let (worker, blocks) = served.map_err(failed)?;
    ensure!((worker.worker.as_str(), blocks) == ("w2", 8.0), "{worker} {blocks}");
    let other = tokens(50_000, 2);
    let mut workers = Vec::new();
    for _ in 0..4 {
        let served = example::serve(&router, &Prompt::new(MODEL, block_size, &other)).await;
        workers.push(served.map_err(failed)?.0);
    }
    ensure!(workers.iter().all(|at| at.worker.as_str() != "broken"), "{workers:?}");
    ensure!(router.loads().iter().all(|(_, load)| load.is_empty()), "all have ended");
    fleet.stop().await;
    Ok(())
}
