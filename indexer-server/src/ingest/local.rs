//! Requests to a worker's local indexer (agent) for batches and blocks that its streams lack. [`LocalIndexers`] hides
//! the transport.

use super::turns::{Turn, Turns};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, future, stream};
use kvasir_engine::recover::Ask;
use kvasir_process::answer_timer::{AnswerTimer, Late};
use kvasir_proto::convert::{
    ConvertError, DigestsPart, DigestsQuery, EventsPart, EventsQuery, LOCAL_INDEXER_BY_BROKER,
    LocalDumpPart, LocalDumpQuery, LocalSource, RankBuckets,
};
use kvasir_proto::limits::DUMP_CHUNK_RECORDS_DEFAULT;
use kvasir_proto::types::{Incarnation, KvEvent};
use std::fmt;
use std::sync::Arc;

/// Why an answer ended early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The agent cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The request was refused.
    #[error("{0}")]
    Refused(String),
    /// A part violates the protocol.
    #[error("malformed answer: {0}")]
    Malformed(#[from] ConvertError),
    /// The answer is missing or too slow.
    #[error(transparent)]
    Late(#[from] Late),
    /// The answer ended without its last part.
    #[error("the answer ended early")]
    Cut,
}

impl AskError {
    /// Whether the agent does not answer, or answers too slowly.
    pub(super) const fn is_silence(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Late(_))
    }
}

/// Parts of an answer, in order of arrival. An error is the last item.
pub type Parts<P> = BoxStream<'static, Result<P, AskError>>;

/// The local indexers of all workers, by URL.
pub trait LocalIndexers: fmt::Debug + Send + Sync {
    /// Requests a range of batches of a worker with `block_size` tokens per block.
    fn events(&self, url: &str, query: EventsQuery, block_size: u32) -> Parts<EventsPart>;

    /// Requests all blocks of a source, or the blocks in some buckets.
    fn dump(&self, url: &str, query: LocalDumpQuery) -> Parts<LocalDumpPart>;

    /// Requests the digests of a source's blocks.
    fn digests(&self, url: &str, query: DigestsQuery) -> Parts<DigestsPart>;
}

/// Target of a source's requests.
#[derive(Debug, Clone)]
pub(super) struct AskTarget {
    pub(super) indexers: Arc<dyn LocalIndexers>,
    pub(super) url: String,
    /// Key of the agent behind the URL. The number of requests to one agent is limited.
    pub(super) agent: Arc<str>,
    pub(super) source: LocalSource,
    pub(super) block_size: u32,
}

/// A part of an answer.
#[derive(Debug)]
pub(super) enum Part {
    Events(EventsPart),
    Dump(LocalDumpPart),
    Digests(DigestsPart),
}

/// A request about one incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Question {
    /// All batches from a number on.
    Range { from: u64 },
    /// All cached blocks, or the blocks in some buckets.
    Dump { buckets: Option<RankBuckets> },
    /// Digests of the cached blocks.
    Digests,
}

/// One request of the current recovery.
pub(super) struct Round {
    pub(super) number: u64,
    pub(super) ask: Ask,
    parts: Parts<Part>,
}

impl Part {
    /// Returns the size of the part in blocks. An empty batch counts as one block.
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

/// A partially received answer.
struct Answer {
    parts: Parts<Part>,
    answer_timer: AnswerTimer,
    /// Permit, held until the answer ends.
    turn: Turn,
}

impl Answer {
    /// Returns the next part of the answer, or an error if the part is late. The agent of a late part backs off.
    async fn next(&mut self) -> Option<Result<Part, AskError>> {
        let count = |part: &Option<Result<Part, AskError>>| match part {
            Some(Ok(part)) => part.blocks(),
            Some(Err(_)) | None => 0,
        };
        let next = self.answer_timer.next(self.parts.next(), count).await;
        let next = next.unwrap_or_else(|late| Some(Err(late.into())));
        if let Some(Err(error)) = &next
            && error.is_silence()
        {
            self.turn.failed();
        }
        next
    }

    /// The remaining parts.
    fn parts(self) -> Parts<Part> {
        stream::unfold(self, async |mut answer| Some((answer.next().await?, answer))).boxed()
    }
}

impl AskTarget {
    /// Creates the target for the URL of an agent's local indexer. Over NATS, each worker has an agent of its own.
    pub(super) fn new(
        indexers: Arc<dyn LocalIndexers>,
        url: String,
        source: LocalSource,
        block_size: u32,
    ) -> Self {
        let agent = if url == LOCAL_INDEXER_BY_BROKER {
            format!("{url} {}", source.address)
        } else {
            url.clone()
        };
        Self { indexers, url, agent: agent.into(), source, block_size }
    }

    /// Sends a request and reads the answer, which holds its permit until its end.
    pub(super) fn request_parts(
        &self,
        question: (Incarnation, Question),
        turn: Turn,
    ) -> Parts<Part> {
        self.answer(question, turn).parts()
    }

    /// Waits for a permit, sends the request, and returns the parts of the answer. An agent that has not answered
    /// before needs a second permit to read the answer.
    async fn ask_in_turn(
        self,
        question: (Incarnation, Question),
        turns: Arc<Turns>,
    ) -> Parts<Part> {
        let mut turn = turns.wait(&self.agent).await;
        if !turn.may_read() {
            let mut answer = self.answer(question.clone(), turn);
            let first = answer.next().await;
            let Some(Ok(part)) = first else { return stream::iter(first).boxed() };
            if answer.turn.answered() {
                let first = stream::once(future::ready(Ok(part)));
                return first.chain(answer.parts()).boxed();
            }
            let Answer { parts, turn: opened, .. } = answer;
            // The opened answer is not read: the request is sent again with a permit for reading.
            drop(parts);
            turn = opened.granted().await;
        }
        self.request_parts(question, turn)
    }

    /// Sends a request to the agent: for a range of events, a dump or digests.
    fn answer(&self, (incarnation, question): (Incarnation, Question), turn: Turn) -> Answer {
        let Self { indexers, url, source, block_size, .. } = self.clone();
        let parts = match question {
            Question::Range { from } => {
                let query = EventsQuery { source, incarnation, range: from..=u64::MAX };
                let parts = indexers.events(&url, query, block_size);
                parts.map(|part| part.map(Part::Events)).boxed()
            }
            Question::Dump { buckets } => {
                let incarnation = Some(incarnation);
                let chunk_records = DUMP_CHUNK_RECORDS_DEFAULT;
                let query = LocalDumpQuery { source, incarnation, chunk_records, buckets };
                let parts = indexers.dump(&url, query);
                parts.map(|part| part.map(Part::Dump)).boxed()
            }
            Question::Digests => {
                let parts = indexers.digests(&url, DigestsQuery { source, incarnation });
                parts.map(|part| part.map(Part::Digests)).boxed()
            }
        };
        Answer { parts, answer_timer: AnswerTimer::default(), turn }
    }
}

impl Round {
    /// Sends the request once it has a permit, which lasts until the answer ends.
    pub(super) fn start(number: u64, ask: Ask, target: &AskTarget, turns: Arc<Turns>) -> Self {
        let question = match ask {
            Ask::Range { incarnation, from } => (incarnation, Question::Range { from }),
            Ask::Dump { incarnation } => (incarnation, Question::Dump { buckets: None }),
        };
        let opening = target.clone().ask_in_turn(question, turns);
        Self { number, ask, parts: opening.flatten_stream().boxed() }
    }

    /// Returns the next part. Cancel-safe. Do not call it again after an end or an error.
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
    use crate::partitions::Origin;
    use kvasir_proto::convert::WorkerAddress;
    use kvasir_proto::types::{BlockName, HeldBlock, Incarnation, PartitionKey, WorkerId};
    use std::time::Duration;
    use tokio::time::sleep;

    /// Sends chunks of this many records, each after a second.
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
        let target = AskTarget::new(indexers, "http://there".to_owned(), source, 16);
        let ask = Ask::Dump { incarnation: Incarnation(1) };
        let turns = Arc::new(Turns::new(1, Origin::now()));
        let another: Arc<str> = "http://another".into();
        let mut round = Round::start(1, ask, &target, Arc::clone(&turns));
        let mut parts = 0;
        let error = loop {
            match round.next().await {
                Ok(_part) => parts += 1,
                Err(error) => break error,
            }
            assert!(turns.try_read(&another).is_none(), "nobody else may");
        };
        drop(round);
        assert!(turns.try_read(&another).is_some(), "somebody else may ask");
        (parts, error)
    }

    #[tokio::test(start_paused = true)]
    async fn who_brings_too_little_keeps_nobody_else_from_asking() {
        assert_eq!(outcome(2_000).await, (100, AskError::Cut));
        let (parts, error) = outcome(10).await;
        assert_eq!(parts, 10, "one more takes more than 10 s and 10 ms a second");
        assert!(matches!(error, AskError::Late(Late::Slow { items: 110, .. })), "{error:?}");
    }
}
