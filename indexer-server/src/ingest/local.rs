//! Asking a worker's local indexer for what its publishers' streams lack. Whatever carries the
//! questions is behind [`LocalIndexers`].

use futures::{FutureExt, StreamExt, future, stream, stream::BoxStream};
use kvasir_engine::recover::Ask;
use kvasir_process::hurry::{Hurry, Late};
use kvasir_proto::{
    convert::{
        ConvertError, DigestsPart, DigestsQuery, EventsPart, EventsQuery, LocalDumpPart,
        LocalDumpQuery, LocalSource, RankBuckets,
    },
    limits::DUMP_CHUNK_RECORDS_DEFAULT,
    types::{Incarnation, KvEvent},
};
use std::{fmt, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Why an answer broke off.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Nobody answers there, or the question was refused.
    #[error("{0}")]
    Refused(String),
    /// A part breaks the contract.
    #[error("malformed answer: {0}")]
    Malformed(#[from] ConvertError),
    /// It does not come, or too slowly.
    #[error(transparent)]
    Late(#[from] Late),
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

    /// Asks for all that a source holds, or for some buckets of it.
    fn dump(&self, url: &str, query: LocalDumpQuery) -> Parts<LocalDumpPart>;

    /// Asks for the digests of what a source holds.
    fn digests(&self, url: &str, query: DigestsQuery) -> Parts<DigestsPart>;
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
    Digests(DigestsPart),
}

/// What is asked for, of one life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Question {
    /// All batches from a number on.
    Range { from: u64 },
    /// All that is held, or some buckets of it.
    Dump { buckets: Option<RankBuckets> },
    /// Digests of what is held.
    Digests,
}

/// One question of the recovery under way.
pub(super) struct Round {
    pub(super) number: u64,
    pub(super) ask: Ask,
    parts: Parts<Part>,
}

impl Part {
    /// What it brings, in blocks; something in any case, for the numbers of batches are many.
    fn blocks(&self) -> usize {
        let blocks = match self {
            Self::Events(EventsPart::Batch(batch)) => {
                batch.events.iter().map(KvEvent::operations).sum()
            }
            Self::Dump(LocalDumpPart::Chunk { records, .. }) => records.len(),
            Self::Events(_) | Self::Dump(_) | Self::Digests(_) => 0,
        };
        blocks.max(1)
    }
}

/// An answer on its way.
struct Answer {
    parts: Parts<Part>,
    hurry: Hurry,
    /// Kept until it is over.
    _permit: OwnedSemaphorePermit,
}

impl Answer {
    async fn next(&mut self) -> Option<Result<Part, AskError>> {
        let count = |part: &Option<Result<Part, AskError>>| match part {
            Some(Ok(part)) => part.blocks(),
            Some(Err(_)) | None => 0,
        };
        self.hurry
            .next(self.parts.next(), count)
            .await
            .unwrap_or_else(|late| Some(Err(late.into())))
    }
}

impl Asked {
    /// Asks a question of one life, under a permit that is kept until the answer is over.
    pub(super) fn ask(
        &self,
        (incarnation, question): (Incarnation, Question),
        permit: OwnedSemaphorePermit,
    ) -> Parts<Part> {
        let Self { indexers, url, source, block_size } = self.clone();
        let parts = match question {
            Question::Range { from } => {
                let query = EventsQuery { source, incarnation, range: from..=u64::MAX };
                let parts = indexers.events(&url, query, block_size);
                parts.map(|part| part.map(Part::Events)).boxed()
            }
            Question::Dump { buckets } => {
                let (incarnation, chunk_records) = (Some(incarnation), DUMP_CHUNK_RECORDS_DEFAULT);
                let query = LocalDumpQuery { source, incarnation, chunk_records, buckets };
                let parts = indexers.dump(&url, query);
                parts.map(|part| part.map(Part::Dump)).boxed()
            }
            Question::Digests => {
                let parts = indexers.digests(&url, DigestsQuery { source, incarnation });
                parts.map(|part| part.map(Part::Digests)).boxed()
            }
        };
        let answer = Answer { parts, hurry: Hurry::default(), _permit: permit };
        stream::unfold(answer, async |mut answer| Some((answer.next().await?, answer))).boxed()
    }
}

impl Round {
    /// Asks, once there is a permit, which it keeps until it is over.
    pub(super) fn start(number: u64, ask: Ask, asked: &Asked, permits: Arc<Semaphore>) -> Self {
        let asked = asked.clone();
        let opening = async move {
            let Ok(permit) = permits.acquire_owned().await else {
                let stopping = AskError::Refused("the server is stopping".to_owned());
                return stream::once(future::ready(Err(stopping))).boxed();
            };
            let question = match ask {
                Ask::Range { incarnation, from } => (incarnation, Question::Range { from }),
                Ask::Dump { incarnation } => (incarnation, Question::Dump { buckets: None }),
            };
            asked.ask(question, permit)
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

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::{
        convert::WorkerAddress,
        types::{BlockName, HeldBlock, Incarnation, PartitionKey, WorkerId},
    };
    use std::time::Duration;
    use tokio::time::sleep;

    /// Sends chunks of so many records, each after a second.
    #[derive(Debug)]
    struct Trickle(usize);

    impl LocalIndexers for Trickle {
        fn events(&self, _url: &str, _query: EventsQuery, _block_size: u32) -> Parts<EventsPart> {
            stream::pending().boxed()
        }

        fn dump(&self, _url: &str, _query: LocalDumpQuery) -> Parts<LocalDumpPart> {
            let held =
                HeldBlock { name: BlockName(1), parent: None, local: None, copies: [1, 0, 0] };
            let records = vec![held; self.0];
            let chunks = stream::repeat_with(move || records.clone());
            let slowly = chunks.then(async |records| {
                sleep(Duration::from_secs(1)).await;
                Ok(LocalDumpPart::Chunk { rank: 0, records })
            });
            slowly.take(100).boxed()
        }

        fn digests(&self, _url: &str, _query: DigestsQuery) -> Parts<DigestsPart> {
            stream::pending().boxed()
        }
    }

    async fn outcome(records: usize) -> (usize, AskError) {
        let partition = PartitionKey::new("m", "").expect("a short name");
        let worker = WorkerId::new("w").expect("a short name");
        let address = WorkerAddress { partition, worker };
        let source = LocalSource { address, name: "s".to_owned() };
        let indexers = Arc::new(Trickle(records));
        let asked = Asked { indexers, url: "http://there".to_owned(), source, block_size: 16 };
        let (ask, permits) =
            (Ask::Dump { incarnation: Incarnation(1) }, Arc::new(Semaphore::new(1)));
        let mut round = Round::start(1, ask, &asked, Arc::clone(&permits));
        let mut parts = 0;
        let error = loop {
            match round.next().await {
                Ok(_part) => parts += 1,
                Err(error) => break error,
            }
            assert_eq!(permits.available_permits(), 0);
        };
        drop(round);
        assert_eq!(permits.available_permits(), 1, "somebody else may ask");
        (parts, error)
    }

    #[tokio::test(start_paused = true)]
    async fn who_brings_too_little_keeps_nobody_else_from_asking() {
        assert_eq!(outcome(2_000).await, (100, AskError::Cut));
        let (parts, error) = outcome(10).await;
        assert_eq!(parts, 10, "one more takes more than 10 s and 10 ms a second");
        assert!(matches!(error, AskError::Late(Late::Slow { things: 110, .. })), "{error:?}");
    }
}
