use super::refusals::Who;
use super::source::IngestSource;
use super::{Refusals, StreamRefusal};
use futures::FutureExt;
use kvasir_process::publish::{self, PendingAnswer};
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::{Heartbeat, PublishedBatch};
use parking_lot::Mutex;
use std::fmt;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// A source, shared by its streams.
pub(super) type Source = Arc<Mutex<IngestSource>>;

/// An accepted stream of a source.
pub(super) struct IngestSession {
    pub(super) source: Source,
    /// Name of the source.
    pub(super) name: String,
    pub(super) peer: Option<SocketAddr>,
    /// Number of the stream within its source.
    pub(super) number: u64,
    pub(super) fence: CancellationToken,
    pub(super) block_size: u32,
    pub(super) refusals: Arc<Refusals>,
}

impl IngestSession {
    fn who(&self) -> Who<'_> {
        Who { source: &self.name, peer: self.peer }
    }
}

impl publish::Session for IngestSession {
    fn fenced(&self) -> &CancellationToken {
        &self.fence
    }

    fn block_size(&self) -> u32 {
        self.block_size
    }

    async fn apply(&self, batch: PublishedBatch) -> PendingAnswer {
        let taken = self.source.lock().apply_batch(self.number, batch);
        let answer = taken.map_err(|error| {
            self.refusals.stream(StreamRefusal::RankReserved, self.who(), &error);
            failed(error.code(), &error)
        });
        ready(answer).boxed()
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) {
        self.source.lock().announce(self.number, heartbeat.head_sequence);
    }

    async fn expected(&self) -> u64 {
        self.source.lock().expected()
    }

    fn note_unreadable(&self, sequence: u64, error: &dyn fmt::Display) {
        self.refusals.batch(sequence, self.who(), error);
    }

    fn note_malformed(&self, error: &dyn fmt::Display) {
        self.refusals.stream(StreamRefusal::Malformed, self.who(), error);
    }

    async fn close(self) {
        self.source.lock().disconnect(self.number);
    }
}

/// Creates a status from an error code and text.
pub(super) fn failed(code: ErrorCode, error: &dyn fmt::Display) -> Status {
    Status::new(code.into(), error.to_string())
}
