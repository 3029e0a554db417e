//! Network namespaces: one for the whole test, so that nothing leaves it and nothing survives it, and one for each index.

use anyhow::{Context, Result, ensure};
use std::env;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader as AsyncBufReader};
use tokio::process::{Child, Command};

/// Set within the test's namespaces, to the folder of the test.
const INSIDE: &str = "KVASIR_SOAK_INSIDE";
/// Address of everything outside the indexes' namespaces.
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 83, 0, 1);
/// All addresses.
pub const NETWORK: &str = "10.83.0.0/16";

/// The folder of the test, if this process is in the test's namespaces.
pub fn folder() -> Option<PathBuf> {
    env::var_os(INSIDE).map(PathBuf::from)
}

/// A command that becomes another one in new namespaces.
fn unshare() -> std::process::Command {
    let mut command = std::process::Command::new("unshare");
    // Without root's rights, a user namespace gives them.
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--pid", "--mount-proc", "--fork", "--kill-child"]);
    command
}

/// Runs a test of this program again in namespaces of its own. Its processes end with it, and it ends with this process.
pub fn run_inside(test: &str) -> Result<()> {
    let probe = unshare().arg("true").output().context("run unshare")?;
    let complaint = String::from_utf8_lossy(&probe.stderr);
    ensure!(probe.status.success(), "this needs root or user namespaces: {complaint}");
    let folder = tempfile::TempDir::new()?;
    let mut child = unshare()
        .arg(env::current_exe()?)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, folder.path())
        // Everything temporary goes into the folder, too.
        .env("TMPDIR", folder.path())
        // Its end tells the other side that this process has ended.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("run unshare")?;
    let stdout = child.stdout.take().context("standard output")?;
    let mut has_passed = false;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        has_passed |= line.starts_with("test result: ok. 1 passed");
        // The summary belongs to this process.
        if !["running ", "test ", "failures:"].iter().any(|start| line.starts_with(start)) {
            println!("{line}");
        }
    }
    let ended = child.wait()?;
    ensure!(ended.success() && has_passed, "the test in its namespaces ended with {ended}");
    Ok(())
}

/// Prepares the test's own namespace. When the process that started this one is gone, this one removes the folder and ends.
#[expect(clippy::disallowed_methods, reason = "nobody is left who could be told")]
pub async fn prepare(folder: &Path) -> Result<()> {
    let folder = folder.to_owned();
    std::thread::spawn(move || {
        // An error is an end, too.
        drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
        drop(std::fs::remove_dir_all(folder));
        std::process::exit(1);
    });
    execute("ip", &["link", "set", "lo", "up"]).await?;
    execute("ip", &["address", "add", &format!("{OUTSIDE}/32"), "dev", "lo"]).await
}

async fn execute(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output().await;
    let output = output.with_context(|| format!("run {program}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {complaint}", arguments.join(" "));
    Ok(())
}

/// How a namespace is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Its own packets are lost in silence; whoever sends to it learns that it cannot be reached.
    Outside,
    /// The reverse.
    Inside,
}

/// A network namespace with one address, joined to the test's namespace by a pair of virtual interfaces.
#[derive(Debug)]
pub struct Namespace {
    /// The namespace exists as long as this process.
    holder: Child,
    /// Path of the namespace.
    path: String,
    interface: String,
    gateway: Ipv4Addr,
    /// Address of the namespace.
    pub address: Ipv4Addr,
}

impl Namespace {
    /// The namespace with this number, 1 to 250.
    pub async fn create(number: u8) -> Result<Self> {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("run unshare")?;
        let stdout = holder.stdout.take().context("standard output")?;
        let ready = AsyncBufReader::new(stdout).lines().next_line().await?;
        ensure!(ready.is_some(), "no further namespace");
        let id = holder.id().context("a process")?.to_string();
        let gateway = Ipv4Addr::new(10, 83, number, 1);
        let address = Ipv4Addr::new(10, 83, number, 2);
        let interface = format!("site{number}");
        let path = format!("/proc/{id}/ns/net");
        let made = Self { holder, path, interface, gateway, address };
        let pair = ["type", "veth", "peer", "name", "eth0", "netns", &id];
        execute("ip", &[&["link", "add", &made.interface], &pair[..]].concat()).await?;
        let own = format!("{gateway}/30");
        execute("ip", &["address", "add", &own, "dev", &made.interface]).await?;
        execute("ip", &["link", "set", &made.interface, "up"]).await?;
        made.within(&["link", "set", "lo", "up"]).await?;
        made.within(&["address", "add", &format!("{address}/30"), "dev", "eth0"]).await?;
        made.heal(Cut::Inside).await?;
        Ok(made)
    }

    /// A command that becomes this program within the namespace.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path)).arg(program);
        command
    }

    async fn within(&self, arguments: &[&str]) -> Result<()> {
        let enter = format!("--net={}", self.path);
        execute("nsenter", &[&[enter.as_str(), "ip"], arguments].concat()).await
    }

    /// Cuts the namespace off, without a word to open connections.
    pub async fn cut(&self, how: Cut) -> Result<()> {
        match how {
            Cut::Outside => execute("ip", &["link", "set", &self.interface, "down"]).await,
            Cut::Inside => self.within(&["link", "set", "eth0", "down"]).await,
        }
    }

    /// Ends such a cut.
    pub async fn heal(&self, how: Cut) -> Result<()> {
        match how {
            Cut::Outside => execute("ip", &["link", "set", &self.interface, "up"]).await,
            Cut::Inside => {
                self.within(&["link", "set", "eth0", "up"]).await?;
                // The route went with the interface.
                let gateway = self.gateway.to_string();
                self.within(&["route", "add", "default", "via", &gateway]).await
            }
        }
    }

    /// Ends the namespace.
    pub async fn end(&mut self) {
        // It may have ended already.
        drop(self.holder.kill().await);
    }
}
