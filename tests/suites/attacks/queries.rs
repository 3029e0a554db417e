//! Queries that cost the server much.

use crate::harness::{PATIENCE, Siege};
use crate::peer::{Peer, framed, messages};
use crate::publishers::ranks_of;
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

const QUERIES: &str = "/kvasir.v1.Indexer/FindMatchesStream";
const FIND: &str = "/kvasir.v1.Indexer/FindMatches";
const MODEL: &str = "wide";
/// Workers with 1,024 ranks each and long names: an answer with all of them has 7 MB.
const WORKERS: usize = 24;
/// Connections of the attacker, streams of each, and questions in each of these.
const ATTACKERS: usize = 8;
const STREAMS: usize = 8;
const QUESTIONS: usize = 2;
/// Far beyond what the healthy client should see, for debug builds on machines that do other things.
const LATE: Duration = Duration::from_millis(500);

/// Asks over one connection, all at once, and reads all answers: how many came.
async fn ask(server: SocketAddr, question: pb::FindMatchesRequest) -> Result<usize> {
    let mut peer = Peer::connect(server, 16 << 20).await?;
    let mut streams = Vec::new();
    let mut single = Vec::new();
    for _ in 0..STREAMS {
        let mut call = peer.begin(QUERIES).await?;
        for last in (0..QUESTIONS).rev() {
            call.body.send_data(framed(&question), last == 0)?;
        }
        streams.push(call);
        single.push(peer.call(FIND, &question).await?);
    }
    let mut came = 0;
    for (call, wanted) in streams
        .into_iter()
        .map(|call| (call, QUESTIONS))
        .chain(single.into_iter().map(|call| (call, 1)))
    {
        let mut body = call.answer.await?.into_body();
        came += messages(&mut body, wanted).await?;
    }
    Ok(came)
}

async fn attack(question: pb::FindMatchesRequest) -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    for first in (0..WORKERS).step_by(8) {
        ranks_of(siege.grpc(), MODEL, first..first + 8).await?;
    }
    let mut attackers = JoinSet::new();
    for _ in 0..ATTACKERS {
        attackers.spawn(ask(siege.grpc(), question.clone()));
    }
    while let Some(asked) = timeout(PATIENCE, attackers.join_next()).await.context("too late")? {
        // Some answers may be refused: too many wait to be read.
        let came = asked??;
        ensure!(came > 0, "nothing is answered");
    }
    siege.end_within(LATE).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_for_all_ranks_keep_nobody_waiting() -> Result<()> {
    attack(pb::FindMatchesRequest {
        model: MODEL.to_owned(),
        local_hashes: vec![1],
        minimum_overlap_blocks: Some(0),
        ..Default::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_by_name_keep_nobody_waiting() -> Result<()> {
    attack(pb::FindMatchesRequest {
        model: MODEL.to_owned(),
        sequence_hashes: (1..=7_000).collect(),
        minimum_overlap_blocks: Some(0),
        ..Default::default()
    })
    .await
}
