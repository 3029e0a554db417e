//! Asking a worker's local indexer for what its publishers' streams lack. Whatever carries the
//! questions is behind [`LocalIndexers`].

use futures::{FutureExt, StreamExt, future, stream, stream::BoxStream};
use kvasir_engine::recover::Ask;
use kvasir_proto::{
    convert::{ConvertError, EventsPart, EventsQuery, LocalDumpPart, LocalDumpQuery, LocalSource},
    limits::DUMP_CHUNK_RECORDS_DEFAULT,
};
use std::{fmt, sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// An answer breaks off if its next part takes longer than this. However long a dump is, it is not
/// cut off while it makes progress.
const PART_TIMEOUT: Duration = Duration::from_secs(10);

/// Why an answer broke off.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Nobody answers there, or the question was refused.
    #[error("{0}")]
    Refused(String),
    /// A part breaks the contract.
    #[error("malformed answer: {0}")]
    Malformed(#[from] ConvertError),
    /// The next part did not come.
    #[error("no answer for {0:?}")]
    Silent(Duration),
    /// There was no end.
    #[error("the answer has no end")]
    Cut,
}

/// Parts of an answer as they come; an error is the last.
pub type Parts<P> = BoxStream<'static, Result<P, AskError>>;

/// The local indexers of all workers, by their URLs.
pub trait LocalIndexers: fmt::Debug + Send + Sync {
    /// Asks for a range of batches of a worker with `block_size` tokens a block.
    fn events(&self, url: &str, query: EventsQuery, block_size: u32) -> Parts<EventsPart>;

    /// Asks for all that a source holds.
    fn dump(&self, url: &str, query: LocalDumpQuery) -> Parts<LocalDumpPart>;
}

/// Whom a source's rounds ask.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) indexers: Arc<dyn LocalIndexers>,
    pub(super) url: String,
    pub(super) source: LocalSource,
    pub(super) block_size: u32,
}

/// A part of whatever was asked for.
#[derive(Debug)]
pub(super) enum Part {
    Events(EventsPart),
    Dump(LocalDumpPart),
}

/// One question under way.
pub(super) struct Round {
    pub(super) number: u64,
    pub(super) ask: Ask,
    parts: Parts<Part>,
}

impl Round {
    /// Asks, once there is a permit, which it keeps until it is over.
    pub(super) fn start(number: u64, ask: Ask, asked: &Asked, permits: Arc<Semaphore>) -> Self {
        let Asked { indexers, url, source, block_size } = asked.clone();
        let opening = async move {
            let Ok(permit) = permits.acquire_owned().await else {
                let stopping = AskError::Refused("the server is stopping".to_owned());
                return stream::once(future::ready(Err(stopping))).boxed();
            };
            let parts = match ask {
                Ask::Range { incarnation, from } => {
                    let query = EventsQuery { source, incarnation, range: from..=u64::MAX };
                    let parts = indexers.events(&url, query, block_size);
                    parts.map(|part| part.map(Part::Events)).boxed()
                }
                Ask::Dump { incarnation } => {
                    let (incarnation, chunk_records) =
                        (Some(incarnation), DUMP_CHUNK_RECORDS_DEFAULT);
                    let query = LocalDumpQuery { source, incarnation, chunk_records };
                    let parts = indexers.dump(&url, query);
                    parts.map(|part| part.map(Part::Dump)).boxed()
                }
            };
            let parts = tokio_stream::StreamExt::timeout(parts, PART_TIMEOUT);
            let parts = parts.map(move |part| {
                let _until_it_is_over = &permit;
                part.unwrap_or(Err(AskError::Silent(PART_TIMEOUT)))
            });
            parts.boxed()
        };
        Self { number, ask, parts: opening.flatten_stream().boxed() }
    }

    /// The next part. Cancel-safe. Not to be called again after an end or an error.
    pub(super) async fn next(&mut self) -> Result<Part, AskError> {
        self.parts.next().await.unwrap_or(Err(AskError::Cut))
    }
}

impl fmt::Debug for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Round({}, {:?})", self.number, self.ask)
    }
}
