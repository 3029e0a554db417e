use super::FeedError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How many may wait for the one whose turn it is.
const WAITING_MAX: usize = 8;
/// Longest wait for one's turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);

/// One at a time, of answers that take much memory or work.
#[derive(Debug)]
pub(super) struct Turns {
    turn: Arc<Semaphore>,
    /// The one whose turn it is, and those that wait.
    places: Arc<Semaphore>,
}

/// A turn, until dropped.
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

    /// Waits until those before have ended.
    ///
    /// # Errors
    /// If too many wait, or waiting takes too long.
    pub(super) async fn wait(&self) -> Result<Turn, FeedError> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_full| FeedError::TooManyWait { limit: WAITING_MAX })?;
        let turn = timeout(TURN_TIMEOUT, Arc::clone(&self.turn).acquire_owned()).await;
        let late = FeedError::WaitedTooLong(TURN_TIMEOUT);
        // Nobody closes it.
        let turn = turn.map_err(|_late| late)?.map_err(|_closed| late)?;
        Ok(Turn { _turn: turn, _place: place })
    }
}
