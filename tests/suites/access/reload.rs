//! The file of identities changes while the server runs.

use crate::calls::Caller;
use crate::fixture::{self, IDENTITIES};
use anyhow::{Result, ensure};
use kvasir_proto::pb;
use std::fs;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::Code;

const LIST: &str = "/kvasir.v1.Indexer/ListWorkers";
/// Longest time until a new file is in force.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(20);

async fn until(caller: &Caller, wanted: Code) -> Result<()> {
    let deadline = Instant::now() + RELOAD_TIMEOUT;
    loop {
        let called = caller.call(LIST, &pb::ListWorkersRequest::default()).await;
        let code = called.map_or_else(|status| status.code(), |_answers| Code::Ok);
        if code == wanted {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{code:?} after {RELOAD_TIMEOUT:?}, not {wanted:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn identities_come_and_go_without_a_restart() -> Result<()> {
    let (mut index, folder) = fixture::index(&[]).await?;
    let file = folder.path().join("identities.toml");
    let connect = |token| Caller::connect(index.addresses.grpc, Some(token));
    let old = connect("query-a").await?;
    let new = connect("late").await?;
    until(&old, Code::Ok).await?;
    until(&new, Code::Unauthenticated).await?;
    let late = ("late", "roles = [\"query\"]");
    fixture::write(&file, &[late])?;
    until(&new, Code::Ok).await?;
    until(&old, Code::Unauthenticated).await?;
    // A file that cannot be used changes nothing, and its repair is noticed.
    fs::write(&file, "[[identity]]\nname = \"half")?;
    let reported = "cannot be used";
    let deadline = Instant::now() + RELOAD_TIMEOUT;
    while !index.output().contains(reported) {
        until(&new, Code::Ok).await?;
        ensure!(Instant::now() < deadline, "not reported: {}", index.output());
        sleep(Duration::from_millis(50)).await;
    }
    let both: Vec<_> = IDENTITIES.iter().copied().chain([late]).collect();
    fixture::write(&file, &both)?;
    until(&old, Code::Ok).await?;
    until(&new, Code::Ok).await?;
    index.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_refused_at_the_start() -> Result<()> {
    let folder = tempfile::TempDir::new()?;
    let file = folder.path().join("identities.toml");
    fs::write(&file, "[[identity]]\nname = \"a\"\ntoken-sha256 = \"s3cret\"\nroles = [\"query\"]")?;
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let file = file.display().to_string();
    let flags = ["--identities", &file];
    let started = kvasir_sim::server::Server::start_with(any, any, &flags).await;
    let Err(error) = started else { anyhow::bail!("it started") };
    let text = format!("{error:#}");
    ensure!(text.contains("identities") && text.contains("64 hexadecimal digits"), "{text}");
    ensure!(!text.contains("s3cret"), "{text}");
    Ok(())
}
