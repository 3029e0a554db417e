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

/// Connections to owners, which are used again.
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

    /// Bytes of a block here.
    pub(super) fn block_bytes(&self) -> usize {
        usize::try_from(self.config.blocks.block_bytes).unwrap_or(usize::MAX)
    }

    /// Who fetches.
    pub(super) const fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// A connection that was used before and is not too old.
    pub(super) fn take_idle(&self, peer: &str) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let of_peer = idle.get_mut(peer)?;
        let found = of_peer.pop();
        if of_peer.is_empty() {
            idle.remove(peer);
        }
        found.filter(|at| at.used_at.elapsed() < REUSE_TIMEOUT && at.set.is_live())
    }

    /// Keeps a connection for later, unless there are enough.
    pub(super) fn put_idle(&self, peer: &str, mut connection: Connection) {
        connection.used_at = Instant::now();
        let mut idle = self.idle.lock();
        drop_expired(&mut idle);
        let of_peer = idle.entry(peer.to_owned()).or_default();
        if of_peer.len() < IDLE_CONNECTIONS_MAX {
            of_peer.push(connection);
        }
    }

    /// Opens a connection.
    pub(super) async fn connect(&self, peer: &str) -> Result<Connection, FetchFault> {
        // What they have imported counts among all that may be.
        drop_expired(&mut self.idle.lock());
        let place = || Arc::clone(&self.places).try_acquire_owned().ok();
        let place = place().or_else(|| {
            // What is not in use gives way.
            self.close_idle();
            place()
        });
        let place = place.ok_or(FetchFault::Busy { max: CLIENT_CONNECTIONS_MAX })?;
        Connection::open(&self.config, &self.owners, peer, place).await
    }

    /// Closes all that are not in use.
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
