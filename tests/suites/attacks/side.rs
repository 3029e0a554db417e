//! The side port.

use crate::harness::{PATIENCE, Siege};
use crate::peer::Peer;
use anyhow::{Context, Result, ensure};
use kvasir_proto::limits::NAME_BYTES_MAX;
use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// Registers workers, each in a partition of its own with long names, which makes the metrics some MB large.
async fn register_partitions(address: SocketAddr) -> Result<()> {
    let mut indexer = client::connect(address).await?;
    for worker in 0..2_000 {
        let name = format!("{worker:0NAME_BYTES_MAX$}");
        let request = pb::RegisterWorkerRequest {
            worker_id: "w".to_owned(),
            model: name.clone(),
            tenant: name,
            block_size: 16,
            ..Default::default()
        };
        indexer.register_worker(request).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_that_are_not_read_are_bounded() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    register_partitions(siege.grpc()).await?;
    let page = metrics::get(siege.http(), "/metrics").await?.1;
    ensure!(page.len() > 4 << 20, "{} bytes of metrics", page.len());
    let mut scrapers = Vec::new();
    for _ in 0..200 {
        let mut scraper = TcpStream::connect(siege.http()).await?;
        scraper.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await?;
        // The head of the answer, and no more.
        scraper.read_exact(&mut [0; 16]).await.context("an answer")?;
        scrapers.push(scraper);
    }
    // Others still read them, if not the newest.
    let again = metrics::get(siege.http(), "/metrics").await?.1;
    ensure!(again.ends_with("# EOF\n"), "{} bytes of metrics", again.len());
    let cut_off = ("http_connections_cut_off_total", "untaken");
    siege.until(cut_off, |scrapers| scrapers >= 200.0).await?;
    siege.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_side_port_speaks_http_1_only() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let mut peer = Peer::connect(siege.http(), 0).await?;
    let answered = async {
        let call = peer.begin("/metrics").await?;
        anyhow::Ok(call.answer.await?)
    };
    let answered = timeout(PATIENCE, answered).await.context("neither answered nor refused")?;
    ensure!(answered.is_err(), "HTTP/2 is spoken");
    siege.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_whose_head_is_not_sent_are_cut_off() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let began = Instant::now();
    let mut slow = Vec::new();
    for _ in 0..100 {
        let mut socket = TcpStream::connect(siege.http()).await?;
        socket.write_all(b"GET /livez HTTP/1.1\r\nx-slow: ").await?;
        slow.push(socket);
    }
    let mut ticks = tokio::time::interval(Duration::from_millis(500));
    // A byte now and then does not help.
    while !slow.is_empty() {
        ticks.tick().await;
        ensure!(began.elapsed() < Duration::from_secs(20), "{} are still there", slow.len());
        let mut left = Vec::new();
        for mut socket in slow {
            if socket.write_all(b"x").await.is_ok() {
                left.push(socket);
            }
        }
        slow = left;
    }
    siege.end().await
}
