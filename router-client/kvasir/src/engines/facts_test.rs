use super::*;

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
    let error = sockets("gpu:8000,events=ipc:///x:1", &[0]).expect_err("no TCP");
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

#[test]
fn a_registration_repeats_the_facts() {
    let facts = Facts {
        kind: EngineKind::Vllm,
        version: None,
        model: "m".to_owned(),
        model_tokens_max: None,
        block_size: 32,
        blocks: Some(400),
        prefix_match_unit: None,
        caches_prefixes: Some(true),
        ranks: [0].into(),
        started_at: None,
    };
    let made = registration(&spec("gpu:8000"), &facts).expect("valid");
    assert_eq!((made.worker.as_str(), made.block_size), ("gpu:8000", 32));
    assert_eq!(made.profile.total_kv_blocks, Some(400));
    assert_eq!(made.profile.labels.get(ADDRESS_LABEL).map(String::as_str), Some("http://gpu:8000"));
    assert_eq!(made.lease, None);
}
