//! Backend that fetches blocks over TCP.

use super::answers::Answers;
#[cfg(feature = "nixl")]
use super::borrow::Borrowing;
use super::config::ClientConfig;
use super::connection::Connection;
use super::connections::Connections;
#[cfg(feature = "nixl")]
use super::loans::Loans;
use super::parts::PartsFetch;
use super::receive::Receiving;
use super::sent::{PartStream, Sent};
use super::slots::Slots;
#[cfg(feature = "nixl")]
use super::staged::Staged;
use crate::backend::{
    FetchFault, FetchRequest, Fetched, FetchedParts, PartsRequest, TransferBackend,
};
use crate::convert::{Exchange, PartPlan, shard_of};
use crate::counters::TransferCounters;
#[cfg(feature = "nixl")]
use crate::nixl::Reads;
use futures::FutureExt;
use futures::future::BoxFuture;
use kvasir_blocks::sets::BlockSetRegistry;
use kvasir_proto::types::SequenceHash;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

/// Fetches over TCP. Connections are reused. Each serves one fetch at a time, with several pipelined requests.
#[derive(Debug)]
pub struct TcpBackend {
    connections: Connections,
    counters: Arc<TransferCounters>,
    /// If set, blocks are read by NIXL, and TCP only carries the requests.
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
        Self {
            connections: Connections::new(config, registry),
            counters,
            #[cfg(feature = "nixl")]
            reads: None,
        }
    }

    /// Makes the backend read blocks by NIXL.
    #[cfg(feature = "nixl")]
    pub(super) fn with_reads(self, reads: Reads) -> Self {
        Self { reads: Some(reads), ..self }
    }

    /// Fetches complete blocks over one connection, until all have arrived or a fault occurs. Fails with `OtherLayout`
    /// if the peer has another layout.
    async fn fetch_over(
        &self,
        connection: Connection,
        request: FetchRequest<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), FetchFault> {
        if connection.exchange != Exchange::Whole {
            self.connections.put_idle(request.peer, connection);
            return Err(FetchFault::OtherLayout);
        }
        let block_bytes = self.connections.block_bytes();
        let slots = Slots::new(request.into, block_bytes);
        #[cfg(feature = "nixl")]
        if let Some(reads) = &self.reads {
            let mut loans = Loans::new(connection, request.wanted, request.deadline)?;
            let ended = Borrowing::new(&mut loans, slots, reads).run(fetched).await;
            if let Some(connection) = loans.into_clean(&ended) {
                self.connections.put_idle(request.peer, connection);
            }
            return ended;
        }
        let mut answers = Answers::new(connection, request.wanted, request.deadline)?;
        let ended = Receiving::new(&mut answers, slots, block_bytes).run(fetched).await;
        // Otherwise, parts of an answer may still be arriving on the connection.
        if let Some(connection) = answers.into_clean(&ended) {
            self.connections.put_idle(request.peer, connection);
        }
        ended
    }

    /// Fetches complete blocks over an idle connection, or over a new one. If the idle connection was closed before the
    /// first block, tries once more over a new one.
    async fn run(
        &self,
        request: FetchRequest<'_>,
        fetched: &mut Fetched,
    ) -> Result<(), FetchFault> {
        if let Some(connection) = self.connections.take_idle(request.peer) {
            let ended = self.fetch_over(connection, request, fetched).await;
            // The owner may have closed the connection, for its age or because of a restart. Then no block was
            // received.
            let is_stale = matches!(ended, Err(FetchFault::Lost(_) | FetchFault::Fenced));
            if !is_stale || !fetched.blocks.is_empty() {
                return ended;
            }
        }
        let connection = self.connections.connect(request.peer).await?;
        self.fetch_over(connection, request, fetched).await
    }

    /// Fetches blocks in parts from several owners.
    async fn run_parts(
        &self,
        request: PartsRequest<'_>,
        fetched: &mut FetchedParts,
    ) -> Result<(), FetchFault> {
        let own = shard_of(&self.connections.config().blocks);
        let own = own.map_err(|error| FetchFault::Refused(error.to_string()))?;
        let begin =
            |connection, wanted, plan| self.begin_parts(connection, wanted, plan, request.deadline);
        PartsFetch::new(&self.connections, request, own, &begin).run(fetched).await
    }

    /// Starts fetching the parts of blocks over a connection.
    #[cfg_attr(not(feature = "nixl"), expect(clippy::unused_self, reason = "for NIXL alone"))]
    fn begin_parts<'a>(
        &'a self,
        connection: Connection,
        wanted: &'a [SequenceHash],
        plan: Arc<PartPlan>,
        deadline: Instant,
    ) -> Result<Box<dyn PartStream + 'a>, FetchFault> {
        #[cfg(feature = "nixl")]
        if let Some(reads) = &self.reads {
            let loans = Loans::new(connection, wanted, deadline)?;
            return Ok(Box::new(Staged::new(loans, reads, plan)));
        }
        let answers = Answers::new(connection, wanted, deadline)?;
        Ok(Box::new(Sent::new(answers, plan)))
    }

    /// Counts why a fetch from a peer stopped.
    fn count(&self, peer: &str, fault: &FetchFault) {
        self.counters.stop(fault.as_str());
        if let FetchFault::Corrupt(why) = fault {
            self.counters.corrupt.add(1);
            tracing::error!(peer, why, "a peer sent a wrong block, refused");
        }
    }
}

impl TransferBackend for TcpBackend {
    fn name(&self) -> &'static str {
        "tcp"
    }

    /// Fetches complete blocks from one peer within the deadline, and counts them. `OtherLayout` is not counted,
    /// because the caller continues with a fetch in parts.
    fn fetch<'a>(&'a self, request: FetchRequest<'a>) -> BoxFuture<'a, Fetched> {
        async move {
            let mut fetched = Fetched::default();
            let ended = timeout_at(request.deadline, self.run(request, &mut fetched)).await;
            fetched.stopped = ended.unwrap_or(Err(FetchFault::TimedOut)).err();
            // The caller continues with a fetch in parts.
            if fetched.stopped == Some(FetchFault::OtherLayout) {
                return fetched;
            }
            self.counters.fetches.add(1);
            self.counters.fetched.add(fetched.blocks.len() as u64);
            self.counters.fetched_bytes.add(fetched.bytes);
            if let Some(fault) = &fetched.stopped {
                self.count(request.peer, fault);
            }
            fetched
        }
        .boxed()
    }

    /// Fetches blocks in parts from several peers within the deadline, and counts them. If the peers' parts contradict
    /// each other, no single peer is blamed.
    fn fetch_parts<'a>(&'a self, request: PartsRequest<'a>) -> BoxFuture<'a, FetchedParts> {
        async move {
            let mut fetched = FetchedParts::for_peers(request.peers.len());
            let ended = timeout_at(request.deadline, self.run_parts(request, &mut fetched)).await;
            fetched.record_end(ended.unwrap_or(Err(FetchFault::TimedOut)));
            self.counters.fetches.add(request.peers.len() as u64);
            self.counters.fetched.add(fetched.blocks.len() as u64);
            self.counters.fetched_bytes.add(fetched.bytes);
            for (peer, from) in request.peers.iter().zip(&fetched.peers) {
                let is_needed =
                    |fault: &&FetchFault| !matches!(fault, FetchFault::NotNeeded { .. });
                if let Some(fault) = from.stopped.as_ref().filter(is_needed) {
                    self.count(peer, fault);
                }
            }
            // Peers that contradict each other have no fault of their own, because the culprit is unknown.
            let is_told = |fault| fetched.peers.iter().any(|at| at.stopped.as_ref() == Some(fault));
            let untold = fetched.stopped.as_ref().filter(|fault| !is_told(fault));
            if let Some(fault @ FetchFault::Corrupt(_)) = untold {
                self.count(&request.peers.join(", "), fault);
            }
            fetched
        }
        .boxed()
    }

    fn close_idle(&self) {
        self.connections.close_idle();
    }
}
