//! Signing on to a real nats-server, by nkey, JWT and certificate: all programs come in, and a wrong key names its option.

use crate::agents::{Broker, status};
use crate::fleet::{Holder, check, configured, flags, index, readiness, until};
use crate::keys::{Way, credentials, nkey, tls};
use kvasir_process::nats::{NatsAccess, NatsServers};
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use kvbm_agent::agent::AgentConfig;
use kvbm_agent::broker::Delivery;
use std::slice;

/// The options of a way to sign on, as flags.
pub fn access_flags(access: &NatsAccess) -> Vec<String> {
    let files = [
        ("--nats-credentials", &access.credentials),
        ("--nats-tls-ca", &access.tls_ca),
        ("--nats-tls-cert", &access.tls_cert),
        ("--nats-tls-key", &access.tls_key),
    ];
    let given = files.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
    let mut flags: Vec<_> =
        given.flat_map(|(flag, path)| [flag.to_owned(), path.display().to_string()]).collect();
    let namespace = access.namespace.to_string();
    if !namespace.is_empty() {
        flags.extend(["--nats-namespace".to_owned(), namespace]);
    }
    flags
}

/// An agent that signs on so.
pub fn agent(broker: &Broker, worker: &str, access: &NatsAccess) -> AgentConfig {
    let mut config = configured(broker, worker, Delivery::Jetstream, None);
    let url = broker.server.url().into();
    let servers = NatsServers::read(&url, access.clone()).expect("a server");
    config.broker.as_mut().expect("a broker").servers = servers;
    config
}

fn index_flags(broker: &Broker, access: &NatsAccess) -> Vec<String> {
    let mut flags = flags(broker, "jetstream", &[]);
    flags.extend(access_flags(access));
    flags
}

async fn router(broker: &Broker, index: &Server, access: &NatsAccess) -> Server {
    let indexer = index.addresses.grpc.to_string();
    let url = broker.server.url();
    let mut flags = vec!["--indexer".to_owned(), indexer, "--nats-url".to_owned(), url];
    flags.extend(access_flags(access));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Server::router(&flags).await.expect("a router")
}

async fn try_way(way: &Way) {
    println!("{}", way.option);
    let mut broker = Broker::start_with(&way.configuration).await;
    let mut holder = Holder::with(agent(&broker, "w.1", &way.right), 1).await;
    holder.publish(30);
    let mut server = index(&index_flags(&broker, &way.right)).await;
    check(&server, slice::from_ref(&holder)).await;
    let mut router_process = router(&broker, &server, &way.right).await;
    until("the router is connected", async || {
        let http = router_process.addresses.http;
        let up = metrics::sum(http, "router_nats_connected", "").await;
        up.is_ok_and(|up| up == 1.0)
    })
    .await;
    // They sign on again.
    broker.server.restart().await.expect("the broker again");
    holder.publish(5);
    check(&server, slice::from_ref(&holder)).await;
    router_process.stop().await;
    server.stop().await;

    let named = format!("look at {}", way.option);
    let stranger = Holder::with(agent(&broker, "w.2", &way.wrong), 2).await;
    let refused = status(&stranger.agent, |status| {
        status.error.as_ref().is_some_and(|error| error.contains(&named))
    })
    .await;
    let mut server = index(&index_flags(&broker, &way.wrong)).await;
    until("the index says why", async || server.output().contains(&named)).await;
    let mut router_process = router(&broker, &server, &way.wrong).await;
    let mut told = String::new();
    until("the router says why", async || {
        let ready = metrics::get(router_process.addresses.http, "/readyz").await;
        told = ready.map(|(_, text)| text).unwrap_or_default();
        told.contains(&named)
    })
    .await;
    let printed = [
        format!("{refused:?}"),
        server.output(),
        router_process.output(),
        told,
        readiness(&server).await.1,
    ];
    for secret in &way.secrets {
        assert!(!printed.iter().any(|text| text.contains(secret)), "{printed:?}");
    }
    router_process.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn whoever_has_the_users_key_comes_in() {
    let folder = tempfile::tempdir().expect("a folder");
    try_way(&nkey(folder.path())).await;
}

#[tokio::test]
async fn whoever_has_the_users_credentials_comes_in() {
    let folder = tempfile::tempdir().expect("a folder");
    try_way(&credentials(folder.path())).await;
}

#[tokio::test]
async fn with_tls_both_sides_show_certificates() {
    let folder = tempfile::tempdir().expect("a folder");
    for way in tls(folder.path()) {
        try_way(&way).await;
    }
}
