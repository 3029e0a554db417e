//! One trace for a request, from its client through gateway, index and engine, in a real collector.

use crate::fake::{Behaviour, Fake};
use crate::faults::{REFUSES, server};
use crate::fleet::{FAST, Fleet, MODEL, PATIENCE, engine, profile, prompt, tokenizer, until};
use crate::serve::{serve, spec, start_engine};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_proto::pb::WorkerRole;
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::server::{Addresses, Server};
use kvasir_tests::collector::{Collector, Span};
use serde_json::json;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Request;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";
/// A client that does not want to be traced.
const SILENT_CLIENT: &str = "00f067aa0ba902b8";
/// Tokens of a query that the index answers on another thread.
const LARGE: u32 = 1 << 19;
const PATH: &str = "/v1/completions";

/// An index and a gateway that export spans, and one engine.
async fn start(collector: &Collector) -> Result<(Fleet, Fake)> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let export = collector.option();
    let server = Server::start_with(any, any, &[&export]).await?;
    let indexer = client::connect(server.addresses.grpc).await?;
    let index = server.addresses.grpc.to_string();
    let timing = ["--timing", "discovery-interval=100ms"];
    let flags = ["--indexer", &index, &export, "--tokens", "render"];
    let gateway = Server::gateway(&[&flags[..], &timing].concat()).await?;
    metrics::ready(gateway.addresses.http).await.with_context(|| gateway.output())?;
    let mut fleet = Fleet { server, indexer, engines: Vec::new(), gateway };
    let fake = Fake::start(Behaviour::default()).await?;
    fleet.register("w0", profile(WorkerRole::Both, fake.address), Vec::new()).await?;
    Ok((fleet, fake))
}

/// Sends a prompt with a trace context; returns the answer.
async fn ask(gateway: &Server, traceparent: &str, is_stream: bool) -> Result<String> {
    let body = json!({
        "model": MODEL, "prompt": prompt("a prompt of some blocks"), "max_tokens": 1,
        "stream": is_stream,
    });
    let body = body.to_string();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\ntraceparent: {traceparent}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(gateway.addresses.grpc).await?;
    stream.write_all((head + &body).as_bytes()).await?;
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await??;
    Ok(answer)
}

/// The span of the trace with this name, in this program, below this parent.
fn find<'s>(spans: &'s [Span], service: &str, name: &str, parent: &str) -> Option<&'s Span> {
    spans.iter().find(|at| {
        (at.service.as_str(), at.name.as_str(), at.parent.as_str()) == (service, name, parent)
            && at.trace == TRACE
    })
}

/// Whether a histogram has a bucket whose exemplar is the trace.
async fn has_exemplar(of: &Server, histogram: &str, trace: &str) -> Result<bool> {
    let text = metrics::get(of.addresses.http, "/metrics").await?.1;
    let exemplar = format!("# {{trace_id=\"{trace}\"}}");
    let mut lines = text.lines();
    Ok(lines.any(|line| line.starts_with(histogram) && line.contains(&exemplar)))
}

#[tokio::test]
async fn a_request_is_one_trace_from_client_to_index_and_engine() -> Result<()> {
    let collector = Collector::start().await?;
    let (fleet, fake) = start(&collector).await?;
    let answer = ask(&fleet.gateway, &format!("00-{TRACE}-{CLIENT}-01"), false).await?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}\n{}", fleet.gateway.output());
    let found = collector.wait_for(|spans| {
        let request = find(spans, "gateway", PATH, CLIENT)?;
        find(spans, "gateway", "tokenize", &request.id)?;
        let select = find(spans, "gateway", "select_worker", &request.id)?;
        let query = find(spans, "gateway", "find_matches", &select.id)?;
        find(spans, "indexer-server", "/kvasir.v1.Indexer/FindMatches", &query.id)?;
        let engine = find(spans, "gateway", "engine", &request.id)?;
        Some((request.clone(), engine.clone()))
    });
    let (request, engine) = found.await?;
    ensure!(request.attributes["http.response.status_code"] == "200", "{request:?}");
    ensure!(engine.attributes["worker"] == "w0#0", "{engine:?}");
    // The engine continues the trace.
    let traceparent = fake.traceparent().context("the engine gets the header")?;
    assert_eq!(traceparent, format!("00-{TRACE}-{}-01", engine.id));
    for histogram in ["gateway_duration_seconds", "router_overhead_seconds"] {
        let histogram = format!("kvasir_{histogram}_bucket");
        ensure!(has_exemplar(&fleet.gateway, &histogram, TRACE).await?, "{histogram}");
    }
    ensure!(has_exemplar(&fleet.server, "kvasir_lookup_seconds_bucket", TRACE).await?);
    fleet.stop().await
}

#[tokio::test]
async fn a_large_query_is_in_its_trace_too() -> Result<()> {
    const LARGE_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4737";
    let collector = Collector::start().await?;
    let (mut fleet, _fake) = start(&collector).await?;
    let tokens = (0..LARGE).flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
    let mut request = Request::new(pb::FindMatchesRequest {
        model: MODEL.to_owned(),
        token_ids_le: tokens.into(),
        ..Default::default()
    });
    let traceparent = format!("00-{LARGE_TRACE}-{CLIENT}-01").parse()?;
    request.metadata_mut().insert("traceparent", traceparent);
    fleet.indexer.find_matches(request).await?;
    ensure!(has_exemplar(&fleet.server, "kvasir_lookup_seconds_bucket", LARGE_TRACE).await?);
    fleet.stop().await
}

/// A call that fails is marked, whether the server refuses it before or after it has begun.
#[tokio::test]
async fn a_failed_call_is_marked_in_its_trace() -> Result<()> {
    let collector = Collector::start().await?;
    let (mut fleet, _fake) = start(&collector).await?;
    let mut request = Request::new(pb::FindMatchesRequest::default());
    let traceparent = format!("00-{TRACE}-{CLIENT}-01").parse()?;
    request.metadata_mut().insert("traceparent", traceparent);
    fleet.indexer.find_matches(request).await.expect_err("model is required");
    let path = "/kvasir.v1.Indexer/FindMatches";
    let found = collector.wait_for(|spans| find(spans, "indexer-server", path, CLIENT).cloned());
    let span = found.await?;
    ensure!(span.status == "STATUS_CODE_ERROR", "{span:?}");
    fleet.stop().await
}

/// Each attempt has a span of its own, and the engine that answers continues the last one.
#[tokio::test]
async fn a_retry_is_in_the_trace_of_its_request() -> Result<()> {
    let collector = Collector::start().await?;
    let flags = [&collector.option(), "--tokens", "none", "--mode", "round-robin"];
    let flags = [&flags[..], &["--worker-health", "ejection-failures=0"]].concat();
    let mut fleet = Fleet::start(vec![(WorkerRole::Both, engine(FAST))], &flags).await?;
    let (address, _serving) = server(REFUSES).await?;
    fleet.register("broken", profile(WorkerRole::Both, address), Vec::new()).await?;
    // One of two requests goes to the broken worker first.
    for _ in 0..2 {
        let answer = ask(&fleet.gateway, &format!("00-{TRACE}-{CLIENT}-01"), false).await?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}\n{}", fleet.gateway.output());
    }
    let found = collector.wait_for(|spans| {
        let engines = spans.iter().filter(|at| at.name == "engine" && at.trace == TRACE);
        let engines: Vec<_> = engines.cloned().collect();
        let broken = engines.iter().find(|at| at.attributes["worker"] == "broken#0")?;
        let again = engines.iter().find(|at| at.parent == broken.parent && at.id != broken.id)?;
        let request = spans.iter().find(|at| at.id == broken.parent)?;
        Some((request.clone(), broken.clone(), again.clone()))
    });
    let (request, broken, again) = found.await?;
    ensure!((request.name.as_str(), request.parent.as_str()) == (PATH, CLIENT), "{request:?}");
    ensure!(broken.status == "STATUS_CODE_ERROR", "{broken:?}");
    ensure!(
        again.attributes["worker"] == "w0#0" && again.status != "STATUS_CODE_ERROR",
        "{again:?}"
    );
    ensure!(request.status != "STATUS_CODE_ERROR", "{request:?}");
    fleet.stop().await
}

#[tokio::test]
async fn a_prefill_is_in_the_trace_of_its_request() -> Result<()> {
    let collector = Collector::start().await?;
    let engines = vec![(WorkerRole::Prefill, engine(FAST)), (WorkerRole::Decode, engine(FAST))];
    let file = tokenizer().display().to_string();
    let export = collector.option();
    let flags = ["--tokenizer", &file, "--remote-prefill-tokens-min", "16", &export];
    let fleet = Fleet::start(engines, &flags).await?;
    let answer = ask(&fleet.gateway, &format!("00-{TRACE}-{CLIENT}-01"), false).await?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}\n{}", fleet.gateway.output());
    fleet.metric_is("gateway_prefills_total", "done", 1.0).await?;
    let found = collector.wait_for(|spans| {
        let request = find(spans, "gateway", PATH, CLIENT)?;
        let prefill = find(spans, "gateway", "prefill", &request.id)?;
        let engine = find(spans, "gateway", "engine", &request.id)?;
        Some((prefill.clone(), engine.clone()))
    });
    let (prefill, engine) = found.await?;
    ensure!(
        prefill.attributes["worker"] == "w0#0" && prefill.status != "STATUS_CODE_ERROR",
        "{prefill:?}"
    );
    ensure!(engine.attributes["worker"] == "w1#0", "{engine:?}");
    fleet.stop().await
}

/// In `kvasir serve`, the gateway calls the index within the process.
#[tokio::test]
async fn one_process_has_the_same_spans() -> Result<()> {
    let collector = Collector::start().await?;
    let engine = start_engine(engine(FAST)).await?;
    let state = tempfile::tempdir()?;
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let flags = [&spec(&engine), &collector.option()];
    let mut kvasir =
        serve(state.path(), Addresses { grpc: any, http: any }, &flags.map(String::as_str)).await?;
    let answer = ask(&kvasir, &format!("00-{TRACE}-{CLIENT}-01"), false).await?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}\n{}", kvasir.output());
    let found = collector.wait_for(|spans| {
        let service = "kvasir serve";
        let request = find(spans, service, PATH, CLIENT)?;
        let select = find(spans, service, "select_worker", &request.id)?;
        let query = find(spans, service, "find_matches", &select.id)?;
        find(spans, service, "/kvasir.v1.Indexer/FindMatches", &query.id).map(drop)
    });
    found.await?;
    kvasir.stop().await;
    engine.stop().await?;
    Ok(())
}

/// Log lines name the trace until the end of the answer, whether or not its spans are exported.
#[tokio::test]
async fn log_lines_of_a_request_name_its_trace() -> Result<()> {
    let collector = Collector::start().await?;
    let (fleet, fake) = start(&collector).await?;
    for (client, sampled) in [(SILENT_CLIENT, "00"), (CLIENT, "01")] {
        fake.change(Behaviour { breaks_off: true, ..Behaviour::default() });
        let traceparent = format!("00-{TRACE}-{client}-{sampled}");
        let answer = ask(&fleet.gateway, &traceparent, true).await?;
        ensure!(answer.contains("broke off"), "{answer}");
        let traceparent = fake.traceparent().context("the engine gets the header")?;
        ensure!(traceparent.starts_with(&format!("00-{TRACE}-")), "{traceparent}");
        ensure!(traceparent.ends_with(&format!("-{sampled}")), "{traceparent}");
    }
    // Lines are read a moment after they are written.
    let log = until("two lines", async || {
        let log = fleet.gateway.output();
        Ok((log.matches("an answer broke off").count() == 2).then_some(log))
    });
    let log = log.await?;
    let lines = log.lines().filter(|line| line.contains("an answer broke off"));
    let named = lines.filter(|line| line.contains(&format!("trace_id={TRACE}")));
    assert_eq!(named.count(), 2, "{log}");
    // Only the sampled one is exported, which came later. It has failed, after a head with status 200.
    let found = collector.wait_for(|spans| {
        let request = find(spans, "gateway", PATH, CLIENT)?.clone();
        Some((request, find(spans, "gateway", PATH, SILENT_CLIENT).is_some()))
    });
    let (request, is_silent_exported) = found.await?;
    ensure!(request.status == "STATUS_CODE_ERROR", "{request:?}");
    ensure!(!is_silent_exported);
    fleet.stop().await
}
