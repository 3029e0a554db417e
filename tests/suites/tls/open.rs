//! Nothing listens to other machines without TLS by oversight.

use crate::harness::{PATIENCE, flags, papers, shows, text};
use anyhow::{Context, Result, ensure};
use kvasir_sim::server::{agent_binary, binary, router_binary};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

/// The programs, each with what it needs besides.
fn programs() -> Result<[(PathBuf, Vec<&'static str>); 3]> {
    let agent = vec![
        "--worker-id=w",
        "--model=m",
        "--block-size=16",
        "--indexers=http://127.0.0.1:1",
        "--advertise=127.0.0.1:2",
    ];
    Ok([
        (binary()?, vec![]),
        (agent_binary()?, agent),
        (router_binary()?, vec!["--indexer=http://127.0.0.1:1"]),
    ])
}

fn command(program: &(PathBuf, Vec<&str>), flags: &[&str]) -> Command {
    let mut command = Command::new(&program.0);
    // What is given last counts for none of them: each flag is given once.
    command.args(&program.1).args(flags).kill_on_drop(true);
    command
}

async fn refused(program: &(PathBuf, Vec<&str>), flags: &[&str], expected: &str) -> Result<()> {
    let ended = timeout(PATIENCE, command(program, flags).output()).await;
    let Output { status, stderr, .. } = ended.context("it runs")??;
    let stderr = String::from_utf8_lossy(&stderr);
    ensure!(status.code() == Some(64) && stderr.contains(expected), "{flags:?}: {status} {stderr}");
    Ok(())
}

/// Waits for a line of the log.
async fn says(program: &(PathBuf, Vec<&str>), flags: &[&str], expected: &[&str]) -> Result<()> {
    let mut command = command(program, flags);
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stderr.take().context("its output")?).lines();
    let mut seen = Vec::new();
    let mut left = expected.to_vec();
    let read = async {
        while let Some(line) = lines.next_line().await? {
            left.retain(|part| !line.contains(part));
            seen.push(line);
            if left.is_empty() {
                return Ok(());
            }
        }
        anyhow::bail!("it ended")
    };
    let read = timeout(PATIENCE, read).await;
    child.kill().await?;
    let read = read.context("not in time").and_then(|read| read);
    read.with_context(|| format!("{expected:?} in {seen:#?}"))
}

const BEYOND: [&str; 2] = ["--listen=0.0.0.0:0", "--http-listen=127.0.0.1:0"];
const BEYOND_HTTP: [&str; 2] = ["--listen=127.0.0.1:0", "--http-listen=0.0.0.0:0"];

#[tokio::test]
async fn no_port_is_open_to_other_machines_without_tls() -> Result<()> {
    let (authority, paper, _) = papers()?;
    let tls = shows(&paper);
    let ca = authority.cert();
    for program in &programs()? {
        let is_agent = program.0.ends_with("kvbm-agent");
        refused(program, &BEYOND, "listen: 0.0.0.0:0 can be reached from other machines").await?;
        refused(program, &BEYOND_HTTP, "http-listen: 0.0.0.0:0 can be reached").await?;
        for (at, option) in [(BEYOND, "listen"), (BEYOND_HTTP, "http-listen")] {
            let option = format!("option=\"{option}\"");
            says(program, &[&at[..], &["--insecure"]].concat(), &["insecure", &option]).await?;
        }
        if !is_agent {
            // TLS for everybody is told of, too.
            let with = [&BEYOND[..], &tls.iter().map(String::as_str).collect::<Vec<_>>()].concat();
            says(program, &with, &["the port serves every client"]).await?;
        }
        for (given, expected) in [
            (vec!["--tls-cert", text(&paper.cert)], "tls-key: is required with tls-cert"),
            (vec!["--tls-key", text(&paper.key)], "tls-cert: is required with tls-key"),
            (vec!["--tls-client-ca", text(&ca)], "tls-client-ca: needs tls-cert and tls-key"),
            (vec!["--tls-client-crl", text(&ca)], "tls-client-crl: needs tls-cert and tls-key"),
            (vec!["--tls-ca=/no/such/file"], "tls-ca: /no/such/file: No such file"),
        ] {
            refused(program, &given, expected).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn files_that_cannot_be_used_are_refused_by_name() -> Result<()> {
    let (_authority, paper, other) = papers()?;
    let [server, agent, router] = programs()?;
    let tls = |cert, key| vec!["--tls-cert", text(cert), "--tls-key", text(key)];
    let key_of_other = tls(&paper.cert, &other.key);
    refused(&server, &key_of_other, "is not the key of tls-cert").await?;
    refused(&server, &tls(&paper.key, &paper.key), "has no certificate in PEM format").await?;
    refused(&server, &tls(&paper.cert, &paper.cert), "has no private key").await?;
    let crl = [tls(&paper.cert, &paper.key), vec!["--tls-client-crl", text(&paper.cert)]].concat();
    refused(&server, &crl, "tls-client-crl: needs tls-client-ca").await?;
    let siblings = ["--siblings=https://127.0.0.1:1"];
    refused(&server, &siblings, "siblings: \"https://127.0.0.1:1\" needs the certificate").await?;

    let far = |program: &(PathBuf, Vec<&'static str>), name: &str, flag| {
        let mut flags = program.1.clone();
        flags.retain(|at| !at.starts_with(name));
        flags.push(flag);
        (program.0.clone(), flags)
    };
    let router = far(&router, "--indexer=", "--indexer=https://127.0.0.1:1");
    refused(&router, &[], "indexer: \"https://127.0.0.1:1\" needs the certificate").await?;
    let there = far(&agent, "--indexers=", "--indexers=https://127.0.0.1:1");
    refused(&there, &[], "indexers: \"https://127.0.0.1:1\" needs the certificate").await?;

    let paper_flags = flags(&[shows(&paper)]);
    let paper_flags: Vec<_> = paper_flags.iter().map(String::as_str).collect();
    let plain = far(&agent, "--advertise=", "--advertise=http://127.0.0.1:2");
    refused(
        &plain,
        &paper_flags,
        "advertise: \"http://127.0.0.1:2\" differs from the scheme of the agent's port",
    )
    .await?;
    let secret = far(&agent, "--advertise=", "--advertise=https://127.0.0.1:2");
    refused(
        &secret,
        &[],
        "advertise: \"https://127.0.0.1:2\" differs from the scheme of the agent's port",
    )
    .await?;
    Ok(())
}
