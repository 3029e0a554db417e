//! Who is let in.

use crate::harness::{
    PATIENCE, ask, client, demands, dialer, flags, https, index, knock, metric, papers, shows, text,
};
use anyhow::{Result, ensure};
use kvasir_sim::client as plain;
use kvasir_sim::server::Server;
use kvasir_tests::authority::{Authority, Validity};
use kvasir_tls::Dialer;
use rustls::version::{TLS12, TLS13};
use std::fs;
use std::net::SocketAddr;
use tokio::time::Instant;

/// With TLS 1.3, a client's handshake is over before the server has seen its certificate: a refusal must not look like a
/// connection that broke.
#[tokio::test]
async fn clients_are_let_in_by_their_certificates() -> Result<()> {
    let (authority, server_paper, good) = papers()?;
    let other = Authority::new("other")?;
    let stranger = Authority::new("stranger")?;
    let revoked = authority.sign(3, Validity::Valid)?;
    let expired = authority.sign(4, Validity::Expired)?;
    // An authority that is trusted, and has no list of what it revoked.
    let unlisted = other.sign(2, Validity::Valid)?;
    let foreign = stranger.sign(2, Validity::Valid)?;
    let authorities = authority.path("clients.pem");
    let lists = authority.path("revoked.pem");
    fs::write(&authorities, authority.pem() + &other.pem())?;
    fs::write(&lists, authority.revoke(&[3])?)?;
    let demand = ["--tls-client-ca", text(&authorities), "--tls-client-crl", text(&lists)];
    let mut server =
        index(&flags(&[shows(&server_paper), demand.map(str::to_owned).to_vec()])).await?;
    let address = server.addresses.grpc;

    ensure!(ask(&dialer(&authority, Some(&good))?, &https(&server)).await? == 0);
    let refused = [
        ("none", None, "CertificateRequired", "CertificateRequired"),
        ("revoked", Some(&revoked), "CertificateRevoked", "CertificateRevoked"),
        ("expired", Some(&expired), "CertificateExpired", "CertificateExpired"),
        ("unlisted", Some(&unlisted), "", ""),
        ("foreign", Some(&foreign), "UnknownCA", "UnknownCA"),
    ];
    for (what, paper, alert, alert_before) in refused {
        let error = dialer(&authority, paper)?.connect(&https(&server)).await;
        let error = error.map(drop).expect_err(what).to_string();
        ensure!(error.contains("TLS with") && error.contains(alert), "{what}: {error}");
        for (version, alert) in [(&TLS13, alert), (&TLS12, alert_before)] {
            let error = knock(address, &client(&authority, paper, &[version], b"h2")?).await;
            let error = format!("{:#}", error.map(drop).expect_err(what));
            ensure!(error.contains("alert") && error.contains(alert), "{what}: {error}");
        }
    }
    for version in [&TLS12, &TLS13] {
        knock(address, &client(&authority, Some(&good), &[version], b"h2")?).await?;
    }
    let reader = client(&authority, Some(&good), &[&TLS13], b"http/1.1")?;
    let name = "kvasir_grpc_connections_handshake_failures_total";
    let failures = metric(&server, &reader, name, "certificate").await?;
    ensure!(failures == 3.0 * refused.len() as f64, "{failures}");
    server.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_server_must_be_of_the_authority_and_the_name() -> Result<()> {
    let (authority, paper, _) = papers()?;
    let stranger = Authority::new("stranger")?;
    let mut server = index(&shows(&paper)).await?;
    ensure!(ask(&dialer(&authority, None)?, &https(&server)).await? == 0, "by address");
    let port = server.addresses.grpc.port();
    let by_name = format!("https://localhost:{port}");
    ensure!(ask(&dialer(&authority, None)?, &by_name).await? == 0, "by name");
    let error = ask(&dialer(&stranger, None)?, &by_name).await.expect_err("a stranger");
    ensure!(format!("{error:#}").contains("UnknownIssuer"), "{error:#}");
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let shown = shows(&paper);
    let shown: Vec<_> = shown.iter().map(String::as_str).collect();
    let mut wide = Server::start_with(everywhere, everywhere, &shown).await?;
    let by_another_name = format!("https://127.0.0.2:{}", wide.addresses.grpc.port());
    let error = ask(&dialer(&authority, None)?, &by_another_name).await;
    let error = format!("{:#}", error.expect_err("another name"));
    ensure!(error.contains("not valid for name"), "{error}");
    wide.stop().await;
    let error = ask(&Dialer::default(), &by_name).await.expect_err("no authority");
    ensure!(format!("{error:#}").contains("tls-ca"), "{error:#}");
    server.stop().await;
    Ok(())
}

#[tokio::test]
async fn plain_and_tls_do_not_mix() -> Result<()> {
    let (authority, paper, _) = papers()?;
    let mut server = index(&shows(&paper)).await?;
    let asked = async {
        let mut client = plain::connect(server.addresses.grpc).await?;
        plain::find_worker(&mut client, "m", "w").await
    };
    ensure!(asked.await.is_err(), "plain HTTP/2 to a port with TLS");
    let reader = client(&authority, None, &[&TLS13], b"http/1.1")?;
    let name = "kvasir_grpc_connections_handshake_failures_total";
    // The client may know before the server has counted it.
    let deadline = Instant::now() + PATIENCE;
    while metric(&server, &reader, name, "not_tls").await? < 1.0 {
        ensure!(Instant::now() < deadline, "it is not counted");
    }
    ensure!(server.output().contains("does not use TLS"), "{}", server.output());
    server.stop().await;

    let mut open = index(&[]).await?;
    let error = ask(&dialer(&authority, None)?, &https(&open)).await.expect_err("no TLS there");
    ensure!(format!("{error:#}").contains("TLS with"), "{error:#}");
    open.stop().await;
    Ok(())
}

/// A client whose certificate expires or is revoked must not come back by a session of before.
#[tokio::test]
async fn sessions_are_resumed_only_where_no_certificate_is_demanded() -> Result<()> {
    use rustls::HandshakeKind::{Full, Resumed};
    let (authority, paper, good) = papers()?;
    for (demand, shown, expected) in
        [(vec![], None, Resumed), (demands(&authority), Some(&good), Full)]
    {
        let mut server = index(&flags(&[shows(&paper), demand])).await?;
        for version in [&TLS12, &TLS13] {
            let config = client(&authority, shown, &[version], b"h2")?;
            let kind = async || {
                let stream = knock(server.addresses.grpc, &config).await?;
                anyhow::Ok(stream.get_ref().1.handshake_kind())
            };
            ensure!(kind().await? == Some(Full));
            let second = kind().await?;
            ensure!(second == Some(expected), "{version:?}: {second:?}");
        }
        server.stop().await;
    }
    Ok(())
}
