//! The port on which peers fetch an agent's blocks.

use super::connection::{Connection, Ended};

use super::shared::{OwnerConfig, Shared};
use crate::counters::TransferCounters;
use crate::exposed::Exposed;
use crate::limits::{HELLO_TIMEOUT, IDLE_TIMEOUT, LOANS_MAX, SERVED_CONNECTIONS_MAX};
#[cfg(feature = "nixl")]
use crate::nixl::{NixlError, NixlOptions, agent_name};
use kvasir_blocks::LayoutConfig;
use kvasir_blocks::layout::LayoutForm;
use kvasir_blocks::sets::{
    AddressRange, BlockSetDescription, BlockSetId, BlockSetRegistry, ExportError, MemoryKind,
    SetMemory, TensorParallel,
};
use kvasir_process::access::{Access, Guard};
use kvasir_process::net::{
    ConnectionLimits, ConnectionMetrics, LimitedListener, Patience, PeerLimits,
};
use kvasir_process::tls::{Accepting, Socket, warn_if_open};
use kvasir_tiers::manager::{KvBlockManager, SessionError};
use kvasir_tls::Protocol;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::select;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

/// Id of the only set that an agent exports.
const SET: BlockSetId = BlockSetId(0);
/// Name of the session that holds blocks while they are sent.
const SESSION: &str = "peers";

/// Why blocks can't be served.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The layout can't be described to peers.
    #[error("blocks can't be described to peers: {0}")]
    Export(#[from] ExportError),
    /// The manager refused to open a session.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// NIXL can't be used.
    #[cfg(feature = "nixl")]
    #[error(transparent)]
    Nixl(#[from] NixlError),
}

/// Serves the blocks of a manager to peers.
#[derive(Debug)]
pub struct Owner {
    shared: Shared,
    connections: ConnectionMetrics,
}

/// Returns a layout of blocks whose content is opaque, slot after slot. The
/// [`BlockDescription`](crate::BlockDescription) describes their content.
fn opaque(num_blocks: u32, block_bytes: usize, stride_bytes: usize) -> LayoutConfig {
    LayoutConfig {
        num_blocks,
        num_layers: 1,
        outer_dim: 1,
        page_size: 1,
        inner_dim: u32::try_from(block_bytes).unwrap_or(u32::MAX),
        dtype_width_bytes: 1,
        // With this alignment, the block size rounds up to exactly the stride.
        alignment_bytes: 1 << stride_bytes.trailing_zeros(),
        base_offset_bytes: 0,
    }
}

impl Owner {
    /// Exports the manager's memory as one set.
    ///
    /// # Errors
    /// [`OwnerError`] if the memory can't be described, or the manager allows no more sessions.
    pub fn new(
        config: OwnerConfig,
        manager: &KvBlockManager,
        registry: BlockSetRegistry,
        counters: Arc<TransferCounters>,
    ) -> Result<Self, OwnerError> {
        Self::exposed(config, manager, registry, counters, Exposed::nothing())
    }

    /// Like [`new`](Self::new), but also lends blocks to peers that read them by NIXL.
    ///
    /// # Errors
    /// Same errors as [`new`](Self::new), and if NIXL can't be used.
    #[cfg(feature = "nixl")]
    pub fn with_nixl(
        config: OwnerConfig,
        manager: &KvBlockManager,
        registry: BlockSetRegistry,
        counters: Arc<TransferCounters>,
        nixl: &NixlOptions,
    ) -> Result<Self, OwnerError> {
        let name = agent_name(config.worker.as_str(), registry.epoch(), "owner");
        let exposed = nixl.expose(&name, manager.arena())?;
        Self::exposed(config, manager, registry, counters, exposed)
    }

    /// Creates the owner: exports its memory as a set of blocks, and opens a session that holds the served blocks.
    fn exposed(
        config: OwnerConfig,
        manager: &KvBlockManager,
        registry: BlockSetRegistry,
        counters: Arc<TransferCounters>,
        exposed: Exposed,
    ) -> Result<Self, OwnerError> {
        let slots = manager.arena().layout();
        let bytes = (slots.stride_bytes as u64).saturating_mul(slots.slots.into());
        let description = BlockSetDescription {
            id: SET,
            content: config.content,
            tensor_parallel: TensorParallel::SINGLE,
            form: LayoutForm::FullyContiguous,
            config: opaque(slots.slots, slots.block_bytes, slots.stride_bytes),
            memory: SetMemory {
                kind: MemoryKind::Dram,
                device_id: 0,
                ranges: vec![AddressRange { address: exposed.address, bytes }],
            },
        };
        let set = registry.export(description, &exposed.registrar)?;
        let session = manager.open_session(SESSION)?;
        let connections = ConnectionMetrics::default();
        let stride_bytes = slots.stride_bytes as u64;
        let nixl = exposed.metadata;
        let loans = Arc::new(Semaphore::new(LOANS_MAX));
        let shared = Shared { config, session, registry, set, counters, stride_bytes, nixl, loans };
        Ok(Self { shared, connections })
    }

    /// Connection metrics of the port.
    #[must_use]
    pub const fn connections(&self) -> &ConnectionMetrics {
        &self.connections
    }

    /// Accepts and serves connections of peers until `stop` is cancelled, then closes all connections and the session
    /// immediately.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        guard: Guard,
        stop: CancellationToken,
    ) {
        if let Ok(address) = listener.local_addr() {
            warn_if_open("blocks-peer listen", address, &guard);
        }
        let patience = Patience {
            first_byte: HELLO_TIMEOUT,
            idle: IDLE_TIMEOUT,
            untaken: self.shared.config.untaken,
        };
        let peer = PeerLimits::default();
        let limits = ConnectionLimits { connections: SERVED_CONNECTIONS_MAX, patience, peer };
        let listener = LimitedListener::new(listener, limits, self.connections.clone());
        let Guard { tls, access, connection_age } = guard;
        let mut accepting = Accepting::new(listener, tls.map(|tls| (tls, Protocol::Blocks)));
        let mut connections = JoinSet::new();
        loop {
            let socket = select! {
                () = stop.cancelled() => break,
                Some(_ended) = connections.join_next(), if !connections.is_empty() => continue,
                socket = accepting.accept() => socket,
            };
            let peer = Arc::clone(&self).serve_connection(
                socket,
                access.clone(),
                connection_age,
                stop.clone(),
            );
            connections.spawn(peer);
        }
        drop(accepting);
        // Each connection ends soon, because sending the refusal is limited in time.
        while connections.join_next().await.is_some() {}
        self.shared.session.end();
    }

    /// Serves one peer's connection. Afterwards keeps the slots of unreturned blocks until the peer must have stopped
    /// reading.
    async fn serve_connection(
        self: Arc<Self>,
        socket: Socket,
        access: Access,
        age: Option<Duration>,
        stop: CancellationToken,
    ) {
        let address = socket.peer().address;
        let client = address.map(tracing::field::display);
        let (ended, loans) = Connection::new(&self.shared, socket, access).run(age, &stop).await;
        match ended {
            Ended::Closed => tracing::debug!(client, "a peer closed its connection"),
            Ended::Cut(why, text) => {
                self.shared.counters.disconnect(why);
                tracing::warn!(client, reason = why.as_str(), text, "a peer was disconnected");
            }
        }
        // The peer may still read unreturned blocks. Their slots are not reused until the peer must have stopped.
        if let Some(until) = loans.quarantined_until() {
            select! {
                () = stop.cancelled() => {}
                () = sleep_until(until) => {}
            }
        }
    }
}
