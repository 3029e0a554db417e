//! Servers that are told of siblings which are not there, or are starting as well.

use crate::harness::{anywhere, beside, metric, url};
use anyhow::{Result, ensure};
use kvasir_sim::demo::metrics;
use kvasir_sim::place::free_port;
use kvasir_sim::server::Server;
use std::net::SocketAddr;
use tokio::join;

/// A fleet's first start, each with its own address among the siblings.
#[tokio::test]
async fn replicas_that_start_together_do_not_wait_for_each_other() -> Result<()> {
    let ports = [free_port()?, free_port()?];
    let [first, second] = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let siblings = format!("{},{}", url(first), url(second));
    let flags = ["--siblings", &siblings];
    let started = join!(
        Server::start_with(first, anywhere(), &flags),
        Server::start_with(second, anywhere(), &flags),
    );
    let mut servers = [started.0?, started.1?];
    for server in &servers {
        metrics::ready(server.addresses.http).await?;
    }
    for server in &mut servers {
        server.stop().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_sibling_that_is_not_there_is_passed_over() -> Result<()> {
    let nobody = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let mut server = beside(&[nobody]).await?;
    metrics::ready(server.addresses.http).await?;
    ensure!(metric(&server, "sibling_list_failures_total", "").await? == 1.0, "it is counted");
    server.stop().await;
    Ok(())
}
