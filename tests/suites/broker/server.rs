//! The harness itself: a server that is killed comes back with what it acknowledged.

use async_nats::jetstream;
use async_nats::jetstream::stream::Config;
use kvasir_tests::nats::NatsServer;
use std::time::Duration;
use tokio::time::timeout;

/// Nothing in these tests takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn what_a_killed_server_acknowledged_is_there_when_it_is_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = NatsServer::start(folder.path()).await.expect("a server");
    let url = server.url();
    let context = jetstream::new(async_nats::connect(&url).await.expect("a connection"));
    let name = "kept".to_owned();
    let config = Config { name, subjects: vec!["kept.>".to_owned()], ..Config::default() };
    context.create_stream(config).await.expect("a stream");
    let acknowledgement = context.publish("kept.one", "1".into()).await.expect("it is sent");
    assert_eq!(acknowledgement.await.expect("it is acknowledged").sequence, 1);

    server.kill().await;
    async_nats::connect(&url).await.expect_err("nobody listens");
    server.restart().await.expect("the server again");
    assert_eq!(server.url(), url);
    let context = jetstream::new(async_nats::connect(&url).await.expect("a connection"));
    let asked = async {
        let stream = context.get_stream("kept").await.expect("the stream");
        stream.get_raw_message(1).await.expect("the message")
    };
    let message = timeout(PATIENCE, asked).await.expect("an answer");
    assert_eq!((message.subject.as_str(), &message.payload[..]), ("kept.one", &b"1"[..]));

    server.terminate().await.expect("it ends");
    server.restart().await.expect("the server again");
    async_nats::connect(&url).await.expect("it accepts");
}

#[tokio::test]
async fn servers_stand_side_by_side_each_with_its_configuration() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [small, plain] = &folders;
    let small = NatsServer::start_with(small.path(), "max_payload: 4096").await.expect("a server");
    let plain = NatsServer::start(plain.path()).await.expect("a server");
    for (server, max_payload) in [(&small, 4_096), (&plain, 1 << 20)] {
        let client = async_nats::connect(server.url()).await.expect("a connection");
        assert_eq!(client.server_info().max_payload, max_payload);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let error = NatsServer::start_with(folder.path(), "no_such_word: 1").await;
    let text = error.expect_err("an unknown word").to_string();
    assert!(text.contains("no_such_word"), "{text}");
}
