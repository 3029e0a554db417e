//! Loans: blocks that stay in their slots while a peer reads them directly.

use super::sending::{Holds, Sending, of_access, of_session, of_stop};
use super::shared::Shared;
use crate::convert::Exchange;
use crate::limits::{LOAN_GRACE, LOANS_AHEAD_MAX, ONBOARD_BLOCKS_MAX, WRITE_BLOCKS_MAX};
use crate::wire::{BlockHead, Fault, Fetch, Lent, LentBlock};
use kvasir_blocks::sets::{Access, Fence, TransferGuard};
use kvasir_blocks::{Priority, SlotId};
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::manager::{HeldBlock, Loan as BlockLoan, OnboardRequest};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::yield_now;
use tokio::time::Instant;

/// The lent blocks of one request, which are not evicted while this exists. The owner can't stop a peer that reads
/// them.
#[derive(Debug)]
struct Loan {
    request: u64,
    /// Deadline for the peer's reads.
    deadline: Instant,
    blocks: Vec<BlockLoan>,
    /// Keep the set's memory registered during the loan.
    guards: Vec<TransferGuard>,
    _place: OwnedSemaphorePermit,
}

/// The loans of one connection, oldest first.
#[derive(Debug, Default)]
pub(super) struct Loans(Vec<Loan>);

impl Loans {
    /// Whether the connection may get another loan.
    pub(super) const fn has_room(&self) -> bool {
        self.0.len() < LOANS_AHEAD_MAX
    }

    /// The earliest deadline of a loan.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.iter().map(|loan| loan.deadline).min()
    }

    /// Until when the slots of unreturned loans must stay unchanged.
    pub(super) fn quarantined_until(&self) -> Option<Instant> {
        self.0.iter().map(|loan| loan.deadline + LOAN_GRACE).max()
    }

    /// Whether all loans were returned.
    pub(super) const fn has_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the loan of a request, and returns its number of blocks. `None` if there is no such loan.
    pub(super) fn give_back(&mut self, request: u64) -> Option<u64> {
        let index = self.0.iter().position(|loan| loan.request == request)?;
        let Loan { blocks, .. } = self.0.remove(index);
        Some(blocks.len() as u64)
    }

    /// Lends the leading requested blocks until `deadline`. Lends none, with the fault `Busy`, if too many loans are
    /// open.
    pub(super) async fn lend(
        &mut self,
        sending: &mut Sending,
        owner: &Shared,
        fetch: &Fetch,
        deadline: Instant,
    ) -> Lent {
        let mut lent = Lent { request: fetch.request, blocks: Vec::new(), fault: 0 };
        let Ok(place) = Arc::clone(&owner.loans).try_acquire_owned() else {
            lent.fault = Fault::Busy.into();
            return lent;
        };
        let request = fetch.request;
        let blocks = Vec::new();
        let guards = Vec::new();
        let mut loan = Loan { request, deadline, blocks, guards, _place: place };
        let fault = loan.fill(sending, owner, fetch, &mut lent.blocks).await;
        lent.fault = fault.into();
        if !lent.blocks.is_empty() {
            self.0.push(loan);
        }
        lent
    }
}

impl Loan {
    /// Adds blocks to a loan: first blocks in memory, then blocks onboarded from lower tiers. Returns why it stopped,
    /// or `Unspecified` after the last block.
    async fn fill(
        &mut self,
        sending: &mut Sending,
        owner: &Shared,
        fetch: &Fetch,
        lent: &mut Vec<LentBlock>,
    ) -> Fault {
        let session = &owner.session;
        let wanted: Vec<_> = fetch.sequences.iter().copied().map(SequenceHash).collect();
        let blocks = match session.hold_prefix(&wanted) {
            Ok(blocks) => blocks,
            Err(error) => return of_session(error),
        };
        // Released after each block is lent.
        let in_memory = Holds { session, blocks };
        if let Some(fault) = self.add(sending, owner, fetch, &in_memory.blocks, lent).await {
            return fault;
        }
        while let Some(lacks) = wanted.get(lent.len()..).filter(|lacks| !lacks.is_empty()) {
            let next = lacks.get(..ONBOARD_BLOCKS_MAX).unwrap_or(lacks);
            let timeout = self.deadline.saturating_duration_since(Instant::now());
            let request = OnboardRequest { priority: Priority::default(), timeout };
            let onboarded = match session.onboard(next, request).await {
                Ok(onboarded) => onboarded,
                Err(error) => return of_session(error),
            };
            let holds = Holds { session, blocks: onboarded.blocks };
            if let Some(fault) = self.add(sending, owner, fetch, &holds.blocks, lent).await {
                return fault;
            }
            if let Some(stopped) = onboarded.stopped {
                return of_stop(stopped.reason);
            }
        }
        Fault::Unspecified
    }

    /// Verifies held blocks and adds them to the loan. Returns the fault if it stopped before the last block.
    async fn add(
        &mut self,
        sending: &mut Sending,
        owner: &Shared,
        fetch: &Fetch,
        held: &[HeldBlock],
        lent: &mut Vec<LentBlock>,
    ) -> Option<Fault> {
        let fence = Fence { epoch: fetch.epoch, export: fetch.export };
        let slots: Vec<SlotId> = held.iter().map(|block| block.slot).collect();
        let set = owner.set.layout().id();
        match owner.registry.serve(set, fence, &slots, Access::Read) {
            Ok(guard) => self.guards.push(guard),
            Err(error) => return Some(of_access(error)),
        }
        let block_bytes = usize::try_from(owner.config.blocks.block_bytes).unwrap_or(usize::MAX);
        for part in slots.chunks(WRITE_BLOCKS_MAX) {
            let (verified, fault) =
                sending.verify(&owner.session, part, block_bytes, &Exchange::Whole).await;
            for (block, slot) in verified.into_iter().zip(part) {
                let identity = block.loan.identity();
                let head = BlockHead {
                    request: self.request,
                    index: u32::try_from(lent.len()).unwrap_or(u32::MAX),
                    sequence: identity.sequence.0,
                    parent: identity.parent.map(|parent| parent.0),
                    local: identity.local.0,
                    position: identity.position,
                    checksum: block.checksum.0,
                };
                lent.push(LentBlock { head, offset: u64::from(slot.0) * owner.stride_bytes });
                sending.return_buffers(block.buffers);
                self.blocks.push(block.loan);
            }
            if fault.is_some() {
                return fault;
            }
            // Computing the checksums of all blocks of a request takes milliseconds.
            yield_now().await;
        }
        None
    }
}
