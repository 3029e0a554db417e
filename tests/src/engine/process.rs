//! A mock engine as a process of its own, so that it can be ended as a crash ends it: what the binary `mock-engine` does,
//! and a handle to such a process.
//!
//! It is told what to do in lines of JSON on its standard input, of which each has one line of answer. It ends when its
//! input does, so it never outlives whoever started it.

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
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

/// Name of the binary.
const BINARY: &str = "mock-engine";
/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// The first of all.
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

/// Is an engine, until there are no more requests.
///
/// # Errors
/// If a request cannot be read or done, or its answer not be written.
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

/// A mock engine in a process of its own, which is killed when this is dropped.
#[derive(Debug)]
pub struct EngineProcess {
    endpoints: Endpoints,
    /// Who asks it has it to themselves.
    life: Mutex<Life>,
    /// Who kills it does not wait for them.
    progress: watch::Sender<Progress>,
}

/// One life of the process.
#[derive(Debug)]
struct Life {
    config: EngineConfig,
    child: Child,
    requests: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// What became of the process so far.
#[derive(Debug, Clone, Copy)]
struct Progress {
    process: Pid,
    is_killed: bool,
    /// Prompts answered, over all lives.
    answered: u64,
}

impl EngineProcess {
    /// Starts an engine on free ports of the loopback interface: outside of those that the system hands out, so that they
    /// are still free when it comes back.
    ///
    /// # Errors
    /// If the binary is missing, or the process does not become an engine.
    pub async fn start(config: EngineConfig) -> Result<Self> {
        let endpoint = || Ok::<_, anyhow::Error>(format!("tcp://127.0.0.1:{}", free_port()?));
        let endpoints = Endpoints { live: endpoint()?, replay: endpoint()? };
        let life = Life::begin(config, &endpoints).await?;
        let progress = Progress { process: life.process()?, is_killed: false, answered: 0 };
        Ok(Self { endpoints, life: Mutex::new(life), progress: watch::Sender::new(progress) })
    }

    /// Where it publishes: `tcp://host:port`, in all lives.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoints.live
    }

    /// Where it replays: `tcp://host:port`, in all lives.
    #[must_use]
    pub fn replay_endpoint(&self) -> &str {
        &self.endpoints.replay
    }

    /// Runs a request to its end; none if the engine is killed under it.
    ///
    /// # Errors
    /// If the engine refuses it, ends by itself or stays silent.
    pub async fn run(&self, prompt: Prompt) -> Result<Option<Completion>> {
        let answer = self.life.lock().await.ask(&Request::Run(prompt)).await;
        match answer {
            Ok(Answer::Done(completion)) => {
                self.progress.send_modify(|progress| progress.answered += 1);
                Ok(Some(completion))
            }
            Ok(other) => Err(anyhow!("{other:?} is no answer to a prompt")),
            Err(_) if self.progress.borrow().is_killed => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What it holds now.
    ///
    /// # Errors
    /// If it ends or stays silent.
    pub async fn truth(&self) -> Result<Truth> {
        match self.life.lock().await.ask(&Request::Truth).await? {
            Answer::Truth(truth) => Ok(truth),
            other => bail!("{other:?} is not the truth"),
        }
    }

    /// Waits until it has answered so many more prompts than now, when this is called.
    pub fn answered(&self, prompts: u64) -> impl Future<Output = ()> + use<> {
        let mut progress = self.progress.subscribe();
        let due = progress.borrow().answered + prompts;
        async move {
            // Its sender outlives whoever waits, or there is nothing to wait for.
            let _answered = progress.wait_for(|now| now.answered >= due).await;
        }
    }

    /// Ends it at once, whatever it is doing (SIGKILL), and starts it again at the same endpoints: it holds nothing, has
    /// nothing to replay, and its numbers begin at 0.
    ///
    /// # Errors
    /// If it had ended before, or does not start.
    pub async fn kill(&self) -> Result<()> {
        let process = self.progress.borrow().process;
        self.progress.send_modify(|progress| progress.is_killed = true);
        kill_process(process, Signal::KILL).context("kill the engine")?;
        // Whoever waits for an answer learns now that there is none. The next is asked of the next life.
        let mut life = self.life.lock().await;
        let end = life.child.wait().await.context("wait for the engine's end")?;
        ensure!(end.signal() == Some(Signal::KILL.as_raw()), "the engine ended before, {end}");
        let config = EngineConfig { past_lives: life.config.past_lives + 1, ..life.config.clone() };
        *life = Life::begin(config, &self.endpoints).await?;
        let process = life.process()?;
        let begin = |progress: &mut Progress| {
            (progress.process, progress.is_killed) = (process, false);
        };
        self.progress.send_modify(begin);
        Ok(())
    }
}

impl Life {
    async fn begin(config: EngineConfig, endpoints: &Endpoints) -> Result<Self> {
        let mut child = Command::new(binary_of(BINARY)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start an engine")?;
        let requests = child.stdin.take().context("standard input")?;
        let answers = BufReader::new(child.stdout.take().context("standard output")?).lines();
        let mut life = Self { config, child, requests, answers };
        let start = Request::Start(life.config.clone(), endpoints.clone());
        match life.ask(&start).await? {
            Answer::Started => Ok(life),
            other => bail!("{other:?} instead of a start"),
        }
    }

    fn process(&self) -> Result<Pid> {
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
