use super::turns::Turn;
use super::{Feed, FeedError};
use crate::journal::{DumpId, DumpStep};
use kvasir_proto::types::Incarnation;
use std::sync::Arc;

/// A dump under way; cancelled when dropped.
#[derive(Debug)]
pub struct FeedDump {
    feed: Arc<Feed>,
    id: DumpId,
    _turn: Turn,
}

impl FeedDump {
    /// Begins a dump of one incarnation of a source, or of the present one, once those before have ended.
    ///
    /// # Errors
    /// If too many wait, waiting takes too long, or it is another incarnation.
    pub async fn begin(
        feed: &Arc<Feed>,
        incarnation: Option<Incarnation>,
    ) -> Result<Self, FeedError> {
        let turn = feed.dump_turns.wait().await?;
        let id = feed.with_journal(|journal| journal.begin_dump(incarnation))?;
        Ok(Self { feed: Arc::clone(feed), id, _turn: turn })
    }

    /// Reads on, holding the journal's lock for up to `records_max` records; the last step cuts.
    ///
    /// # Errors
    /// If the dump was cut off, or is over.
    pub fn step(&self, records_max: usize) -> Result<DumpStep, FeedError> {
        Ok(self.feed.with_journal(|journal| journal.step_dump(self.id, records_max))?)
    }
}

impl Drop for FeedDump {
    fn drop(&mut self) {
        self.feed.with_journal(|journal| journal.cancel_dump(self.id));
    }
}
