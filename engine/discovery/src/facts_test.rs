use super::*;
use kvasir_engine_http::EngineKeys;
use kvasir_tls::Dialer;
use std::convert::Infallible;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::select;

fn spec(text: &str) -> EngineSpec {
    text.parse().expect("an engine")
}

fn sockets(text: &str, ranks: &[DpRank]) -> Result<Vec<(String, String)>, String> {
    let made = endpoints(&spec(text), &ranks.iter().copied().collect());
    let made = made.map_err(|error| error.to_string())?;
    Ok(made.into_iter().map(|at| (at.endpoint, at.replay.unwrap_or_default())).collect())
}

fn pair(events: &str, replay: &str) -> (String, String) {
    (events.to_owned(), replay.to_owned())
}

#[test]
fn sockets_are_at_the_usual_ports_or_where_the_user_states() {
    assert_eq!(sockets("gpu:8000", &[0]), Ok(vec![pair("tcp://gpu:5557", "tcp://gpu:5558")]));
    assert_eq!(
        sockets("gpu:8000,events=tcp://other:7000", &[0]),
        Ok(vec![pair("tcp://other:7000", "tcp://other:7001")])
    );
    assert_eq!(
        sockets("gpu:8000,replay=tcp://gpu:6000", &[0, 1]),
        Ok(vec![
            pair("tcp://gpu:5557", "tcp://gpu:6000"),
            pair("tcp://gpu:5558", "tcp://gpu:6001")
        ])
    );
    assert_eq!(sockets("[::1]:8000", &[3]), Ok(vec![pair("tcp://[::1]:5560", "tcp://[::1]:5561")]));
}

#[test]
fn colliding_sockets_of_ranks_are_named_with_the_fix() {
    let error = sockets("gpu:8000", &[0, 1]).expect_err("5558 twice");
    assert!(
        error.contains("tcp://gpu:5558") && error.contains("replay=tcp://HOST:PORT"),
        "{error}"
    );
    let error = sockets("gpu:8000,events=tcp://gpu:65535", &[1]).expect_err("no port");
    assert!(error.contains("rank 1 has no port"), "{error}");
    let error = sockets("gpu:8000,events=tcp://gpu", &[0]).expect_err("no port");
    assert!(error.contains("must be tcp://HOST:PORT"), "{error}");
}

#[test]
fn adapters_are_not_models() {
    let answer = serde_json::json!({"data": [
        {"id": "ada", "parent": "base"}, {"id": "base", "parent": null}, {"id": "own", "parent": "own"}, {"object": "x"},
    ]});
    let names: Vec<_> = served(&answer).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["base", "own"]);
}

fn known_facts() -> Facts {
    Facts {
        kind: EngineKind::Vllm,
        version: None,
        model: "m".to_owned(),
        model_tokens_max: None,
        block_size: 32,
        other_block_size: None,
        blocks: Some(400),
        prefix_match_unit: None,
        caches_prefixes: Some(true),
        ranks: [0].into(),
        started_at: None,
    }
}

#[test]
fn a_registration_repeats_the_facts() {
    let facts = known_facts();
    let made = registration(&spec("gpu:8000"), &facts).expect("valid");
    assert_eq!((made.worker.as_str(), made.block_size), ("gpu:8000", 32));
    assert_eq!(made.profile.total_kv_blocks, Some(400));
    assert_eq!(made.profile.labels.get(ADDRESS_LABEL).map(String::as_str), Some("http://gpu:8000"));
    assert_eq!(made.lease, None);
    assert_eq!(made.facts, EngineFacts::default());
}

#[test]
fn facts_of_the_user_precede_those_of_the_engine() {
    let facts = Facts { prefix_match_unit: Some(32), ..known_facts() };
    let of = |text: &str| registration(&spec(text), &facts).expect("valid").facts;
    let own = EngineFacts { prefix_match_unit: 32, ..EngineFacts::default() };
    assert_eq!(of("gpu:8000"), own);
    assert_eq!(
        of("gpu:8000,eagle-drops-block=true"),
        EngineFacts { eagle_drops_block: true, ..own }
    );
    assert_eq!(of("gpu:8000,prefix-match-unit=16"), EngineFacts { prefix_match_unit: 16, ..own });
}

/// Answers requests by their path, each on its own connection, without end.
async fn serve_pages(listener: TcpListener, pages: &[(&str, &str)]) -> Infallible {
    loop {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut head = vec![0; 4_096];
        let length = stream.read(&mut head).await.expect("a request");
        let head = String::from_utf8_lossy(&head[..length]).into_owned();
        let page = pages.iter().find(|(path, _)| head.starts_with(&format!("GET {path} ")));
        let (status, body) = page.map_or(("503 Busy", ""), |(_, body)| ("200 OK", *body));
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(answer.as_bytes()).await.expect("a client that reads");
    }
}

/// Asks an engine that has these pages.
async fn ask_engine(
    pages: &[(&str, &str)],
    stated: &str,
    before: Option<&Facts>,
) -> Result<Facts, FactsError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let client = EngineClient::new(Dialer::default(), ANSWER_TIMEOUT, EngineKeys::default());
    let spec = spec(&format!("{address}{stated}"));
    select! {
        facts = ask(&client, &spec, before) => facts,
        never = serve_pages(listener, pages) => match never {},
    }
}

const MODELS: (&str, &str) =
    ("/v1/models", r#"{"data": [{"id": "m", "parent": null, "max_model_len": 2048}]}"#);
const METRICS: (&str, &str) = (
    "/metrics",
    "vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"400\",engine=\"0\"} 1.0\n",
);

#[tokio::test]
async fn metrics_that_fail_for_a_moment_change_nothing() {
    let facts = ask_engine(&[MODELS, METRICS], "", None).await.expect("facts");
    assert_eq!((facts.kind, facts.block_size, facts.blocks), (EngineKind::Vllm, 32, Some(400)));
    assert_eq!((facts.model.as_str(), facts.model_tokens_max), ("m", Some(2_048)));
    let again = ask_engine(&[MODELS], ",block-size=32", Some(&facts)).await;
    assert_eq!(again, Ok(facts));
    let new = ask_engine(&[MODELS], ",block-size=32", None).await.expect("facts");
    assert_eq!((new.kind, new.blocks), (EngineKind::Custom, None));
}

#[tokio::test]
async fn a_stated_block_size_wins_and_the_engines_own_is_kept_to_be_shown() {
    for (stated, size, other) in
        [("", 32, None), (",block-size=32", 32, None), (",block-size=16", 16, Some(32))]
    {
        let facts = ask_engine(&[MODELS, METRICS], stated, None).await.expect("facts");
        assert_eq!((facts.block_size, facts.other_block_size), (size, other), "{stated}");
        assert_eq!(facts.blocks.is_some(), other.is_none(), "{stated}");
    }
}

#[tokio::test]
async fn what_an_engine_does_not_state_is_asked_of_the_user() {
    for (pages, stated, part) in [
        (&[MODELS][..], "", "block-size=TOKENS"),
        (&[MODELS, METRICS], ",model=other", "the engine serves m, not \"other\""),
        (&[("/v1/models", "{}")], "", "lists no model"),
        (&[("/v1/models", "<html>")], "", "answers no JSON"),
        (&[], "", "/v1/models answers 503"),
    ] {
        let error = ask_engine(pages, stated, None).await.expect_err("no facts").to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}
