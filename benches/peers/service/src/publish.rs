//! The publishers, in a separate process, so that their CPU time is not counted for a server.
//!
//! Protocol with the bench, in lines. The publishers print `bound PORT,PORT,…`, then `subscribed`. On `go` they send
//! everything, and print `sent SECONDS`. Then the background load begins. `fill 0` stores the blocks that are removed
//! first; answer `filled 0`. `rate R` sets the blocks stored and removed per second, half of each; answer `late
//! MICROSECONDS`, the maximum lateness of 99 of 100 batches at the previous rate. `store N` and `remove N` send a probe
//! immediately; answer `at NANOSECONDS`, the time. The process ends when its standard input ends.

use crate::measure::{now_ns, quantile_us};
use crate::stream::{EVENT_BLOCKS, Stream, WORKERS};
use anyhow::{Context, Result, bail, ensure};
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use tokio::time::Instant;
use zmq::SocketType::XPUB;

/// Timeout for one subscription, in milliseconds.
const SUBSCRIBE_TIMEOUT_MS: i32 = 60_000;
/// Number of stored events of the background load at any time.
const PASSING_EVENTS: u64 = 100 * WORKERS as u64;
/// Maximum number of late batches sent before the next check for commands.
const BATCHES_AT_ONCE: u64 = 16;
/// Maximum sleep until the next batch is due.
const PACE_PAUSE: Duration = Duration::from_micros(50);
/// Sockets of one ZMQ context. libzmq allows 1,023 by default.
const CONTEXT_SOCKETS: usize = 512;
/// No limit on a socket's queue, so that no message is dropped.
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
            events.iter().zip(times).map(|(event, time)| Stream::payload(&[*event], time)).collect()
        })
        .collect();

    let workers = stream.workers();
    let mut context = zmq::Context::new();
    let mut sockets = Vec::new();
    let mut ports = Vec::new();
    for worker in 0..workers {
        if worker > 0 && worker % CONTEXT_SOCKETS == 0 {
            context = zmq::Context::new();
        }
        // An XPUB socket is a PUB socket that shows subscriptions.
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

    let (say_line, lines) = channel();
    // The thread ends with standard input, at the latest with the process.
    thread::spawn(move || {
        io::stdin().lines().map_while(Result::ok).try_for_each(|line| say_line.send(line))
    });
    let Ok(line) = lines.recv() else { return Ok(()) };
    ensure!(line == "go", "go, not {line:?}");
    let started = Instant::now();
    let longest = payloads.iter().map(Vec::len).max().unwrap_or_default();
    let mut sequences = vec![0_u64; workers];
    let mut send = |worker: usize, payload: &[u8]| -> Result<()> {
        let (Some(socket), Some(next)) = (sockets.get(worker), sequences.get_mut(worker)) else {
            return Ok(());
        };
        let sequence = next.to_be_bytes();
        *next += 1;
        let frames: [&[u8]; 3] = [b"", &sequence, payload];
        Ok(socket.send_multipart(frames, 0)?)
    };
    for number in 0..longest {
        for (worker, payloads) in payloads.iter().enumerate() {
            if let Some(payload) = payloads.get(number) {
                send(worker, payload)?;
            }
        }
    }
    say(&format!("sent {}", started.elapsed().as_secs_f64()))?;
    passing(stream, &lines, send)
}

/// Runs the background load as commanded.
fn passing(
    stream: &Stream,
    lines: &Receiver<String>,
    mut send: impl FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut number = 0_u64;
    let mut pace = Pace::new(0.0);
    let pass = |number: u64, send: &mut dyn FnMut(usize, &[u8]) -> Result<()>| -> Result<()> {
        let old = number.checked_sub(PASSING_EVENTS).map(|old| stream.passing(old).removed());
        let events: Vec<_> = [stream.passing(number)].into_iter().chain(old).collect();
        send(usize::try_from(number)? % WORKERS, &Stream::payload(&events, 1.7e9))
    };
    loop {
        while pace.is_due() {
            pass(number, &mut send)?;
            number += 1;
            // Late batches must not delay commands.
            if pace.sent() {
                break;
            }
        }
        let line = match lines.recv_timeout(pace.pause()) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        let (command, value) = line.split_once(' ').context("a command has a value")?;
        match command {
            "fill" => {
                for number in number..PASSING_EVENTS {
                    pass(number, &mut send)?;
                }
                number = number.max(PASSING_EVENTS);
                say("filled 0")?;
            }
            "rate" => {
                let before = std::mem::replace(&mut pace, Pace::new(value.parse()?));
                say(&format!("late {:.0}", before.late_p99_us()))?;
            }
            "store" | "remove" => {
                let (event, prompt) = Stream::probe(value.parse()?);
                let event = if command == "store" { event } else { event.removed() };
                let payload = Stream::payload(&[event], 1.7e9);
                let now = now_ns()?;
                send(prompt.worker, &payload)?;
                say(&format!("at {now}"))?;
            }
            _ => bail!("what is {line:?}?"),
        }
    }
}

/// Schedule of batches.
struct Pace {
    begin: Instant,
    batches_per_second: f64,
    sent: u64,
    late: Vec<Duration>,
}

impl Pace {
    fn new(blocks_per_second: f64) -> Self {
        let batches_per_second = blocks_per_second / (2 * EVENT_BLOCKS) as f64;
        Self { begin: Instant::now(), batches_per_second, sent: 0, late: Vec::new() }
    }

    /// Lateness of the next batch, if it is due.
    fn late(&self) -> Option<Duration> {
        let due = Duration::try_from_secs_f64(self.sent as f64 / self.batches_per_second).ok()?;
        self.begin.elapsed().checked_sub(due)
    }

    fn is_due(&self) -> bool {
        self.late().is_some()
    }

    /// Records a sent batch. Returns whether to check for commands.
    fn sent(&mut self) -> bool {
        self.late.extend(self.late());
        self.sent += 1;
        self.sent.is_multiple_of(BATCHES_AT_ONCE)
    }

    fn pause(&self) -> Duration {
        match (self.batches_per_second > 0.0, self.is_due()) {
            // Without a rate, no batch is ever due.
            (false, _) => Duration::MAX,
            (true, false) => PACE_PAUSE,
            (true, true) => Duration::ZERO,
        }
    }

    fn late_p99_us(mut self) -> f64 {
        quantile_us(&mut self.late, 0.99).unwrap_or_default()
    }
}
