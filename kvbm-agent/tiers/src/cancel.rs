//! Telling transfers to stop.

use crate::error::TransferError;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// A wish that work may stop. Whoever does the work looks at it between pieces, and reports once it has stopped.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_cancelled: Mutex<bool>,
    changed: Condvar,
    notify: Notify,
}

impl Cancel {
    /// Nobody wishes that yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wishes that work stops. It cannot be taken back.
    pub fn cancel(&self) {
        *self.0.is_cancelled.lock() = true;
        self.0.changed.notify_all();
        self.0.notify.notify_waiters();
    }

    /// Whether somebody wishes it.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        *self.0.is_cancelled.lock()
    }

    /// Goes on unless somebody wishes otherwise.
    ///
    /// # Errors
    /// [`TransferError::Cancelled`].
    pub fn check(&self) -> Result<(), TransferError> {
        if self.is_cancelled() { Err(TransferError::Cancelled) } else { Ok(()) }
    }

    /// Completes once somebody wishes it.
    pub async fn cancelled(&self) {
        let notified = self.0.notify.notified();
        if !self.is_cancelled() {
            notified.await;
        }
    }

    /// Waits until somebody wishes it, or for so long.
    pub fn wait(&self, at_most: Duration) {
        let mut is_cancelled = self.0.is_cancelled.lock();
        if !*is_cancelled {
            self.0.changed.wait_for(&mut is_cancelled, at_most);
        }
    }
}
