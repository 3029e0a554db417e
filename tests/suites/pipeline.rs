//! The router's client and its pipelined stream: against servers made here, which answer as told, and
//! against a real one that goes and comes back.

use futures::future::{BoxFuture, join_all};
use futures::{FutureExt, Stream, StreamExt, stream};
use kvasir_proto::codec::BoundedCodec;
use kvasir_proto::pb;
use kvasir_proto::pb::find_matches_stream_response::Outcome;
use kvasir_sim::client;
use kvasir_sim::server::Server as Indexer;
use router_client::{Answer, Calls, ClientConfig, ClientError, IndexerClient, Prompt};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{Grpc, NamedService, StreamingService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status, Streaming};
use tower::Service;

/// Nothing in these tests takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(30);
const BLOCK_SIZE: u32 = 1;

/// What a server does with its first stream; it serves later ones well.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    /// Serves it well.
    Answers,
    /// Answers so many questions and then ends it with an error.
    Breaks(usize),
    /// Answers so many questions and ends it without an error when the next one comes.
    Ends(usize),
    /// Takes questions and never answers.
    Stalls,
    /// Knows no streams at all.
    Unknown,
}

/// A server that "holds" as many blocks of a prompt as the prompt has, at worker `w`. It refuses
/// questions for model "unknown".
#[derive(Clone)]
struct Fake {
    first: First,
    streams: Arc<AtomicUsize>,
    singles: Arc<AtomicUsize>,
}

fn answer(request: &pb::FindMatchesRequest) -> Result<pb::FindMatchesResponse, Status> {
    if request.model == "unknown" {
        return Err(Status::not_found("no such model"));
    }
    let blocks = u32::try_from(request.local_hashes.len()).expect("a short prompt");
    let found =
        pb::WorkerMatch { worker_id: "w".to_owned(), matched_blocks: blocks, ..Default::default() };
    Ok(pb::FindMatchesResponse {
        request_id: request.request_id,
        query_blocks: blocks,
        matches: vec![found],
        ..Default::default()
    })
}

fn stream_answer(request: &pb::FindMatchesRequest) -> pb::FindMatchesStreamResponse {
    let outcome = match answer(request) {
        Ok(matches) => Outcome::Matches(matches),
        Err(error) => Outcome::Error(pb::StreamError {
            code: error.code().into(),
            message: error.message().to_owned(),
        }),
    };
    pb::FindMatchesStreamResponse { request_id: request.request_id, outcome: Some(outcome) }
}

type Answers = Pin<Box<dyn Stream<Item = Result<pb::FindMatchesStreamResponse, Status>> + Send>>;

impl UnaryService<pb::FindMatchesRequest> for Fake {
    type Response = pb::FindMatchesResponse;
    type Future = BoxFuture<'static, Result<Response<pb::FindMatchesResponse>, Status>>;

    fn call(&mut self, request: Request<pb::FindMatchesRequest>) -> Self::Future {
        self.singles.fetch_add(1, Ordering::SeqCst);
        async move { answer(request.get_ref()).map(Response::new) }.boxed()
    }
}

impl StreamingService<pb::FindMatchesRequest> for Fake {
    type Response = pb::FindMatchesStreamResponse;
    type ResponseStream = Answers;
    type Future = BoxFuture<'static, Result<Response<Answers>, Status>>;

    fn call(&mut self, request: Request<Streaming<pb::FindMatchesRequest>>) -> Self::Future {
        let number = self.streams.fetch_add(1, Ordering::SeqCst);
        let first =
            if number == 0 || self.first == First::Unknown { self.first } else { First::Answers };
        let questions = request.into_inner();
        let answers = questions.map(|question| question.map(|question| stream_answer(&question)));
        let answers: Answers = match first {
            First::Answers => answers.boxed(),
            First::Breaks(count) => {
                let end = stream::once(async { Err(Status::aborted("broken")) });
                answers.take(count).chain(end).boxed()
            }
            First::Ends(count) => {
                let counted = answers.enumerate();
                let first = counted.take_while(move |(at, _)| std::future::ready(*at < count));
                first.map(|(_, answer)| answer).boxed()
            }
            First::Stalls => {
                // Questions are read, so that it is not the transport that stalls.
                answers.filter(|_| std::future::ready(false)).boxed()
            }
            First::Unknown => {
                return async { Err(Status::unimplemented("no such call")) }.boxed();
            }
        };
        async move { Ok(Response::new(answers)) }.boxed()
    }
}

impl NamedService for Fake {
    const NAME: &'static str = "kvasir.v1.Indexer";
}

impl Service<http::Request<Body>> for Fake {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let fake = self.clone();
        if request.uri().path().ends_with("Stream") {
            async move { Ok(Grpc::new(BoundedCodec::default()).streaming(fake, request).await) }
                .boxed()
        } else {
            async move { Ok(Grpc::new(BoundedCodec::default()).unary(fake, request).await) }.boxed()
        }
    }
}

/// A fake that listens, until `tasks` is dropped.
async fn fake(first: First, tasks: &mut JoinSet<()>) -> (Fake, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let fake = Fake { first, streams: Arc::default(), singles: Arc::default() };
    let server = tonic::transport::Server::builder().add_service(fake.clone());
    tasks.spawn(async move {
        server.serve_with_incoming(TcpIncoming::from(listener)).await.expect("a server");
    });
    (fake, address)
}

fn client_of(address: SocketAddr, config: ClientConfig) -> IndexerClient {
    IndexerClient::connect(&format!("http://{address}"), config).expect("a URL")
}

fn patient() -> ClientConfig {
    ClientConfig { deadline: PATIENCE, ..ClientConfig::default() }
}

/// Asks for a prompt of so many blocks.
async fn ask(client: &IndexerClient, model: &str, blocks: u32) -> Result<Answer, ClientError> {
    let tokens: Vec<u32> = (0..blocks * BLOCK_SIZE).collect();
    client.find(&Prompt::new(model, BLOCK_SIZE, &tokens)).await
}

fn blocks_of(answer: Result<Answer, ClientError>) -> u32 {
    answer.expect("an answer").best().expect("a match").blocks
}

fn code(answer: Result<Answer, ClientError>) -> Code {
    match answer {
        Err(ClientError::Status(status)) => status.code(),
        other => panic!("not a status: {other:?}"),
    }
}

/// Asks, and checks that the answer is to this question; every tenth one is refused.
async fn own_answer(client: &IndexerClient, blocks: u32) {
    if blocks.is_multiple_of(10) {
        assert_eq!(code(ask(client, "unknown", blocks).await), Code::NotFound, "{blocks}");
    } else {
        assert_eq!(blocks_of(ask(client, "m", blocks).await), blocks);
    }
}

#[tokio::test]
async fn everybody_gets_the_answer_to_the_own_question_and_refusals_hurt_nobody_else() {
    for (calls, streams) in [(Calls::Pipelined, 1), (Calls::Single, 0)] {
        let mut tasks = JoinSet::new();
        let (fake, address) = fake(First::Answers, &mut tasks).await;
        // Fewer turns than questions.
        let config = ClientConfig { calls, in_flight_max: 16, ..patient() };
        let client = client_of(address, config);
        let questions = (1..=200).map(|blocks| own_answer(&client, blocks));
        join_all(questions).await;
        assert_eq!(fake.streams.load(Ordering::SeqCst), streams);
        let singles = fake.singles.load(Ordering::SeqCst);
        assert_eq!(singles, if streams == 0 { 200 } else { 0 });
    }
}

#[tokio::test]
async fn a_stream_that_breaks_is_replaced() {
    let mut tasks = JoinSet::new();
    let (fake, address) = fake(First::Breaks(3), &mut tasks).await;
    let client = client_of(address, patient());
    for blocks in 1..=3 {
        assert_eq!(blocks_of(ask(&client, "m", blocks).await), blocks);
    }
    // The break may be noticed before the next question is asked, or fail it.
    match ask(&client, "m", 4).await {
        Err(ClientError::Status(status)) => assert_eq!(status.code(), Code::Aborted),
        answer => assert_eq!(blocks_of(answer), 4),
    }
    for blocks in 5..=8 {
        assert_eq!(blocks_of(ask(&client, "m", blocks).await), blocks);
    }
    assert_eq!(fake.streams.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn those_who_wait_in_a_stream_that_breaks_are_told() {
    let mut tasks = JoinSet::new();
    let (_, address) = fake(First::Breaks(0), &mut tasks).await;
    let client = client_of(address, patient());
    let outcomes = join_all((1..=20).map(|blocks| ask(&client, "m", blocks))).await;
    // All were asked before the stream could break.
    for outcome in outcomes {
        assert_eq!(code(outcome), Code::Aborted);
    }
}

#[tokio::test]
async fn those_who_wait_in_a_stream_that_ends_without_an_error_are_answered() {
    let mut tasks = JoinSet::new();
    let (fake, address) = fake(First::Ends(3), &mut tasks).await;
    let client = client_of(address, patient());
    let answers = join_all((1..=20).map(|blocks| ask(&client, "m", blocks))).await;
    for (blocks, answer) in (1..).zip(answers) {
        assert_eq!(blocks_of(answer), blocks);
    }
    assert_eq!(blocks_of(ask(&client, "m", 21).await), 21);
    assert!(fake.streams.load(Ordering::SeqCst) >= 2);
}

#[tokio::test]
async fn a_stream_that_stalls_costs_one_deadline() {
    let mut tasks = JoinSet::new();
    let (fake, address) = fake(First::Stalls, &mut tasks).await;
    let deadline = Duration::from_millis(200);
    let client = client_of(address, ClientConfig { deadline, ..patient() });
    for outcome in join_all((1..=20).map(|blocks| ask(&client, "m", blocks))).await {
        let error = outcome.expect_err("nobody answers");
        assert!(matches!(error, ClientError::DeadlineExceeded { .. }), "{error:?}");
    }
    // The next question finds a new stream, and has patience on a slow machine.
    let patient = async {
        loop {
            if let Ok(answer) = ask(&client, "m", 7).await {
                return answer;
            }
        }
    };
    let answer = tokio::time::timeout(PATIENCE, patient).await.expect("an answer");
    assert_eq!(blocks_of(Ok(answer)), 7);
    assert!(fake.streams.load(Ordering::SeqCst) >= 2);
}

#[tokio::test]
async fn a_server_without_streams_is_asked_by_single_calls() {
    let mut tasks = JoinSet::new();
    let (fake, address) = fake(First::Unknown, &mut tasks).await;
    let client = client_of(address, patient());
    for blocks in 1..=5 {
        assert_eq!(blocks_of(ask(&client, "m", blocks).await), blocks);
    }
    assert_eq!(code(ask(&client, "unknown", 1).await), Code::NotFound);
    assert_eq!(fake.streams.load(Ordering::SeqCst), 1, "it is remembered");
    assert_eq!(fake.singles.load(Ordering::SeqCst), 6);
}

#[tokio::test]
async fn questions_that_are_given_up_leave_nothing_behind() {
    let mut tasks = JoinSet::new();
    let (fake, address) = fake(First::Answers, &mut tasks).await;
    let client = client_of(address, ClientConfig { in_flight_max: 1, ..patient() });
    assert_eq!(blocks_of(ask(&client, "m", 1).await), 1);
    for blocks in 2..50 {
        // Asked and dropped at once: its answer comes and nobody wants it.
        let mut given_up = Box::pin(ask(&client, "m", blocks));
        assert!(futures::poll!(given_up.as_mut()).is_pending());
        drop(given_up);
        assert_eq!(blocks_of(ask(&client, "m", 100).await), 100);
    }
    assert_eq!(fake.streams.load(Ordering::SeqCst), 1, "who gives up early hurts nobody else");
}

#[tokio::test]
async fn a_server_that_comes_back_is_asked_again() {
    let mut first = Indexer::start_anywhere().await.expect("a server");
    let address = first.addresses.grpc;
    let client = client_of(address, patient());
    let register = async || {
        let mut indexer = client::connect(address).await.expect("a server that listens");
        let request = pb::RegisterWorkerRequest {
            worker_id: "w".to_owned(),
            model: "m".to_owned(),
            block_size: BLOCK_SIZE,
            ..Default::default()
        };
        indexer.register_worker(request).await.expect("a first worker");
    };
    register().await;
    assert_eq!(ask(&client, "m", 3).await.expect("an answer").query_blocks, 3);
    first.stop().await;
    assert_eq!(code(ask(&client, "m", 3).await), Code::Unavailable);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut second = Indexer::start(address, any).await.expect("a server");
    assert_eq!(second.addresses.grpc, address, "the port was taken meanwhile");
    register().await;
    assert_eq!(ask(&client, "m", 4).await.expect("an answer").query_blocks, 4);
    second.stop().await;
}
