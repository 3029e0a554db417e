//! Certificates that change while clients ask.

use crate::harness::{
    ask, client, demands, dialer, flags, https, index, knock, papers, shows, text, until,
};
use anyhow::{Context, Result, ensure};
use kvasir_tests::authority::{Validity, replace};
use rustls::version::TLS13;
use std::fs;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Clients that connect anew for each question.
const CLIENTS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_replaced_under_load_without_a_failed_query() -> Result<()> {
    let (authority, paper, good) = papers()?;
    let mut server = index(&flags(&[shows(&paper), demands(&authority)])).await?;
    let stop = CancellationToken::new();
    let mut asking = JoinSet::new();
    for _ in 0..CLIENTS {
        let dialer = dialer(&authority, Some(&good))?;
        let url = https(&server);
        let stop = stop.clone();
        asking.spawn(async move {
            let mut asked = 0_u64;
            while !stop.is_cancelled() {
                ask(&dialer, &url).await?;
                asked += 1;
            }
            anyhow::Ok(asked)
        });
    }
    let config = client(&authority, Some(&good), &[&TLS13], b"h2")?;
    let shown = async || {
        let stream = knock(server.addresses.grpc, &config).await?;
        let shown = stream.get_ref().1.peer_certificates().context("a certificate")?;
        anyhow::Ok(shown[0].to_vec())
    };
    let before = shown().await?;
    let (cert, key) = authority.make(5, Validity::Valid)?;
    // Between the two, certificate and key do not belong together.
    replace(&paper.cert, &cert)?;
    until("the log says that it cannot be used", async || {
        knock(server.addresses.grpc, &config).await?;
        Ok(server.output().contains("is not the key of tls-cert"))
    })
    .await?;
    ensure!(shown().await? == before, "the one before stays in force");
    replace(&paper.key, &key)?;
    until("the new one is shown", async || Ok(shown().await? != before)).await?;
    stop.cancel();
    while let Some(asked) = asking.join_next().await {
        let asked = asked?.context("a query failed")?;
        ensure!(asked > 3, "{asked} queries");
    }
    ensure!(!server.output().contains("PRIVATE KEY"), "no key in the log");
    server.stop().await;
    Ok(())
}

/// A certificate that is revoked while the server runs.
#[tokio::test]
async fn a_list_that_grows_is_read_again() -> Result<()> {
    let (authority, paper, good) = papers()?;
    let list = authority.path("revoked.pem");
    fs::write(&list, authority.revoke(&[])?)?;
    let crl = ["--tls-client-crl", text(&list)].map(str::to_owned).to_vec();
    let mut server = index(&flags(&[shows(&paper), demands(&authority), crl])).await?;
    let dialer = dialer(&authority, Some(&good))?;
    ask(&dialer, &https(&server)).await?;
    replace(&list, &authority.revoke(&[good.serial])?)?;
    until("it is refused", async || Ok(dialer.connect(&https(&server)).await.is_err())).await?;
    // And what a client shows is read again, too.
    let (cert, key) = authority.make(6, Validity::Valid)?;
    replace(&good.cert, &cert)?;
    replace(&good.key, &key)?;
    until("another one is let in", async || Ok(dialer.connect(&https(&server)).await.is_ok()))
        .await?;
    server.stop().await;
    Ok(())
}
