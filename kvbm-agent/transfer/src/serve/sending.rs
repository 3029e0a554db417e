use super::shared::Shared;
use crate::convert::{Exchange, PartPlan};
use crate::limits::{INLINE_BYTES_MAX, ONBOARD_BLOCKS_MAX, WRITE_BLOCKS_MAX, WRITE_BYTES_MAX};
use crate::wire::{BlockHead, End, Fault, Fetch, Message, write_all};
use kvasir_blocks::sets::{Access, AccessError, Fence};
use kvasir_blocks::{Priority, SlotId};
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::Checksum;
use kvasir_tiers::manager::{
    HeldBlock, Loan, OnboardRequest, ReadError, Session, SessionError, StopReason,
};
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::io::AsyncWrite;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// A request, and what its peer receives of each block.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) fetch: &'a Fetch,
    pub(super) exchange: &'a Exchange,
    pub(super) deadline: Instant,
}

/// Sends the blocks of requests in order. It keeps buffers for copies of blocks that other processes may write, and for
/// parts of blocks. Each kind takes at most [`WRITE_BYTES_MAX`], unless one block is larger.
#[derive(Debug, Default)]
pub(super) struct Sending {
    buffers: Vec<Buffers>,
}

/// Buffers of one block.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    copy: Vec<u8>,
    part: Vec<u8>,
}

/// Blocks held for a request. Dropping it releases them.
pub(super) struct Holds<'a> {
    pub(super) session: &'a Session,
    pub(super) blocks: Vec<HeldBlock>,
}

impl Drop for Holds<'_> {
    fn drop(&mut self) {
        for block in &self.blocks {
            self.session.release(block.slot);
        }
    }
}

/// A verified block, ready to be sent.
pub(super) struct Verified {
    pub(super) loan: Loan,
    pub(super) buffers: Buffers,
    is_part: bool,
    pub(super) checksum: Checksum,
}

impl Verified {
    /// Verifies a block. If the peer needs a part, extracts it and computes its checksum.
    fn new(loan: Loan, mut buffers: Buffers, plan: Option<&PartPlan>) -> Result<Self, ReadError> {
        let mut checksum = loan.verify(&mut buffers.copy)?;
        if let Some(plan) = plan {
            let Buffers { copy, part } = &mut buffers;
            plan.gather(loan.bytes(copy), part);
            checksum = Checksum::of(loan.identity().sequence.0, part);
        }
        Ok(Self { loan, buffers, is_part: plan.is_some(), checksum })
    }

    /// The bytes to send.
    fn bytes(&self) -> &[u8] {
        let Buffers { copy, part } = &self.buffers;
        if self.is_part { part } else { self.loan.bytes(copy) }
    }
}

impl Sending {
    /// Sends the leading requested blocks, then the reason for stopping.
    pub(super) async fn send<W: AsyncWrite + Unpin>(
        &mut self,
        owner: &Shared,
        to: &mut W,
        asked: Asked<'_>,
    ) -> io::Result<()> {
        let mut sent = 0;
        let fetch = asked.fetch;
        let fault = self.send_blocks(owner, to, asked, &mut sent).await?;
        let blocks = u32::try_from(sent).unwrap_or(u32::MAX);
        let end = Message::End(End { request: fetch.request, blocks, fault: fault.into() });
        write_all(to, &mut [IoSlice::new(&end.frame(0))]).await
    }

    /// Sends the leading blocks: first blocks in memory, then blocks onboarded from lower tiers. Returns why it
    /// stopped, or `Unspecified` after the last block.
    async fn send_blocks<W: AsyncWrite + Unpin>(
        &mut self,
        owner: &Shared,
        to: &mut W,
        asked: Asked<'_>,
        sent: &mut usize,
    ) -> io::Result<Fault> {
        let session = &owner.session;
        if asked.exchange.is_nothing() {
            return Ok(Fault::Missing);
        }
        let wanted: Vec<_> = asked.fetch.sequences.iter().copied().map(SequenceHash).collect();
        // Hold all blocks that are already in memory, so that onboarding other blocks does not evict them.
        let blocks = match session.hold_prefix(&wanted) {
            Ok(blocks) => blocks,
            Err(error) => return Ok(of_session(error)),
        };
        let in_memory = Holds { session, blocks };
        if let Some(fault) = self.send_held(owner, to, asked, &in_memory.blocks, sent).await? {
            return Ok(fault);
        }
        while let Some(lacks) = wanted.get(*sent..).filter(|lacks| !lacks.is_empty()) {
            let next = lacks.get(..ONBOARD_BLOCKS_MAX).unwrap_or(lacks);
            let timeout = asked.deadline.saturating_duration_since(Instant::now());
            let request = OnboardRequest { priority: Priority::default(), timeout };
            let onboarded = match session.onboard(next, request).await {
                Ok(onboarded) => onboarded,
                Err(error) => return Ok(of_session(error)),
            };
            let holds = Holds { session, blocks: onboarded.blocks };
            if let Some(fault) = self.send_held(owner, to, asked, &holds.blocks, sent).await? {
                return Ok(fault);
            }
            if let Some(stopped) = onboarded.stopped {
                return Ok(of_stop(stopped.reason));
            }
        }
        Ok(Fault::Unspecified)
    }

    /// Sends held blocks. Returns the fault if it stopped before the last block.
    async fn send_held<W: AsyncWrite + Unpin>(
        &mut self,
        owner: &Shared,
        to: &mut W,
        asked: Asked<'_>,
        held: &[HeldBlock],
        sent: &mut usize,
    ) -> io::Result<Option<Fault>> {
        let fence = Fence { epoch: asked.fetch.epoch, export: asked.fetch.export };
        let slots: Vec<SlotId> = held.iter().map(|block| block.slot).collect();
        let set = owner.set.layout().id();
        // While the guard exists, the set's memory stays unchanged, even if the set ends.
        let guard = match owner.registry.serve(set, fence, &slots, Access::Read) {
            Ok(guard) => guard,
            Err(error) => return Ok(Some(of_access(error))),
        };
        let block_bytes = usize::try_from(owner.config.blocks.block_bytes).unwrap_or(usize::MAX);
        let at_a_time = (WRITE_BYTES_MAX / block_bytes.max(1)).clamp(1, WRITE_BLOCKS_MAX);
        for part in slots.chunks(at_a_time) {
            if guard.ended().is_some() {
                return Ok(Some(Fault::Fenced));
            }
            let (verified, fault) =
                self.verify(&owner.session, part, block_bytes, asked.exchange).await;
            self.write(owner, to, asked, &verified, sent).await?;
            self.buffers.extend(verified.into_iter().map(|block| block.buffers));
            if fault.is_some() {
                return Ok(fault);
            }
        }
        Ok(None)
    }

    /// Verifies the blocks in `slots`, up to the first wrong one. Returns the verified blocks, and the fault of the
    /// wrong one.
    pub(super) async fn verify(
        &mut self,
        session: &Session,
        slots: &[SlotId],
        block_bytes: usize,
        exchange: &Exchange,
    ) -> (Vec<Verified>, Option<Fault>) {
        let plan = match exchange {
            Exchange::Whole => None,
            Exchange::Part(plan) => Some(plan),
        };
        let mut verified = Vec::with_capacity(slots.len());
        for slot in slots {
            let loan = match session.lend(*slot) {
                Ok(loan) => loan,
                Err(error) => return (verified, Some(of_read(&error))),
            };
            let buffers = self.buffers.pop().unwrap_or_default();
            let block = if block_bytes > INLINE_BYTES_MAX {
                let plan = plan.map(Arc::clone);
                let verify = move || Verified::new(loan, buffers, plan.as_deref());
                // The panic was logged.
                spawn_blocking(verify).await.ok()
            } else {
                Some(Verified::new(loan, buffers, plan.map(|plan| &**plan)))
            };
            match block {
                Some(Ok(block)) => verified.push(block),
                Some(Err(error)) => return (verified, Some(of_read(&error))),
                None => return (verified, Some(Fault::Unreadable)),
            }
        }
        (verified, None)
    }

    /// Keeps buffers for reuse.
    pub(super) fn return_buffers(&mut self, buffers: Buffers) {
        if self.buffers.len() < WRITE_BLOCKS_MAX {
            self.buffers.push(buffers);
        }
    }

    /// Writes the heads and bytes of blocks in one call, and counts them as sent.
    async fn write<W: AsyncWrite + Unpin>(
        &self,
        owner: &Shared,
        to: &mut W,
        Asked { fetch, exchange, .. }: Asked<'_>,
        blocks: &[Verified],
        sent: &mut usize,
    ) -> io::Result<()> {
        let payload_bytes = exchange.payload_bytes(owner.config.blocks.block_bytes);
        let heads = (*sent..).zip(blocks).map(|(index, block)| {
            let identity = block.loan.identity();
            let head = BlockHead {
                request: fetch.request,
                index: u32::try_from(index).unwrap_or(u32::MAX),
                sequence: identity.sequence.0,
                parent: identity.parent.map(|parent| parent.0),
                local: identity.local.0,
                position: identity.position,
                checksum: block.checksum.0,
            };
            Message::Block(head).frame(payload_bytes)
        });
        let heads: Vec<_> = heads.collect();
        let slices = heads
            .iter()
            .zip(blocks)
            .flat_map(|(head, block)| [IoSlice::new(head), IoSlice::new(block.bytes())]);
        write_all(to, &mut slices.collect::<Vec<_>>()).await?;
        *sent += blocks.len();
        owner.counters.served.add(blocks.len() as u64);
        owner.counters.served_bytes.add(payload_bytes.saturating_mul(blocks.len() as u64));
        Ok(())
    }
}

pub(super) const fn of_session(error: SessionError) -> Fault {
    match error {
        SessionError::Ended | SessionError::Stopping => Fault::Stopping,
        SessionError::TooMany { .. } => Fault::Busy,
    }
}

/// Converts the error of accessing the set into the fault to send.
pub(super) const fn of_access(error: AccessError) -> Fault {
    match error {
        AccessError::Limit(_) | AccessError::Busy { .. } => Fault::Busy,
        AccessError::Ended(_) | AccessError::Unknown(_) | AccessError::Fenced { .. } => {
            Fault::Fenced
        }
        AccessError::OutOfRange { .. } | AccessError::Duplicate { .. } => Fault::Unreadable,
    }
}

/// Converts the error of reading a block into the fault to send.
const fn of_read(error: &ReadError) -> Fault {
    match error {
        ReadError::Session(error) => of_session(*error),
        ReadError::Corrupt { .. } => Fault::Corrupt,
        ReadError::NotHeld { .. } | ReadError::Access(_) | ReadError::Unreadable { .. } => {
            Fault::Unreadable
        }
    }
}

/// Converts the reason why an onboard stopped into the fault to send.
pub(super) const fn of_stop(reason: StopReason) -> Fault {
    match reason {
        StopReason::Missing => Fault::Missing,
        StopReason::Corrupt { .. } => Fault::Corrupt,
        StopReason::Unreadable { .. } => Fault::Unreadable,
        StopReason::TimedOut => Fault::TimedOut,
        StopReason::Busy | StopReason::Limit => Fault::Busy,
        StopReason::Stopping => Fault::Stopping,
    }
}
