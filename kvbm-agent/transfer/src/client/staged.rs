//! Parts of blocks that an owner with another layout lends: NIXL reads complete blocks into staging memory.

use super::connection::Connection;
use super::loans::Loans;
use super::requests::of_wire;
use super::sent::{PartStream, verify};
use crate::backend::FetchFault;
use crate::convert::PartPlan;
use crate::nixl::{Pieces, Reads};
use crate::wire::{BlockHead, Lent};
use futures::FutureExt;
use futures::future::BoxFuture;
use kvasir_blocks::BlockIdentity;
use kvasir_tiers::Summing;
use kvasir_tiers::manager::Filling;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// Parts of lent blocks.
pub(super) struct Staged<'a> {
    loans: Loans<'a>,
    reads: &'a Reads,
    plan: Arc<PartPlan>,
    /// The current loan, and how many of its blocks were read.
    lent: Option<(Arc<Lent>, usize)>,
    /// Verified parts that were not used yet.
    ready: VecDeque<(BlockHead, Vec<u8>)>,
}

impl<'a> Staged<'a> {
    pub(super) const fn new(loans: Loans<'a>, reads: &'a Reads, plan: Arc<PartPlan>) -> Self {
        Self { loans, reads, plan, lent: None, ready: VecDeque::new() }
    }

    /// Returns the part of the next block, or `None` after the last block.
    async fn part(&mut self) -> Result<Option<(BlockHead, Vec<u8>)>, FetchFault> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Ok(Some(ready));
            }
            match self.lent.take() {
                Some((lent, read)) if read < lent.blocks.len() => {
                    // Set before reading, so that the loan is returned if reading fails.
                    self.lent = Some((Arc::clone(&lent), read));
                    let count = self.read_on(&lent, read).await?;
                    self.lent = Some((lent, read + count));
                }
                Some((lent, _)) => self.loans.give_back(&lent).await??,
                None => match self.loans.next().await? {
                    Some(lent) => self.lent = Some((Arc::new(lent), 0)),
                    None => return Ok(None),
                },
            }
        }
    }

    /// Reads and verifies further blocks of a loan, from index `read`, and returns their number.
    async fn read_on(&mut self, lent: &Lent, read: usize) -> Result<usize, FetchFault> {
        let blocks = lent.blocks.get(read..).unwrap_or_default();
        let bytes = self.loans.block_bytes();
        let at = blocks.iter().map(|block| self.loans.place(block, bytes));
        let at = at.collect::<Result<Vec<_>, _>>()?;
        let pieces = self.reads.stage(bytes, &at, &self.loans.in_use()).await?;
        let count = pieces.len();
        let pieces = self.loans.start_read(self.reads, pieces)?.wait().await?;
        let heads: Vec<_> = blocks.iter().take(count).map(|block| block.head.clone()).collect();
        let plan = Arc::clone(&self.plan);
        let parts = spawn_blocking(move || gather(&plan, heads, pieces)).await;
        // The panic was logged.
        let parts = parts.map_err(|_panic| FetchFault::Lost("the agent failed".to_owned()))?;
        self.ready.extend(parts?);
        Ok(count)
    }

    /// Copies the part of the next block from staging memory into the slot.
    async fn place(&mut self, slot: &mut Filling) -> Result<BlockIdentity, FetchFault> {
        let short = || FetchFault::Lost("the answer is short".to_owned());
        let (head, part) = self.part().await?.ok_or_else(short)?;
        let identity = head.identity().map_err(of_wire)?;
        let placed = self.plan.scatter().place(&part, |offset, bytes| slot.write(offset, bytes));
        placed.map_err(|error| FetchFault::Corrupt(error.to_string()))?;
        Ok(identity)
    }

    /// Returns all loans to the owner.
    async fn give_all_back(&mut self) -> Result<(), FetchFault> {
        if let Some((lent, _)) = self.lent.take() {
            let _why_short = self.loans.give_back(&lent).await?;
        }
        self.loans.give_all_back().await
    }
}

/// Verifies complete blocks, and extracts from each the part that this agent needs.
fn gather(
    plan: &PartPlan,
    heads: Vec<BlockHead>,
    pieces: Pieces,
) -> Result<Vec<(BlockHead, Vec<u8>)>, FetchFault> {
    let mut block = Vec::new();
    let parts = heads.into_iter().zip(pieces).map(|(head, piece)| {
        let slot = piece.slot.into_read();
        block.resize(slot.block_bytes(), 0);
        slot.read(0, &mut block).map_err(|error| FetchFault::Corrupt(error.to_string()))?;
        let mut summing = Summing::new();
        summing.update(&block);
        verify("block", summing, &head)?;
        let mut part = Vec::new();
        plan.gather(&block, &mut part);
        Ok((head, part))
    });
    parts.collect()
}

impl PartStream for Staged<'_> {
    fn send_requests(&mut self) -> BoxFuture<'_, ()> {
        async { drop(self.loans.send_requests().await) }.boxed()
    }

    fn next<'b>(
        &'b mut self,
        slot: &'b mut Filling,
        _piece: &'b mut Vec<u8>,
    ) -> BoxFuture<'b, Result<BlockIdentity, FetchFault>> {
        self.place(slot).boxed()
    }

    fn is_fenced(&self) -> bool {
        self.loans.is_fenced()
    }

    /// Returns all loans, and the connection if it can be reused. If a loan cannot be returned, the connection is
    /// closed, and the owner keeps the lent blocks until their timeout and grace.
    fn close<'b>(
        mut self: Box<Self>,
        ended: &'b Result<(), FetchFault>,
    ) -> BoxFuture<'b, Option<Connection>>
    where
        Self: 'b,
    {
        async move {
            // If this fails, the connection is closed, and the owner keeps the lent blocks until their timeout and
            // grace.
            self.give_all_back().await.ok()?;
            self.loans.into_clean(ended)
        }
        .boxed()
    }
}
