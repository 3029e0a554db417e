//! Calls of `BlockManager` that read bytes.

use super::checks::Checks;
use super::messages;
use super::sessions::Open;
use super::shared::{BlockManagerService, READS_MAX};
use super::status::{failed, no_session, of_read, stopping};
use bytes::Bytes;
use kvasir_blocks::{Priority, SlotId};
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::{BlockCommit, BlockWrite, Commits, SlotList};
use kvasir_proto::limits::BLOCK_PART_BYTES_MAX;
use kvasir_proto::pb;
use kvasir_tiers::Checksum;
use kvasir_tiers::manager::Commit;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Maximum number of queued parts of one Read.
const PARTS_QUEUED_MAX: usize = 2;
/// Maximum time without progress of a Read's client, which is then cut off.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum wait to send the reason why a Read ended early.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) type ReadStream = ReceiverStream<Result<pb::ReadResponse, Status>>;

impl BlockManagerService {
    /// Writes the bytes of one request into a leased slot, on a blocking thread.
    pub(super) async fn write_part(
        &self,
        open: Arc<Open>,
        write: BlockWrite,
    ) -> Result<(), Status> {
        let written = self.checks.run(move |_abandoned| {
            let BlockWrite { slot, offset_bytes, data, .. } = write;
            open.session.write(SlotId(slot), offset_bytes, &data)
        });
        written.await?.map_err(|error| of_read("slot", &error))
    }

    /// Commits the blocks of one request, one after the other, each with its own outcome. Stops before the next block
    /// if the caller cancels.
    pub(super) async fn commit_all(
        &self,
        open: Arc<Open>,
        commits: Commits,
    ) -> Result<pb::CommitResponse, Status> {
        let committing = self.checks.run(move |abandoned| {
            let commit = |block: &BlockCommit| {
                let commit = Commit {
                    identity: messages::read_key(&block.key),
                    checksum: block.checksum.map(Checksum),
                    priority: Priority(block.priority),
                };
                match open.session.commit(SlotId(block.slot), &commit) {
                    Ok(committed) => messages::committed(&committed),
                    Err(error) => messages::not_committed(&error),
                }
            };
            // After a cancelled call, no caller would receive further results.
            let blocks = commits.blocks.iter().take_while(|_| !abandoned.is_cancelled());
            let blocks = blocks.map(commit).collect();
            Committed { open: Arc::clone(&open), blocks }
        });
        Ok(pb::CommitResponse { blocks: committing.await?.told() })
    }

    /// Recomputes the checksums of held blocks. The call fails if a slot is not held; a corrupt block is reported in
    /// the response.
    pub(super) async fn verify_all(
        &self,
        open: Arc<Open>,
        list: SlotList,
    ) -> Result<pb::VerifyResponse, Status> {
        let checked = self.checks.run(move |abandoned| {
            let verify = |(index, slot): (usize, &u32)| match open.session.verify(SlotId(*slot)) {
                Ok(Checksum(checksum)) => {
                    let fault = pb::BlockFault::Unspecified.into();
                    Ok(pb::VerifiedBlock { checksum, fault })
                }
                Err(error) => match messages::read_fault(&error) {
                    Some(fault) => Ok(pb::VerifiedBlock { checksum: 0, fault: fault.into() }),
                    None => Err(of_read(&format!("slots[{index}]"), &error)),
                },
            };
            let slots = list.slots.iter().take_while(|_| !abandoned.is_cancelled());
            slots.enumerate().map(verify).collect::<Result<Vec<_>, _>>()
        });
        Ok(pb::VerifyResponse { blocks: checked.await?? })
    }

    /// Starts a task that sends the bytes of held blocks, and returns its stream. Fails if [`READS_MAX`] calls already
    /// read.
    pub(super) fn read_all(&self, open: Arc<Open>, list: SlotList) -> Result<ReadStream, Status> {
        let place = Arc::clone(&self.reads).try_acquire_owned().map_err(|_full| {
            let text = format_args!("{READS_MAX} calls of Read are under way already: ask later");
            failed(ErrorCode::ResourceExhausted, text)
        })?;
        let (parts, stream) = mpsc::channel(PARTS_QUEUED_MAX);
        let reader = Reader { parts, checks: self.checks.clone(), _place: place };
        let stop = self.stop.clone();
        let over = open.over.clone();
        self.tasks.spawn(async move {
            let ended = select! {
                () = stop.cancelled() => Err(stopping()),
                () = over.cancelled() => Err(no_session()),
                sent = reader.send_all(&open, list) => sent.map_err(|CutOff| stalled()),
            };
            if let Err(status) = ended {
                // Without this error, the truncated answer would look complete.
                drop(timeout(LAST_WORD_TIMEOUT, reader.parts.send(Err(status))).await);
            }
        });
        Ok(ReceiverStream::new(stream))
    }
}

/// The client of a Read makes no progress, or is gone.
struct CutOff;

/// Blocks that a session holds by a call of Commit. They are released unless the client receives the answer, because it
/// could not release them.
struct Committed {
    open: Arc<Open>,
    blocks: Vec<pb::CommittedBlock>,
}

impl Committed {
    /// Takes the blocks for the answer, so that they stay held.
    fn told(mut self) -> Vec<pb::CommittedBlock> {
        std::mem::take(&mut self.blocks)
    }
}

impl Drop for Committed {
    fn drop(&mut self) {
        for block in self.blocks.iter().filter_map(|at| at.block.as_ref()) {
            self.open.session.release(SlotId(block.slot));
        }
    }
}

fn stalled() -> Status {
    failed(ErrorCode::Unavailable, "the client read no answer for too long: repeat the call")
}

/// Sending side of a Read stream.
struct Reader {
    parts: mpsc::Sender<Result<pb::ReadResponse, Status>>,
    checks: Checks,
    _place: OwnedSemaphorePermit,
}

impl Reader {
    async fn send(&self, part: Result<pb::ReadResponse, Status>) -> Result<(), CutOff> {
        let sent = timeout(STALL_TIMEOUT, self.parts.send(part)).await;
        sent.map_err(|_late| CutOff)?.map_err(|_gone| CutOff)
    }

    /// Sends blocks one after the other. The stream fails if a slot is not held; a corrupt block is reported in its
    /// message.
    async fn send_all(&self, open: &Arc<Open>, list: SlotList) -> Result<(), CutOff> {
        for (index, slot) in list.slots.into_iter().enumerate() {
            let reading = Arc::clone(open);
            let read = self.checks.run(move |_abandoned| {
                let checksum = reading.session.checksum(SlotId(slot));
                let bytes = reading.session.read(SlotId(slot))?;
                Ok((bytes, checksum.unwrap_or(Checksum(0))))
            });
            let read = match read.await {
                Ok(read) => read,
                Err(failed) => return self.send(Err(failed)).await,
            };
            match read {
                Ok((bytes, checksum)) => self.send_block(slot, bytes.into(), checksum).await?,
                Err(error) => match messages::read_fault(&error) {
                    Some(fault) => {
                        let fault = fault.into();
                        self.send(Ok(pb::ReadResponse { slot, fault, ..Default::default() }))
                            .await?;
                    }
                    None => {
                        return self.send(Err(of_read(&format!("slots[{index}]"), &error))).await;
                    }
                },
            }
        }
        Ok(())
    }

    /// Sends one block in parts of at most [`BLOCK_PART_BYTES_MAX`].
    async fn send_block(
        &self,
        slot: u32,
        mut bytes: Bytes,
        checksum: Checksum,
    ) -> Result<(), CutOff> {
        let mut offset_bytes = 0;
        loop {
            let data = bytes.split_to(bytes.len().min(BLOCK_PART_BYTES_MAX));
            let sent = data.len() as u64;
            let Checksum(checksum) = checksum;
            let part =
                pb::ReadResponse { slot, offset_bytes, data, checksum, ..Default::default() };
            self.send(Ok(part)).await?;
            offset_bytes += sent;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }
}
