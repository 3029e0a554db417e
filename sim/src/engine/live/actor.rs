//! The task of an engine in real time: machine, clock and sockets.
//!
//! The machine's time is the scaled time since the start. Each step runs at its time on the machine's clock, so a late
//! task delays answers but does not change the model. A step's events are published before its tokens are sent.

use super::changes::batches;
use super::config::LiveConfig;
use super::metrics::{Busy, Ended, LiveMetrics};
use super::request::{Progress, Submission};
use crate::engine::mock::Truth;
use crate::engine::publisher::Publisher;
use crate::engine::timed::{Engine, Event, Job, Nanos, Terms, Timed};
use crate::engine::wire::EngineEvent;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Maximum number of steps between two checks of the command queue.
const STEPS_PER_TURN_MAX: usize = 64;

/// A request with its block names.
#[derive(Debug)]
pub(crate) struct Request {
    pub(super) submission: Submission,
    pub(super) job: Job,
    pub(super) progress: watch::Sender<Progress>,
}

/// Commands of the handle to the task.
#[derive(Debug)]
pub(crate) enum Command {
    /// Submits a request. The reply is its number; none if there are too many requests.
    Submit(Box<Request>, oneshot::Sender<Option<usize>>),
    Cancel(usize),
    Truth(oneshot::Sender<Truth>),
    Reset(oneshot::Sender<bool>),
    /// Replies with the prompt of an ended request whose blocks are still kept for another engine, which begins to
    /// fetch them.
    Held(usize, oneshot::Sender<Option<Arc<[u32]>>>),
    Release(usize, oneshot::Sender<bool>),
    Validate(oneshot::Sender<()>),
    /// Updates the metrics of requests and blocks.
    Measure(oneshot::Sender<()>),
}

/// A request that has not ended.
#[derive(Debug)]
struct Live {
    /// Tokens of the prompt, then of the answer.
    tokens: Arc<[u32]>,
    salt: Option<String>,
    prompt_tokens: usize,
    answer_tokens: usize,
    is_remote: bool,
    is_held: bool,
    is_cut: bool,
    arrival: Nanos,
    /// Time of the last sent token.
    last: Nanos,
    progress: watch::Sender<Progress>,
}

/// Blocks of an ended request that are kept for another engine.
#[derive(Debug)]
struct Hold {
    prompt: Arc<[u32]>,
    until: Instant,
}

/// State of the task.
pub(super) struct Actor {
    config: LiveConfig,
    machine: Engine<Arc<Job>>,
    publisher: Publisher,
    metrics: Arc<LiveMetrics>,
    start: Instant,
    /// Time of the machine's last step.
    at: Nanos,
    live: BTreeMap<usize, Live>,
    holds: BTreeMap<usize, Hold>,
    next_id: usize,
}

// === impl Actor ===

impl Actor {
    pub(super) fn new(config: LiveConfig, publisher: Publisher, metrics: Arc<LiveMetrics>) -> Self {
        Self {
            machine: Engine::new(config.options()).stepping(),
            config,
            publisher,
            metrics,
            start: Instant::now(),
            at: 0,
            live: BTreeMap::new(),
            holds: BTreeMap::new(),
            next_id: 0,
        }
    }

    /// Runs until `halt` is cancelled or the handle is dropped.
    pub(super) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        halt: CancellationToken,
    ) {
        loop {
            let wake = self.wake();
            let due = async {
                match wake {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.handle(command).await,
                    None => break,
                },
                () = due => self.catch_up().await,
                () = halt.cancelled() => break,
            }
        }
        self.publisher.close().await;
    }

    /// Time of the next action without a command.
    fn wake(&self) -> Option<Instant> {
        let step = self.machine.next().map(|next| self.start + self.real(next));
        let holds = self.holds.values().map(|hold| hold.until);
        holds.chain(step).min()
    }

    /// Current time on the machine's clock.
    fn clock(&self) -> Nanos {
        (self.start.elapsed().as_nanos() as f64 * self.config.time_scale) as Nanos
    }

    /// Time stamp for commands to the machine: now, unless a step is late.
    fn now(&self) -> Nanos {
        let clock = self.clock().max(self.at);
        if self.machine.next().is_some_and(|next| next <= clock) { self.at } else { clock }
    }

    /// Converts a time of the machine to real time, rounded up.
    fn real(&self, time: Nanos) -> Duration {
        Duration::from_nanos((time as f64 / self.config.time_scale).ceil() as u64)
    }

    /// Runs the steps that are due, and releases blocks that no engine fetched in time.
    async fn catch_up(&mut self) {
        let now = Instant::now();
        let late = self.holds.iter().filter(|(_, hold)| hold.until <= now);
        for id in late.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.release(id).await;
        }
        self.cancel_abandoned().await;
        for _ in 0..STEPS_PER_TURN_MAX {
            let Some(next) = self.machine.next().filter(|&next| next <= self.clock()) else {
                break;
            };
            let mut out = Vec::new();
            self.machine.run_until(next, &mut out);
            self.at = next;
            self.tell(out).await;
        }
    }

    /// Cancels the requests whose callers have stopped waiting.
    async fn cancel_abandoned(&mut self) {
        let abandoned = self.live.iter().filter(|(_, live)| live.progress.is_closed());
        for id in abandoned.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.cancel(id).await;
        }
    }

    /// Executes a command and sends its reply. A caller that has stopped waiting misses the reply.
    async fn handle(&mut self, command: Command) {
        self.catch_up().await;
        match command {
            Command::Submit(request, reply) => {
                let has_room = self.machine.requests() < self.config.requests_max;
                let id = if has_room { Some(self.submit(*request).await) } else { None };
                let _ = reply.send(id);
            }
            Command::Cancel(id) => self.cancel(id).await,
            Command::Truth(reply) => {
                let copies = self.machine.contents();
                let last_sequence = self.publisher.last_sequence();
                let _ = reply.send(Truth { copies, last_sequence });
            }
            Command::Reset(reply) => {
                let is_done = self.machine.reset();
                if is_done {
                    self.publish(&[EngineEvent::Cleared], self.now()).await;
                }
                let _ = reply.send(is_done);
            }
            Command::Held(id, reply) => {
                let until = Instant::now() + self.config.hold_timeout;
                let hold = self.holds.get_mut(&id);
                let prompt = hold.map(|hold| {
                    hold.until = until;
                    Arc::clone(&hold.prompt)
                });
                let _ = reply.send(prompt);
            }
            Command::Release(id, reply) => {
                let _ = reply.send(self.release(id).await);
            }
            Command::Validate(reply) => {
                self.machine.validate();
                let _ = reply.send(());
            }
            Command::Measure(reply) => {
                self.show_busy();
                let _ = reply.send(());
            }
        }
    }

    async fn submit(&mut self, request: Request) -> usize {
        let Request { submission, mut job, progress } = request;
        let id = self.next_id;
        let now = self.now();
        self.next_id += 1;
        job.arrival = now;
        let Submission { mut prompt, answer, salt, is_cut, is_remote, is_held } = submission;
        let prompt_tokens = prompt.len();
        prompt.extend(&answer);
        let tokens = Arc::from(prompt);
        let answer_tokens = answer.len();
        let arrival = now;
        let last = now;
        let live = Live {
            tokens,
            salt,
            prompt_tokens,
            answer_tokens,
            is_remote,
            is_held,
            is_cut,
            arrival,
            last,
            progress,
        };
        self.live.insert(id, live);
        let transfer = is_remote.then_some(self.config.transfer);
        let terms = Terms { transfer, is_held, ..Terms::default() };
        let mut out = Vec::new();
        self.machine.submit_with(id, Arc::new(job), terms, now, &mut out);
        self.tell(out).await;
        id
    }

    async fn cancel(&mut self, id: usize) {
        if self.live.remove(&id).is_none() {
            return;
        }
        self.metrics.cancelled();
        let mut out = Vec::new();
        self.machine.cancel(id, self.now(), &mut out);
        self.tell(out).await;
    }

    async fn release(&mut self, id: usize) -> bool {
        self.holds.remove(&id);
        let mut out = Vec::new();
        let is_released = self.machine.release(id, self.now(), &mut out);
        self.tell(out).await;
        is_released
    }

    /// Publishes the machine's results, updates metrics and answers callers.
    async fn tell(&mut self, out: Vec<Timed>) {
        for Timed { at, event } in out {
            match event {
                Event::Cache(changes) => {
                    let request = |id| {
                        let live = self.live.get(&id);
                        live.map_or((&[][..], None), |live| (&*live.tokens, live.salt.as_deref()))
                    };
                    let block_size = self.config.engine.block_size;
                    for batch in batches(&changes, block_size, request) {
                        self.publish(&batch, at).await;
                    }
                }
                Event::FirstToken { id, .. } => {
                    if let Some(live) = self.live.get_mut(&id) {
                        live.last = at;
                        let time = at - live.arrival;
                        live.progress.send_modify(|progress| progress.out = 1);
                        self.metrics.first_token(self.real(time));
                    }
                }
                Event::Finished { id, hit_tokens } => self.finish(id, hit_tokens, at),
            }
        }
        for (id, tokens) in self.machine.progress() {
            let live = self.live.get_mut(&id);
            if let Some(live) = live.filter(|live| live.progress.borrow().out < tokens) {
                let time = self.at - std::mem::replace(&mut live.last, self.at);
                live.progress.send_modify(|progress| progress.out = tokens);
                let real = Duration::from_nanos((time as f64 / self.config.time_scale) as u64);
                self.metrics.further_token(real);
            }
        }
    }

    fn finish(&mut self, id: usize, hit_tokens: usize, at: Nanos) {
        let Some(live) = self.live.remove(&id) else { return };
        if live.answer_tokens > 1 {
            self.metrics.further_token(self.real(at - live.last));
        }
        let prompt_tokens = live.prompt_tokens;
        // All prompt tokens but the last come from the other engine or the cache.
        let external_tokens = live.is_remote.then(|| prompt_tokens - 1 - hit_tokens);
        let time = self.real(at - live.arrival);
        let ended = Ended { prompt_tokens, hit_tokens, external_tokens, time };
        self.metrics.ended(ended, if live.is_cut { "length" } else { "stop" });
        if live.is_held {
            let until = Instant::now() + self.config.hold_timeout;
            let prompt = live.tokens.iter().take(prompt_tokens).copied().collect();
            self.holds.insert(id, Hold { prompt, until });
        }
        live.progress.send_replace(Progress {
            out: live.answer_tokens,
            is_done: true,
            cached_tokens: hit_tokens + external_tokens.unwrap_or(0),
            held: self.machine.held(id).unwrap_or_default().to_vec(),
        });
    }

    async fn publish(&mut self, events: &[EngineEvent], at: Nanos) {
        let start = self.config.engine.time_start(self.config.engine.restarts);
        let payload = self.config.engine.style().encode(start + at as f64 / 1e9, events);
        // Errors of a PUB socket are ignored: a batch that was not sent can be replayed.
        drop(self.publisher.publish(payload).await);
    }

    fn show_busy(&self) {
        let blocks = self.config.engine.capacity_blocks;
        self.metrics.set_busy(Busy {
            running: self.machine.running(),
            waiting: self.machine.waiting(),
            usage: self.machine.used_blocks() as f64 / blocks as f64,
        });
    }
}
