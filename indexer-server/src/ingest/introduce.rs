//! Registers workers as their agents and publishers describe them.

use super::worker::Worker;
use super::{Ingest, IngestError, Registered};
use crate::partitions::RegisteredBy;
use kvasir_proto::convert::Registration;
use kvasir_proto::types::HolderKind;
use std::sync::Arc;

/// The first field that differs between two registrations, and its two values.
type Difference = (&'static str, String, String);

impl Ingest {
    /// Registers a worker as its agent describes it. A worker with another registration is replaced and loses its
    /// blocks, except in two cases: engines' sockets feed it, or its agent is still connected. An agent that never had
    /// a stream counts as connected if it has replaced another agent and its lease has not expired. The second
    /// exception does not apply to messages of an ordered log (`in_order`). A pool is replaced only while all its
    /// sources are disconnected.
    ///
    /// # Errors
    /// See [`register`](Self::register) and [`remove`](Self::remove). If a limit leaves no room for the new
    /// registration, the worker is removed nevertheless.
    pub async fn introduce(
        self: &Arc<Self>,
        registration: &Registration,
        in_order: bool,
    ) -> Result<Registered, IngestError> {
        let address = registration.address();
        // The usual case and refusals do not wait for other changes.
        let present = self.workers.get(&address).map(|entry| Arc::clone(&entry));
        if let Some(present) = present
            && self.difference(&present, registration, in_order)?.is_none()
        {
            return Ok(Registered::Present);
        }
        let ingest = Arc::clone(self);
        let registration = registration.clone();
        self.run_to_end(async move { ingest.introduce_now(registration, in_order, false).await })
            .await
    }

    /// Compares the present registration with a new one that may replace it. Returns `None` if both are equal; then
    /// only the lease is renewed.
    ///
    /// # Errors
    /// If the present registration must not be replaced.
    fn difference(
        &self,
        present: &Worker,
        registration: &Registration,
        in_order: bool,
    ) -> Result<Option<Difference>, IngestError> {
        let address = registration.address();
        let Some((field, before, now)) = present.registration.difference(registration) else {
            present.mark_alive(self.origin);
            present.merge_registered_by(RegisteredBy::Request);
            return Ok(None);
        };
        if present.kind() != registration.kind || !present.registration.endpoints.is_empty() {
            return Err(IngestError::Conflict { address, field, present: before, requested: now });
        }
        if !in_order && present.has_agent() && !present.lease_is_over(self.origin) {
            return Err(IngestError::Disputed { address, field, present: before, requested: now });
        }
        let size = registration.block_size;
        if present.partition.block_size() != size && present.partition.registered() > 1 {
            return Err(IngestError::block_size(&present.partition, size));
        }
        Ok(Some((field, before, now)))
    }

    /// Implements [`introduce`](Self::introduce). Holds `control` throughout, so that resources that the removal frees
    /// remain available to the registration.
    #[expect(clippy::fn_params_excessive_bools, reason = "two facts about one registration")]
    pub(super) async fn introduce_now(
        self: &Arc<Self>,
        registration: Registration,
        in_order: bool,
        take_over: bool,
    ) -> Result<Registered, IngestError> {
        let _control = self.control.lock().await;
        let address = registration.address();
        let Some(present) = self.workers.get(&address).map(|entry| Arc::clone(&entry)) else {
            return self.register_locked(registration, RegisteredBy::Request, take_over).await;
        };
        let difference = self.difference(&present, &registration, in_order)?;
        let Some((field, before, now)) = difference else { return Ok(Registered::Present) };
        // Refuse invalid registrations before the worker is removed.
        self.displaced(&registration, take_over)?;
        let is_pool = present.kind() == HolderKind::Pool;
        if is_pool && !present.close_if_unconnected().await {
            return Err(IngestError::PoolInUse { address, field, present: before, requested: now });
        }
        self.remove_locked(&address).await?;
        tracing::info!(worker = %address, field, before, now, "the registration changed: the worker's blocks were dropped");
        let registered =
            self.register_locked(registration, RegisteredBy::Request, take_over).await?;
        if let Some(replacing) = self.workers.get(&address).filter(|_| !is_pool) {
            replacing.mark_replacement();
        }
        Ok(registered)
    }
}
