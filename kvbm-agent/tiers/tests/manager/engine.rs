//! A scripted engine: conversations with shared prefixes, with known bytes.

use crate::world::{BLOCK_BYTES, bytes_of, commit, names};
use kvasir_blocks::{BlockIdentity, Priority};
use kvasir_proto::types::LocalHash;
use kvasir_tiers::manager::{HeldBlock, KvBlockManager, OnboardRequest, Session};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of conversations. With their prefixes, they have 10 times as many blocks as host and disk together.
pub(crate) const CONVERSATIONS: u64 = 128;
const PREFIXES: u64 = 8;
const PREFIX_BLOCKS: u64 = 3;
const OWN_BLOCKS: u64 = 8;

/// Counts of the engine's actions.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) turns: AtomicU64,
    pub(crate) blocks_read: AtomicU64,
    pub(crate) blocks_computed: AtomicU64,
    pub(crate) given_up: AtomicU64,
}

pub(crate) struct Engine {
    pub(crate) manager: Arc<KvBlockManager>,
    pub(crate) done: Arc<Done>,
    pub(crate) folder: PathBuf,
    pub(crate) random: u64,
}

/// The blocks of a conversation. Every eighth conversation has the same prefix.
pub(crate) fn conversation(number: u64) -> Vec<BlockIdentity> {
    let prefix = (0..PREFIX_BLOCKS).map(|at| LocalHash((number % PREFIXES) << 32 | at));
    let own = (0..OWN_BLOCKS).map(|at| LocalHash((number + 1_000) << 32 | at));
    let locals: Vec<_> = prefix.chain(own).collect();
    BlockIdentity::chain(&locals).collect()
}

impl Engine {
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % limit
    }

    fn wrong(&self, block: &HeldBlock, how: &str) {
        let line = format!("{how}: {block:?}\n");
        std::fs::write(self.folder.join("wrong"), line).expect("a file of wrong bytes");
    }

    /// Reads the block directly from memory, without verification.
    fn look(&self, block: &HeldBlock) {
        let mut bytes = vec![0; BLOCK_BYTES];
        let reader = self.manager.arena().read(block.slot.0).expect("a held slot");
        reader.read(0, &mut bytes).expect("a block");
        if bytes != bytes_of(block.identity.sequence) {
            self.wrong(block, "memory has wrong bytes");
        }
        self.done.blocks_read.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads the block through the session, which verifies it.
    fn read(&self, session: &Session, block: &HeldBlock) {
        if let Ok(bytes) = session.read(block.slot)
            && bytes != bytes_of(block.identity.sequence)
        {
            self.wrong(block, "a verified read gave wrong bytes");
        }
        self.done.blocks_read.fetch_add(1, Ordering::Relaxed);
    }

    /// Continues a conversation: loads cached blocks, and computes the rest.
    async fn turn(&mut self, session: &Session) {
        let conversation = conversation(self.below(CONVERSATIONS));
        let length = usize::try_from(self.below(conversation.len() as u64) + 1).expect("small");
        let wanted: Vec<_> = conversation.iter().take(length).copied().collect();
        let prompt = names(&wanted);
        let is_impatient = self.below(20) == 0;
        let timeout = Duration::from_millis(if is_impatient { 1 } else { 2_000 });
        let request = OnboardRequest { priority: Priority(u8::from(is_impatient)), timeout };
        let onboard = session.onboard(&prompt, request);
        let patience = Duration::from_micros(if self.below(20) == 0 { 200 } else { 10_000_000 });
        let Ok(onboarded) = tokio::time::timeout(patience, onboard).await else {
            self.done.given_up.fetch_add(1, Ordering::Relaxed);
            session.end();
            return;
        };
        let held = onboarded.expect("an open session").blocks;
        for block in &held {
            self.look(block);
            self.read(session, block);
        }
        let rest = wanted.get(held.len()..).unwrap_or_default();
        let slots = if rest.is_empty() {
            Ok(Vec::new())
        } else {
            session.allocate(rest.len(), Duration::from_millis(200))
        };
        let mut all = held;
        for (leased, block) in slots.unwrap_or_default().iter().zip(rest) {
            if session.write(leased.slot, 0, &bytes_of(block.sequence)).is_err() {
                // The lease has expired, because this machine is busy.
                break;
            }
            if self.below(50) == 0 {
                session.abort(leased.slot);
                break;
            }
            if let Ok(committed) = session.commit(leased.slot, &commit(block)) {
                self.done.blocks_computed.fetch_add(1, Ordering::Relaxed);
                all.push(committed.block);
            }
        }
        for block in &all {
            self.read(session, block);
            session.release(block.slot);
        }
        self.done.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Works until `is_over`.
    pub(crate) async fn work(&mut self, is_over: impl Fn() -> bool) {
        while !is_over() {
            let session = self.manager.open_session("engine").expect("a session");
            for _ in 0..16 {
                self.turn(&session).await;
                // Blocks in memory need no wait, so yield to other tasks.
                tokio::task::yield_now().await;
                if is_over() || session.hold_prefix(&[]).is_err() {
                    break;
                }
            }
            // Half of the engines disappear without ending their session.
            if self.below(2) == 0 {
                session.end();
            }
        }
    }
}
