//! Measures the client library as used by a router: hashes prompts, queries, and decodes answers.

use super::closed::{Tally, Window};
use super::fleet::{BLOCK_SIZE, Fleet, Kind, MODEL};
use anyhow::Result;
use router_client::{Calls, ClientConfig, IndexerClient, Prompt};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Blocks per prompt.
const BLOCKS: usize = 256;
const DEADLINE: Duration = Duration::from_secs(10);

/// Prompts of the queries.
#[derive(Debug, Clone)]
pub struct Prompts(Arc<[Vec<u32>]>);

impl Prompts {
    /// The first blocks of all own prompts.
    pub fn new(fleet: Fleet) -> Self {
        let prompts = 0..fleet.prompts(Kind::Own);
        Self(prompts.map(|number| fleet.tokens(Kind::Own, number, BLOCKS)).collect())
    }

    /// Runs queries in a closed loop, through one client.
    pub async fn closed(
        &self,
        server: SocketAddr,
        calls: Calls,
        in_flight: usize,
        window: Window,
    ) -> Result<Tally> {
        let config = ClientConfig {
            deadline: DEADLINE,
            in_flight_max: in_flight,
            calls,
            ..Default::default()
        };
        let client = IndexerClient::connect(&format!("http://{server}"), config)?;
        let mut tasks = JoinSet::new();
        for task in 0..in_flight {
            let (client, Self(prompts)) = (client.clone(), self.clone());
            let first = task * prompts.len() / in_flight;
            tasks.spawn(async move { ask(&client, &prompts, first, window).await });
        }
        let mut sum = Tally::new()?;
        while let Some(tally) = tasks.join_next().await {
            sum.merge(&tally??)?;
        }
        Ok(sum)
    }
}

/// Runs one query after another, beginning with prompt number `first`.
async fn ask(
    client: &IndexerClient,
    prompts: &[Vec<u32>],
    first: usize,
    window: Window,
) -> Result<Tally> {
    let mut tally = Tally::new()?;
    for tokens in prompts.iter().cycle().skip(first) {
        let asked = Instant::now();
        if asked >= window.end {
            break;
        }
        let answer = client.find(&Prompt::new(MODEL, BLOCK_SIZE, tokens)).await;
        let best = answer.ok().and_then(|answer| Some(answer.best()?.blocks as usize));
        tally.answered(window, asked, best == Some(BLOCKS));
    }
    Ok(tally)
}
