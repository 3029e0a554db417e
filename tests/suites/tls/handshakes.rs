//! Handshakes that stall or fail, beside good ones.

use crate::harness::{PATIENCE, ask, client, dialer, https, index, metric, papers, shows, until};
use anyhow::{Context, Result, ensure};
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use rustls::{ClientConnection, HandshakeKind};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const STALLED: usize = 50;
const BROKEN: usize = 50;
const FAILURES: &str = "kvasir_grpc_connections_handshake_failures_total";

#[tokio::test]
async fn handshakes_that_stall_or_fail_hold_up_no_other() -> Result<()> {
    let (authority, paper, _) = papers()?;
    let mut server = index(&shows(&paper)).await?;
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        stalled.push(TcpStream::connect(server.addresses.grpc).await?);
    }
    for _ in 0..BROKEN {
        let mut broken = TcpStream::connect(server.addresses.grpc).await?;
        broken.write_all(b"this is no TLS at all").await?;
    }
    let dialer = dialer(&authority, None)?;
    for _ in 0..5 {
        ask(&dialer, &https(&server)).await?;
    }
    let reader = client(&authority, None, &[&TLS13], b"http/1.1")?;
    until("failures are counted", async || {
        Ok(metric(&server, &reader, FAILURES, "not_tls").await? == BROKEN as f64)
    })
    .await?;
    let mut byte = [0];
    for stalled in &mut stalled {
        let cut = timeout(PATIENCE, stalled.read(&mut byte)).await.context("never cut off")?;
        ensure!(cut.map_or(true, |read| read == 0));
    }
    let late = metric(&server, &reader, FAILURES, "timeout").await?;
    ensure!(late == STALLED as f64, "{late} are counted");
    server.stop().await;
    Ok(())
}

/// A handshake that ends after another has failed, while nobody else connects.
#[tokio::test]
async fn a_failed_handshake_does_not_hold_back_one_that_ends() -> Result<()> {
    let (authority, paper, _) = papers()?;
    let mut server = index(&shows(&paper)).await?;
    let config = client(&authority, None, &[&TLS13], b"h2")?;
    let mut session =
        ClientConnection::new(Arc::clone(&config), ServerName::try_from("localhost")?)?;
    let mut hello = Vec::new();
    session.write_tls(&mut hello)?;
    let mut slow = TcpStream::connect(server.addresses.grpc).await?;
    slow.set_nodelay(true)?;
    slow.write_all(&hello[..10]).await?;
    let mut broken = TcpStream::connect(server.addresses.grpc).await?;
    broken.write_all(b"this is no TLS at all").await?;
    let mut answer = Vec::new();
    timeout(PATIENCE, broken.read_to_end(&mut answer)).await.context("never refused")??;

    slow.write_all(&hello[10..]).await?;
    // The server's first words within TLS come only once the connection was passed on.
    let words = timeout(PATIENCE, async {
        let mut bytes = [0; 4_096];
        loop {
            let read = slow.read(&mut bytes).await?;
            ensure!(read > 0, "the server closed the connection");
            let mut part = &bytes[..read];
            while !part.is_empty() {
                session.read_tls(&mut part)?;
            }
            let state = session.process_new_packets()?;
            let mut reply = Vec::new();
            while session.wants_write() {
                session.write_tls(&mut reply)?;
            }
            slow.write_all(&reply).await?;
            if state.plaintext_bytes_to_read() > 0 {
                return Ok(());
            }
        }
    });
    words.await.context("the handshake ended, and nothing followed")??;
    ensure!(session.handshake_kind() == Some(HandshakeKind::Full));
    server.stop().await;
    Ok(())
}
