//! Chooses a query for the user to try, whose answer distinguishes workers.

use super::MODEL;
use crate::client::{Indexer, TENANT};
use anyhow::{Context, Result};
use kvasir_proto::hash::{Namespace, local_hashes, tokens_le};
use kvasir_proto::pb;
use kvasir_proto::types::LocalHash;
use serde::Serialize;
use std::fmt::Write;
use std::net::SocketAddr;

/// Maximum number of blocks in the query beyond the blocks that every worker has.
const MORE_BLOCKS: usize = 4;
/// Hashes per line, so that a line stays below 80 characters.
const HASHES_A_LINE: usize = 3;

/// A worker, and its number of leading blocks of a query.
type Held = (String, u32);

/// The leading blocks of a prompt of the workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Query {
    /// Local hashes of the blocks.
    locals: Vec<u64>,
    /// Number of these blocks at each worker in the answer, largest first.
    held: Vec<Held>,
}

impl Query {
    /// Chooses the prompt whose leading blocks distinguish workers earliest. None if, for each prompt, all workers with
    /// any of its blocks have equally many.
    ///
    /// # Errors
    /// If a call fails.
    pub async fn choose(
        client: &mut Indexer,
        prompts: &[Vec<u32>],
        block_size: usize,
    ) -> Result<Option<Self>> {
        let prompts = prompts.iter().map(|prompt| {
            let seed = Namespace::default().seed();
            let mut locals = Vec::new();
            local_hashes(&tokens_le(prompt), block_size, seed, &[], &mut locals);
            locals.iter().map(|local: &LocalHash| local.0).collect()
        });
        Self::choose_from(prompts, async |locals| held(client, locals).await).await
    }

    /// Like [`Query::choose`], from the prompts' local hashes. `held` answers how many leading blocks each worker has.
    async fn choose_from(
        prompts: impl Iterator<Item = Vec<u64>>,
        mut held: impl AsyncFnMut(&[u64]) -> Result<Vec<Held>>,
    ) -> Result<Option<Self>> {
        let mut chosen: Option<(usize, Self)> = None;
        for mut locals in prompts {
            let Some((least, most)) = range(&held(&locals).await?) else { continue };
            let is_sooner = chosen.as_ref().is_none_or(|(best, _)| least < *best);
            if most == least || !is_sooner {
                continue;
            }
            // A worker with a sliding window may have dropped the first blocks of a long prompt: of fewer blocks, it can
            // have none. So this query is asked, too.
            locals.truncate(most.min(least + MORE_BLOCKS));
            let held = held(&locals).await?;
            if range(&held).is_some_and(|(least, most)| most > least) {
                chosen = Some((least, Self { locals, held }));
            }
        }
        Ok(chosen.map(|(_, query)| query))
    }

    /// The command to try, in lines of less than 80 characters, and the expected answer.
    #[must_use]
    pub fn text(&self, server: SocketAddr) -> String {
        let asked = self.locals.len();
        let mut text = format!("Ask who holds the first {asked} blocks of a prompt of this run:\n");
        // Writing to a String does not fail.
        let mut line =
            |line: std::fmt::Arguments<'_>| writeln!(text, "  {line}").expect("a String");
        line(format_args!("grpcurl -plaintext -d '{{\"model\": \"{MODEL}\", \"local_hashes\": ["));
        let lines = self.locals.chunks(HASHES_A_LINE);
        let last = lines.len().saturating_sub(1);
        for (number, hashes) in lines.enumerate() {
            let hashes: Vec<_> = hashes.iter().map(|hash| format!("\"{hash}\"")).collect();
            let comma = if number < last { "," } else { "" };
            line(format_args!("{}{comma}", hashes.join(",")));
        }
        line(format_args!("]}}' {server} kvasir.v1.Indexer/FindMatches"));
        text.push_str(&self.answer());
        text
    }

    fn answer(&self) -> String {
        let count = |blocks| self.held.iter().filter(|(_, held)| *held == blocks).count();
        let least = self.held.iter().map(|(_, held)| *held).min().unwrap_or(0);
        let best = self.held.first().map_or("", |(worker, _)| worker);
        let most = self.held.first().map_or(0, |(_, held)| *held);
        let all = self.held.len();
        let few = count(least);
        format!("{best} holds {most} of them, {few} of {all} workers hold {least}.")
    }
}

/// Asks the server how many leading blocks of a prompt each worker has; largest first.
async fn held(client: &mut Indexer, locals: &[u64]) -> Result<Vec<Held>> {
    let request = pb::FindMatchesRequest {
        model: MODEL.to_owned(),
        tenant: TENANT.to_owned(),
        local_hashes: locals.to_vec(),
        ..pb::FindMatchesRequest::default()
    };
    let answer = client.find_matches(request).await.context("find matches")?.into_inner();
    Ok(answer.matches.into_iter().map(|at| (at.worker_id, at.matched_blocks)).collect())
}

/// The smallest and the largest number of blocks at a worker.
fn range(held: &[Held]) -> Option<(usize, usize)> {
    let blocks = || held.iter().map(|(_, blocks)| *blocks as usize);
    Some((blocks().min()?, blocks().max()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;

    /// Leading blocks of each prompt that two workers can use, by the number of blocks of the query.
    fn usable(prompt: u64, asked: u32) -> [u32; 2] {
        match prompt {
            // The first worker holds 400 blocks, but of the first 36 only what its window does not need.
            0 => [if asked < 400 { 32.min(asked) } else { 400 }, 32.min(asked)],
            1 => [asked, asked],
            _ => [50.min(asked), 40.min(asked)],
        }
    }

    #[test]
    fn the_answer_is_that_to_the_printed_query() {
        let prompts = || [0, 1, 2].into_iter().map(|prompt| vec![prompt; 400]);
        let held = async |locals: &[u64]| {
            let blocks = usable(locals[0], locals.len() as u32);
            Ok(["a", "b"].map(str::to_owned).into_iter().zip(blocks).collect())
        };
        let query = block_on(Query::choose_from(prompts(), held)).expect("no call fails");
        let query = query.expect("the third prompt");
        assert_eq!((query.locals.len(), query.locals[0]), (44, 2));
        assert_eq!(query.answer(), "a holds 44 of them, 1 of 2 workers hold 40.");
        let query = block_on(Query::choose_from(prompts().take(2), held)).expect("no call fails");
        assert_eq!(query, None);
    }
}
