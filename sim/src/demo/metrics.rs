//! Reads a server's `/metrics`, in the Prometheus text format.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

/// Timeout for the complete page.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a process to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Polling interval for readiness.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Largest page in bytes.
const PAGE_BYTES_MAX: u64 = 16 << 20;

/// One line of the page.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// Name of the metric.
    pub name: String,
    /// Labels of the sample, as written: `a="b",c="d"`.
    pub labels: String,
    /// Value of the sample.
    pub value: f64,
}

/// Sum of a metric's samples whose labels contain a text.
///
/// # Errors
/// As [`fetch`].
pub async fn sum(address: SocketAddr, name: &str, labels: &str) -> Result<f64> {
    let samples = fetch(address).await?.into_iter();
    let found = samples.filter(|at| at.name.ends_with(name) && at.labels.contains(labels));
    Ok(found.map(|sample| sample.value).sum())
}

/// Reads and parses `/metrics`.
///
/// # Errors
/// If the server does not answer with a page that parses.
pub async fn fetch(address: SocketAddr) -> Result<Vec<Sample>> {
    let (status, page) = get(address, "/metrics").await?;
    ensure!(status == 200, "the answer has status {status}");
    parse(&page)
}

/// Waits until `/readyz` of a process reports that it is ready.
///
/// # Errors
/// If the process is not ready in time (the error has its reason), or does not answer.
pub async fn ready(address: SocketAddr) -> Result<()> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        let (status, text) = get(address, "/readyz").await?;
        if status == 200 {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{text}");
        sleep(POLL_INTERVAL).await;
    }
}

/// Status and text of a GET of a page of the side port.
///
/// # Errors
/// If the server does not answer in time.
pub async fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    request(address, &format!("GET {path} HTTP/1.0\r\n\r\n")).await
}

/// Status and text of a POST of `text` to a page.
///
/// # Errors
/// If the server does not answer in time.
pub async fn post(address: SocketAddr, path: &str, text: &str) -> Result<(u16, String)> {
    let length = text.len();
    let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
    request(address, &(head + text)).await
}

async fn request(address: SocketAddr, request: &str) -> Result<(u16, String)> {
    tokio::time::timeout(TIMEOUT, exchange(address, request)).await.context("wait for the page")?
}

async fn exchange(address: SocketAddr, request: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    // HTTP/1.0: the answer ends with the connection, without chunks.
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(PAGE_BYTES_MAX).read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer has no body")?;
    let status = head.split_whitespace().nth(1).context("the answer has no status")?;
    Ok((status.parse()?, body.to_owned()))
}

fn parse(page: &str) -> Result<Vec<Sample>> {
    let lines = page.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| parse_line(line).with_context(|| format!("parse {line:?}"))).collect()
}

fn parse_line(line: &str) -> Result<Sample> {
    let (series, rest) = match line.rfind('}') {
        Some(end) => line.split_at(end + 1),
        None => line.split_at(line.find(' ').context("no value")?),
    };
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.trim_end_matches('}')),
        None => (series, ""),
    };
    let value = rest.split_whitespace().next().context("no value")?.parse()?;
    Ok(Sample { name: name.to_owned(), labels: labels.to_owned(), value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_into_name_labels_and_value() {
        let page = "# HELP a b\na_total{unit=\"block\",reason=\"a } b\"} 12\nb 1.5\n# EOF\n";
        let sample = |name: &str, labels: &str, value| Sample {
            name: name.to_owned(),
            labels: labels.to_owned(),
            value,
        };
        let expected =
            [sample("a_total", "unit=\"block\",reason=\"a } b\"", 12.0), sample("b", "", 1.5)];
        assert_eq!(parse(page).unwrap(), expected);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse("a\n").is_err());
        assert!(parse("a x\n").is_err());
    }
}
