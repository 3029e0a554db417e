use crate::harness::{
    Publisher, Server, assert_refused, begin_request, hello, query, registration, within,
};
use bytes::{Buf, BufMut};
use futures::stream;
use kvasir_proto::limits::{GRPC_MESSAGE_BYTES_MAX, WORKER_SOURCES_MAX};
use kvasir_proto::pb;
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_proto::pb::publish_events_request::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};

#[tokio::test]
async fn a_message_may_be_8_mib_and_no_more() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let padded =
        |bytes| pb::FindMatchesRequest { token_ids_le: vec![0; bytes].into(), ..query(&[]) };
    let status = client.find_matches(padded(GRPC_MESSAGE_BYTES_MAX - 64)).await;
    assert_eq!(status.expect_err("too many tokens").code(), Code::InvalidArgument);
    let status = client.find_matches(padded(GRPC_MESSAGE_BYTES_MAX)).await;
    assert_eq!(status.expect_err("too many bytes").code(), Code::OutOfRange);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn calls_that_end_for_a_message_that_is_too_long_are_counted() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let too_long = || pb::FindMatchesRequest {
        token_ids_le: vec![0; GRPC_MESSAGE_BYTES_MAX].into(),
        ..query(&[])
    };
    let refused = client.find_matches(too_long()).await.map(drop);
    assert_eq!(refused.expect_err("too long").code(), Code::OutOfRange);
    let refused = within(async {
        let answers = client.find_matches_stream(stream::iter([query(&[1]), too_long()])).await?;
        let mut answers = answers.into_inner();
        while answers.message().await?.is_some() {}
        Ok::<_, Status>(())
    });
    assert_eq!(refused.await.expect_err("too long").code(), Code::OutOfRange);
    let mut publisher = Publisher::raw(server.channel().await).await;
    publisher.send(Message::Hello(hello("w", &"s".repeat(GRPC_MESSAGE_BYTES_MAX), 1))).await;
    assert_eq!(publisher.answer().await.expect_err("too long").code(), Code::OutOfRange);
    // Requests refused for other reasons are not counted.
    client.find_matches(query(&[])).await.expect_err("nothing to look for");
    let (_, metrics) = server.http("/metrics").await;
    for call in ["FindMatches", "FindMatchesStream", "PublishEvents"] {
        let line = format!("kvasir_grpc_messages_too_long_total{{call=\"{call}\"}} 1\n");
        assert!(metrics.contains(&line), "no {line} in {metrics}");
    }
    server.stop().await.expect("a clean stop");
}

/// A publisher that announces a frame of one TiB to each client.
async fn boast(listener: TcpListener) {
    let mut sent = [0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1].to_vec();
    sent.extend(b"NULL");
    sent.resize(64, 0);
    let ready = [&[5][..], b"READY", &[11], b"Socket-Type", &[0, 0, 0, 3], b"PUB"].concat();
    sent.extend([4, u8::try_from(ready.len()).expect("short")]);
    sent.extend(ready);
    // A long frame, the last one of its message.
    sent.push(2);
    sent.extend((1_u64 << 40).to_be_bytes());
    loop {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        stream.write_all(&sent).await.expect("an open connection");
        // Read until the other side closes the connection.
        let _end = stream.read_to_end(&mut Vec::new()).await;
    }
}

#[tokio::test]
async fn connections_to_engines_that_go_beyond_a_limit_are_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let mut engine = tokio::task::JoinSet::new();
    engine.spawn(boast(listener));
    let worker = format!("--worker=id=w,model=m,block-size=4,endpoint=tcp://{address}");
    let server = Server::start(&[&worker]).await;
    let counted = "kvasir_engine_connections_cut_total{reason=\"frame_bytes\"} ";
    within(async { while !server.http("/metrics").await.1.contains(counted) {} }).await;
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_at_once() {
    let server = Server::start(&["--limits=connections=1"]).await;
    let _first = server.channel().await;
    let mut second = TcpStream::connect(server.addresses.grpc).await.expect("a backlog");
    let mut byte = [0];
    let read = within(second.read(&mut byte)).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    let (_, metrics) = server.http("/metrics").await;
    assert!(metrics.contains("kvasir_grpc_connections_refused_total 1\n"), "{metrics}");
    assert!(metrics.contains("kvasir_grpc_connections 1\n"), "{metrics}");
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn requests_beyond_the_limit_are_refused_even_while_bodies_are_on_their_way() {
    let (server, mut client) = Server::with_worker(&["--limits=in-flight=1"]).await;
    let pending = begin_request(&server).await;
    within(async {
        while !server.http("/metrics").await.1.contains("kvasir_grpc_requests_in_flight 1\n") {}
    })
    .await;
    assert_refused(
        client.find_matches(query(&[1])).await,
        Code::ResourceExhausted,
        "1 requests are under way, the limit: retry later",
    );
    let stats = client.get_stats(pb::GetStatsRequest {}).await;
    assert_refused(
        stats,
        Code::ResourceExhausted,
        "1 requests are under way, the limit: retry later",
    );
    let mut stream = client.find_matches_stream(stream::iter([query(&[1])])).await;
    let answer = stream.as_mut().expect("streams have a limit of their own").get_mut().message();
    answer.await.expect("an answer").expect("an outcome");
    let (_, metrics) = server.http("/metrics").await;
    assert!(metrics.contains("kvasir_grpc_requests_refused_total 2\n"), "{metrics}");
    drop(pending);
    within(async { while client.find_matches(query(&[1])).await.is_err() {} }).await;
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused_until_others_end() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut open = Vec::new();
    for _ in 0..22 {
        let mut client = server.indexer().await;
        for _ in 0..32 {
            let (requests, queue) = mpsc::channel(1);
            let begun = within(client.find_matches_stream(ReceiverStream::new(queue))).await;
            open.push((requests, begun.expect("a stream within the limit")));
        }
        let refusal = "32 streams of this connection other than PublishEvents are open, the limit: retry later";
        let more = client.find_matches_stream(stream::empty()).await;
        assert_refused(more.map(drop), Code::ResourceExhausted, refusal);
    }
    let refusal = "704 streams of queries are open, the limit: retry later";
    let more = client.find_matches_stream(stream::empty()).await;
    assert_refused(more.map(drop), Code::ResourceExhausted, refusal);
    let dump = pb::DumpWorkerRequest {
        model: "m".to_owned(),
        worker_id: "w".to_owned(),
        ..Default::default()
    };
    client.dump_worker(dump).await.expect("some streams are for dumps");
    client.find_matches(query(&[1])).await.expect("requests have a limit of their own");
    drop(open.pop());
    within(async { while client.find_matches_stream(stream::empty()).await.is_err() {} }).await;
    let (_, metrics) = server.http("/metrics").await;
    assert!(metrics.contains("kvasir_http_connections_refused_total 0\n"), "{metrics}");
    drop(open);
    within(async { while !server.http("/metrics").await.1.contains("kvasir_grpc_streams 0\n") {} })
        .await;
    server.stop().await.expect("a clean stop");
}

/// Encoded requests, because a client would need too much memory to build them.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&bytes);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, answer: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        answer.advance(answer.remaining());
        Ok(Some(()))
    }
}

#[tokio::test]
async fn millions_of_empty_entries_are_refused_by_the_name_of_their_list() {
    let (server, _client) = Server::with_worker(&[]).await;
    let mut raw = Grpc::new(server.channel().await);
    // Field 2, the batch, of 8,000,000 bytes: 4,000,000 times an empty field 3, an event.
    let batch = [&[0x12, 0x80, 0xa4, 0xe8, 0x03][..], &[0x1a, 0].repeat(4_000_000)].concat();
    raw.ready().await.expect("an open channel");
    let path = PathAndQuery::from_static("/kvasir.v1.EventIngest/PublishEvents");
    let requests = Request::new(stream::iter([batch]));
    let answers = within(raw.streaming(requests, path, Raw)).await.expect("a stream");
    assert_refused(
        within(answers.into_inner().message()).await,
        Code::InvalidArgument,
        "batch.events has 4000000 entries, the limit is 4096: send fewer",
    );
    raw.ready().await.expect("an open channel");
    let path = PathAndQuery::from_static("/kvasir.v1.Indexer/RegisterWorker");
    let endpoints = Request::new([0x32, 0].repeat(500_000));
    assert_refused(
        within(raw.unary(endpoints, path, Raw)).await.map(drop),
        Code::InvalidArgument,
        "endpoints has 500000 entries, the limit is 64: send fewer",
    );
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_worker_has_so_many_sources_and_no_more() {
    let (server, _client) = Server::with_worker(&[]).await;
    let channel = server.channel().await;
    let mut open = Vec::new();
    for source in 0..WORKER_SOURCES_MAX {
        open.push(Publisher::open(channel.clone(), hello("w", &source.to_string(), 1)).await);
    }
    let mut more = Publisher::raw(server.channel().await).await;
    more.send(Message::Hello(hello("w", "more", 1))).await;
    assert_refused(
        more.answer().await,
        Code::ResourceExhausted,
        "worker w has 128 sources, the limit",
    );
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn many_connections_and_requests_at_once_are_all_answered() {
    let (server, mut client) = Server::with_worker(&[]).await;
    client.register_worker(registration("v")).await.expect("a second worker");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = IndexerClient::new(server.channel().await);
        for _ in 0..100 {
            let mut client = client.clone();
            tasks.spawn(async move { client.find_matches(query(&[1, 2])).await.map(drop) });
        }
    }
    let outcomes = within(tasks.join_all()).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let stats = client.get_stats(pb::GetStatsRequest {}).await.expect("stats").into_inner();
    assert_eq!((stats.queries, stats.query_blocks, stats.hit_blocks), (400, 800, 0));
    server.stop().await.expect("a clean stop");
}
