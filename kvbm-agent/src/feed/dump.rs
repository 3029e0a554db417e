use super::source::DUMPS_WAITING_MAX;
use super::{Feed, FeedError};
use crate::journal::{DumpError, DumpId, DumpStep};
use kvasir_proto::types::Incarnation;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

/// Longest wait for one's turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);

/// A dump under way; given up when dropped.
#[derive(Debug)]
pub struct FeedDump {
    feed: Arc<Feed>,
    id: DumpId,
    _turn: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
}

impl FeedDump {
    /// Begins a dump of one life of a source, or of the present one, once those before have ended.
    ///
    /// # Errors
    /// If too many wait, waiting takes too long, or it is another life.
    pub async fn begin(
        feed: &Arc<Feed>,
        incarnation: Option<Incarnation>,
    ) -> Result<Self, FeedError> {
        let place = Arc::clone(&feed.dump_places).try_acquire_owned();
        let place = place.map_err(|_full| FeedError::TooManyWait { limit: DUMPS_WAITING_MAX })?;
        let turn = timeout(TURN_TIMEOUT, Arc::clone(&feed.dump_turn).acquire_owned()).await;
        let turn = turn.map_err(|_late| FeedError::WaitedTooLong(TURN_TIMEOUT))?;
        // Nobody closes it.
        let turn = turn.map_err(|_closed| DumpError::Busy)?;
        let id = feed.with_journal(|journal| journal.begin_dump(incarnation))?;
        Ok(Self { feed: Arc::clone(feed), id, _turn: turn, _place: place })
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
