//! Blocks between two agents: what one has saved, the other one fetches, whoever is killed and whoever may not.

use crate::engine::{Engine, hashes, over_socket, prompt};
use crate::found;
use crate::place::{BLOCK_BYTES, HOST_BLOCKS, PATIENCE, Place};
use anyhow::{Context, Result, ensure};
use kvasir_access::token_sha256;
use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_tests::authority::{Authority, Paper, Validity};
use std::fs;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::Path;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// A port that is free now.
fn free_port() -> Result<SocketAddr> {
    Ok(StdListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// An agent that serves its blocks, beside an index.
pub async fn owner(flags: &[&str]) -> Result<(Place, SocketAddr)> {
    owner_with("", flags).await
}

/// The same, with more keys of its peers.
async fn owner_with(more: &str, flags: &[&str]) -> Result<(Place, SocketAddr)> {
    let port = free_port()?;
    let peer = format!("listen={port}{more}");
    let flags = [&["--blocks-peer", &peer], flags].concat();
    Ok((Place::start(&flags).await?, port))
}

async fn fetch(engine: &mut Engine, peers: &[String], locals: &[u64]) -> Result<pb::FetchResponse> {
    fetch_hashes(engine, peers, hashes(locals)).await
}

/// Has an agent fetch blocks by their sequence hashes.
pub async fn fetch_hashes(
    engine: &mut Engine,
    peers: &[String],
    sequence_hashes: Vec<u64>,
) -> Result<pb::FetchResponse> {
    let request = pb::FetchRequest {
        session_id: engine.session(),
        peers: peers.to_vec(),
        sequence_hashes,
        ..Default::default()
    };
    Ok(engine.client.fetch(request).await?.into_inner())
}

async fn engine_of(place: &Place) -> Result<Engine> {
    Engine::open(over_socket(&place.socket()).await?).await
}

/// Slots of host memory that nobody uses.
async fn free(engine: &mut Engine) -> Result<u64> {
    let stats = engine.stats().await?;
    Ok(stats.pools.first().context("host memory")?.free)
}

/// Where the index says that the worker's blocks are fetched.
async fn advertised(place: &Place) -> Result<String> {
    let mut index = client::connect(place.index.addresses.grpc).await?;
    let workers = client::list_workers(&mut index, pb::ListWorkersRequest::default()).await?;
    let worker = workers.into_iter().next().context("a worker")?;
    let registration = worker.registration.context("a registration")?;
    let profile = registration.profile.context("a profile")?;
    let label = |key| profile.labels.iter().find(|label| label.key == key).map(|at| &at.value);
    // Routers plan fetches between workers for which these are equal.
    ensure!(label("blocks-bytes") == Some(&BLOCK_BYTES.to_string()), "{profile:?}");
    let fingerprint = label("blocks-fingerprint").context("a fingerprint")?;
    ensure!(fingerprint.len() == 16, "{fingerprint}");
    ensure!(u64::from_str_radix(fingerprint, 16).is_ok(), "{fingerprint}");
    Ok(label("blocks-peer").context("a label")?.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_agent_saved_the_other_one_fetches() -> Result<()> {
    let (a, _) = owner(&[]).await?;
    let b = Place::start(&["--blocks-host", "arena=private"]).await?;
    let mut saves = engine_of(&a).await?;
    let mut engine = engine_of(&b).await?;
    // More than host memory has room for: the rest comes from the owner's disk.
    let locals = prompt(1, 12);
    let longer = prompt(2, 12);
    saves.save(&locals).await?;
    saves.until_copied().await?;
    saves.save(&longer).await?;
    saves.until_copied().await?;
    a.until_found(&longer, 12, 12).await?;
    let peers = [advertised(&a).await?];
    for (round, locals) in [&locals, &longer].into_iter().enumerate() {
        let fetched = fetch(&mut engine, &peers, locals).await?;
        ensure!((fetched.leading_blocks, fetched.fetched_blocks) == (12, 12), "{fetched:?}");
        ensure!(fetched.bytes == 12 * BLOCK_BYTES as u64 && fetched.micros > 0, "{fetched:?}");
        ensure!(fetched.fault() == pb::BlockFault::Unspecified, "{fetched:?}");
        ensure!(engine.load(locals).await? == 12, "round {round}: every byte is as it was saved");
        engine.until_copied().await?;
    }
    b.until_found(&longer, 12, 12).await?;
    // What is there already is not fetched again.
    let again = fetch(&mut engine, &peers, &longer).await?;
    ensure!((again.leading_blocks, again.fetched_blocks) == (12, 0), "{again:?}");
    ensure!(again.peers.is_empty(), "{again:?}");
    // Nobody has these; the first peer is nobody.
    let nobody = format!("http://{}", free_port()?);
    let peers = [nobody, peers[0].clone()];
    let missing = fetch(&mut engine, &peers, &prompt(3, 2)).await?;
    ensure!(missing.leading_blocks == 0, "{missing:?}");
    ensure!(missing.fault() == pb::BlockFault::Missing, "{missing:?}");
    let faults: Vec<_> = missing.peers.iter().map(pb::FetchedFromPeer::fault).collect();
    ensure!(faults == [pb::BlockFault::Peer, pb::BlockFault::Missing], "{missing:?}");
    ensure!(b.metric("kvasir_agent_blocks_peer_fetched_total", "").await? == 24.0);
    ensure!(a.metric("kvasir_agent_blocks_peer_served_total", "").await? == 24.0);
    let bytes = a.metric("kvasir_agent_blocks_peer_served_bytes_total", "").await?;
    ensure!(bytes == 24.0 * BLOCK_BYTES as f64);
    ensure!(b.metric("kvasir_agent_blocks_peer_corrupt_total", "").await? == 0.0);
    a.stop().await;
    b.stop().await;
    Ok(())
}

/// Stands between two agents. Of the owner's answer so many bytes go through; then it stops and tells so. It closes the
/// connection when the owner does, and hands on everything of later ones.
async fn in_between(
    listener: TcpListener,
    owner: SocketAddr,
    bytes: u64,
    stopped: oneshot::Sender<()>,
) -> Result<()> {
    let (caller, _) = listener.accept().await?;
    let to_owner = TcpStream::connect(owner).await?;
    let (mut caller_read, mut caller_write) = caller.into_split();
    let (mut owner_read, mut owner_write) = to_owner.into_split();
    let asks = copy(&mut caller_read, &mut owner_write);
    let answers = async {
        copy(&mut (&mut owner_read).take(bytes), &mut caller_write).await?;
        caller_write.flush().await?;
        let _gone = stopped.send(());
        // What comes until the owner's end is nobody's; a killed process may also reset the connection.
        drop(copy(&mut owner_read, &mut tokio::io::sink()).await);
        anyhow::Ok(())
    };
    tokio::select! {
        asked = asks => { asked?; }
        answered = answers => answered?,
    }
    Ok(())
}

/// The owner dies in the middle of its fourth block: three are there, nothing of the fourth is, and all slots come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_killed_leaves_nothing_wrong() -> Result<()> {
    let (mut a, port) = owner(&[]).await?;
    let b = Place::start(&[]).await?;
    let locals = prompt(1, 10);
    let mut saves = engine_of(&a).await?;
    saves.save(&locals).await?;
    saves.until_copied().await?;
    let mut engine = engine_of(&b).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let between = listener.local_addr()?;
    let (stopped, is_stopped) = oneshot::channel();
    // A welcome and a block's head are far shorter than half a block.
    let bytes = 3 * BLOCK_BYTES as u64 + BLOCK_BYTES as u64 / 2 + 600;
    let handing_on = in_between(listener, port, bytes, stopped);
    let kill = async {
        is_stopped.await?;
        a.agent.kill().await;
        anyhow::Ok(())
    };
    let peers = [format!("http://{between}")];
    let fetching = fetch(&mut engine, &peers, &locals);
    let all = async { tokio::try_join!(fetching, handing_on, kill) };
    let (fetched, (), ()) = timeout(PATIENCE, all).await??;
    ensure!(fetched.fault() == pb::BlockFault::Peer, "{fetched:?}");
    ensure!(fetched.fetched_blocks == 3 && fetched.leading_blocks == 3, "{fetched:?}");
    ensure!(engine.load(&locals).await? == 3, "what was verified before stays");
    let host = HOST_BLOCKS as u64;
    ensure!(free(&mut engine).await? == host - 3, "slots come back");
    b.until_found(&locals, 3, 3).await?;
    // The agent is back, on the same port, with what its disk has.
    a.begin_again().await?;
    let peers = [format!("http://{port}")];
    let fetched = fetch(&mut engine, &peers, &locals).await?;
    ensure!((fetched.leading_blocks, fetched.fetched_blocks) == (10, 7), "{fetched:?}");
    ensure!(engine.load(&locals).await? == 10);
    a.stop().await;
    b.stop().await;
    Ok(())
}

/// The same by NIXL, whose library is PyPI's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_read_from_an_agents_memory_by_nixl() -> Result<()> {
    let library = text(&found::library("../kvbm-agent/memory/tests/nixl/library"));
    let keys = |library: &str| format!("backend=nixl,nixl-library={library}");
    let (a, port) = owner_with(&format!(",{}", keys(&library)), &["--insecure"]).await?;
    let b = Place::start(&["--insecure", "--blocks-peer", &keys(&library)]).await?;
    let mut saves = engine_of(&a).await?;
    let mut engine = engine_of(&b).await?;
    // More than host memory has room for: the rest comes from the owner's disk.
    let locals = prompt(1, 12);
    let longer = prompt(2, 12);
    for locals in [&locals, &longer] {
        saves.save(locals).await?;
        saves.until_copied().await?;
    }
    let peers = [format!("http://{port}")];
    let fetched = fetch(&mut engine, &peers, &locals).await?;
    ensure!((fetched.leading_blocks, fetched.fetched_blocks) == (12, 12), "{fetched:?}");
    ensure!(engine.load(&locals).await? == 12, "every byte is compared");
    b.until_found(&locals, 12, 12).await?;
    // An agent without NIXL fetches from the same one, and lends nothing to others.
    let (c, port) = owner(&[]).await?;
    let mut over_tcp = engine_of(&c).await?;
    let fetched = fetch(&mut over_tcp, &peers, &longer).await?;
    ensure!(fetched.fetched_blocks == 12 && over_tcp.load(&longer).await? == 12, "{fetched:?}");
    let fetched = fetch(&mut engine, &[format!("http://{port}")], &longer).await?;
    let error = fetched.peers.first().map(|peer| peer.error.clone()).unwrap_or_default();
    ensure!(error.contains("set backend=nixl at the peer"), "{fetched:?}");
    let nowhere = keys("/nowhere.so");
    let refused = Place::start(&["--insecure", "--blocks-peer", &nowhere])
        .await
        .err()
        .context("an agent without its library")?;
    let refused = format!("{refused:#}");
    ensure!(refused.contains("blocks-peer nixl-library: /nowhere.so can't be loaded"), "{refused}");
    ensure!(refused.contains("pip install nixl-cu12"), "{refused}");
    for place in [a, b, c] {
        place.stop().await;
    }
    Ok(())
}

/// Files of an owner's identities, and of each one's token.
fn identities(folder: &TempDir) -> Result<String> {
    let mut text = String::new();
    for (name, role, tenants) in
        [("peer", "publish", ""), ("asks", "query", ""), ("other", "publish", "other")]
    {
        let token = format!("token-of-{name}");
        fs::write(folder.path().join(name), &token)?;
        let hash = token_sha256(&token);
        text += &format!("[[identity]]\nname = {name:?}\ntoken-sha256 = {hash:?}\n");
        text += &format!("roles = [{role:?}]\ntenants = [{tenants:?}]\n");
        text += if role == "publish" { "workers = [\"*\"]\n\n" } else { "\n" };
    }
    let path = folder.path().join("identities.toml");
    fs::write(&path, text)?;
    Ok(path.display().to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_may_publish_for_the_model_fetches() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = identities(&folder)?;
    let (a, port) = owner(&["--identities", &file]).await?;
    let locals = prompt(1, 4);
    engine_of(&a).await?.save(&locals).await?;
    let peers = [format!("http://{port}")];
    for (token, expected) in [
        (None, "no identity"),
        (Some("asks"), "role"),
        (Some("other"), "tenant"),
        (Some("peer"), ""),
    ] {
        let key = token.map(|name| format!("token-file={}", folder.path().join(name).display()));
        let flags = key.as_ref().map(|key| ["--blocks-peer", key]);
        let b = Place::start(flags.as_ref().map_or(&[], |flags| &flags[..])).await?;
        let mut engine = engine_of(&b).await?;
        let fetched = fetch(&mut engine, &peers, &locals).await?;
        let error = fetched.peers.first().map(|peer| peer.error.clone()).unwrap_or_default();
        if token == Some("peer") {
            ensure!(fetched.fetched_blocks == 4 && engine.load(&locals).await? == 4, "{fetched:?}");
        } else {
            ensure!(fetched.fault() == pb::BlockFault::Peer, "{fetched:?}");
            ensure!(error.contains(expected), "{token:?}: {expected:?} in {error}");
            ensure!(fetched.leading_blocks == 0, "{fetched:?}");
        }
        b.stop().await;
    }
    a.stop().await;
    Ok(())
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn shows(paper: &Paper) -> Vec<String> {
    vec!["--tls-cert".to_owned(), text(&paper.cert), "--tls-key".to_owned(), text(&paper.key)]
}

/// Over TLS, with certificates of both sides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_demanded_as_at_every_port() -> Result<()> {
    let authority = Authority::new("blocks")?;
    let ca = text(&authority.cert());
    let papers = [authority.sign(1, Validity::Valid)?, authority.sign(2, Validity::Valid)?];
    let mut flags = shows(&papers[0]);
    flags.extend(["--tls-client-ca".to_owned(), ca.clone()]);
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let (a, port) = owner(&flags).await?;
    let locals = prompt(1, 4);
    engine_of(&a).await?.save(&locals).await?;
    let mut with = shows(&papers[1]);
    with.extend(["--tls-ca".to_owned(), ca.clone()]);
    let without = vec!["--tls-ca".to_owned(), ca];
    for (flags, scheme, blocks) in
        [(&with, "https", 4), (&without, "https", 0), (&with, "http", 0), (&Vec::new(), "https", 0)]
    {
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let b = Place::start(&flags).await?;
        let mut engine = engine_of(&b).await?;
        let peers = [format!("{scheme}://{port}")];
        let fetched = fetch(&mut engine, &peers, &locals).await?;
        ensure!(fetched.fetched_blocks == blocks, "{flags:?}: {fetched:?}");
        if blocks == 0 {
            ensure!(fetched.fault() == pb::BlockFault::Peer, "{flags:?}: {fetched:?}");
        }
        ensure!(engine.load(&locals).await? == blocks as usize);
        b.stop().await;
    }
    a.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_and_options_name_the_field() -> Result<()> {
    let b = Place::start(&[]).await?;
    let mut engine = engine_of(&b).await?;
    let right = pb::FetchRequest {
        session_id: engine.session(),
        peers: vec!["127.0.0.1:1".to_owned()],
        sequence_hashes: vec![1],
        ..Default::default()
    };
    let peers = |peers: &[&str]| pb::FetchRequest {
        peers: peers.iter().map(|at| (*at).to_owned()).collect(),
        ..right.clone()
    };
    let others = [
        (peers(&[]), "peers is required"),
        (peers(&["tcp://a:1"]), "peers[0]"),
        (peers(&["a:1", "http://a:1"]), "peers[1] repeats"),
        (peers(&["a:1"; 65]), "peers has 65 entries"),
        (
            pb::FetchRequest { sequence_hashes: vec![1, 1], ..right.clone() },
            "sequence_hashes[1] repeats 1",
        ),
        (pb::FetchRequest { timeout_ms: Some(25_001), ..right.clone() }, "timeout_ms is 25001"),
    ];
    for (request, text) in others {
        let status = engine.client.fetch(request).await.expect_err(text);
        ensure!(status.message().contains(text), "{text:?} in {status}");
    }
    for (key, expected) in [
        ("listen=0.0.0.0:1", "blocks-peer listen: 0.0.0.0:1 can be reached"),
        ("advertise=a:1", "blocks-peer advertise: is set without"),
        ("backend=rdma", "\"rdma\" is not tcp or nixl"),
    ] {
        let refused = format!("{:#}", b.second(&["--blocks-peer", key]).await.expect_err(expected));
        ensure!(refused.contains(expected), "{expected:?} in {refused}");
    }
    b.stop().await;
    Ok(())
}
