//! A mock engine as a separate process, so that it can be killed like in a crash: the main function of the binary
//! `mock-engine`, and a handle to such a process.
//!
//! The process reads requests as lines of JSON from its standard input and answers each with one line. It ends when its
//! input ends, and thus when its parent process ends.

use super::mock::{EngineConfig, MockEngine, Truth};
use super::publisher::Endpoints;
use super::scheduler::{Completion, Prompt};
use crate::place::free_port;
use crate::server::binary_of;
use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::timeout;

/// Name of the binary.
const BINARY: &str = "mock-engine";
/// Timeout for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// The first request: starts the engine.
    Start(EngineConfig, Endpoints),
    Run(Prompt),
    Truth,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Started,
    Done(Completion),
    Truth(Truth),
}

/// Runs an engine until the requests end.
///
/// # Errors
/// If a request cannot be read or executed, or its answer cannot be written.
pub fn serve(requests: impl BufRead, mut answers: impl Write) -> Result<()> {
    let runtime = Runtime::new().context("start a runtime")?;
    let mut running = None;
    for line in requests.lines() {
        let request = serde_json::from_str(&line?).context("read a request")?;
        let answer = runtime.block_on(answer(&mut running, request))?;
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        answers.write_all(&line)?;
        answers.flush()?;
    }
    Ok(())
}

async fn answer(running: &mut Option<MockEngine>, request: Request) -> Result<Answer> {
    match (request, &running) {
        (Request::Start(config, endpoints), _) => {
            *running = Some(MockEngine::start_at(config, &endpoints).await?);
            Ok(Answer::Started)
        }
        (Request::Run(prompt), Some(engine)) => Ok(Answer::Done(engine.run(prompt).await?)),
        (Request::Truth, Some(engine)) => Ok(Answer::Truth(engine.truth().await?)),
        (Request::Run(_) | Request::Truth, None) => bail!("no engine was started"),
    }
}

/// A mock engine in its own process; dropping the handle kills the process.
#[derive(Debug)]
pub struct EngineProcess {
    endpoints: Endpoints,
    /// Locked during a request and its answer.
    process: Mutex<Process>,
    /// Separate from `process`, so that a kill need not wait for an answer.
    progress: watch::Sender<Progress>,
}

/// The current process.
#[derive(Debug)]
struct Process {
    config: EngineConfig,
    child: Child,
    requests: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// Status of the process.
#[derive(Debug, Clone, Copy)]
struct Progress {
    pid: Pid,
    is_killed: bool,
    /// Number of answered prompts, over all restarts.
    answered: u64,
}

impl EngineProcess {
    /// Starts an engine on free ports of the loopback interface. The ports are outside the range that the system
    /// assigns, so that they are still free after a restart.
    ///
    /// # Errors
    /// If the binary is missing, or the process does not start an engine.
    pub async fn start(config: EngineConfig) -> Result<Self> {
        let endpoint = || Ok::<_, anyhow::Error>(format!("tcp://127.0.0.1:{}", free_port()?));
        let endpoints = Endpoints { live: endpoint()?, replay: endpoint()? };
        let process = Process::start(config, &endpoints).await?;
        let progress = Progress { pid: process.pid()?, is_killed: false, answered: 0 };
        Ok(Self { endpoints, process: Mutex::new(process), progress: watch::Sender::new(progress) })
    }

    /// Address of the PUB socket, `tcp://host:port`; unchanged by a restart.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoints.live
    }

    /// Address of the replay socket, `tcp://host:port`; unchanged by a restart.
    #[must_use]
    pub fn replay_endpoint(&self) -> &str {
        &self.endpoints.replay
    }

    /// Runs a request to its end. None if the engine is killed meanwhile.
    ///
    /// # Errors
    /// If the engine rejects the request, ends by itself or does not answer.
    pub async fn run(&self, prompt: Prompt) -> Result<Option<Completion>> {
        let answer = self.process.lock().await.ask(&Request::Run(prompt)).await;
        match answer {
            Ok(Answer::Done(completion)) => {
                self.progress.send_modify(|progress| progress.answered += 1);
                Ok(Some(completion))
            }
            Ok(other) => Err(anyhow!("{other:?} is not an answer to a prompt")),
            Err(_) if self.progress.borrow().is_killed => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The engine's current blocks and last batch.
    ///
    /// # Errors
    /// If the engine ends or does not answer.
    pub async fn truth(&self) -> Result<Truth> {
        match self.process.lock().await.ask(&Request::Truth).await? {
            Answer::Truth(truth) => Ok(truth),
            other => bail!("{other:?} is not an answer to a query for the truth"),
        }
    }

    /// Completes when the engine has answered `prompts` more prompts, counted from this call.
    pub fn answered(&self, prompts: u64) -> impl Future<Output = ()> + use<> {
        let mut progress = self.progress.subscribe();
        let due = progress.borrow().answered + prompts;
        async move {
            // If the sender is dropped, no more answers will come.
            let _answered = progress.wait_for(|now| now.answered >= due).await;
        }
    }

    /// Kills the engine (SIGKILL), even during a request, and restarts it at the same endpoints. Its cache and its
    /// replay buffer are then empty, and its numbers begin at 0.
    ///
    /// # Errors
    /// If the engine had ended before, or does not start.
    pub async fn kill(&self) -> Result<()> {
        let mut process = self.end().await?;
        let config =
            EngineConfig { restarts: process.config.restarts + 1, ..process.config.clone() };
        *process = Process::start(config, &self.endpoints).await?;
        let pid = process.pid()?;
        let begin = |progress: &mut Progress| {
            (progress.pid, progress.is_killed) = (pid, false);
        };
        self.progress.send_modify(begin);
        Ok(())
    }

    /// Kills the engine (SIGKILL), even during a request, without a restart. Later prompts get no completion.
    ///
    /// # Errors
    /// If the engine had ended before.
    pub async fn crash(&self) -> Result<()> {
        self.end().await.map(drop)
    }

    /// Kills the engine and waits until it has ended. While the guard is alive, requests wait.
    async fn end(&self) -> Result<MutexGuard<'_, Process>> {
        let pid = self.progress.borrow().pid;
        self.progress.send_modify(|progress| progress.is_killed = true);
        kill_process(pid, Signal::KILL).context("kill the engine")?;
        // An active request fails now and releases the lock. Later requests fail too, or reach a new process.
        let mut process = self.process.lock().await;
        let end = process.child.wait().await.context("wait for the engine's end")?;
        ensure!(end.signal() == Some(Signal::KILL.as_raw()), "the engine ended before, {end}");
        Ok(process)
    }
}

impl Process {
    async fn start(config: EngineConfig, endpoints: &Endpoints) -> Result<Self> {
        let mut child = Command::new(binary_of(BINARY)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start an engine")?;
        let requests = child.stdin.take().context("standard input")?;
        let answers = BufReader::new(child.stdout.take().context("standard output")?).lines();
        let mut process = Self { config, child, requests, answers };
        let start = Request::Start(process.config.clone(), endpoints.clone());
        match process.ask(&start).await? {
            Answer::Started => Ok(process),
            other => bail!("the engine answered {other:?} to the start request"),
        }
    }

    fn pid(&self) -> Result<Pid> {
        let id = self.child.id().and_then(|id| Pid::from_raw(id as i32));
        id.context("the engine has ended")
    }

    async fn ask(&mut self, request: &Request) -> Result<Answer> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let exchange = async {
            self.requests.write_all(&line).await?;
            self.answers.next_line().await
        };
        let answer = timeout(ANSWER_TIMEOUT, exchange).await.context("the engine is silent")?;
        let answer = answer?.context("the engine has ended")?;
        serde_json::from_str(&answer).context("read the engine's answer")
    }
}
