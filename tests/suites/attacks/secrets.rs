//! The password, or the token, with which the processes sign on to NATS: nothing that they print has it.

use crate::harness::{PATIENCE, POLL_INTERVAL, wait_for};
use anyhow::{Context, Result, ensure};
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::place::free_port;
use kvasir_sim::server::{agent_binary, binary};
use nkeys::KeyPair;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

const SECRET: &str = "hunter2";
/// Who signs on, before the host of a URL, and how that is shown.
const CREDENTIALS: [(&str, &str); 2] = [("kvasir:hunter2", "kvasir:***"), ("hunter2", "***")];

/// Both programs, with what they need beside the URL.
fn programs() -> Result<[(PathBuf, &'static str, &'static [&'static str]); 2]> {
    let worker = &["--worker-id=w", "--model=m", "--block-size=16"];
    Ok([(binary()?, "KVASIR_NATS_URL", &[]), (agent_binary()?, "KVASIR_AGENT_NATS_URL", worker)])
}

#[tokio::test]
async fn nothing_that_a_program_prints_before_it_runs_has_the_password() -> Result<()> {
    let folder = TempDir::new()?;
    let file = folder.path().join("config.toml");
    for (program, variable, flags) in programs()? {
        for (credentials, shown) in CREDENTIALS {
            let url = format!("nats://{credentials}@127.0.0.1:4222");
            let run = |argument: &str| {
                let mut command = Command::new(&program);
                command.args(flags).arg(argument).env(variable, &url);
                command
            };
            let printed = text(run("--print-config").output().await?);
            ensure!(printed.contains(&format!("nats://{shown}@127.0.0.1:4222")), "{printed}");
            let help = text(run("--help").output().await?);
            for printed in [printed, help] {
                ensure!(!printed.contains(SECRET), "{printed}");
            }
            // Without quotes, or its end.
            for line in [format!("nats-url = {url}"), format!("nats-url = \"{url}")] {
                fs::write(&file, format!("drain-timeout = \"1s\"\n{line}"))?;
                let refusal = Command::new(&program).arg("--config").arg(&file).output().await?;
                ensure!(!refusal.status.success(), "{line} is taken");
                let refusal = text(refusal);
                ensure!(refusal.contains("config.toml") && !refusal.contains(SECRET), "{refusal}");
            }
        }
    }
    Ok(())
}

/// Both streams of a program that has ended.
fn text(output: Output) -> String {
    [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat()
}

#[tokio::test]
async fn neither_the_log_nor_the_side_port_has_the_password_whatever_the_filter() -> Result<()> {
    let folder = TempDir::new()?;
    for (program, _, flags) in programs()? {
        for (credentials, _) in CREDENTIALS {
            let log = folder.path().join("log");
            let http = SocketAddr::from(([127, 0, 0, 1], free_port()?));
            let grpc = SocketAddr::from(([127, 0, 0, 1], free_port()?));
            let nats = TcpListener::bind("127.0.0.1:0").await?;
            let url = format!("nats://{credentials}@{}", nats.local_addr()?);
            let mut process = start(&program, flags, (&url, http, grpc), &log)?;
            let signed_on =
                timeout(PATIENCE, serve(nats, http)).await.context("nobody signs on")?;
            let (connect, ready) = signed_on?;
            ensure!(connect.contains(SECRET), "not the client of the test: {connect}");
            // Of a client the libraries log everything there is.
            let _client = client::connect(grpc).await?;
            let logs_all = || Ok(fs::read_to_string(&log)?.contains("TRACE"));
            wait_for(PATIENCE, logs_all).await.context("it does not log all that it can")?;
            process.kill().await?;
            let log = fs::read_to_string(&log)?;
            for printed in [log, ready] {
                ensure!(!printed.contains(SECRET), "{printed}");
            }
        }
    }
    Ok(())
}

/// The JWT is no secret by itself, but nobody needs it in a log either.
#[tokio::test]
async fn nothing_that_a_program_prints_has_what_is_in_its_credentials_file() -> Result<()> {
    let folder = TempDir::new()?;
    let seed = KeyPair::new_user().seed()?;
    let jwt = format!("{SECRET}.of.nobody");
    let credentials = folder.path().join("user.creds");
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    fs::write(&credentials, text)?;
    let credentials = format!("--nats-credentials={}", credentials.display());
    for (program, variable, flags) in programs()? {
        let mut shown = Command::new(&program);
        shown.args(flags).args(["--print-config", &credentials]);
        let shown = text_of_run(shown.env(variable, "nats://127.0.0.1:4222")).await?;
        ensure!(shown.contains("nats-credentials = ") && !shown.contains("refused"), "{shown}");
        let log = folder.path().join("log");
        let http = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let grpc = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let nats = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("nats://{}", nats.local_addr()?);
        let flags = [flags, &[credentials.as_str()]].concat();
        let mut process = start(&program, &flags, (&url, http, grpc), &log)?;
        let signed_on = timeout(PATIENCE, serve(nats, http)).await.context("nobody signs on")?;
        let (connect, ready) = signed_on?;
        ensure!(connect.contains(&jwt) && !connect.contains(&seed), "{connect}");
        // Of a client the libraries log everything there is.
        let _client = client::connect(grpc).await?;
        let logs_all = || Ok(fs::read_to_string(&log)?.contains("TRACE"));
        wait_for(PATIENCE, logs_all).await.context("it does not log all that it can")?;
        process.kill().await?;
        for printed in [shown, ready, fs::read_to_string(&log)?] {
            ensure!(!printed.contains(SECRET) && !printed.contains(&seed), "{printed}");
        }
    }
    Ok(())
}

async fn text_of_run(command: &mut Command) -> Result<String> {
    Ok(text(command.output().await?))
}

fn start(
    program: &Path,
    flags: &[&str],
    (url, http, grpc): (&str, SocketAddr, SocketAddr),
    log: &Path,
) -> Result<Child> {
    let child = Command::new(program)
        .args(["--log-filter=trace,async_nats=trace"])
        .args([format!("--listen={grpc}"), format!("--http-listen={http}")])
        .arg(format!("--nats-url={url}"))
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(log)?)
        .kill_on_drop(true)
        .spawn();
    Ok(child?)
}

/// Plays a NATS server until a client has signed on; returns how it did, and what `/readyz` said before.
async fn serve(nats: TcpListener, http: SocketAddr) -> Result<(String, String)> {
    let ready = loop {
        match metrics::get(http, "/readyz").await {
            Ok((_, ready)) => break ready,
            // The side port is not open yet.
            Err(_) => sleep(POLL_INTERVAL).await,
        }
    };
    loop {
        let (stream, _) = nats.accept().await?;
        // A client that found nobody for too long has left, and comes again.
        if let Some(connect) = sign_on(stream).await {
            return Ok((connect, ready));
        }
    }
}

/// How a client signs on, if it does.
async fn sign_on(stream: TcpStream) -> Option<String> {
    let mut stream = BufReader::new(stream);
    let info = r#"INFO {"server_id":"s","server_name":"s","version":"2.11.0","go":"","host":"127.0.0.1","port":1,"headers":true,"max_payload":1048576,"proto":1,"client_id":1}"#;
    stream.write_all(format!("{info}\r\n").as_bytes()).await.ok()?;
    let mut connect = None;
    loop {
        let mut line = String::new();
        let bytes = stream.read_line(&mut line).await.ok()?;
        if bytes == 0 {
            return None;
        } else if line.starts_with("CONNECT") {
            connect = Some(line);
        } else if line.starts_with("PING") {
            stream.write_all(b"PONG\r\n").await.ok()?;
            return connect;
        }
    }
}
