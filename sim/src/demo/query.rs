//! Chooses a query for the user to try, whose answer distinguishes workers.

use super::MODEL;
use super::drive::find_matches;
use crate::client::Indexer;
use anyhow::Result;
use kvasir_proto::hash::{Namespace, local_hashes, tokens_le};
use kvasir_proto::types::LocalHash;
use serde::Serialize;
use std::fmt::Write;
use std::net::SocketAddr;

/// Maximum number of blocks in the query beyond the blocks that every worker has.
const MORE_BLOCKS: usize = 4;
/// Hashes per line, so that a line stays below 80 characters.
const HASHES_A_LINE: usize = 3;

/// The leading blocks of a prompt of the workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Query {
    /// Local hashes of the blocks.
    locals: Vec<u64>,
    /// Number of these blocks at each worker in the answer, largest first.
    held: Vec<(String, u32)>,
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
        let mut chosen: Option<(usize, Self)> = None;
        for prompt in prompts {
            let (matches, _time) = find_matches(client, prompt).await?;
            let blocks = || matches.iter().map(|at| at.matched_blocks);
            let (Some(least), Some(most)) = (blocks().min(), blocks().max()) else { continue };
            let differs_at = least as usize + 1;
            let is_sooner = chosen.as_ref().is_none_or(|(best, _)| differs_at < *best);
            if most == least || !is_sooner {
                continue;
            }
            let asked = (most as usize).min(least as usize + MORE_BLOCKS);
            let held = matches
                .iter()
                .map(|at| (at.worker_id.clone(), at.matched_blocks.min(asked as u32)));
            let mut locals: Vec<LocalHash> = Vec::new();
            local_hashes(
                &tokens_le(prompt),
                block_size,
                Namespace::default().seed(),
                &[],
                &mut locals,
            );
            let locals = locals.iter().take(asked).map(|local| local.0);
            chosen = Some((differs_at, Self { locals: locals.collect(), held: held.collect() }));
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
