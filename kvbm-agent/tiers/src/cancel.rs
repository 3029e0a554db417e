//! Cancellation tokens for transfers.

use crate::error::TransferError;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// A cancellation token. Workers check it between pieces, and report once they have stopped.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_cancelled: Mutex<bool>,
    changed: Condvar,
    notify: Notify,
}

impl Cancel {
    /// Creates a token that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the token. This can't be undone.
    pub fn cancel(&self) {
        *self.0.is_cancelled.lock() = true;
        self.0.changed.notify_all();
        self.0.notify.notify_waiters();
    }

    /// Whether the token is cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        *self.0.is_cancelled.lock()
    }

    /// Returns an error if the token is cancelled.
    ///
    /// # Errors
    /// [`TransferError::Cancelled`].
    pub fn check(&self) -> Result<(), TransferError> {
        if self.is_cancelled() { Err(TransferError::Cancelled) } else { Ok(()) }
    }

    /// Completes when the token is cancelled.
    pub async fn cancelled(&self) {
        let notified = self.0.notify.notified();
        if !self.is_cancelled() {
            notified.await;
        }
    }

    /// Blocks the thread until the token is cancelled, but at most for `at_most`.
    pub fn wait(&self, at_most: Duration) {
        let mut is_cancelled = self.0.is_cancelled.lock();
        if !*is_cancelled {
            self.0.changed.wait_for(&mut is_cancelled, at_most);
        }
    }
}
