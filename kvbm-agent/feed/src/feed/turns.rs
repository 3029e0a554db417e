use super::FeedError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Maximum number of callers that wait for the permit.
const WAITING_MAX: usize = 8;
/// Maximum wait for the permit.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits answers that take much memory or work to one at a time.
#[derive(Debug)]
pub(super) struct Turns {
    turn: Arc<Semaphore>,
    /// Slots for the active caller and the waiting ones.
    places: Arc<Semaphore>,
}

/// The permit, released when dropped.
#[derive(Debug)]
pub struct Turn {
    _turn: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
}

impl Turns {
    pub(super) fn new() -> Self {
        let places = Arc::new(Semaphore::new(1 + WAITING_MAX));
        Self { turn: Arc::new(Semaphore::new(1)), places }
    }

    /// Waits for the permit to read the journal, which one caller has at a time.
    ///
    /// # Errors
    /// If too many callers wait, or the wait times out.
    pub(super) async fn wait(&self) -> Result<Turn, FeedError> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_full| FeedError::TooManyWait { limit: WAITING_MAX })?;
        let turn = timeout(TURN_TIMEOUT, Arc::clone(&self.turn).acquire_owned()).await;
        let late = FeedError::WaitedTooLong(TURN_TIMEOUT);
        // The semaphore is never closed.
        let turn = turn.map_err(|_late| late)?.map_err(|_closed| late)?;
        Ok(Turn { _turn: turn, _place: place })
    }
}
