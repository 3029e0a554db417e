use super::config::ClientConfig;
use super::connection::Connection;
use super::owners::Owners;
use crate::backend::FetchFault;
use crate::limits::{CLIENT_CONNECTIONS_MAX, IDLE_CONNECTIONS_MAX, REUSE_TIMEOUT};
use kvasir_blocks::sets::BlockSetRegistry;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Connection pool: connections to owners, which are reused.
#[derive(Debug)]
pub(super) struct Connections {
    config: ClientConfig,
    owners: Arc<Owners>,
    places: Arc<Semaphore>,
    idle: Mutex<BTreeMap<String, Vec<Connection>>>,
}

impl Connections {
    pub(super) fn new(config: ClientConfig, registry: BlockSetRegistry) -> Self {
        let places = Arc::new(Semaphore::new(CLIENT_CONNECTIONS_MAX));
        Self { config, owners: Owners::new(registry), places, idle: Mutex::default() }
    }

    /// Bytes of this agent's blocks.
    pub(super) fn block_bytes(&self) -> usize {
        usize::try_from(self.config.blocks.block_bytes).unwrap_or(usize::MAX)
    }

    /// Configuration of the fetching side.
    pub(super) const fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Removes and returns an idle connection to the peer. Drops it instead if it is too old, or its set has ended.
    pub(super) fn take_idle(&self, peer: &str) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let of_peer = idle.get_mut(peer)?;
        let found = of_peer.pop();
        if of_peer.is_empty() {
            idle.remove(peer);
        }
        found.filter(|at| at.used_at.elapsed() < REUSE_TIMEOUT && at.set.is_live())
    }

    /// Stores an idle connection for reuse. Drops it if the peer already has [`IDLE_CONNECTIONS_MAX`].
    pub(super) fn put_idle(&self, peer: &str, mut connection: Connection) {
        connection.used_at = Instant::now();
        let mut idle = self.idle.lock();
        drop_expired(&mut idle);
        let of_peer = idle.entry(peer.to_owned()).or_default();
        if of_peer.len() < IDLE_CONNECTIONS_MAX {
            of_peer.push(connection);
        }
    }

    /// Opens a connection to a peer. At the limit of connections, closes all idle ones first, and fails if none was
    /// idle.
    pub(super) async fn connect(&self, peer: &str) -> Result<Connection, FetchFault> {
        // Sets imported by expired connections count towards the limit of imports.
        drop_expired(&mut self.idle.lock());
        let place = || Arc::clone(&self.places).try_acquire_owned().ok();
        let place = place().or_else(|| {
            // Idle connections are closed to make room.
            self.close_idle();
            place()
        });
        let place = place.ok_or(FetchFault::Busy { max: CLIENT_CONNECTIONS_MAX })?;
        Connection::open(&self.config, &self.owners, peer, place).await
    }

    /// Closes all idle connections.
    pub(super) fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        drop(idle);
    }
}

/// Closes idle connections that are too old or whose set has ended.
fn drop_expired(idle: &mut BTreeMap<String, Vec<Connection>>) {
    for of_peer in idle.values_mut() {
        of_peer.retain(|at| at.used_at.elapsed() < REUSE_TIMEOUT && at.set.is_live());
    }
    idle.retain(|_, of_peer| !of_peer.is_empty());
}
