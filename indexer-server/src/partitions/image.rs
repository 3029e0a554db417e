//! Saves and restores a worker's state. An image contains all blocks of one worker at one point in time. The writer
//! thread reads or restores it in slices. Queries can run between two slices. Other writes wait for the last slice, so
//! that an image is consistent.

use kvasir_index::{Cut, CutReceipt, Index, IndexError, Restore, Restored, WorkerImage};
use kvasir_proto::types::WorkerId;
use tokio::sync::oneshot;

/// An image, and the receipt to return if the image is not used.
pub type Taken = (WorkerImage, CutReceipt);

/// Cuts the image of a worker.
pub(super) struct Cutting {
    worker: WorkerId,
    whole: bool,
    cut: Option<Cut>,
    error: Option<IndexError>,
    reply: oneshot::Sender<Result<Taken, IndexError>>,
}

impl Cutting {
    pub(super) const fn new(
        worker: WorkerId,
        whole: bool,
        reply: oneshot::Sender<Result<Taken, IndexError>>,
    ) -> Self {
        Self { worker, whole, cut: None, error: None, reply }
    }

    /// Copies further parts of the worker into the image, and takes the work from `budget`. Returns true once the image
    /// is complete or has failed.
    pub(super) fn step(&mut self, index: &mut Index, budget: &mut usize) -> bool {
        let cut = match &mut self.cut {
            Some(cut) => cut,
            None => match index.begin_cut(&self.worker, self.whole) {
                Ok(cut) => self.cut.insert(cut),
                Err(error) => {
                    self.error = Some(error);
                    return true;
                }
            },
        };
        let step = index.cut_step(cut, *budget);
        *budget = budget.saturating_sub(step.read.max(1));
        step.done
    }

    /// Replies with the image. The requester must wait for it: the changes in a lost image are missing from the next
    /// image.
    pub(super) fn finish(self) {
        let taken = match (self.cut, self.error) {
            (Some(cut), None) => Ok(cut.finish()),
            (_, Some(error)) => Err(error),
            (None, None) => return,
        };
        let _asker_gone = self.reply.send(taken);
    }
}

/// Restores a worker into the index.
pub(super) struct Restoring {
    restore: Restore,
    error: Option<IndexError>,
    reply: oneshot::Sender<Result<Restored, IndexError>>,
}

impl Restoring {
    pub(super) const fn new(
        restore: Restore,
        reply: oneshot::Sender<Result<Restored, IndexError>>,
    ) -> Self {
        Self { restore, error: None, reply }
    }

    /// Restores further parts of the image, and takes the work from `budget`. Returns true once the restore is complete
    /// or has failed.
    pub(super) fn step(&mut self, index: &mut Index, budget: &mut usize) -> bool {
        match self.restore.step(index, *budget) {
            Ok(step) => {
                *budget = budget.saturating_sub(step.read.max(1));
                step.done
            }
            Err(error) => {
                self.error = Some(error);
                true
            }
        }
    }

    pub(super) fn finish(self) {
        let restored = self.error.map_or(Ok(self.restore.restored()), Err);
        let _asker_gone = self.reply.send(restored);
    }
}
