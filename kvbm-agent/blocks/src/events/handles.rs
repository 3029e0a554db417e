use super::Registration;
use super::manager::{EventManager, PublishError};
use std::sync::Arc;

/// May publish one registration. Dropped before that, it publishes nothing.
#[derive(Debug)]
#[must_use]
pub struct PublishHandle {
    events: Arc<EventManager>,
    registration: Registration,
}

impl EventManager {
    /// What publishes `registration`.
    pub fn prepare(self: &Arc<Self>, registration: Registration) -> PublishHandle {
        PublishHandle { events: Arc::clone(self), registration }
    }
}

impl PublishHandle {
    /// Publishes the registration, which lasts as long as the handle that it returns. Never blocks.
    ///
    /// # Errors
    /// [`PublishError`] if the block is registered in this tier, or in another one as another block.
    pub fn publish(self) -> Result<RegistrationHandle, PublishError> {
        self.events.begin(self.registration)?;
        Ok(RegistrationHandle { events: self.events, registration: self.registration })
    }
}

/// A registration. Dropping it publishes [`Remove`](super::Change::Remove); there is no other way to end one.
#[derive(Debug)]
#[must_use]
pub struct RegistrationHandle {
    events: Arc<EventManager>,
    registration: Registration,
}

impl RegistrationHandle {
    /// What is registered.
    #[must_use]
    pub const fn registration(&self) -> &Registration {
        &self.registration
    }
}

impl Drop for RegistrationHandle {
    fn drop(&mut self) {
        self.events.end(self.registration);
    }
}
