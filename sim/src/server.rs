//! Servers as child processes: indexer-server, agent, router and gateway.

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Name of the server's binary, in the folder of this build's profile.
const BINARY: &str = "indexer-server";
/// Name of the agent's binary.
const AGENT: &str = "kvbm-agent";
/// Name of the router's binary.
const ROUTER: &str = "router";
/// Name of the gateway's binary.
const GATEWAY: &str = "gateway";
/// Name of the binary with all programs.
const KVASIR: &str = "kvasir";
/// Timeout for the server to listen after its start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the server to end after SIGTERM; then it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for the exit status of a server whose end may have caused a failed call.
const EXIT_NOTICE_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of output lines that are kept for error messages.
const OUTPUT_LINES_MAX: usize = 20;

/// The last output lines of a process.
pub type Output = Arc<Mutex<VecDeque<String>>>;

/// Addresses of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Address of the gRPC port.
    pub grpc: SocketAddr,
    /// Address of the HTTP side port.
    pub http: SocketAddr,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// Addresses of the server.
    pub addresses: Addresses,
    child: Child,
    output: Output,
    readers: JoinSet<()>,
}

impl Server {
    /// Starts the server and waits until it listens. If an address is in use, a free port of the same interface
    /// replaces it; port 0 selects any port.
    ///
    /// # Errors
    /// If the binary is missing, or the server ends or does not become ready.
    pub async fn start(listen: SocketAddr, http_listen: SocketAddr) -> Result<Self> {
        Self::start_with(listen, http_listen, &[]).await
    }

    /// Like [`Server::start`], with further flags for the server.
    ///
    /// # Errors
    /// As [`Server::start`], or if the server rejects a flag.
    pub async fn start_with(
        listen: SocketAddr,
        http_listen: SocketAddr,
        flags: &[&str],
    ) -> Result<Self> {
        Self::launch(Command::new(binary()?), listen, http_listen, flags).await
    }

    /// Starts a server on free ports of the loopback interface, with a limit on open files.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn start_with_open_files(limit: usize, flags: &[&str]) -> Result<Self> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &limit.to_string()]);
        limited.arg(binary()?);
        Self::launch(limited, any, any, flags).await
    }

    /// Starts an agent on free ports of the loopback interface. The process has the same common flags and log lines as
    /// the server.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn agent(flags: &[&str]) -> Result<Self> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::agent_at(Addresses { grpc: any, http: any }, flags).await
    }

    /// Like [`Server::agent`], at these addresses.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn agent_at(addresses: Addresses, flags: &[&str]) -> Result<Self> {
        let program = Command::new(binary_of(AGENT)?);
        Self::launch(program, addresses.grpc, addresses.http, flags).await
    }

    /// Starts a router on free ports of the loopback interface. The process has the same common flags and log lines as
    /// the server.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn router(flags: &[&str]) -> Result<Self> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::router_at(Addresses { grpc: any, http: any }, flags).await
    }

    /// Like [`Server::router`], at these addresses.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn router_at(addresses: Addresses, flags: &[&str]) -> Result<Self> {
        let program = Command::new(binary_of(ROUTER)?);
        Self::launch(program, addresses.grpc, addresses.http, flags).await
    }

    /// Starts a gateway on free ports of the loopback interface. The process has the same common flags as the server.
    /// Its first address is the API's.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn gateway(flags: &[&str]) -> Result<Self> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::launch(Command::new(binary_of(GATEWAY)?), any, any, flags).await
    }

    /// Starts `kvasir serve` on free ports of the loopback interface. Its first address is the API's.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn serve(flags: &[&str]) -> Result<Self> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::serve_at(Addresses { grpc: any, http: any }, flags).await
    }

    /// Like [`Server::serve`], at these addresses.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn serve_at(addresses: Addresses, flags: &[&str]) -> Result<Self> {
        Self::serve_with(addresses, &[], flags).await
    }

    /// Like [`Server::serve_at`], with environment variables.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn serve_with(
        addresses: Addresses,
        variables: &[(&str, &str)],
        flags: &[&str],
    ) -> Result<Self> {
        let mut program = Command::new(binary_of(KVASIR)?);
        program.arg("serve").envs(variables.iter().copied());
        Self::launch(program, addresses.grpc, addresses.http, flags).await
    }

    /// Starts a program with the common flags at these addresses. The command may be another one that becomes the
    /// program, such as `nsenter`.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn program_at(
        program: Command,
        addresses: Addresses,
        flags: &[&str],
    ) -> Result<Self> {
        Self::launch(program, addresses.grpc, addresses.http, flags).await
    }

    async fn launch(
        mut program: Command,
        listen: SocketAddr,
        http_listen: SocketAddr,
        flags: &[&str],
    ) -> Result<Self> {
        let grpc = usable_address(listen);
        let http = usable_address(http_listen);
        // A separate process group: Ctrl-C reaches only the demo, which then stops the server.
        let mut child = program
            .args(["--listen", &grpc.to_string(), "--http-listen", &http.to_string()])
            .args(["--log-format", "text", "--log-filter", "info"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("start the program")?;
        let output = Output::default();
        let mut readers = JoinSet::new();
        let (listening, mut addresses) = mpsc::channel(1);
        if let Some(stdout) = child.stdout.take() {
            let listening = listening.clone();
            readers.spawn(read_lines(stdout, Arc::clone(&output), report_addresses(listening)));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.spawn(read_lines(stderr, Arc::clone(&output), report_addresses(listening)));
        }
        let mut server = Self { addresses: Addresses { grpc, http }, child, output, readers };
        match timeout(START_TIMEOUT, addresses.recv()).await {
            Ok(Some(addresses)) => server.addresses = addresses,
            Ok(None) => return Err(server.exited().await),
            Err(_) => {
                let last = last_lines(&server.output);
                bail!("the server does not listen; its last output:\n{last}")
            }
        }
        Ok(server)
    }

    /// Starts a server on free ports of the loopback interface.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn start_anywhere() -> Result<Self> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::start(any, any).await
    }

    /// Id of the process; none after [`Server::exited`] or [`Server::stop`].
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until the server ends by itself. Returns its exit status and last output as an error.
    pub async fn exited(&mut self) -> anyhow::Error {
        match self.child.wait().await {
            Ok(status) => {
                // The server's pipes are closed, so the readers end.
                while self.readers.join_next().await.is_some() {}
                let last = last_lines(&self.output);
                anyhow!("the server ended with {status}; its last output:\n{last}")
            }
            Err(error) => anyhow!("failed to wait for the server: {error}"),
        }
    }

    /// Adds the server's exit to the error of a call, if the exit caused the error.
    pub async fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        match timeout(EXIT_NOTICE_TIMEOUT, self.exited()).await {
            Ok(exit) => exit.context(error),
            Err(_) => error,
        }
    }

    /// Sends SIGTERM to the server, and kills it if it does not end in time.
    ///
    /// # Panics
    /// If the server dies of SIGSEGV instead.
    pub async fn stop(&mut self) {
        // A missing id, or an error, means that the server has already ended.
        let pid = self.child.id().and_then(|id| Pid::from_raw(id as i32));
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        let Ok(ended) = timeout(STOP_TIMEOUT, self.child.wait()).await else {
            eprintln!("the server did not end within {STOP_TIMEOUT:?}: killed");
            drop(self.child.kill().await);
            return;
        };
        let signal = ended.ok().and_then(|status| status.signal());
        assert_ne!(signal, Some(Signal::SEGV.as_raw()), "the server died at its stop");
    }

    /// Kills the server like in a crash, and waits until it has ended.
    pub async fn kill(&mut self) {
        // This fails only if the server has already ended.
        drop(self.child.kill().await);
    }

    /// The last output lines of the server.
    #[must_use]
    pub fn output(&self) -> String {
        last_lines(&self.output)
    }

    /// Sends the server a signal.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id as i32));
        let pid = pid.context("the server has ended")?;
        kill_process(pid, signal).context("send a signal to the server")
    }
}

/// The last output lines of a process, as one text.
pub fn last_lines(output: &Output) -> String {
    let lines = output.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
}

/// The server's binary of this build's profile.
///
/// # Errors
/// If the binary is missing.
pub fn binary() -> Result<PathBuf> {
    binary_of(BINARY)
}

/// The agent's binary of this build's profile.
///
/// # Errors
/// If the binary is missing.
pub fn agent_binary() -> Result<PathBuf> {
    binary_of(AGENT)
}

/// The router's binary of this build's profile.
///
/// # Errors
/// If the binary is missing.
pub fn router_binary() -> Result<PathBuf> {
    binary_of(ROUTER)
}

/// A binary of the workspace, in the folder of this build's profile.
///
/// # Errors
/// If the binary has not been built.
pub fn binary_of(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("find our own binary")?;
    // Test programs are one folder deeper than binaries.
    let folder = own.ancestors().skip(1).find(|folder| !folder.ends_with("deps"));
    let folder = folder.context("find the folder of our own binary")?;
    let binary = folder.join(name).with_extension(std::env::consts::EXE_EXTENSION);
    if !binary.is_file() {
        bail!(
            "{} does not exist: build it with `cargo build --workspace --bins` in the same profile",
            binary.display()
        );
    }
    Ok(binary)
}

/// `wanted`, or any port of the same interface if `wanted` is in use. An address of another network namespace cannot be
/// tried.
fn usable_address(wanted: SocketAddr) -> SocketAddr {
    let tried = TcpListener::bind(wanted);
    if !tried.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse) {
        return wanted;
    }
    eprintln!("{wanted} is in use: taking another port");
    SocketAddr::new(wanted.ip(), 0)
}

/// Sends the server's addresses when the server logs them.
fn report_addresses(listening: mpsc::Sender<Addresses>) -> impl FnMut(&str) {
    move |line| {
        if let Some(addresses) = listening_at(line) {
            // Only the first report counts. The receiver may be gone.
            let _ = listening.try_send(addresses);
        }
    }
}

/// Keeps the last output lines of a process, and passes each line to `on_line`.
pub async fn read_lines(
    source: impl AsyncRead + Unpin,
    output: Output,
    mut on_line: impl FnMut(&str),
) {
    let mut lines = BufReader::new(source).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        on_line(&line);
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        output.push_back(line);
        while output.len() > OUTPUT_LINES_MAX {
            output.pop_front();
        }
    }
}

/// The addresses in a log line, if the line states them.
fn listening_at(line: &str) -> Option<Addresses> {
    let (_, fields) = line.split_once(" listening ")?;
    let field = |name: &str| {
        let mut words = fields.split_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.parse::<SocketAddr>().ok())
    };
    // The gateway has an API instead.
    let main = field("grpc=").or_else(|| field("api="))?;
    Some(Addresses { grpc: main, http: field("http=")? })
}
