//! The side port: what a client sees without a certificate.

use crate::harness::{client, demands, flags, index, page, papers, shows};
use anyhow::{Result, ensure};
use rustls::version::TLS13;

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
