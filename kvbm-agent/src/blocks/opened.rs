//! Opens and ends sessions.

use super::messages;
use super::sessions::OpenStream;
use super::shared::BlockManagerService;
use super::status::{failed, no_session, of_session, stopping};
use futures::stream::{self, BoxStream, StreamExt};
use kvasir_access::Principal;
use kvasir_process::access::check_served;
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::{NewSession, SessionId, WorkerAddress};
use kvasir_proto::pb;
use kvasir_tiers::manager::ManagerConfig;
use std::future::ready;
use std::time::Duration;
use tokio::select;
use tonic::Status;

pub(super) type SessionStream = BoxStream<'static, Result<pb::OpenSessionResponse, Status>>;

impl BlockManagerService {
    /// Opens a session for an engine. Fails for another worker than this agent's, and if the engine states another
    /// block size or dtype.
    pub(super) fn open_session(
        &self,
        principal: &Principal,
        wanted: NewSession,
    ) -> Result<SessionStream, Status> {
        let NewSession { partition, worker, name, block_bytes, dtype } = wanted;
        let worker = worker.unwrap_or_else(|| self.address.worker.clone());
        check_served(principal, &WorkerAddress { partition, worker }, &self.address)?;
        self.check_bytes(block_bytes, dtype.as_deref())?;
        let session = self.manager.open_session(&name).map_err(of_session)?;
        tracing::info!(session = name, "session opened");
        let open = self.sessions.add(session);
        let opened = self.opened(open.id);
        Ok(self.until_over(opened, open))
    }

    /// Refuses an engine that states another block size or dtype. Accepts an engine that states neither.
    fn check_bytes(&self, block_bytes: Option<u64>, dtype: Option<&str>) -> Result<(), Status> {
        let ours = self.manager.block_bytes() as u64;
        if let Some(theirs) = block_bytes.filter(|theirs| *theirs != ours) {
            let text = format_args!("block_bytes is {theirs}, and blocks here have {ours} bytes");
            return Err(failed(ErrorCode::FailedPrecondition, text));
        }
        let ours = &self.config.dtype;
        if let Some(theirs) = dtype.filter(|theirs| theirs != ours) {
            let text =
                format_args!("dtype is {theirs:?}, and it is {ours:?} here (--blocks-geometry)");
            return Err(failed(ErrorCode::FailedPrecondition, text));
        }
        Ok(())
    }

    /// Builds the first message of a session: memory layout and limits.
    fn opened(&self, id: SessionId) -> pb::OpenSessionResponse {
        let ManagerConfig { session, lease_max, lease_grace, pin_ttl_max, blocks, .. } =
            &self.config.manager;
        let limits = pb::BlockSessionLimits {
            leased_slots_max: session.leased_slots_max as u64,
            held_blocks_max: session.held_blocks_max as u64,
            lease_ms_max: millis(*lease_max),
            lease_grace_ms: millis(*lease_grace),
            pin_ttl_ms_max: millis(*pin_ttl_max),
        };
        let layout = self.config.dimensions.map(|at| pb::BlockLayoutInfo {
            layers: at.layers,
            outer_dim: at.outer_dim,
            page_size: blocks.layout.page_size,
            inner_dim: at.inner_dim,
            dtype_width_bytes: at.dtype_width_bytes,
        });
        let opened = pb::SessionOpened {
            session_id: id.message(),
            block_bytes: self.manager.block_bytes() as u64,
            slots: self.manager.arena().layout().slots,
            engine_tier: messages::tier(self.manager.engine_tier()).into(),
            arena: self.arena.clone(),
            limits: Some(limits),
            layout,
            dtype: self.config.dtype.clone(),
        };
        pb::OpenSessionResponse { opened: Some(opened) }
    }

    /// Returns a stream that sends `opened`, then stays open until the session ends or the agent stops. If the stream
    /// is dropped earlier, the engine counts as lost.
    fn until_over(&self, opened: pb::OpenSessionResponse, open: OpenStream) -> SessionStream {
        let stop = self.stop.clone();
        let end = async move {
            select! {
                () = open.over.cancelled() => None,
                () = stop.cancelled() => Some(Err(stopping())),
            }
        };
        let end = stream::once(end).filter_map(ready);
        stream::once(ready(Ok(opened))).chain(end).boxed()
    }

    /// Ends a session at the engine's request, which also ends its stream. Fails if the session is unknown.
    pub(super) fn end_session(&self, id: SessionId) -> Result<(), Status> {
        let open = self.sessions.remove(id).ok_or_else(no_session)?;
        open.session.end();
        tracing::info!(session = open.session.name(), "session ended");
        open.over.cancel();
        Ok(())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
