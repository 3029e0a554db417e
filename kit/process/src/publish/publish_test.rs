use super::*;
use crate::net::{Limit, Peer, PeerLimits};
use futures::FutureExt;
use futures::stream::iter;
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::event_ingest_server::{EventIngest, EventIngestServer};
use kvasir_proto::pb::publish_events_request::Message as Sent;
use kvasir_proto::pb::{PublishBatch, PublishHello};
use prometheus_client::metrics::gauge::Gauge;
use prost::Message as _;
use std::sync::Mutex;
use tokio::sync::oneshot;
use tokio::time::sleep;

/// Senders for the answers to applied batches.
type Applied = Arc<Mutex<Vec<oneshot::Sender<Answer>>>>;

#[derive(Clone, Default)]
struct Slow {
    applied: Applied,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Slow {
    fn under_way(&self) -> usize {
        self.applied.lock().expect("a lock").len()
    }

    /// Answers the first waiting batch.
    fn answer(&self) {
        let first = self.applied.lock().expect("a lock").remove(0);
        let answer = Answer::Acked { duplicate: false, applied: 1, noop: 0, rejected: 0 };
        first.send(answer).expect("a stream that waits");
    }
}

impl Sources for Slow {
    type Session = Self;

    async fn open(
        &self,
        _hello: &Hello,
        _peer: Option<SocketAddr>,
    ) -> Result<(Self, Option<Cursor>), Status> {
        Ok((self.clone(), None))
    }

    fn note_no_hello(&self, _peer: Option<SocketAddr>, _error: &Status) {}

    fn stopping(&self) -> Status {
        Status::unavailable("stopping")
    }
}

impl Session for Slow {
    fn fenced(&self) -> &CancellationToken {
        &self.stop
    }

    fn block_size(&self) -> u32 {
        4
    }

    async fn apply(&self, _batch: PublishedBatch) -> PendingAnswer {
        let (answer, answered) = oneshot::channel();
        self.applied.lock().expect("a lock").push(answer);
        answered.map(|answer| answer.map_err(|_dropped| Status::internal("dropped"))).boxed()
    }

    async fn heartbeat(&self, _heartbeat: Heartbeat) {}

    async fn expected(&self) -> u64 {
        0
    }

    fn note_unreadable(&self, _sequence: u64, _error: &dyn fmt::Display) {}

    fn note_malformed(&self, _error: &dyn fmt::Display) {}

    async fn close(self) {}
}

#[tonic::async_trait]
impl EventIngest for Slow {
    type PublishEventsStream = Answers;

    async fn publish_events(
        &self,
        request: Request<Streaming<PublishEventsRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let sources = Arc::new(self.clone());
        Ok(publish_events(sources, request, (&self.tasks, &self.stop), ()))
    }
}

fn request(message: Sent) -> PublishEventsRequest {
    PublishEventsRequest { message: Some(message) }
}

fn batch(sequence: u64) -> PublishEventsRequest {
    request(Sent::Batch(PublishBatch { sequence, ..Default::default() }))
}

#[tokio::test(start_paused = true)]
async fn no_more_batches_are_read_than_there_is_room_for() {
    const BATCHES: u64 = 10;
    let hello = request(Sent::Hello(PublishHello {
        model: "m".to_owned(),
        worker_id: "w".to_owned(),
        source: "s".to_owned(),
        block_size: 4,
        incarnation: vec![1; 16].into(),
        ..Default::default()
    }));
    let bytes = batch(1).encoded_len();
    let held = Gauge::default();
    let total = Gauge::default();
    let port = Limit::new(3 * bytes, held.clone()).counted_in(total.clone());
    let limits = PeerLimits { batch_bytes: 5 * bytes, ..PeerLimits::default() };
    let room = BatchRoom::new(port, Arc::new(Peer::new(None, limits)));
    let messages = [hello].into_iter().chain((1..=BATCHES).map(batch));
    let mut publishing = Request::new(iter(messages));
    publishing.extensions_mut().insert(room);
    let slow = Slow::default();
    let mut client = EventIngestClient::new(EventIngestServer::new(slow.clone()));
    let mut answers = client.publish_events(publishing).await.expect("a stream").into_inner();
    answers.message().await.expect("a stream").expect("the hello is accepted");
    for _ in 0..BATCHES {
        // When this sleep ends, all other tasks have run as far as they can.
        sleep(Duration::from_secs(1)).await;
        let under_way = slow.under_way();
        assert!((1..=3).contains(&under_way), "{under_way}");
        let expected = i64::try_from(under_way * bytes).expect("few");
        assert_eq!((held.get(), total.get()), (expected, expected));
        slow.answer();
        answers.message().await.expect("a stream").expect("an ack");
    }
    assert!(answers.message().await.expect("a stream").is_none(), "it is over");
    assert_eq!((held.get(), total.get()), (0, 0));
}
