//! The audit (anti-entropy): compares a source's blocks in the index with its agent's blocks, and repairs differences.
//!
//! Both maintain [digests](kvasir_proto::digest). A heartbeat has the agent's digest after its newest batch. The index
//! compares its own digest once it has applied exactly that batch. If the digests differ, it requests the digests of
//! all buckets, then the blocks of the differing buckets.
//!
//! Each answer names its last batch, and is checked when the index has applied exactly that batch. Later batches are
//! held back meanwhile. A gap, a new incarnation, another stream or a slow answer ends the audit. The next heartbeat
//! starts a new one.

use super::Follower;
use crate::ingest::IngestError;
use crate::ingest::answer::Waiting;
use crate::ingest::local::{AskError, Part, Parts, Question};
use futures::StreamExt;
use kvasir_proto::convert::{DigestsPart, LocalDumpPart, PublishedBatch, RankBuckets};
use kvasir_proto::digest::{RankDigest, block_digest, digest_bucket};
use kvasir_proto::limits::WORKER_RANKS_MAX;
use kvasir_proto::types::{BlockName, DpRank, HeldBlock, KvEvent, SourceState, Tier};
use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::mem;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Time limit for one answer, because batches wait meanwhile.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of buckets to repair. If more buckets differ, the index requests a complete dump.
pub(super) const BUCKETS_MAX: usize = 512;
/// Maximum number of blocks in the repaired buckets.
const BLOCKS_MAX: usize = 1 << 20;
/// Maximum number of batches that are held back.
const HELD_BATCHES_MAX: usize = 16_384;
/// Maximum number of block operations in the batches that are held back.
const HELD_OPERATIONS_MAX: usize = 1 << 20;

/// The audit of one source.
#[derive(Default)]
pub(super) struct Audit {
    /// Whether heartbeats contain digests.
    is_wanted: bool,
    /// The newest batch in a heartbeat, and the agent's digest after it, until compared.
    announced: Option<(Option<u64>, u64)>,
    stage: Stage,
    /// Whether a difference was found and is not yet resolved.
    differs: bool,
    /// Batches that wait until the audit is over.
    held: VecDeque<HeldBack>,
    held_operations: usize,
}

#[derive(Default)]
enum Stage {
    /// No audit is running.
    #[default]
    Idle,
    /// An answer is being received.
    Asking { parts: Parts<Part>, until: Instant, answer: Answer },
    /// The answer is complete: the agent's state after this batch.
    Answered { watermark: Option<u64>, answer: Answer },
    /// The answer is being checked.
    Checking,
}

/// The agent's answer.
pub(super) enum Answer {
    Digests(BTreeMap<DpRank, RankDigest>),
    Blocks { buckets: RankBuckets, blocks: Blocks },
}

/// Blocks by rank and name.
pub(super) type Blocks = BTreeMap<(DpRank, BlockName), HeldBlock>;

/// A batch that was held back.
pub(super) struct HeldBack {
    stream: u64,
    batch: PublishedBatch,
    pub(super) waiting: Option<Waiting>,
}

/// Next action of an audit.
enum Due {
    /// Wait.
    Nothing,
    /// Compare with this digest.
    Compare(u64),
    /// Apply a batch that was held back.
    Follow(HeldBack),
    /// Check the answer: the index has reached its batch.
    Check(Answer),
    /// Abandon the audit.
    Abandon,
}

impl Audit {
    /// Whether heartbeats contain digests, so that the index must maintain its own.
    pub(super) const fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Whether the index is known to differ from the source.
    pub(super) const fn differs(&self) -> bool {
        self.differs
    }

    /// Records whether the index differs from the source.
    pub(super) const fn set_differs(&mut self, differs: bool) {
        self.differs = differs;
    }

    /// Whether batches must be held back.
    pub(super) const fn holds(&self) -> bool {
        !matches!(self.stage, Stage::Idle)
    }

    /// Holds a batch back until the audit ends.
    pub(super) fn hold_back(
        &mut self,
        stream: u64,
        batch: PublishedBatch,
        waiting: Option<Waiting>,
    ) {
        self.held_operations += operations(&batch);
        self.held.push_back(HeldBack { stream, batch, waiting });
    }

    fn release(&mut self) -> Option<HeldBack> {
        let held = self.held.pop_front()?;
        self.held_operations -= operations(&held.batch);
        debug_assert!(!self.held.is_empty() || self.held_operations == 0);
        Some(held)
    }

    /// Records the digest of a heartbeat.
    pub(super) const fn announce(&mut self, head: Option<u64>, digest: Option<u64>) {
        if let Some(digest) = digest {
            self.announced = Some((head, digest));
            self.is_wanted = true;
        }
    }

    /// Forgets the digest that the previous stream announced: a new incarnation numbers its batches from 0 again.
    pub(super) const fn forget_announced(&mut self) {
        self.announced = None;
    }

    /// Resets the audit. Returns the batches that were held back.
    pub(super) fn give_up(&mut self) -> VecDeque<HeldBack> {
        mem::take(self).held
    }

    /// Waits for the next part of the answer. Without a request, waits forever.
    pub(super) async fn next_part(&mut self) -> Result<Part, AskError> {
        let Stage::Asking { parts, until, .. } = &mut self.stage else { return pending().await };
        let late = |_late| AskError::Refused(format!("no answer within {ANSWER_TIMEOUT:?}"));
        timeout_at(*until, parts.next()).await.map_err(late)?.unwrap_or(Err(AskError::Cut))
    }

    /// Returns the audit's next action, once the index has applied the batches up to `applied`. See
    /// [`is_auditable`](Follower::is_auditable) for the flag.
    fn next_action(&mut self, applied: Option<u64>, is_auditable: bool) -> Due {
        match &self.stage {
            Stage::Idle => {
                let Some((head, digest)) = self.announced else { return Due::Nothing };
                if head > applied || !is_auditable {
                    // The batch has not arrived yet.
                    return Due::Nothing;
                }
                self.announced = None;
                // An older head: the index no longer has its digest after that batch.
                if head == applied { Due::Compare(digest) } else { Due::Nothing }
            }
            _ if !is_auditable || self.is_full() => Due::Abandon,
            Stage::Answered { watermark, .. } if *watermark > applied => {
                self.release().map_or(Due::Nothing, Due::Follow)
            }
            Stage::Answered { watermark, .. } if *watermark < applied => Due::Abandon,
            Stage::Answered { .. } => match mem::replace(&mut self.stage, Stage::Checking) {
                Stage::Answered { answer, .. } => Due::Check(answer),
                Stage::Idle | Stage::Asking { .. } | Stage::Checking => Due::Nothing,
            },
            Stage::Asking { .. } | Stage::Checking => Due::Nothing,
        }
    }

    fn is_full(&self) -> bool {
        self.held.len() >= HELD_BATCHES_MAX || self.held_operations >= HELD_OPERATIONS_MAX
    }
}

fn operations(batch: &PublishedBatch) -> usize {
    batch.events.iter().map(KvEvent::operations).sum()
}

impl Answer {
    /// Adds a part to the answer. Returns false if the part does not belong to this answer, or the answer exceeds a
    /// limit.
    fn add_part(&mut self, part: Part) -> bool {
        match (self, part) {
            (Self::Digests(ranks), Part::Digests(DigestsPart::Tier { rank, tier, digest })) => {
                ranks.entry(rank).or_default().set(tier, digest);
                ranks.len() <= WORKER_RANKS_MAX
            }
            (
                Self::Blocks { buckets, blocks },
                Part::Dump(LocalDumpPart::Chunk { rank, records }),
            ) => {
                for record in records {
                    put_block(blocks, buckets, rank, record);
                }
                blocks.len() <= BLOCKS_MAX
            }
            _ => false,
        }
    }
}

/// Stores the state of a block, or removes a block without copies. Later states replace earlier ones. Ignores blocks
/// outside the requested `buckets`.
pub(super) fn put_block(
    blocks: &mut Blocks,
    buckets: &RankBuckets,
    rank: DpRank,
    block: HeldBlock,
) {
    let bucket = digest_bucket(block_digest(block.name, block.local));
    let wanted = buckets.get(&rank).is_some_and(|wanted| wanted.binary_search(&bucket).is_ok());
    if wanted && block.copies != [0; Tier::COUNT] {
        blocks.insert((rank, block.name), block);
    } else {
        blocks.remove(&(rank, block.name));
    }
}

// === schedule ===

impl Follower {
    /// Executes the audit's actions until it has to wait for a batch or an answer.
    pub(super) async fn run_audit(&mut self) -> Result<(), IngestError> {
        loop {
            debug_assert!(
                self.audit.holds() || self.audit.held.is_empty(),
                "only an audit holds back"
            );
            let applied = self.recovery.status().applied.map(|cursor| cursor.sequence);
            match self.audit.next_action(applied, self.is_auditable()) {
                Due::Nothing => return Ok(()),
                Due::Compare(digest) => self.compare(digest).await?,
                Due::Follow(next) => {
                    self.handle_batch(next.stream, next.batch, next.waiting).await?
                }
                Due::Check(Answer::Digests(theirs)) => self.compare_digests(&theirs).await?,
                Due::Check(Answer::Blocks { buckets, blocks }) => {
                    self.repair(&buckets, blocks).await?;
                }
                Due::Abandon => return self.end_audit("abandoned").await,
            }
        }
    }

    /// Whether the index is up to date with the source, and the source has an agent to ask.
    fn is_auditable(&self) -> bool {
        self.ask_target.is_some()
            && self.stream_incarnation.is_some()
            && self.round.is_none()
            && !self.is_torn
            && self.recovery.status().state == SourceState::Exact
    }

    /// Handles a part of the answer to an audit's request. The audit is abandoned if the answer fails or exceeds a
    /// limit.
    pub(super) async fn take_audited(
        &mut self,
        part: Result<Part, AskError>,
    ) -> Result<(), IngestError> {
        self.worker.mark_alive(self.ingest.origin);
        let Stage::Asking { parts, until, mut answer } = mem::take(&mut self.audit.stage) else {
            return Ok(());
        };
        let watermark = match part {
            Ok(Part::Digests(DigestsPart::End { watermark })) => watermark,
            Ok(Part::Dump(LocalDumpPart::End(end))) if !end.incomplete => end.watermark,
            Ok(part) => {
                let goes_on = answer.add_part(part);
                self.audit.stage = Stage::Asking { parts, until, answer };
                return if goes_on { Ok(()) } else { self.end_audit("abandoned").await };
            }
            Err(error) => {
                tracing::info!(%error, source = self.name, "the audit was abandoned");
                self.audit.stage = Stage::Asking { parts, until, answer };
                return self.end_audit("abandoned").await;
            }
        };
        // Release the permit for the next request.
        drop(parts);
        self.audit.stage = Stage::Answered { watermark, answer };
        self.run_audit().await
    }

    /// Ends a running audit, counts its `outcome`, and applies the batches that were held back. Returns immediately if
    /// no audit runs.
    pub(super) async fn end_audit(&mut self, outcome: &'static str) -> Result<(), IngestError> {
        if !self.audit.holds() {
            return Ok(());
        }
        self.ingest.metrics.count_audit(outcome);
        self.audit.stage = Stage::Idle;
        while let Some(next) = self.audit.release() {
            self.handle_batch(next.stream, next.batch, next.waiting).await?;
        }
        Ok(())
    }

    /// Sends an audit's request to the agent, and holds later batches back. Abandons the audit if the agent is unknown
    /// or no permit is free.
    pub(super) async fn ask_audit(
        &mut self,
        question: Question,
        answer: Answer,
    ) -> Result<(), IngestError> {
        let target = self.ask_target.as_ref().zip(self.stream_incarnation);
        // Recoveries have precedence: an audit uses only a free permit.
        let turn = target.and_then(|(target, _)| self.ingest.turns.try_read(&target.agent));
        let (Some((target, incarnation)), Some(turn)) = (target, turn) else {
            return self.end_audit("abandoned").await;
        };
        let parts = target.request_parts((incarnation, question), turn);
        let until = Instant::now() + ANSWER_TIMEOUT;
        self.audit.stage = Stage::Asking { parts, until, answer };
        Ok(())
    }
}

#[cfg(test)]
#[path = "audit_test.rs"]
mod tests;
