use crate::harness::{BLOCK_SIZE, Publisher, hello, http_get, registration, scores, within};
use crate::t30_engine::{send, source, vllm_batch};
use axum::body::Bytes;
use axum::http::Uri;
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_proto::pb::{self, published_event};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Status;
use tonic::service::Routes;
use tonic::transport::{Channel, Server};
use zeromq::{PubSocket, Socket};

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
    check(binary().arg("--limits=in-flight=0"), "limits: in-flight");
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
    assert!(stderr.contains(&format!("cannot listen on {address}")), "{stderr}");
    assert!(stderr.contains("with --listen"), "{stderr}");
}

/// Exit code and log of a process that fails before it serves.
fn refused(flags: &[&str]) -> (Option<i32>, String) {
    let mut command = binary();
    command.args(["--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0"]).args(flags);
    let mut child = Ended(command.stderr(Stdio::piped()).spawn().expect("a binary"));
    let mut log = String::new();
    for line in BufReader::new(child.0.stderr.take().expect("a pipe")).lines() {
        let line = line.expect("UTF-8");
        assert!(!line.contains("listening"), "{flags:?} are taken: {log}{line}");
        log.extend([&*line, "\n"]);
    }
    (child.0.wait().expect("an end").code(), log)
}

#[test]
fn a_folder_for_checkpoints_that_cannot_be_used_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    std::fs::write(path("file"), "no folder").expect("write it");
    std::fs::create_dir(path("other")).expect("a folder");
    std::fs::write(path("other/db"), "no database").expect("write it");
    symlink(path("loop"), path("loop")).expect("a link");
    let check = |folder: &str, cause: &str| {
        let flag = format!("--checkpoint-dir={folder}");
        let (code, log) = refused(&[&flag]);
        assert_eq!(code, Some(64), "{log}");
        for text in ["indexer-server: checkpoint-dir: ", folder, cause, "choose a folder"] {
            assert!(log.contains(text), "no {text:?} in {log}");
        }
    };
    check(&path("file"), "Not a directory");
    check(&path("other"), "File exists");
    check(&path("loop"), "symbolic links");
    // A place where no user can create a folder.
    check("/proc/no-such-place", "No such file");
    let used = path("used");
    let flag = format!("--checkpoint-dir={used}");
    let process = start(&[&flag]);
    let (code, log) = refused(&[&flag]);
    assert_eq!(code, Some(64), "{log}");
    assert!(log.contains("another process has it open"), "{log}");
    assert_eq!(process.terminate().0, Some(0));
}

// A full disk is an accident, which costs only checkpoints.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_does_not_keep_it_from_serving_and_is_told_once_at_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let flag = format!("--checkpoint-dir={}", folder.path().display());
    let process = start_on_a_full_disk(&[&flag, "--worker=id=w,model=m,block-size=4"]);
    within(async {
        while http_get(process.http, "/readyz").await.expect("a side port").0 != 200 {}
    })
    .await;
    let (code, log) = process.terminate();
    assert_eq!(code, Some(0), "{log:?}");
    let stopping = log.iter().position(|line| line.contains("stopping")).expect("a line");
    let failures = log[stopping..].iter().filter(|line| line.contains("the checkpoint failed"));
    assert_eq!(failures.count(), 1, "{log:?}");
    assert!(log.iter().any(|line| line.contains("the disk is full")), "{log:?}");
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let text = "worker-timeout = \"1s\"\nindex-shards = 1\nmax-index-bytes = \"2MiB\"\n";
    std::fs::write(file.path(), text).expect("write it");
    let mut command = binary();
    command.env("KVASIR_CONFIG", file.path()).env("KVASIR_WORKER_TIMEOUT", "2s");
    command.env("KVASIR_INDEX_SHARDS", "2").args(["--worker-timeout=3s", "--print-config"]);
    let (code, stdout, stderr) = output(&mut command);
    assert_eq!(code, Some(0), "{stderr}");
    for line in
        ["worker-timeout = \"3s\"\n", "index-shards = \"2\"\n", "max-index-bytes = \"2MiB\"\n"]
    {
        assert!(stdout.contains(line), "{stdout}");
    }
    assert!(stdout.contains("timing = \"degraded-ttl=600s,"), "{stdout}");
}

#[test]
fn retired_options_are_logged_once_with_the_release_that_refuses_them() {
    let mut command = binary();
    command.env("KVASIR_CONNECTION_AGE", "1s");
    let process = launch(command, &["--probe-interval=1s"]);
    let (code, log) = process.terminate();
    assert_eq!(code, Some(0), "{log:?}");
    for text in [
        "the environment variable KVASIR_CONNECTION_AGE has no effect: a client is asked to reconnect after 30 \
         minutes. Release 0.3.0 refuses connection-age",
        "--probe-interval is replaced by --timing probe-interval=VALUE. Release 0.3.0 refuses probe-interval",
    ] {
        let lines: Vec<_> = log.iter().filter(|line| line.contains(text)).collect();
        assert!(lines.len() == 1 && lines[0].contains("WARN"), "{text}: {log:?}");
    }
}

#[test]
fn variables_that_are_no_options_are_warned_of() {
    let mut command = binary();
    command.env("KVASIR_LISTNE", "127.0.0.1:50051").env("KVASIR_AGENT_LISTNE", "x");
    command.env("KVASIR_CACHE", "x").env("KVASIR_PORT_50051_TCP", "x");
    let process = launch(command, &[]);
    let (code, log) = process.terminate();
    assert_eq!(code, Some(0), "{log:?}");
    let warnings: Vec<_> =
        log.iter().filter(|line| line.contains("environment variable")).collect();
    assert_eq!(warnings.len(), 1, "{log:?}");
    let text = "the environment variable KVASIR_LISTNE is not an option and is ignored: did you mean KVASIR_LISTEN?";
    assert!(warnings[0].contains(text) && warnings[0].contains("WARN"), "{warnings:?}");
}

/// A child process that is killed when the test ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A serving process, with the addresses from its log.
struct Process {
    child: Ended,
    grpc: SocketAddr,
    http: SocketAddr,
    /// The log, read continuously: a full pipe would stop the process.
    log: JoinHandle<Vec<String>>,
}

impl Process {
    /// Sends SIGTERM. Returns the exit code and the log.
    fn terminate(mut self) -> (Option<i32>, Vec<String>) {
        let id = self.child.0.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &id]).status().expect("a kill command");
        assert!(killed.success());
        let log = self.log.join().expect("UTF-8");
        (self.child.0.wait().expect("an end").code(), log)
    }

    fn url(&self) -> String {
        format!("http://{}", self.grpc)
    }
}

fn start(flags: &[&str]) -> Process {
    launch(binary(), flags)
}

/// A process whose writes to files fail, as on a full disk.
fn start_on_a_full_disk(flags: &[&str]) -> Process {
    let mut command = Command::new("sh");
    command.env_clear().args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_indexer-server"));
    launch(command, flags)
}

fn launch(mut command: Command, flags: &[&str]) -> Process {
    command.args(["--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--log-format=json"]);
    command.args(flags);
    let mut child = Ended(command.stderr(Stdio::piped()).spawn().expect("a binary"));
    let mut lines = BufReader::new(child.0.stderr.take().expect("a pipe")).lines();
    let mut log: Vec<String> = Vec::new();
    let line: serde_json::Value = loop {
        let line = lines.next().expect("a server that starts").expect("UTF-8");
        log.push(line.clone());
        if line.contains("listening") {
            break serde_json::from_str(&line).expect("JSON");
        }
    };
    let address = |name: &str| {
        let text = line["fields"][name].as_str().expect("an address");
        text.parse().expect("an address")
    };
    let grpc = address("grpc");
    let http = address("http");
    let log = thread::spawn(move || {
        log.extend(lines.map(|line| line.expect("UTF-8")));
        log
    });
    Process { child, grpc, http, log }
}

// The client must see the final message while this thread waits for the log.
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_stops_it_in_order() {
    let process = start(&[]);
    within(IndexerClient::connect(process.url())).await.expect("a server that listens");
    // Connections are accepted a moment before the server reports that it is ready.
    within(async {
        while http_get(process.http, "/readyz").await.expect("a side port").0 != 200 {}
    })
    .await;
    let (code, log) = process.terminate();
    assert_eq!(code, Some(0), "{log:?}");
    assert!(log.iter().any(|line| line.contains("stopped")), "{log:?}");
}

const SALT: &str = "a-salt-that-is-a-secret";
const LORA_NAME: &str = "an-adapter";

/// Two blocks of tokens that no log contains by chance. The bytes of the first block are letters, so that bytes logged
/// as text are detected, too.
fn secret_tokens() -> Vec<u32> {
    let letters = [*b"Qz0k", *b"Qz1k", *b"Qz2k", *b"Qz3k"].map(u32::from_le_bytes);
    letters.into_iter().chain(3_133_731_337..3_133_731_341).collect()
}

fn bytes_le(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// All representations that would reveal a token.
fn spellings(token: u32) -> Vec<String> {
    let little = token.to_le_bytes();
    let list = little.map(|byte| byte.to_string());
    let escaped =
        format!("{:?}", Bytes::copy_from_slice(&little)).trim_matches(['b', '"']).to_owned();
    let mut all = vec![
        token.to_string(),
        format!("{token:x}"),
        format!("{token:X}"),
        format!("{:08x}", token.swap_bytes()),
        format!("{:08X}", token.swap_bytes()),
        list.join(", "),
        list.join(","),
        // JSON escapes backslashes again.
        escaped.replace('\\', "\\\\"),
    ];
    all.push(escaped);
    all
}

/// Sends the tokens over every interface, in valid and invalid requests.
async fn send_secrets(process: &Process) {
    let mut engine = PubSocket::new();
    let endpoint = engine.bind("tcp://127.0.0.1:0").await.expect("a free port").to_string();
    let channel = Channel::from_shared(process.url()).expect("a URL");
    let channel = within(channel.connect()).await.expect("a server that listens");
    let mut client = IndexerClient::new(channel.clone());
    let worker = pb::RegisterWorkerRequest {
        engine: pb::Engine::Vllm.into(),
        endpoints: vec![pb::EngineEndpoint { endpoint, ..Default::default() }],
        lora_names: vec![pb::LoraName { id: 1, name: LORA_NAME.to_owned() }],
        ..registration("w")
    };
    client.register_worker(worker).await.expect("a first worker");

    let tokens = secret_tokens();
    let secret = || pb::FindMatchesRequest {
        model: "m".to_owned(),
        lora_name: LORA_NAME.to_owned(),
        cache_salt: SALT.to_owned(),
        ..Default::default()
    };
    let by_list = pb::FindMatchesRequest { token_ids: tokens.clone(), ..secret() };
    let by_bytes = pb::FindMatchesRequest { token_ids_le: bytes_le(&tokens).into(), ..secret() };
    let stored = |token_ids_le: Vec<u8>| {
        published_event::Event::Stored(pb::BlocksStored {
            names: vec![1, 2],
            token_ids_le: token_ids_le.into(),
            lora_name: LORA_NAME.to_owned(),
            cache_salt: SALT.to_owned(),
            ..Default::default()
        })
    };
    let mut publisher = Publisher::open(channel, hello("w", "s", 1)).await;
    publisher.acked(0, vec![stored(bytes_le(&tokens))]).await;
    publisher.refused(1, vec![stored(bytes_le(&tokens[1..]))]).await;
    for query in [by_list, by_bytes.clone()] {
        let answer = client.find_matches(query).await.expect("a valid query").into_inner();
        assert_eq!(scores(&answer), [("w", 0, 2)]);
    }
    let ragged = pb::FindMatchesRequest {
        token_ids_le: bytes_le(&tokens)[1..].to_vec().into(),
        ..by_bytes.clone()
    };
    client.find_matches(ragged).await.expect_err("whole tokens only");
    let unknown = pb::FindMatchesRequest { model: "other".to_owned(), ..by_bytes };
    client.find_matches(unknown).await.expect_err("no such model");

    // Slow joiners miss messages, so the engine repeats its batch until it arrives.
    let plain = pb::FindMatchesRequest {
        model: "m".to_owned(),
        token_ids: tokens[..4].to_vec(),
        ..Default::default()
    };
    within(async {
        for sequence in (0..).step_by(2) {
            let batch = vllm_batch(77, &tokens[..4]);
            let broken = batch[..batch.len() - 3].to_vec();
            send(&mut engine, sequence, broken).await;
            send(&mut engine, sequence + 1, batch).await;
            let answer = client.find_matches(plain.clone()).await.expect("a valid query");
            if !answer.into_inner().matches.is_empty() {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_salts_are_never_logged() {
    let process = start(&["--log-filter=trace"]);
    send_secrets(&process).await;
    let (code, log) = process.terminate();
    assert_eq!(code, Some(0), "{log:?}");
    // The log would show them: it has the finest level, with lines of the engine and of the worker.
    for expected in ["\"TRACE\"", "source state", "worker registered", "stopped"] {
        assert!(log.iter().any(|line| line.contains(expected)), "no {expected} in {log:?}");
    }
    let secrets = secret_tokens().into_iter().flat_map(spellings).chain([SALT.to_owned()]);
    for secret in secrets {
        let found = log.iter().find(|line| line.contains(&secret));
        assert_eq!(found, None, "it gives {secret} away");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_about_an_engine_say_which() {
    let process = start(&["--log-filter=info"]);
    let mut client =
        within(IndexerClient::connect(process.url())).await.expect("a server that listens");
    let mut engine = PubSocket::new();
    let endpoint = engine.bind("tcp://127.0.0.1:0").await.expect("a free port").to_string();
    let worker = pb::RegisterWorkerRequest {
        tenant: "t".to_owned(),
        endpoints: vec![pb::EngineEndpoint { endpoint: endpoint.clone(), ..Default::default() }],
        ..registration("w")
    };
    client.register_worker(worker).await.expect("a first worker");
    within(async {
        while !source(&mut client).await.connected {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (code, log) = process.terminate();
    assert_eq!(code, Some(0), "{log:?}");
    let line = log.iter().find(|line| line.contains("source state"));
    let line = line.unwrap_or_else(|| panic!("no state in {log:?}"));
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let expected = [("model", "m"), ("tenant", "t"), ("worker", "w"), ("endpoint", &endpoint)];
    for (field, value) in expected {
        assert_eq!(line["span"][field], value, "{field} of {line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_that_is_logged_is_that_of_answers() {
    let process = start(&["--log-filter=info"]);
    let mut client =
        within(IndexerClient::connect(process.url())).await.expect("a server that listens");
    let mut engine = PubSocket::new();
    let endpoint = engine.bind("tcp://127.0.0.1:0").await.expect("a free port").to_string();
    let worker = pb::RegisterWorkerRequest {
        // Smaller than the engine's block size. A single smaller block would count as incomplete.
        block_size: BLOCK_SIZE / 2,
        engine: pb::Engine::Vllm.into(),
        endpoints: vec![pb::EngineEndpoint { endpoint, ..Default::default() }],
        ..registration("w")
    };
    client.register_worker(worker).await.expect("a first worker");
    // Slow joiners miss messages, so the engine repeats its first batch until it arrives.
    within(async {
        while source(&mut client).await.state() != pb::WorkerState::Partial {
            send(&mut engine, 0, vllm_batch(77, &[1, 2, 3, 4])).await;
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let (code, log) = process.terminate();
    assert_eq!(code, Some(0), "{log:?}");
    let state = |line: &String| -> Option<String> {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let is_state = line["fields"]["message"] == "source state";
        is_state.then(|| line["fields"]["state"].as_str().expect("a state").to_owned())
    };
    let states: Vec<_> = log.iter().filter_map(state).collect();
    assert_eq!(states.last().map(String::as_str), Some("partial"), "{states:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_are_exported_whatever_is_logged_and_the_last_are_flushed_on_stop() {
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

    // Only the log line with the server's addresses.
    let process =
        start(&[&url, "--log-filter=error,indexer_server=info,indexer_server::grpc=error"]);
    let mut client =
        within(IndexerClient::connect(process.url())).await.expect("a server that listens");
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
