//! The side port: what a client sees without a certificate.

use crate::harness::{client, demands, flags, index, page, papers, shows, until};
use anyhow::{Result, ensure};
use kvasir_tests::place::free_port;
use kvasir_tests::server::binary_of;
use rustls::version::TLS13;
use std::net::SocketAddr;
use std::process::Stdio;
use tokio::process::Command;

#[tokio::test]
async fn without_a_certificate_only_health_is_seen() -> Result<()> {
    let (authority, paper, good) = papers()?;
    // It is not ready: its agent's broker is not there.
    let nobody = ["--siblings", "http://127.0.0.1:1"].map(str::to_owned).to_vec();
    let mut server = index(&flags(&[shows(&paper), demands(&authority), nobody])).await?;
    let [stranger, known] =
        [None, Some(&good)].map(|paper| client(&authority, paper, &[&TLS13], b"http/1.1"));
    let stranger = stranger?;
    let known = known?;
    let at = server.addresses.http;
    ensure!(page(at, &stranger, "/livez").await? == (200, "ok\n".to_owned()));
    let (status, text) = page(at, &stranger, "/readyz").await?;
    let word = if status == 200 { "ready\n" } else { "not ready\n" };
    ensure!(text == word, "{status}: {text}");
    for path in ["/metrics", "/other"] {
        let (status, text) = page(at, &stranger, path).await?;
        ensure!(status == 401 && text.contains("certificate"), "{path}: {status}: {text}");
    }
    ensure!(page(at, &known, "/metrics").await?.1.contains("kvasir_http_connections"));
    ensure!(page(at, &known, "/other").await?.0 == 404);
    ensure!(page(at, &client(&authority, None, &[&TLS13], b"h2")?, "/livez").await.is_err());
    server.stop().await;

    // Where nobody needs a certificate, everybody sees all.
    let mut server = index(&shows(&paper)).await?;
    ensure!(page(server.addresses.http, &stranger, "/metrics").await?.0 == 200);
    server.stop().await;
    Ok(())
}

/// The only port of `storage-advisor`.
#[tokio::test]
async fn an_advisor_shows_its_tree_to_known_clients_only() -> Result<()> {
    let (authority, paper, good) = papers()?;
    let at = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let mut advisor = Command::new(binary_of("storage-advisor")?)
        .args(["--nats-url", "nats://127.0.0.1:1", "--http-listen", &at.to_string()])
        .args(shows(&paper))
        .arg("--tls-client-ca")
        .arg(authority.cert())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let [stranger, known] =
        [None, Some(&good)].map(|paper| client(&authority, paper, &[&TLS13], b"http/1.1"));
    let stranger = stranger?;
    let known = known?;
    until("it listens", async || Ok(page(at, &stranger, "/livez").await.is_ok())).await?;
    let (status, text) = page(at, &stranger, "/tree").await?;
    ensure!(status == 401 && text.contains("certificate"), "{status}: {text}");
    let (status, text) = page(at, &known, "/tree").await?;
    ensure!(status == 200 && text.trim_end() == "[]", "{status}: {text}");
    advisor.kill().await?;
    Ok(())
}
