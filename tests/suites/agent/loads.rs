//! How busy a worker is: read from the engine's metrics or told, and watched.

use crate::harness::{MODEL, PATIENCE, WORKER, config, start, url};
use crate::metrics::{Metrics, Reply};
use kvasir_proto::pb;
use kvasir_proto::pb::worker_loads_client::WorkerLoadsClient;
use kvasir_proto::types::WorkerMetrics;
use kvbm_agent::agent::{Agent, AgentConfig, AgentError};
use kvbm_agent::load::LoadError;
use kvbm_agent::load::scrape::{ScrapeConfig, ScrapeStatus, ScrapedEngine};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

const TICK: Duration = Duration::from_millis(10);

/// An agent that says again what has not changed so seldom that nobody hears it.
fn quiet() -> AgentConfig {
    AgentConfig { heartbeat_interval: Duration::from_secs(3_600), ..config(Vec::new()) }
}

/// An agent that looks at an engine's metrics all the time.
fn scraping(metrics: SocketAddr, engine: ScrapedEngine) -> AgentConfig {
    let mut config = quiet();
    let scrape = ScrapeConfig { interval: TICK, ..ScrapeConfig::new(url(metrics), engine) };
    config.loads.scrape = Some(ScrapeConfig { timeout: PATIENCE, ..scrape });
    config
}

async fn client(agent: &Agent) -> WorkerLoadsClient<Channel> {
    let address = url(agent.local_address().expect("a port"));
    WorkerLoadsClient::connect(address).await.expect("it listens")
}

fn question() -> pb::WatchLoadsRequest {
    pb::WatchLoadsRequest {
        model: MODEL.to_owned(),
        worker_id: WORKER.to_owned(),
        min_interval_ms: Some(10),
        ..Default::default()
    }
}

async fn watch(agent: &Agent) -> Streaming<pb::WatchLoadsResponse> {
    client(agent).await.watch_loads(question()).await.expect("a stream").into_inner()
}

async fn next(loads: &mut Streaming<pb::WatchLoadsResponse>) -> Vec<pb::WorkerLoad> {
    let next = timeout(PATIENCE, loads.message()).await.expect("an answer");
    next.expect("the stream goes on").expect("the stream goes on").loads
}

/// The load of a rank that was just heard of, without its age.
fn load(dp_rank: u32) -> pb::WorkerLoad {
    let model = MODEL.to_owned();
    let worker_id = WORKER.to_owned();
    pb::WorkerLoad { model, worker_id, dp_rank, ..Default::default() }
}

fn ageless(loads: Vec<pb::WorkerLoad>) -> Vec<pb::WorkerLoad> {
    loads.into_iter().map(|load| pb::WorkerLoad { age_ms: 0, ..load }).collect()
}

async fn scraped(agent: &Agent, holds: impl FnMut(&ScrapeStatus) -> bool) -> ScrapeStatus {
    let mut scraped = agent.watch_scraped().expect("it looks");
    let status = timeout(PATIENCE, scraped.wait_for(holds)).await;
    status.expect("it comes to that").expect("it looks").clone()
}

fn vllm(waiting: u32, usage: f64) -> String {
    format!(
        "# HELP vllm:num_requests_waiting Number of requests waiting to be processed.\n\
        # TYPE vllm:num_requests_waiting gauge\n\
        vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} {waiting}.0\n\
        vllm:num_requests_waiting{{engine=\"1\",model_name=\"m\"}} 0.0\n\
        vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} 2.0\n\
        vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} {usage}\n\
        vllm:prefix_cache_queries_total{{engine=\"0\",model_name=\"m\"}} 8.0\n\
        vllm:prefix_cache_hits_total{{engine=\"0\",model_name=\"m\"}} 2.0\n\
        vllm:cache_config_info{{block_size=\"4\",engine=\"0\",num_gpu_blocks=\"100\"}} 1.0\n"
    )
}

#[tokio::test]
async fn readers_hear_what_vllm_says_and_every_change() {
    let metrics = Metrics::start(Reply::text(&vllm(3, 0.5))).await;
    let mut config = scraping(metrics.address, ScrapedEngine::Vllm);
    config.loads.totals.request_slots = Some(256);
    let agent = start(config).await;
    scraped(&agent, |status| status.scrapes > 0).await;
    let mut loads = watch(&agent).await;
    let zero = pb::WorkerLoad {
        num_requests_waiting: Some(3),
        gpu_cache_usage_perc: Some(0.5),
        gpu_prefix_cache_hit_rate: Some(0.25),
        request_active_slots: Some(2),
        request_total_slots: Some(256),
        kv_active_blocks: Some(50),
        kv_total_blocks: Some(100),
        ..load(0)
    };
    let one =
        pb::WorkerLoad { num_requests_waiting: Some(0), request_total_slots: Some(256), ..load(1) };
    assert_eq!(ageless(next(&mut loads).await), [zero.clone(), one]);
    let request = metrics.last_request();
    let host = format!("host: {}\r\n", metrics.address);
    assert!(
        request.starts_with("GET /metrics HTTP/1.1\r\n") && request.contains(&host),
        "{request}"
    );

    metrics.reply(Reply::text(&vllm(7, 0.25)));
    let changed = pb::WorkerLoad {
        num_requests_waiting: Some(7),
        gpu_cache_usage_perc: Some(0.25),
        kv_active_blocks: Some(25),
        ..zero
    };
    assert_eq!(ageless(next(&mut loads).await), [changed], "the other rank did not change");
    assert!(agent.stop(PATIENCE).await);
}

#[tokio::test]
async fn sglang_is_read_at_a_path_of_its_own() {
    let text = "# TYPE sglang:num_queue_reqs gauge\n\
        sglang:num_queue_reqs{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",priority=\"\",tp_rank=\"0\"} 5.0\n\
        sglang:num_queue_reqs{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",priority=\"1\",tp_rank=\"0\"} 5.0\n\
        sglang:num_queue_reqs{dp_rank=\"1\",engine_type=\"unified\",model_name=\"m\",priority=\"\",tp_rank=\"4\"} 0.0\n\
        sglang:token_usage{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",priority=\"\",tp_rank=\"0\"} 0.28\n\
        sglang:cache_hit_rate{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",priority=\"\",tp_rank=\"0\"} 0.0\n\
        sglang:num_used_tokens{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",priority=\"\",tp_rank=\"0\"} 9.0\n";
    let metrics = Metrics::start(Reply::text(text)).await;
    let mut config = scraping(metrics.address, ScrapedEngine::Sglang);
    if let Some(scrape) = &mut config.loads.scrape {
        scrape.url.push_str("/engine/metrics?x=1");
    }
    config.loads.totals.kv_blocks = Some(64);
    let agent = start(config).await;
    scraped(&agent, |status| status.scrapes > 0).await;
    let (zero, one) = (
        pb::WorkerLoad {
            num_requests_waiting: Some(5),
            gpu_cache_usage_perc: Some(0.28),
            gpu_prefix_cache_hit_rate: Some(0.0),
            // Four tokens a block.
            kv_active_blocks: Some(3),
            kv_total_blocks: Some(64),
            ..load(0)
        },
        pb::WorkerLoad { num_requests_waiting: Some(0), kv_total_blocks: Some(64), ..load(1) },
    );
    assert_eq!(ageless(next(&mut watch(&agent).await).await), [zero, one]);
    assert!(metrics.last_request().starts_with("GET /engine/metrics?x=1 HTTP/1.1\r\n"));
}

/// What was known stays until it is old; what goes wrong is counted and is_reported.
#[tokio::test]
async fn answers_that_are_none_are_failures() {
    let metrics = Metrics::start(Reply::text(&vllm(3, 0.5))).await;
    let mut config = scraping(metrics.address, ScrapedEngine::Vllm);
    if let Some(scrape) = &mut config.loads.scrape {
        scrape.body_bytes_max = 100_000;
        scrape.timeout = Duration::from_millis(500);
    }
    config.loads.totals.request_slots = Some(2);
    let agent = start(config).await;
    scraped(&agent, |status| status.scrapes > 0).await;
    let large = vllm(3, 0.5).replace("# HELP", &format!("# {}\n# HELP", "x".repeat(100_000)));
    let running = vllm(3, 0.5).replace("} 2.0\nvllm:kv", "} 3.0\nvllm:kv");
    for (reply, expected) in [
        (Reply::status("503 Service Unavailable"), "the answer's status is 503"),
        (Reply::status("307 Temporary Redirect"), "the answer's status is 307"),
        (Reply::text("vllm:num_requests_waiting{engine=\"0\"} many\n"), "line 1: the value is"),
        (Reply::text("# nothing\n"), "the page has no metric of vLLM"),
        (Reply::text(&vllm(3, 1.5)), "rank 0: gpu_cache_usage_perc is 1.5, must be 0 to 1"),
        (Reply::text(&vllm(3, -0.5)), "the used blocks of rank 0 is -50"),
        (Reply::text(&running), "rank 0: request_active_slots is 3, must be 0 to 2"),
        (Reply::text(&large), "the answer has more than 100000 bytes"),
        (Reply::Endless, "the answer has more than 100000 bytes"),
        (
            Reply::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nvllm".to_vec()),
            "the answer's body: ",
        ),
        (Reply::Bytes(b"220 mail.example ESMTP\r\n".to_vec()), "HTTP: "),
        (Reply::Bytes(vec![b'x'; 1 << 20]), "HTTP: "),
        (Reply::Bytes(Vec::new()), "HTTP: "),
        (Reply::Never, "no answer within 500ms"),
    ] {
        metrics.reply(reply);
        let is_reported = |status: &ScrapeStatus| {
            status.error.as_deref().is_some_and(|error| error.starts_with(expected))
        };
        let status = scraped(&agent, is_reported).await;
        assert!(status.failures > 0, "{status:?}");
        metrics.reply(Reply::text(&vllm(3, 0.5)));
        scraped(&agent, |status| status.error.is_none()).await;
    }
    let known = next(&mut watch(&agent).await).await;
    assert_eq!((known.len(), known[0].num_requests_waiting), (2, Some(3)));
    assert!(agent.stop(PATIENCE).await);
}

#[tokio::test]
async fn an_engine_that_is_gone_is_not_known_after_a_while() {
    let mut metrics = Metrics::start(Reply::text(&vllm(3, 0.5))).await;
    let mut config = scraping(metrics.address, ScrapedEngine::Vllm);
    config.loads.stale_after = Duration::from_millis(300);
    let agent = start(config).await;
    scraped(&agent, |status| status.scrapes > 0).await;
    let mut loads = watch(&agent).await;
    metrics.end().await;
    let status = scraped(&agent, |status| status.error.is_some()).await;
    assert!(status.error.expect("an error").starts_with("connect: "));
    let mut latest = BTreeMap::new();
    while latest.values().ne(&[load(0), load(1)]) {
        for heard in next(&mut loads).await {
            let unknown = pb::WorkerLoad { age_ms: 0, ..heard.clone() };
            assert_eq!(unknown == load(heard.dp_rank), heard.age_ms >= 300, "{heard:?}");
            latest.insert(heard.dp_rank, unknown);
        }
    }
}

#[tokio::test]
async fn what_is_told_is_known_and_checked() {
    let agent = start(quiet()).await;
    let mut client = client(&agent).await;
    let mut loads = watch(&agent).await;
    assert_eq!(next(&mut loads).await, [], "nothing is known");
    let told = pb::WorkerLoad { num_requests_waiting: Some(4), age_ms: 5_000, ..load(9) };
    let report = |load: &pb::WorkerLoad| pb::ReportLoadRequest { load: Some(load.clone()) };
    client.report_load(report(&told)).await.expect("it is taken");
    let heard = next(&mut loads).await;
    assert!(heard[0].age_ms >= 5_000, "{heard:?}");
    assert_eq!(ageless(heard), ageless(vec![told.clone()]));
    let metrics = WorkerMetrics { kv_total_blocks: Some(7), ..WorkerMetrics::UNKNOWN };
    let publisher = agent.metrics().clone();
    publisher.publish(9, metrics).expect("in range");
    let published = pb::WorkerLoad { kv_total_blocks: Some(7), ..load(9) };
    assert_eq!(
        ageless(next(&mut loads).await),
        [published],
        "it takes the place of what was reported"
    );
    assert!(publisher.publish(1_024, metrics).is_err());

    let other = pb::WorkerLoad { worker_id: "x".to_owned(), ..told.clone() };
    let usage = pb::WorkerLoad { gpu_cache_usage_perc: Some(f64::NAN), ..told.clone() };
    let slots = pb::WorkerLoad {
        request_active_slots: Some(2),
        request_total_slots: Some(1),
        ..told.clone()
    };
    for (load, code, text) in [
        (other, Code::NotFound, "worker x (model m) is not served here, w (model m) is"),
        (usage, Code::InvalidArgument, "load.gpu_cache_usage_perc is NaN, must be 0 to 1"),
        (slots, Code::InvalidArgument, "load.request_active_slots is 2, must be 0 to 1"),
        (load(1_024), Code::InvalidArgument, "load.dp_rank is 1024, must be 0 to 1023"),
    ] {
        let refused = client.report_load(report(&load)).await.expect_err(text);
        assert_eq!((refused.code(), refused.message()), (code, text));
    }
    let often = pb::WatchLoadsRequest { min_interval_ms: Some(9), ..question() };
    let other = pb::WatchLoadsRequest { worker_id: "x".to_owned(), ..question() };
    for (question, code) in [(often, Code::InvalidArgument), (other, Code::NotFound)] {
        let refused = client.watch_loads(question).await.expect_err("it is refused");
        assert_eq!(refused.code(), code, "{refused}");
    }
    assert!(agent.stop(PATIENCE).await);
}

#[tokio::test]
async fn readers_hear_that_the_agent_stops_and_are_so_many_at_most() {
    let mut config = quiet();
    config.service.watchers_max = 2;
    let agent = start(config).await;
    let mut readers = [watch(&agent).await, watch(&agent).await];
    let third = client(&agent).await.watch_loads(question()).await.expect_err("one too many");
    assert_eq!(
        (third.code(), third.message()),
        (Code::ResourceExhausted, "2 readers watch already: ask later")
    );
    for reader in &mut readers {
        assert_eq!(next(reader).await, []);
    }
    assert!(agent.stop(PATIENCE).await);
    for reader in &mut readers {
        let end: Status =
            timeout(PATIENCE, reader.message()).await.expect("an end").expect_err("an end");
        assert_eq!((end.code(), end.message()), (Code::Unavailable, "the agent is stopping"));
    }
}

#[tokio::test]
async fn an_agent_says_why_it_does_not_look() {
    let at = |url: &str| ScrapeConfig::new(url, ScrapedEngine::Vllm);
    let often = ScrapeConfig { interval: Duration::ZERO, ..at("http://127.0.0.1:1") };
    for (scrape, expected) in [
        (
            at("https://engine:1"),
            "scrape.url \"https://engine:1\" must be host:port or http://host:port",
        ),
        (at("http://"), "scrape.url \"http://\" is not a URL"),
        (often, "scrape.interval is 0ns, must be at least 10ms"),
    ] {
        let mut config = quiet();
        config.loads.scrape = Some(scrape);
        let error = Agent::start(config).await.expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let mut config = quiet();
    config.loads.stale_after = Duration::ZERO;
    let error = Agent::start(config).await.expect_err("nothing would be known");
    assert!(
        matches!(error, AgentError::Loads(LoadError::TooShort { field: "stale_after", .. })),
        "{error}"
    );
}
