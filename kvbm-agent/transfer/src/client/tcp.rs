//! The backend that fetches over TCP.

#[cfg(feature = "nixl")]
use super::borrow::Borrowing;
use super::config::ClientConfig;
use super::connection::Connection;
use super::owners::Owners;
use super::receive::Receiving;
use crate::backend::{FetchFault, FetchRequest, Fetched, TransferBackend};
use crate::counters::TransferCounters;
use crate::limits::{CLIENT_CONNECTIONS_MAX, IDLE_CONNECTIONS_MAX, REUSE_TIMEOUT};
#[cfg(feature = "nixl")]
use crate::nixl::Reads;
use futures::FutureExt;
use futures::future::BoxFuture;
use kvasir_blocks::sets::BlockSetRegistry;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// Fetches over TCP. Connections are reused; each serves one fetch at a time, with several pipelined requests.
#[derive(Debug)]
pub struct TcpBackend {
    config: ClientConfig,
    owners: Arc<Owners>,
    places: Arc<Semaphore>,
    idle: Mutex<BTreeMap<String, Vec<Connection>>>,
    counters: Arc<TransferCounters>,
    /// Blocks are read by NIXL, and only asked for over TCP.
    #[cfg(feature = "nixl")]
    reads: Option<Reads>,
}

impl TcpBackend {
    /// Creates a backend that imports peers' sets into `registry`.
    #[must_use]
    pub fn new(
        config: ClientConfig,
        registry: BlockSetRegistry,
        counters: Arc<TransferCounters>,
    ) -> Self {
        let places = Arc::new(Semaphore::new(CLIENT_CONNECTIONS_MAX));
        Self {
            config,
            owners: Owners::new(registry),
            places,
            idle: Mutex::default(),
            counters,
            #[cfg(feature = "nixl")]
            reads: None,
        }
    }

    /// The same, with blocks that are read by NIXL.
    #[cfg(feature = "nixl")]
    pub(super) fn with_reads(self, reads: Reads) -> Self {
        Self { reads: Some(reads), ..self }
    }

    /// A connection that was used before and is not too old.
    fn take_idle(&self, peer: &str) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let of_peer = idle.get_mut(peer)?;
        let found = of_peer.pop();
        if of_peer.is_empty() {
            idle.remove(peer);
        }
        found.filter(|at| at.used_at.elapsed() < REUSE_TIMEOUT && at.set.is_live())
    }

    fn put_idle(&self, peer: &str, mut connection: Connection) {
        connection.used_at = Instant::now();
        let mut idle = self.idle.lock();
        drop_expired(&mut idle);
        let of_peer = idle.entry(peer.to_owned()).or_default();
        if of_peer.len() < IDLE_CONNECTIONS_MAX {
            of_peer.push(connection);
        }
    }

    async fn connect(&self, peer: &str) -> Result<Connection, FetchFault> {
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

    /// Fetches over one connection, until it stops.
    async fn fetch_over(
        &self,
        mut connection: Connection,
        request: FetchRequest<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), FetchFault> {
        let bytes = usize::try_from(self.config.blocks.block_bytes).unwrap_or(usize::MAX);
        #[cfg(feature = "nixl")]
        if let Some(reads) = &self.reads {
            let mut borrowing = Borrowing::new(&mut connection, request, bytes, reads);
            let ended = borrowing.run(fetched).await;
            let is_clean = borrowing.is_clean(&ended);
            drop(borrowing);
            if is_clean {
                self.put_idle(request.peer, connection);
            }
            return ended;
        }
        let mut receiving = Receiving::new(&mut connection, request, bytes);
        let ended = receiving.run(fetched).await;
        // Else something of an answer may be under way on it.
        let is_clean = receiving.is_clean(&ended);
        drop(receiving);
        if is_clean {
            self.put_idle(request.peer, connection);
        }
        ended
    }

    async fn run(
        &self,
        request: FetchRequest<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), FetchFault> {
        if let Some(connection) = self.take_idle(request.peer) {
            let ended = self.fetch_over(connection, request, fetched).await;
            // The owner may have closed it meanwhile, for its age or since it was restarted: then nothing has come.
            let is_stale = matches!(ended, Err(FetchFault::Lost(_) | FetchFault::Fenced));
            if !is_stale || !fetched.blocks.is_empty() {
                return ended;
            }
        }
        let connection = self.connect(request.peer).await?;
        self.fetch_over(connection, request, fetched).await
    }
}

impl TransferBackend for TcpBackend {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn fetch<'a>(&'a self, request: FetchRequest<'a>) -> BoxFuture<'a, Fetched> {
        async move {
            self.counters.fetches.add(1);
            let mut fetched = Fetched::default();
            let ended = timeout_at(request.deadline, self.run(request, &mut fetched)).await;
            fetched.stopped = ended.unwrap_or(Err(FetchFault::TimedOut)).err();
            self.counters.fetched.add(fetched.blocks.len() as u64);
            self.counters.fetched_bytes.add(fetched.bytes);
            if let Some(fault) = &fetched.stopped {
                self.counters.stop(fault.as_str());
                if let FetchFault::Corrupt(why) = fault {
                    self.counters.corrupt.add(1);
                    tracing::error!(peer = request.peer, why, "a peer sent a wrong block, refused");
                }
            }
            fetched
        }
        .boxed()
    }

    fn close_idle(&self) {
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
