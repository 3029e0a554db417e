use super::turns::Turn;
use super::{Feed, FeedError};
use crate::journal::{DumpId, DumpStep};
use kvasir_proto::types::Incarnation;
use std::sync::Arc;

/// A dump in progress, cancelled when dropped.
#[derive(Debug)]
pub struct FeedDump {
    feed: Arc<Feed>,
    id: DumpId,
    _turn: Turn,
}

impl FeedDump {
    /// Begins a dump once earlier ones have ended. Without `incarnation`, the dump is of the current incarnation.
    ///
    /// # Errors
    /// If too many callers wait, the wait times out, or the source has another incarnation.
    pub async fn begin(
        feed: &Arc<Feed>,
        incarnation: Option<Incarnation>,
    ) -> Result<Self, FeedError> {
        let turn = feed.dump_turns.wait().await?;
        let id = feed.with_journal(|journal| journal.begin_dump(incarnation))?;
        Ok(Self { feed: Arc::clone(feed), id, _turn: turn })
    }

    /// Reads the next records. Holds the journal's lock for up to `records_max` records. The last step returns the cut.
    ///
    /// # Errors
    /// If the dump was aborted, or is finished.
    pub fn step(&self, records_max: usize) -> Result<DumpStep, FeedError> {
        Ok(self.feed.with_journal(|journal| journal.step_dump(self.id, records_max))?)
    }
}

impl Drop for FeedDump {
    fn drop(&mut self) {
        self.feed.with_journal(|journal| journal.cancel_dump(self.id));
    }
}
