//! Why the source behind an agent is not exact: the index states what the agent has seen.

use crate::harness::{MODEL, PATIENCE};
use crate::names::{Engine, tokens};
use anyhow::{Context, Result};
use kvasir_proto::pb::{self, Reason, WorkerState};
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::server::Server;
use rmpv::Value;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const LOOK: Duration = Duration::from_millis(20);

/// What the index says of a chain at the agent's worker.
#[derive(Debug, PartialEq)]
struct Said {
    blocks: u32,
    state: WorkerState,
    may_be_high: bool,
    reasons: Vec<(Reason, u64, String)>,
}

async fn ask(indexer: &mut Indexer) -> Result<Said> {
    let request = pb::FindMatchesRequest {
        model: MODEL.to_owned(),
        token_ids: tokens(&[1, 2]),
        minimum_overlap_blocks: Some(0),
        explain: true,
        ..Default::default()
    };
    let answer = indexer.find_matches(request).await?.into_inner();
    let found = answer.matches.first().context("no worker is listed")?;
    let reasons = found.reasons.iter().map(|at| (at.reason(), at.count, at.example.clone()));
    Ok(Said {
        blocks: found.matched_blocks,
        state: found.state(),
        may_be_high: found.may_be_high,
        reasons: reasons.collect(),
    })
}

async fn until_said(indexer: &mut Indexer, expected: Said) -> Result<()> {
    let mut last = None;
    let look = async {
        loop {
            last = ask(indexer).await.ok();
            if last.as_ref() == Some(&expected) {
                return;
            }
            sleep(LOOK).await;
        }
    };
    let waited = timeout(PATIENCE, look).await;
    waited.with_context(|| format!("{last:?} instead of {expected:?}"))
}

fn event(kind: &str, fields: Vec<(&str, Value)>) -> Value {
    let kind = vec![("type", Value::from(kind))];
    let fields = kind.into_iter().chain(fields);
    Value::Map(fields.map(|(name, value)| (Value::from(name), value)).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_index_states_why_an_agents_engine_is_not_exact() -> Result<()> {
    let mut engine = Engine::start().await?;
    let mut server = Server::start_anywhere().await?;
    let flags = engine.agent(&server);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut agent = Server::agent(&flags).await?;
    let mut indexer = client::connect(server.addresses.grpc).await?;
    let exact =
        || Said { blocks: 2, state: WorkerState::Exact, may_be_high: false, reasons: vec![] };
    engine.store(None, &[1, 2], None).await?;
    until_said(&mut indexer, exact()).await?;

    // What cannot be placed: the worker may hold more.
    let stored = event(
        "BlockStored",
        vec![
            ("block_hashes", Value::Array(vec![Value::from(9)])),
            ("parent_block_hash", Value::Nil),
            ("token_ids", tokens(&[9]).into_iter().map(Value::from).collect()),
            ("block_size", Value::from(4)),
            ("medium", Value::from("TAPE")),
        ],
    );
    engine.publish(stored).await?;
    let medium = || (Reason::UnknownMedium, 1, "medium=TAPE".to_owned());
    let low = Said { state: WorkerState::Partial, reasons: vec![medium()], ..exact() };
    until_said(&mut indexer, low).await?;

    // What may have been a removal: the worker may hold less.
    for _ in 0..2 {
        engine.publish(event("BlocksTwisted", vec![])).await?;
    }
    let twisted = (Reason::UnknownEvent, 2, "type=BlocksTwisted".to_owned());
    let high = Said {
        state: WorkerState::Partial,
        may_be_high: true,
        reasons: vec![medium(), twisted],
        ..exact()
    };
    until_said(&mut indexer, high).await?;

    engine.publish(event("AllBlocksCleared", vec![])).await?;
    engine.store(None, &[1, 2], None).await?;
    until_said(&mut indexer, exact()).await?;
    agent.stop().await;
    server.stop().await;
    Ok(())
}
