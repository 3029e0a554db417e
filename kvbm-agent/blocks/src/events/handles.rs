use super::Registration;
use super::manager::{EventManager, PublishError};
use std::sync::Arc;

/// Permission to publish one registration. Dropping it unused publishes nothing.
#[derive(Debug)]
#[must_use]
pub struct PublishHandle {
    events: Arc<EventManager>,
    registration: Registration,
}

impl EventManager {
    /// Creates the handle that publishes `registration`.
    pub fn prepare(self: &Arc<Self>, registration: Registration) -> PublishHandle {
        PublishHandle { events: Arc::clone(self), registration }
    }
}

impl PublishHandle {
    /// Publishes the registration, which lasts until the returned handle is dropped. Never blocks.
    ///
    /// # Errors
    /// [`PublishError`] if the block is registered in this tier already, or if its sequence hash names a different
    /// block.
    pub fn publish(self) -> Result<RegistrationHandle, PublishError> {
        self.events.add_registration(self.registration)?;
        Ok(RegistrationHandle { events: self.events, registration: self.registration })
    }
}

/// A published registration. Only its drop ends it, and publishes [`Remove`](super::Change::Remove).
#[derive(Debug)]
#[must_use]
pub struct RegistrationHandle {
    events: Arc<EventManager>,
    registration: Registration,
}

impl RegistrationHandle {
    /// The block and the tier of the registration.
    #[must_use]
    pub const fn registration(&self) -> &Registration {
        &self.registration
    }
}

impl Drop for RegistrationHandle {
    fn drop(&mut self) {
        self.events.remove_registration(self.registration);
    }
}
