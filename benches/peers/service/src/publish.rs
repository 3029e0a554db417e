//! The publishers: a process of their own, so that their CPU time is nobody's figure.
//!
//! It talks to the bench in lines: `bound PORT,PORT,…`, then `subscribed`; on `go` it sends all, and
//! says `sent SECONDS`. It ends when its standard input does.

use crate::stream::{Stream, WORKERS};
use anyhow::{Context, Result, ensure};
use std::io::{self, BufRead, Write};
use tokio::time::Instant;
use zmq::SocketType::XPUB;

/// Longest wait for one subscription, in milliseconds.
const SUBSCRIBE_TIMEOUT_MS: i32 = 60_000;
/// No limit on what waits in a socket: nothing is ever dropped.
const UNLIMITED: i32 = 0;

fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Binds, waits for subscribers, sends.
pub fn publish(stream: &Stream) -> Result<()> {
    let payloads: Vec<Vec<Vec<u8>>> = stream
        .events_by_worker()
        .iter()
        .map(|events| {
            let times = (0_u32..).map(|at| 1.7e9 + f64::from(at) / 1_000.0);
            events.iter().zip(times).map(|(event, time)| Stream::payload(*event, time)).collect()
        })
        .collect();

    let context = zmq::Context::new();
    let mut sockets = Vec::new();
    let mut ports = Vec::new();
    for _ in 0..WORKERS {
        // A PUB socket that lets us see the subscriptions.
        let socket = context.socket(XPUB)?;
        socket.set_sndhwm(UNLIMITED)?;
        socket.set_linger(0)?;
        socket.set_rcvtimeo(SUBSCRIBE_TIMEOUT_MS)?;
        socket.bind("tcp://127.0.0.1:*")?;
        let bound = socket.get_last_endpoint()?.ok().context("an endpoint is text")?;
        let port = bound.rsplit(':').next().context("an endpoint has a port")?;
        ports.push(port.to_owned());
        sockets.push(socket);
    }
    say(&format!("bound {}", ports.join(",")))?;
    for (worker, socket) in sockets.iter().enumerate() {
        let message = socket.recv_bytes(0).with_context(|| format!("no subscriber at {worker}"))?;
        ensure!(message.first() == Some(&1), "worker {worker}: not a subscription: {message:?}");
    }
    say("subscribed")?;

    let mut lines = io::stdin().lock().lines();
    let Some(line) = lines.next().transpose()? else { return Ok(()) };
    ensure!(line == "go", "go, not {line:?}");
    let started = Instant::now();
    let longest = payloads.iter().map(Vec::len).max().unwrap_or_default();
    for sequence in 0..longest {
        for (socket, payloads) in sockets.iter().zip(&payloads) {
            let Some(payload) = payloads.get(sequence) else { continue };
            let sequence = (sequence as u64).to_be_bytes();
            let frames: [&[u8]; 3] = [b"", &sequence, payload];
            socket.send_multipart(frames, 0)?;
        }
    }
    say(&format!("sent {}", started.elapsed().as_secs_f64()))?;
    for line in lines {
        line?;
    }
    Ok(())
}
