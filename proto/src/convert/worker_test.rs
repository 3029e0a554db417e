use super::*;
use crate::code::ErrorCode;

fn request() -> pb::RegisterWorkerRequest {
    pb::RegisterWorkerRequest {
        worker_id: "w".to_owned(),
        model: "m".to_owned(),
        block_size: 16,
        ..Default::default()
    }
}

fn endpoint(endpoint: &str) -> pb::EngineEndpoint {
    pb::EngineEndpoint { endpoint: endpoint.to_owned(), ..Default::default() }
}

fn lora(id: u64, name: &str) -> pb::LoraName {
    pb::LoraName { id, name: name.to_owned() }
}

#[test]
fn every_refusal_names_the_field_and_the_fix() {
    let check = |request: pb::RegisterWorkerRequest, expected: &str| {
        let error = Registration::try_from(request).expect_err(expected);
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    };
    let with = |endpoints| pb::RegisterWorkerRequest { endpoints, ..request() };
    let named = |lora_names| pb::RegisterWorkerRequest { lora_names, ..request() };
    check(
        pb::RegisterWorkerRequest { worker_id: String::new(), ..request() },
        "worker_id is required",
    );
    check(pb::RegisterWorkerRequest { model: String::new(), ..request() }, "model is required");
    check(
        pb::RegisterWorkerRequest { block_size: 0, ..request() },
        "block_size is 0, must be 1 to 65536",
    );
    check(
        pb::RegisterWorkerRequest { block_size: 65_537, ..request() },
        "block_size is 65537, must be 1 to 65536",
    );
    check(pb::RegisterWorkerRequest { engine: 9, ..request() }, "engine has the unknown value 9");
    check(
        pb::RegisterWorkerRequest { copy_mode: 9, ..request() },
        "copy_mode has the unknown value 9",
    );
    check(
        pb::RegisterWorkerRequest { loss_policy: 9, ..request() },
        "loss_policy has the unknown value 9",
    );
    check(with(vec![endpoint("")]), "endpoints[0].endpoint is required");
    check(
        with(vec![endpoint("a"), endpoint("a")]),
        "endpoints[1].endpoint repeats a: each may be given once",
    );
    check(
        with((0..65).map(|port| endpoint(&port.to_string())).collect()),
        "endpoints has 65 entries, the limit is 64: send fewer",
    );
    check(
        with(vec![pb::EngineEndpoint { topic: "x".repeat(257), ..endpoint("a") }]),
        "endpoints[0].topic has 257 bytes, the limit is 256",
    );
    for url in [
        "a",
        "http://a",
        "ftp://a:1",
        "http://:1",
        "http://a:65536",
        "http://a:1/b",
        "http://a b:1",
    ] {
        let local_indexer_endpoint = url.to_owned();
        check(
            pb::RegisterWorkerRequest { local_indexer_endpoint, ..request() },
            &format!(
                "local_indexer_endpoint is {url:?}, must be host:port, http://host:port, https://host:port or nats"
            ),
        );
    }
    check(
        pb::RegisterWorkerRequest { lease_ms: 999, ..request() },
        "lease_ms is 999, must be 1000 to 3600000",
    );
    check(named(vec![lora(1, "")]), "lora_names[0].name is required");
    check(
        named(vec![lora(1, "a"), lora(1, "b")]),
        "lora_names[1].id repeats 1: each may be given once",
    );
}

#[test]
fn times_to_live_are_read_and_refused_by_entry() {
    let ttl = |medium: &str, ttl_ms| pb::MediumTtl { medium: medium.to_owned(), ttl_ms };
    let with = |medium_ttls| {
        let endpoints = vec![endpoint("tcp://a:1")];
        Registration::try_from(pb::RegisterWorkerRequest { medium_ttls, endpoints, ..request() })
    };
    let read = with(vec![ttl("cpu", 100), ttl("Disk", 2_592_000_000)]).expect("valid");
    let month = Duration::from_secs(30 * 24 * 3_600);
    let expected = [("CPU", Duration::from_millis(100)), ("DISK", month)];
    assert_eq!(read.medium_ttls, expected.map(|(medium, ttl)| (medium.to_owned(), ttl)).into());
    let again = pb::RegisterWorkerRequest::from(&read);
    assert_eq!(Registration::try_from(again).as_ref(), Ok(&read));
    let check = |medium_ttls, expected: &str| {
        let refused: Result<_, ConvertError> = with(medium_ttls);
        assert_eq!(refused.expect_err(expected).to_string(), expected);
    };
    check(vec![ttl("", 100)], "medium_ttls[0].medium is required");
    let range = "medium_ttls[1].ttl_ms is 99, must be 100 to 2592000000";
    check(vec![ttl("CPU", 100), ttl("DISK", 99)], range);
    let twice = "medium_ttls[1].medium repeats cpu: each may be given once";
    check(vec![ttl("CPU", 100), ttl("cpu", 100)], twice);
    let many = (0..17).map(|at| ttl(&format!("m{at}"), 100)).collect();
    check(many, "medium_ttls has 17 entries, the limit is 16: send fewer");
    let alone = pb::RegisterWorkerRequest { medium_ttls: vec![ttl("CPU", 100)], ..request() };
    let refused = Registration::try_from(alone).expect_err("no endpoints").to_string();
    let expected = "medium_ttls is set without endpoints, must be empty: publishers over PublishEvents \
                    remove blocks themselves";
    assert_eq!(refused, expected);
}

#[test]
fn chunk_sizes_are_read_and_refused_by_entry() {
    let chunk = |medium: &str, blocks| pb::ConnectorChunk { medium: medium.to_owned(), blocks };
    let with = |connector_chunks| {
        Registration::try_from(pb::RegisterWorkerRequest { connector_chunks, ..request() })
    };
    // Also valid without endpoints: agents register their workers this way.
    let read = with(vec![chunk("cpu", 2), chunk("Disk", 256)]).expect("valid");
    let expected = [("CPU", 2), ("DISK", 256)];
    assert_eq!(read.connector_chunks, expected.map(|(at, blocks)| (at.to_owned(), blocks)).into());
    let again = pb::RegisterWorkerRequest::from(&read);
    assert_eq!(Registration::try_from(again).as_ref(), Ok(&read));
    let check = |connector_chunks, expected: &str| {
        let refused: Result<_, ConvertError> = with(connector_chunks);
        assert_eq!(refused.expect_err(expected).to_string(), expected);
    };
    check(vec![chunk("", 4)], "connector_chunks[0].medium is required");
    let range = "connector_chunks[1].blocks is 1, must be 2 to 256";
    check(vec![chunk("CPU", 4), chunk("DISK", 1)], range);
    check(vec![chunk("CPU", 257)], "connector_chunks[0].blocks is 257, must be 2 to 256");
    let twice = "connector_chunks[1].medium repeats cpu: each may be given once";
    check(vec![chunk("CPU", 4), chunk("cpu", 4)], twice);
    let many = (0..17).map(|at| chunk(&format!("m{at}"), 4)).collect();
    check(many, "connector_chunks has 17 entries, the limit is 16: send fewer");
    let pool = pb::RegisterWorkerRequest {
        kind: pb::HolderKind::Pool.into(),
        connector_chunks: vec![chunk("CPU", 4)],
        ..request()
    };
    let refused = Registration::try_from(pool).expect_err("a pool").to_string();
    assert!(refused.starts_with("connector_chunks "), "{refused}");
}

#[test]
fn an_agent_is_asked_at_one_address_however_it_is_written() {
    let read = |url: &str| {
        let local_indexer_endpoint = url.to_owned();
        let request = pb::RegisterWorkerRequest { local_indexer_endpoint, ..request() };
        Registration::try_from(request).expect("an address")
    };
    let plain = read("a:1");
    assert_eq!(plain.local_indexer.as_deref(), Some("http://a:1"));
    assert_eq!(plain.difference(&read("http://a:1")), None);
    assert_eq!(read("nats").local_indexer.as_deref(), Some("nats"));
}

#[test]
fn the_engine_decides_the_copy_mode_unless_the_registration_does() {
    let check = |engine: pb::Engine, asked: pb::CopyMode, expected| {
        let request = pb::RegisterWorkerRequest {
            engine: engine.into(),
            copy_mode: asked.into(),
            ..request()
        };
        let registration = Registration::try_from(request).expect("a valid request");
        assert_eq!(registration.copy_mode, expected);
    };
    check(pb::Engine::Vllm, pb::CopyMode::Unspecified, CopyMode::Counted);
    check(pb::Engine::Sglang, pb::CopyMode::Unspecified, CopyMode::Counted);
    check(pb::Engine::Trtllm, pb::CopyMode::Unspecified, CopyMode::Set);
    check(pb::Engine::Unspecified, pb::CopyMode::Unspecified, CopyMode::Set);
    check(pb::Engine::Vllm, pb::CopyMode::Set, CopyMode::Set);
    check(pb::Engine::Trtllm, pb::CopyMode::Counted, CopyMode::Counted);
}

#[test]
fn a_difference_is_named_with_both_values() {
    let registration = Registration::try_from(request()).expect("a valid request");
    let check = |change: fn(&mut Registration), expected: Option<(&'static str, &str, &str)>| {
        let mut other = registration.clone();
        change(&mut other);
        let expected = expected.map(|(field, a, b)| (field, a.to_owned(), b.to_owned()));
        assert_eq!(registration.difference(&other), expected);
    };
    check(|_| {}, None);
    check(|other| other.block_size = 32, Some(("block_size", "16", "32")));
    check(|other| other.engine = EngineKind::Vllm, Some(("engine", "custom", "vllm")));
    check(|other| other.copy_mode = CopyMode::Counted, Some(("copy_mode", "set", "counted")));
    check(
        |other| other.loss_policy = Some(LossPolicy::Clear),
        Some(("loss_policy", "the server's default", "clear")),
    );
    check(
        |other| other.lora_names = BTreeMap::from([(1, "a".to_owned())]),
        Some(("lora_names", "none", "1=a")),
    );
    check(
        |other| {
            let ttl = |medium: &str, millis| (medium.to_owned(), Duration::from_millis(millis));
            other.medium_ttls = BTreeMap::from([ttl("CPU", 600_000), ttl("DISK", 100)]);
        },
        Some(("medium_ttls", "none", "CPU=600000ms,DISK=100ms")),
    );
    check(
        |other| {
            let chunk = |medium: &str, blocks| (medium.to_owned(), blocks);
            other.connector_chunks = BTreeMap::from([chunk("CPU", 4), chunk("DISK", 16)]);
        },
        Some(("connector_chunks", "none", "CPU=4,DISK=16")),
    );
    let endpoint = EndpointSpec {
        endpoint: "tcp://a:2".to_owned(),
        replay: Some("tcp://a:3".to_owned()),
        topic: "kv".to_owned(),
        bind: true,
        rank: 7,
    };
    let with = Registration { endpoints: vec![endpoint], ..registration.clone() };
    let without = Registration { endpoints: vec![], ..registration };
    let words = "tcp://a:2 (rank 7, replay tcp://a:3, topic \"kv\", bind)".to_owned();
    assert_eq!(with.difference(&without), Some(("endpoints", words, "none".to_owned())));
}

#[test]
fn names_of_engines_and_policies_round_trip() {
    for engine in [EngineKind::Vllm, EngineKind::Sglang, EngineKind::Trtllm, EngineKind::Custom] {
        assert_eq!(engine.to_string().parse(), Ok(engine));
    }
    for policy in [LossPolicy::Keep, LossPolicy::Clear] {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert_eq!(
        "VLLM".parse::<EngineKind>(),
        Err("\"VLLM\" is not one of vllm, sglang, trtllm, custom".to_owned())
    );
}
