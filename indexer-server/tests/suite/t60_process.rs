use crate::harness::{http_get, within};
use axum::{body::Bytes, http::Uri};
use kvasir_proto::pb::{self, indexer_client::IndexerClient};
use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Output, Stdio},
};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Status, service::Routes, transport::Server};

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_indexer-server"));
    command.env_clear();
    command
}

fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("a binary");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn bad_configuration_exits_64_and_names_the_field() {
    let check = |command: &mut Command, field: &str| {
        let (code, stdout, stderr) = output(command);
        assert_eq!((code, &*stdout), (Some(64), ""), "{stderr}");
        assert!(stderr.contains(field), "{field} in {stderr}");
    };
    check(binary().arg("--listen=nowhere"), "--listen");
    check(binary().arg("--max-in-flight=0"), "max-in-flight");
    check(binary().env("KVASIR_DRAIN_TIMEOUT", "soon"), "--drain-timeout");
    check(binary().arg("--log-filter=a=b=c"), "log-filter");
    check(binary().arg("--worker=id=w,model=m,block-size=0"), "block-size");
}

#[test]
fn a_port_that_is_taken_exits_1_and_names_the_option() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address");
    let (code, _, stderr) = output(binary().arg(format!("--listen={address}")));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(&format!("listen {address}")), "{stderr}");
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let text = "max-in-flight = 1\nmax-connections = 1\nreplay-concurrency = 1\n";
    std::fs::write(file.path(), text).expect("write it");
    let mut command = binary();
    command.env("KVASIR_CONFIG", file.path()).env("KVASIR_MAX_IN_FLIGHT", "2");
    command.env("KVASIR_MAX_CONNECTIONS", "2").args(["--max-in-flight=3", "--print-config"]);
    let (code, stdout, stderr) = output(&mut command);
    assert_eq!(code, Some(0), "{stderr}");
    for line in ["max-in-flight = 3\n", "max-connections = 2\n", "replay-concurrency = 1\n"] {
        assert!(stdout.contains(line), "{stdout}");
    }
    assert!(stdout.contains("degraded-ttl = \"600s\"\n"), "{stdout}");
}

/// A process that serves; its addresses are those it logs.
struct Process {
    child: Child,
    grpc: SocketAddr,
    http: SocketAddr,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl Process {
    /// Sends SIGTERM; the exit code, and what was logged until then.
    fn terminate(mut self) -> (Option<i32>, Vec<String>) {
        let id = self.child.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &id]).status().expect("a kill command");
        assert!(killed.success());
        let log = self.lines.map(|line| line.expect("UTF-8")).collect();
        (self.child.wait().expect("an end").code(), log)
    }
}

fn start(flags: &[&str]) -> Process {
    let mut command = binary();
    command.args(["--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--log-format=json"]);
    command.args(flags);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("a binary");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let line = lines.by_ref().map(|line| line.expect("UTF-8")).find(|at| at.contains("listening"));
    let line = line.expect("a server that starts");
    let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let address = |name: &str| {
        let text = line["fields"][name].as_str().expect("an address");
        text.parse().expect("an address")
    };
    Process { child, grpc: address("grpc"), http: address("http"), lines }
}

// The client must see the farewell while this thread reads the log.
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_stops_it_in_order_and_tokens_are_never_logged() {
    let process = start(&[]);
    let url = format!("http://{}", process.grpc);
    let mut client = within(IndexerClient::connect(url)).await.expect("a server that listens");
    let secret = 1_234_567_u32;
    for token_ids in [vec![secret], vec![]] {
        let request =
            pb::FindMatchesRequest { model: "m".to_owned(), token_ids, ..Default::default() };
        client.find_matches(request).await.expect_err("nothing is registered");
    }
    let (status, _) = http_get(process.http, "/readyz").await.expect("a side port");
    assert_eq!(status, 200);
    let (code, log) = process.terminate();
    assert_eq!(code, Some(0), "{log:?}");
    assert!(log.iter().any(|line| line.contains("stopped")), "{log:?}");
    assert!(!log.iter().any(|line| line.contains(&secret.to_string())), "{log:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_are_exported_and_the_last_are_flushed_on_stop() {
    let (exports, mut exported) = mpsc::channel(16);
    let sink = async move |uri: Uri, body: Bytes| {
        exports.send((uri.path().to_owned(), body)).await.expect("a test that listens");
        Status::ok("").into_http::<axum::body::Body>()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("--otlp-endpoint=http://{}", listener.local_addr().expect("an address"));
    let mut server = JoinSet::new();
    let routes = Routes::from(axum::Router::new().fallback(sink));
    let incoming = TcpListenerStream::new(listener);
    server.spawn(Server::builder().add_routes(routes).serve_with_incoming(incoming));

    let process = start(&[&url]);
    let url = format!("http://{}", process.grpc);
    let mut client = within(IndexerClient::connect(url)).await.expect("a server that listens");
    let request = pb::FindMatchesRequest::default();
    client.find_matches(request).await.expect_err("model is required");
    let (code, log) = process.terminate();
    assert_eq!(code, Some(0), "{log:?}");
    let (path, body) = within(exported.recv()).await.expect("spans");
    assert_eq!(path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    for text in ["indexer-server", "/kvasir.v1.Indexer/FindMatches"] {
        let found = body.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(found, "no {text} in {body:?}");
    }
}
