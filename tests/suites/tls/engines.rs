//! Engines behind TLS, as `kvasir serve` and the gateway reach them.

use crate::harness::{PATIENCE, text};
use anyhow::{Context, Result, ensure};
use hyper::Method;
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::openai::client::call;
use kvasir_sim::engine::openai::{EngineServer, ServerConfig, Text};
use kvasir_sim::server::{Server, binary_of};
use kvasir_tests::authority::{Authority, Validity};
use kvasir_tls::{Protocol, ServerFiles, ServerTls};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;

/// Accepts TLS connections and passes their content on to an engine, until it is dropped.
async fn terminate_tls(listener: TcpListener, tls: ServerTls, engine: SocketAddr) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let acceptor = tls.acceptor(Protocol::Http1);
        connections.spawn(async move {
            let mut client = acceptor.accept(stream).await?;
            let mut engine = TcpStream::connect(engine).await?;
            copy_bidirectional(&mut client, &mut engine).await
        });
    }
}

#[tokio::test]
async fn an_engine_behind_tls_needs_its_authority() -> Result<()> {
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tokenizer/tokenizer.json");
    let engine =
        EngineServer::start(ServerConfig::default(), Text::load(&tokenizer, None)?).await?;
    let authority = Authority::new("engines")?;
    let paper = authority.sign(1, Validity::Valid)?;
    let files = ServerFiles { cert: paper.cert, key: paper.key, client_ca: None, client_crl: None };
    // An address that the certificate does not name reaches it, too.
    let listener = TcpListener::bind("[::]:0").await?;
    let port = listener.local_addr()?.port();
    // Dropping it stops the proxy.
    let mut proxy = JoinSet::new();
    proxy.spawn(terminate_tls(listener, ServerTls::open(files)?, engine.address()));

    let sockets = engine.engine().endpoints().clone();
    let spec =
        format!("https://localhost:{port},events={},replay={}", sockets.live, sockets.replay);
    let authorities = authority.cert();
    let other = Authority::new("other")?;
    let plain = format!("https://{},events={}", engine.address(), sockets.live);
    let no_tls = format!("http://localhost:{port},events={}", sockets.live);
    let unnamed = format!("https://[::1]:{port},events={}", sockets.live);
    for (spec, ca, expected) in [
        (&spec, None, ["needs the certificate of the authority", "state it with --tls-ca FILE"]),
        (&spec, Some(other.cert()), ["invalid peer certificate", "with --tls-ca FILE"]),
        (&plain, Some(authorities.clone()), ["✗ engine: ", "speaks no TLS, write http://"]),
        (&unnamed, Some(authorities.clone()), ["✗ engine: ", "its URL a host of the certificate"]),
        (
            &no_tls,
            Some(authorities.clone()),
            ["✗ engine: ", "correct its URL (http:// or https://"],
        ),
        (&spec, Some(authorities.clone()), ["✓ engine: ", "✓ cache hit: "]),
    ] {
        let mut check = Command::new(binary_of("kvasir")?);
        check.args(["check", spec, "--log-filter", "error"]).kill_on_drop(true);
        check.args(ca.iter().flat_map(|ca| ["--tls-ca", text(ca)]));
        let output = check.output().await?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        for part in expected {
            ensure!(said.contains(part), "{spec}: {part:?} is not in {said}");
        }
        ensure!(output.status.success() == said.contains("✓ cache hit: "), "{said}");
    }

    let flags = [&spec, "--checkpoint-dir=off", "--tls-ca", text(&authorities)];
    let mut kvasir = Server::serve(&flags).await?;
    metrics::ready(kvasir.addresses.http).await.with_context(|| kvasir.output())?;
    let at = kvasir.addresses.grpc;
    let host = at.ip().to_string();
    let body = json!({"model": "mock", "prompt": "word ".repeat(200), "max_tokens": 4}).to_string();
    for is_cached in [false, true] {
        let path = "/v1/completions";
        let answer = call(Method::POST, (&host, at.port()), path, body.clone(), PATIENCE).await;
        let (status, answer) = answer.with_context(|| kvasir.output())?;
        let answer: Value = serde_json::from_slice(&answer)?;
        ensure!(status == 200, "{status}: {answer}\n{}", kvasir.output());
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        ensure!((cached > Some(0)) == is_cached, "{answer}");
    }
    kvasir.stop().await;
    engine.stop().await
}
