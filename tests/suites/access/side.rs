//! The side port.

use crate::fixture;
use anyhow::{Context, Result, ensure};
use kvasir_sim::demo::metrics;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The whole answer to a request without a body.
pub async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    token: Option<&str>,
) -> Result<String> {
    send(address, method, path, token, "").await
}

/// The whole answer to a request with a body.
pub async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &str,
) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let header = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    let header = header.unwrap_or_default();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: side\r\n{header}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

pub fn status(answer: &str) -> Result<u16> {
    Ok(answer.split(' ').nth(1).context("no status")?.parse()?)
}

#[tokio::test]
async fn a_stranger_sees_only_whether_it_lives() -> Result<()> {
    let (mut index, _folder) = fixture::index(&[]).await?;
    let address = index.addresses.http;
    metrics::ready(address).await?;
    for token in [None, Some("unknown")] {
        let (live, ready) = (
            ask(address, "GET", "/livez", token).await?,
            ask(address, "GET", "/readyz", token).await?,
        );
        ensure!(status(&live)? == 200 && live.ends_with("\r\n\r\nok\n"), "{live}");
        ensure!(status(&ready)? == 200 && ready.ends_with("\r\n\r\nready\n"), "{ready}");
        for path in ["/metrics", "/none"] {
            let answer = ask(address, "GET", path, token).await?;
            ensure!(status(&answer)? == 401 && !answer.contains("kvasir"), "{path}: {answer}");
        }
    }
    for (token, wanted) in
        [("query", 200), ("admin", 200), ("query-a", 403), ("admin-a", 403), ("publish", 403)]
    {
        let answer = ask(address, "GET", "/metrics", Some(token)).await?;
        ensure!(
            status(&answer)? == wanted,
            "{token}: {}",
            answer.lines().next().unwrap_or_default()
        );
    }
    index.stop().await;
    Ok(())
}

/// The lines that changes left in the log.
fn audited(output: &str) -> Vec<&str> {
    output.lines().filter(|line| line.contains("kvasir::audit")).collect()
}

/// As the call of the gRPC port that does the same.
#[tokio::test]
async fn who_changes_something_there_is_written_down() -> Result<()> {
    const PAGE: &str = "/busy_threshold";
    const BUSY: &str = "{\"active_prefill_tokens_threshold\": 20}";
    let (mut index, folder) = fixture::index(&[]).await?;
    let mut router = fixture::router(&index, &folder).await?;
    let address = router.addresses.http;
    for (token, wanted) in
        [(None, 401), (Some("unknown"), 401), (Some("admin-a"), 403), (Some("query"), 403)]
    {
        let answer = send(address, "POST", PAGE, token, BUSY).await?;
        ensure!(status(&answer)? == wanted, "{token:?}: {answer}");
    }
    let answer = send(address, "POST", PAGE, Some("admin"), BUSY).await?;
    ensure!(status(&answer)? == 200 && answer.contains(":20"), "{answer}");
    for method in ["GET", "PUT"] {
        send(address, method, PAGE, Some("admin"), "").await?;
    }
    router.stop().await;
    // All that it wrote was read.
    let output = router.exited().await.to_string();
    let lines = audited(&output);
    ensure!(lines.len() == 1, "{lines:?}");
    let line = lines[0];
    for part in ["principal=\"admin\"", "call=\"POST\"", "on=/busy_threshold"] {
        ensure!(line.contains(part), "{line}");
    }
    index.stop().await;
    Ok(())
}
