use super::*;
use kvasir_proto::pb;

fn registration(endpoint: pb::EngineEndpoint, agent: &str) -> Registration {
    let endpoints = if endpoint.endpoint.is_empty() { vec![] } else { vec![endpoint] };
    let worker_id = "w".to_owned();
    let model = "m".to_owned();
    let block_size = 16;
    let local_indexer_endpoint = agent.to_owned();
    let request = pb::RegisterWorkerRequest {
        worker_id,
        model,
        block_size,
        endpoints,
        local_indexer_endpoint,
        ..Default::default()
    };
    Registration::try_from(request).expect("a registration")
}

fn socket(endpoint: &str) -> Registration {
    registration(pb::EngineEndpoint { endpoint: endpoint.to_owned(), ..Default::default() }, "")
}

fn rules(places: &[&str]) -> EndpointRules {
    let places = places.iter().map(|place| place.parse().expect("a place")).collect();
    EndpointRules { places, is_local: false, has_identities: true }
}

const CALLER: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3)));

fn refusal(rules: &EndpointRules, of: &Registration, is_admin: bool) -> Option<String> {
    rules.check(of, CALLER, is_admin).err().map(|refused| refused.to_string())
}

#[test]
fn a_publisher_may_name_its_own_address_and_the_operators_places() {
    let rules = rules(&["10.2.0.0/16", "engine-1", "*.gpu.example", "fd00::/8"]);
    for allowed in [
        "tcp://10.1.2.3:5557",
        "tcp://[::ffff:10.1.2.3]:5557",
        "tcp://10.2.255.1:5557",
        "tcp://engine-1:5557",
        "tcp://ENGINE-1:5557",
        "tcp://a.b.gpu.example:5557",
        "tcp://[fd00::7]:5557",
    ] {
        assert_eq!(refusal(&rules, &socket(allowed), false), None, "{allowed}");
    }
    for refused in [
        "tcp://10.1.2.4:5557",
        "tcp://10.3.0.1:5557",
        "tcp://engine-2:5557",
        "tcp://gpu.example:5557",
        "tcp://xgpu.example:5557",
        "tcp://[fe00::7]:5557",
    ] {
        let text = refusal(&rules, &socket(refused), false).expect(refused);
        assert!(text.contains("needs the role admin") && text.contains(refused), "{text}");
        assert_eq!(refusal(&rules, &socket(refused), true), None, "an admin may: {refused}");
    }
}

#[test]
fn near_addresses_are_for_the_operator_alone() {
    let near = [
        "tcp://127.0.0.1:1",
        "tcp://127.9.9.9:1",
        "tcp://[::1]:1",
        "tcp://[::ffff:127.0.0.1]:1",
        "tcp://169.254.169.254:80",
        "tcp://[fe80::1]:1",
        "tcp://0.0.0.0:1",
        "tcp://localhost:1",
        "tcp://LOCALHOST:1",
        "tcp://127.1:1",
        "tcp://2130706433:1",
        "tcp://0x7f000001:1",
    ];
    for endpoint in near {
        let text = refusal(&rules(&[]), &socket(endpoint), true).expect(endpoint);
        assert!(text.contains("--endpoint-places"), "{text}");
        let local = EndpointRules { is_local: true, ..rules(&[]) };
        assert_eq!(refusal(&local, &socket(endpoint), false), None, "{endpoint}");
    }
    assert_eq!(refusal(&rules(&["127.0.0.1"]), &socket("tcp://127.0.0.1:1"), false), None);
}

#[test]
fn replay_sockets_and_agents_are_checked_too() {
    let replay = |replay: &str| {
        let (endpoint, replay_endpoint) = ("tcp://10.1.2.3:1".to_owned(), replay.to_owned());
        registration(pb::EngineEndpoint { endpoint, replay_endpoint, ..Default::default() }, "")
    };
    assert_eq!(refusal(&rules(&[]), &replay("tcp://10.1.2.3:2"), false), None);
    let text = refusal(&rules(&[]), &replay("tcp://10.9.9.9:2"), false).expect("far");
    assert!(text.starts_with("endpoints.replay_endpoint"), "{text}");
    let agent = |url: &str| registration(pb::EngineEndpoint::default(), url);
    assert_eq!(refusal(&rules(&[]), &agent("http://10.1.2.3:50052"), false), None);
    let text = refusal(&rules(&[]), &agent("http://10.9.9.9:50052"), false).expect("far");
    assert!(text.starts_with("local_indexer_endpoint"), "{text}");
    assert!(refusal(&rules(&[]), &agent("http://[::1]:50052"), true).is_some());
    let engine = |url: &str| {
        let mut registration = agent("");
        registration.profile.labels.insert("http".to_owned(), url.to_owned());
        registration
    };
    assert_eq!(refusal(&rules(&[]), &engine("http://10.1.2.3:8000"), false), None);
    for url in ["http://169.254.169.254/", "http://10.9.9.9:8000", "no URL"] {
        let text = refusal(&rules(&[]), &engine(url), false).expect(url);
        assert!(text.starts_with("profile.labels.http"), "{text}");
    }
}

#[test]
fn sockets_to_listen_on_are_an_admins() {
    let endpoint = "tcp://*:5557".to_owned();
    let of = registration(pb::EngineEndpoint { endpoint, bind: true, ..Default::default() }, "");
    let identified = rules(&["0.0.0.0/0"]);
    assert!(refusal(&identified, &of, false).expect("bind").starts_with("endpoints.bind"));
    assert_eq!(refusal(&identified, &of, true), None);
    let open = EndpointRules { has_identities: false, ..rules(&[]) };
    assert!(refusal(&open, &of, true).is_some(), "who is admin there is anyone");
    let local = EndpointRules { is_local: true, ..open };
    assert_eq!(refusal(&local, &of, true), None);
}

#[test]
fn what_is_no_place_is_refused_with_what_to_write() {
    for text in ["", "*", "10.0.0.0/33", "10.0.0", "a b", "*x", "http://a"] {
        let error = text.parse::<Place>().expect_err(text);
        assert!(error.contains("must be a network such as"), "{error}");
    }
}
