//! Sends queries over one pipelined `FindMatchesStream`: many are in flight, and answers are matched by request id. A
//! query in a stream costs the transport a fraction of a call.

use kvasir_proto::pb::find_matches_stream_response::Outcome;
use kvasir_proto::pb::indexer_client::IndexerClient as Stub;
use kvasir_proto::pb::{FindMatchesRequest, FindMatchesResponse, FindMatchesStreamResponse};
use kvasir_tls::Channel;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

type Answer = Result<FindMatchesResponse, Status>;

/// The stream of one client. It is replaced when it breaks or stalls.
#[derive(Debug)]
pub(crate) struct Pipeline {
    stub: Stub<Channel>,
    /// Maximum queries that wait to be sent.
    queued_max: usize,
    /// A stream counts as stalled if it delivers no answer for this long while a caller waits.
    stall: Duration,
    lanes: Mutex<Lanes>,
}

#[derive(Debug, Default)]
struct Lanes {
    current: Option<Lane>,
    /// The previous stream, for callers that still wait on it. Aborted when `current` is retired too.
    retired: Option<AbortHandle>,
    /// Tasks of both streams, which end with the client.
    tasks: JoinSet<()>,
    /// Id of the last query.
    last_id: u64,
}

/// One stream.
#[derive(Debug, Clone)]
struct Lane {
    questions: mpsc::Sender<FindMatchesRequest>,
    waiting: Arc<Waiting>,
    task: AbortHandle,
}

/// The callers that wait for answers of one stream.
#[derive(Debug, Default)]
struct Waiting(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    by_id: HashMap<u64, oneshot::Sender<Answer>>,
    /// Number of answers so far, to distinguish a slow stream from a stalled one.
    answered: u64,
    /// How the stream ended; `None` while it is open.
    ended: Option<End>,
}

/// How a stream ended.
#[derive(Debug, Clone)]
enum End {
    /// The server ended the stream without an error, or has no room for it.
    Done,
    /// The stream broke.
    Broken(Status),
}

/// A waiting caller. Dropping this cancels the wait.
struct Place<'a> {
    pipeline: &'a Pipeline,
    lane: Lane,
    id: u64,
    asked: Instant,
    answered_before: u64,
    done: bool,
}

impl Pipeline {
    pub(crate) fn new(stub: Stub<Channel>, queued_max: usize, stall: Duration) -> Self {
        Self { stub, queued_max, stall, lanes: Mutex::default() }
    }

    /// Sends a query and waits for its answer, without its own timeout. Returns `None` if the server ended the stream
    /// before the answer, without an error or because it has no room for streams. Servers end idle streams, and streams
    /// of old connections.
    pub(crate) async fn find(&self, mut request: FindMatchesRequest) -> Option<Answer> {
        let (answer, answered) = oneshot::channel();
        let mut place = match self.join(answer) {
            Ok(place) => place?,
            Err(status) => return Some(Err(status)),
        };
        request.request_id = place.id;
        // If the stream has ended, the caller gets the reason as its answer.
        let _ended = place.lane.questions.send(request).await;
        let answer = answered.await;
        place.done = true;
        answer.ok()
    }

    /// Registers a query with the current stream, or with a new stream if the current one has ended. Returns `None` if
    /// the stream ends normally meanwhile, and an error if it breaks.
    fn join(&self, answer: oneshot::Sender<Answer>) -> Result<Option<Place<'_>>, Status> {
        let mut lanes = lock(&self.lanes);
        lanes.last_id += 1;
        let id = lanes.last_id;
        let open = lanes.current.clone().filter(|lane| lock(&lane.waiting.0).ended.is_none());
        let lane = match open {
            Some(lane) => lane,
            None => lanes.open_lane(self.stub.clone(), self.queued_max),
        };
        drop(lanes);
        let mut state = lock(&lane.waiting.0);
        match &state.ended {
            None => {}
            Some(End::Done) => return Ok(None),
            Some(End::Broken(status)) => return Err(status.clone()),
        }
        state.by_id.insert(id, answer);
        let answered_before = state.answered;
        drop(state);
        let asked = Instant::now();
        Ok(Some(Place { pipeline: self, lane, id, asked, answered_before, done: false }))
    }

    /// Retires a stream if it is the current one: queries in it keep waiting, and further queries use a new stream.
    fn retire(&self, lane: &Lane) {
        let mut lanes = lock(&self.lanes);
        if lanes.current.as_ref().is_some_and(|at| Arc::ptr_eq(&at.waiting, &lane.waiting)) {
            lanes.current = None;
            if let Some(before) = lanes.retired.replace(lane.task.clone()) {
                before.abort();
            }
        }
    }
}

impl Lanes {
    /// Opens a new stream in a task, and makes it the current lane.
    fn open_lane(&mut self, stub: Stub<Channel>, queued_max: usize) -> Lane {
        while self.tasks.try_join_next().is_some() {}
        let (questions, queue) = mpsc::channel(queued_max);
        let waiting = Arc::new(Waiting::default());
        let task = self.tasks.spawn(run(stub, queue, Arc::clone(&waiting)));
        let lane = Lane { questions, waiting, task };
        self.current = Some(lane.clone());
        lane
    }
}

impl Drop for Place<'_> {
    /// Handles a query that is abandoned before its answer: retires the lane if the stream has stalled.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut state = lock(&self.lane.waiting.0);
        let answered = state.by_id.remove(&self.id).is_none();
        // If a caller cancels early, this does not show a stalled stream.
        let silent = !answered && state.answered == self.answered_before;
        let stalled = silent && self.asked.elapsed() >= self.pipeline.stall;
        drop(state);
        if stalled {
            self.pipeline.retire(&self.lane);
        }
    }
}

impl Waiting {
    /// Passes an answer to the query with this id. Drops the answer if the query was cancelled.
    fn answer(&self, id: u64, answer: Answer) {
        let mut state = lock(&self.0);
        state.answered += 1;
        let asked = state.by_id.remove(&id);
        drop(state);
        if let Some(asked) = asked {
            // Fails if the caller has just cancelled.
            let _given_up = asked.send(answer);
        }
    }

    /// Ends all waiting queries. After a broken stream, they receive its status; otherwise their callers may retry.
    fn end_all(&self, end: End) {
        let mut state = lock(&self.0);
        state.ended = Some(end.clone());
        let left = std::mem::take(&mut state.by_id);
        drop(state);
        // A caller without an answer may retry.
        let End::Broken(status) = end else { return };
        let mut left: Vec<_> = left.into_iter().collect();
        left.sort_unstable_by_key(|(id, _)| *id);
        for (_, asked) in left {
            let _given_up = asked.send(Err(status.clone()));
        }
    }
}

/// Runs one stream to its end, then ends the queries that still wait.
async fn run(
    mut stub: Stub<Channel>,
    questions: mpsc::Receiver<FindMatchesRequest>,
    waiting: Arc<Waiting>,
) {
    let end = match stub.find_matches_stream(ReceiverStream::new(questions)).await {
        Ok(answers) => deliver_answers(answers.into_inner(), &waiting).await,
        Err(status) => End::Broken(status),
    };
    let end = match end {
        // The server has too many streams: it may still answer single calls.
        End::Broken(status) if status.code() == Code::ResourceExhausted => End::Done,
        end @ (End::Done | End::Broken(_)) => end,
    };
    waiting.end_all(end);
}

/// Delivers answers until the stream ends. Returns how it ended.
async fn deliver_answers(
    mut answers: Streaming<FindMatchesStreamResponse>,
    waiting: &Waiting,
) -> End {
    loop {
        let answer = match answers.message().await {
            Ok(Some(answer)) => answer,
            Ok(None) => return End::Done,
            Err(status) => return End::Broken(status),
        };
        let outcome = match answer.outcome {
            Some(Outcome::Matches(matches)) => Ok(matches),
            Some(Outcome::Error(error)) => Err(Status::new(Code::from(error.code), error.message)),
            None => Err(Status::internal("an answer of the stream is empty")),
        };
        waiting.answer(answer.request_id, outcome);
    }
}

/// No code panics while it has the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
