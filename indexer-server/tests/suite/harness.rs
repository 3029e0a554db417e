//! One server, its clients, and requests without optional fields.

use indexer_server::app::{App, RunError};
use indexer_server::config::{self, Action, Config};
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_proto::pb::{self, publish_events_request, publish_events_response, published_event};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

/// Test timeout, far longer than any step takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const BLOCK_SIZE: u32 = 4;

/// Addresses of the ports.
#[derive(Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
}

pub(crate) struct Server {
    pub(crate) addresses: Addresses,
    stop: oneshot::Sender<()>,
    done: JoinSet<Result<(), RunError>>,
}

impl Server {
    pub(crate) async fn start(flags: &[&str]) -> Self {
        Self::start_changed(flags, |_config| {}).await
    }

    /// A server with a configuration that differs from the flags'.
    pub(crate) async fn start_changed(flags: &[&str], change: impl FnOnce(&mut Config)) -> Self {
        let fixed = ["indexer-server", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0"];
        let arguments = fixed.iter().chain(flags).map(OsString::from);
        let Ok(Action::Run(mut config, _)) = config::read(arguments) else {
            panic!("{flags:?} are refused")
        };
        change(&mut config);
        let app = App::build(*config).await.expect("free ports");
        let grpc = app.grpc_address().expect("a port");
        let http = app.http_address().expect("a port");
        let addresses = Addresses { grpc, http };
        let (stop, stopped) = oneshot::channel();
        let mut done = JoinSet::new();
        done.spawn(app.run(async move {
            let _dropped = stopped.await;
        }));
        Self { addresses, stop, done }
    }

    pub(crate) async fn channel(&self) -> Channel {
        let url = format!("http://{}", self.addresses.grpc);
        let endpoint = Channel::from_shared(url).expect("a URL");
        within(endpoint.connect()).await.expect("a server that listens")
    }

    pub(crate) async fn indexer(&self) -> IndexerClient<Channel> {
        IndexerClient::new(self.channel().await)
    }

    /// A server, a client, and one registered worker "w" of model "m" that pushes.
    pub(crate) async fn with_worker(flags: &[&str]) -> (Self, IndexerClient<Channel>) {
        let server = Self::start(flags).await;
        let client = server.with_client().await;
        (server, client)
    }

    /// A client, and one registered worker "w" of model "m" that pushes.
    pub(crate) async fn with_client(&self) -> IndexerClient<Channel> {
        let mut client = self.indexer().await;
        client.register_worker(registration("w")).await.expect("a first worker");
        client
    }

    pub(crate) async fn publisher(&self, hello: pb::PublishHello) -> Publisher {
        Publisher::open(self.channel().await, hello).await
    }

    pub(crate) fn request_stop(self) -> JoinSet<Result<(), RunError>> {
        self.stop.send(()).expect("a server that runs");
        self.done
    }

    pub(crate) async fn stop(self) -> Result<(), RunError> {
        let mut done = self.request_stop();
        within(done.join_next()).await.expect("one task").expect("no panic")
    }

    /// Status and body of a GET on the side port.
    pub(crate) async fn http(&self, path: &str) -> (u16, String) {
        http_get(self.addresses.http, path).await.expect("a side port that listens")
    }
}

pub(crate) async fn http_get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut response = String::new();
    within(stream.read_to_string(&mut response)).await.ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    timeout(PATIENCE, future).await.expect("done in time")
}

/// An open `PublishEvents` stream.
pub(crate) struct Publisher {
    requests: mpsc::Sender<pb::PublishEventsRequest>,
    answers: Streaming<pb::PublishEventsResponse>,
    pub(crate) accepted: Option<pb::PublishAccepted>,
}

impl Publisher {
    pub(crate) async fn open(channel: Channel, hello: pb::PublishHello) -> Self {
        let mut publisher = Self::raw(channel).await;
        publisher.send(publish_events_request::Message::Hello(hello)).await;
        match publisher.answer().await {
            Ok(Some(publish_events_response::Message::Accepted(accepted))) => {
                publisher.accepted = Some(accepted);
            }
            other => panic!("the hello is refused: {other:?}"),
        }
        publisher
    }

    /// A stream without a hello.
    pub(crate) async fn raw(channel: Channel) -> Self {
        let (requests, queue) = mpsc::channel(16);
        let mut client = EventIngestClient::new(channel);
        let answers = within(client.publish_events(ReceiverStream::new(queue))).await;
        let answers = answers.expect("an open stream").into_inner();
        Self { requests, answers, accepted: None }
    }

    pub(crate) async fn send(&self, message: publish_events_request::Message) {
        let request = pb::PublishEventsRequest { message: Some(message) };
        self.requests.send(request).await.expect("an open stream");
    }

    pub(crate) async fn answer(
        &mut self,
    ) -> Result<Option<publish_events_response::Message>, tonic::Status> {
        let answer = within(self.answers.message()).await?;
        Ok(answer.and_then(|answer| answer.message))
    }

    /// Sends a batch for rank 0 and returns the answer to it.
    pub(crate) async fn batch(
        &mut self,
        sequence: u64,
        events: Vec<published_event::Event>,
    ) -> publish_events_response::Message {
        let events = events.into_iter().map(|event| pb::PublishedEvent { event: Some(event) });
        let batch = pb::PublishBatch { sequence, dp_rank: 0, events: events.collect() };
        self.send(publish_events_request::Message::Batch(batch)).await;
        self.answer().await.expect("an open stream").expect("an answer")
    }

    /// Like [`batch`](Self::batch), for a batch that must be applied.
    pub(crate) async fn acked(
        &mut self,
        sequence: u64,
        events: Vec<published_event::Event>,
    ) -> pb::PublishAck {
        match self.batch(sequence, events).await {
            publish_events_response::Message::Ack(ack) => ack,
            other => panic!("batch {sequence} is refused: {other:?}"),
        }
    }

    pub(crate) async fn refused(
        &mut self,
        sequence: u64,
        events: Vec<published_event::Event>,
    ) -> pb::PublishRefusal {
        match self.batch(sequence, events).await {
            publish_events_response::Message::Refusal(refusal) => refusal,
            other => panic!("batch {sequence} is not refused: {other:?}"),
        }
    }
}

pub(crate) fn registration(worker: &str) -> pb::RegisterWorkerRequest {
    pb::RegisterWorkerRequest {
        worker_id: worker.to_owned(),
        model: "m".to_owned(),
        block_size: BLOCK_SIZE,
        ..Default::default()
    }
}

pub(crate) fn hello(worker: &str, source: &str, incarnation: u8) -> pb::PublishHello {
    pb::PublishHello {
        model: "m".to_owned(),
        worker_id: worker.to_owned(),
        source: source.to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: vec![incarnation; 16].into(),
        ..Default::default()
    }
}

/// A chain of blocks with these names after `parent`. Their local hashes are ten times the names.
pub(crate) fn stored(parent: Option<u64>, names: &[u64]) -> published_event::Event {
    published_event::Event::Stored(pb::BlocksStored {
        parent_name: parent,
        names: names.to_vec(),
        local_hashes: names.iter().map(|name| name * 10).collect(),
        ..Default::default()
    })
}

pub(crate) fn removed(names: &[u64]) -> published_event::Event {
    let names = names.to_vec();
    published_event::Event::Removed(pb::BlocksRemoved { names, ..Default::default() })
}

/// A query for the blocks that [`stored`] creates for these names.
pub(crate) fn query(names: &[u64]) -> pb::FindMatchesRequest {
    pb::FindMatchesRequest {
        model: "m".to_owned(),
        local_hashes: names.iter().map(|name| name * 10).collect(),
        ..Default::default()
    }
}

/// (worker, rank, blocks) of an answer, in the answer's order.
pub(crate) fn scores(answer: &pb::FindMatchesResponse) -> Vec<(&str, u32, u32)> {
    let matches = answer.matches.iter();
    matches.map(|at| (&*at.worker_id, at.dp_rank, at.matched_blocks)).collect()
}

pub(crate) fn assert_refused<T: std::fmt::Debug>(
    outcome: Result<T, tonic::Status>,
    code: Code,
    message: &str,
) {
    let status = outcome.expect_err(message);
    assert_eq!((status.code(), status.message()), (code, message));
}

/// Value of a counter in `GetStats`, summed over all reasons.
pub(crate) fn counter(stats: &pb::GetStatsResponse, unit: &str, outcome: &str) -> u64 {
    let named = stats.counters.iter().filter(|at| at.unit == unit && at.outcome == outcome);
    named.map(|at| at.count).sum()
}

/// Sends a `FindMatches` request without its body, byte by byte: preface, settings, headers.
pub(crate) async fn begin_request(server: &Server) -> TcpStream {
    let mut headers = Vec::new();
    // HPACK: :method POST and :scheme http are indexed, the others literal, never indexed.
    headers.extend([0x83, 0x86]);
    for (name, value) in [
        (":path", "/kvasir.v1.Indexer/FindMatches"),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        headers.push(0x10);
        for text in [name, value] {
            headers.push(u8::try_from(text.len()).expect("short"));
            headers.extend(text.as_bytes());
        }
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    let length = u32::try_from(headers.len()).expect("short").to_be_bytes();
    bytes.extend(&length[1..]);
    // HEADERS with END_HEADERS on stream 1.
    bytes.extend([1, 4, 0, 0, 0, 1]);
    bytes.extend(headers);
    let mut stream = TcpStream::connect(server.addresses.grpc).await.expect("a listener");
    stream.write_all(&bytes).await.expect("an open connection");
    stream
}
