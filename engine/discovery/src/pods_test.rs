use super::*;
use serde_json::{Value, json};

fn at(text: &str) -> ServicePort {
    text.parse().expect("a port of a service")
}

fn slice(family: &str, ports: &Value, endpoints: &Value) -> Arc<EndpointSlice> {
    let slice = json!({
        "metadata": {"name": format!("vllm-{family}")},
        "addressType": family,
        "ports": ports,
        "endpoints": endpoints,
    });
    Arc::new(serde_json::from_value(slice).expect("a slice"))
}

fn endpoint(address: &str, pod: &str, conditions: &Value) -> Value {
    json!({
        "addresses": [address],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": pod, "uid": format!("uid-{pod}")},
    })
}

fn pod(name: &str, metadata: Value) -> Arc<PodMeta> {
    let mut metadata = metadata;
    metadata["name"] = json!(name);
    metadata["uid"] = json!(format!("uid-{name}"));
    Arc::new(serde_json::from_value(json!({"metadata": metadata})).expect("a pod"))
}

fn names(listed: &Listed) -> Vec<String> {
    listed.specs.iter().map(EngineSpec::name).collect()
}

#[test]
fn ports_of_services_are_numbers_or_names() {
    assert_eq!(at("vllm:8000").port, Port::Number(8_000));
    let named = at("prod/vllm:http");
    assert_eq!(
        (named.namespace.as_deref(), named.port),
        (Some("prod"), Port::Name("http".to_owned()))
    );
    for text in [
        "vllm",
        "vllm:",
        ":1",
        "/vllm:1",
        "a/:1",
        "a/b/c:1",
        "vllm:0",
        "vllm:80000",
        "v llm:1",
        "vllm:8000/",
    ] {
        text.parse::<ServicePort>().expect_err(text);
    }
}

#[test]
fn a_pod_is_one_engine_until_it_is_deleted() {
    let ports = json!([{"name": "http", "port": 8000}]);
    let four = json!([
        endpoint("10.0.0.2", "b", &json!({"ready": false})),
        endpoint("10.0.0.1", "a", &json!({})),
        endpoint("10.0.0.3", "ending", &json!({"ready": true, "serving": true, "terminating": true})),
        endpoint("10.0.0.4", "deleted", &json!({"ready": true})),
        endpoint("10.0.0.5", "unknown", &json!({"ready": true})),
        {"addresses": ["10.0.0.9"]},
        {"addresses": []},
    ]);
    let six = json!([endpoint("fd00::1", "a", &json!({})), endpoint("fd00::6", "six", &json!({}))]);
    let slices = [slice("IPv6", &ports, &six), slice("IPv4", &ports, &four)];
    let pods = [
        pod("a", json!({})),
        pod("b", json!({})),
        pod("ending", json!({})),
        pod("deleted", json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})),
        pod("six", json!({})),
    ];
    let listed = engines(&at("vllm:http"), &Stated::default(), &slices, Some(&pods));
    assert_eq!(listed.faults, []);
    assert_eq!(names(&listed), ["10.0.0.9:8000", "a:8000", "b:8000", "six:8000"]);
    let urls: Vec<_> = listed.specs.iter().map(|spec| spec.url.to_string()).collect();
    let expected = [
        "http://10.0.0.9:8000/",
        "http://10.0.0.1:8000/",
        "http://10.0.0.2:8000/",
        "http://[fd00::6]:8000/",
    ];
    assert_eq!(urls, expected);
    assert_eq!(listed.specs[1].pod, Some(Pod { name: "a".to_owned(), uid: "uid-a".to_owned() }));
    assert_eq!(listed.specs[0].pod, None);
    // A service without a selector: there are no pods to wait for.
    let all = engines(&at("vllm:9000"), &Stated::default(), &slices, None);
    assert!(names(&all).contains(&"unknown:9000".to_owned()), "{all:?}");
}

#[test]
fn pods_state_facts_which_precede_those_of_the_option() {
    let ports = json!([{"name": "http", "port": 8000}]);
    let endpoints =
        json!([endpoint("10.0.0.1", "a", &json!({})), endpoint("10.0.0.2", "b", &json!({}))]);
    let slices = [slice("IPv4", &ports, &endpoints)];
    let facts = json!({
        "labels": {"app": "vllm", "kvasir/agent": "true", "kvasir/model": "label", "kvasir/block-size": "32"},
        "annotations": {
            "kvasir/model": "annotation", "kvasir/events": "tcp://*:6000", "kvasir/replay-tokens": "128", "kvasir/role": "x",
        },
    });
    let pods = [pod("a", facts), pod("b", json!({"annotations": {"kvasir/events": "10.0.0.2:1"}}))];
    let (_, stated) = Stated::split("x:1,model=option,key-file=/k").expect("facts");
    let listed = engines(&at("vllm:http"), &stated, &slices, Some(&pods));
    let [spec] = listed.specs.as_slice() else { panic!("{listed:?}") };
    assert_eq!(spec.model.as_deref(), Some("annotation"));
    assert_eq!((spec.events.as_deref(), spec.block_size), (Some("tcp://10.0.0.1:6000"), Some(32)));
    assert_eq!((spec.key_file.clone(), spec.facts.replay_tokens), (Some("/k".into()), 128));
    let faults: Vec<_> = listed.faults.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(
        faults[0].starts_with("a: the pod's kvasir/role is ignored: use kvasir/events"),
        "{faults:?}"
    );
    assert!(faults[1].contains("events=10.0.0.2:1 must be events=tcp://HOST:PORT"), "{faults:?}");
}

#[test]
fn a_slice_without_the_named_port_is_a_fault() {
    for ports in
        [json!(null), json!([]), json!([{"name": "grpc", "port": 1}]), json!([{"port": 1}])]
    {
        let slices = [slice("IPv4", &ports, &json!([{"addresses": ["10.0.0.1"]}]))];
        let listed = engines(&at("vllm:http"), &Stated::default(), &slices, None);
        assert_eq!(listed.specs, []);
        assert!(listed.faults[0].1.contains("has no port named \"http\""), "{listed:?}");
    }
    // The slice of a service without pods, or without pods of this family.
    let empty = [slice("IPv6", &json!([]), &json!(null))];
    assert_eq!(engines(&at("vllm:http"), &Stated::default(), &empty, None), Listed::default());
}

#[test]
fn too_many_pods_and_equal_names_leave_the_others() {
    let ports = json!([{"name": "http", "port": 8000}]);
    let many = (0..=ENGINES_MAX).map(|number| {
        let address = format!("10.0.{}.{}", number / 256, number % 256);
        json!({"addresses": [address]})
    });
    let slices = [slice("IPv4", &ports, &many.collect())];
    let listed = engines(&at("vllm:http"), &Stated::default(), &slices, None);
    assert_eq!(listed.specs.len(), ENGINES_MAX);
    assert!(listed.faults[0].1.contains("1025 engines are too many"), "{:?}", listed.faults);
    let mut again = endpoint("10.0.0.2", "a", &json!({}));
    again["targetRef"]["uid"] = json!("other");
    let two = json!([endpoint("10.0.0.1", "a", &json!({})), again]);
    let listed =
        engines(&at("vllm:http"), &Stated::default(), &[slice("IPv4", &ports, &two)], None);
    assert_eq!(names(&listed), ["a:8000"]);
    assert_eq!(listed.faults, [("a:8000".to_owned(), "another pod has the same name".to_owned())]);
}
