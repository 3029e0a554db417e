use super::*;
use crate::Denied;
use proptest::prelude::*;

fn parse(text: &str) -> Result<Identities, String> {
    Identities::parse(text).map_err(|error| error.to_string())
}

fn entry(name: &str, token: &str, rest: &str) -> String {
    let hash = token_sha256(token);
    format!("[[identity]]\nname = \"{name}\"\ntoken-sha256 = \"{hash}\"\n{rest}\n")
}

#[test]
fn the_hash_is_that_of_sha256sum() {
    let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(token_sha256("abc"), expected);
}

#[test]
fn a_token_or_a_certificate_says_who_calls() {
    let text = entry("a", "secret-a", "roles = [\"query\"]")
        + "[[identity]]\nname = \"b\"\ncertificate = \"b.example\"\nroles = [\"admin\"]\ntenants = [\"*\"]\n";
    let identities = parse(&text).expect("a file");
    assert_eq!(identities.len(), 2);
    let name = |principal: Option<&Arc<Principal>>| principal.map(|at| at.name().to_owned());
    assert_eq!(name(identities.of_token("secret-a")).as_deref(), Some("a"));
    assert_eq!(identities.of_token("secret-b"), None);
    assert_eq!(identities.of_token(""), None);
    assert_eq!(identities.of_token(&"x".repeat(TOKEN_BYTES_MAX + 1)), None);
    assert_eq!(
        name(identities.of_certificate(["x", "b.example"].into_iter())).as_deref(),
        Some("b")
    );
    assert_eq!(identities.of_certificate(["a"].into_iter()), None, "a's name is no certificate");
    assert_eq!(identities.of_certificate(std::iter::empty()), None);
}

#[test]
fn without_lists_an_identity_has_the_default_tenant_and_all_models() {
    let identities = parse(&entry("a", "t", "roles = [\"query\"]")).expect("a file");
    let a = identities.of_token("t").expect("a");
    assert!(a.sees("", "any") && !a.sees("acme", "any") && !a.sees_all());
    assert!(a.check_role(Role::Query).is_ok());
    let denied = a.check_role(Role::Publish);
    assert_eq!(denied, Err(Denied::Role { principal: "a".into(), role: Role::Publish }));
}

#[test]
fn a_publisher_speaks_for_its_own_workers_only() {
    let lists = "roles = [\"publish\"]\ntenants = [\"acme\"]\nworkers = [\"gpu-*\"]";
    let identities = parse(&entry("agent", "t", lists)).expect("a file");
    let agent = identities.of_token("t").expect("agent");
    assert_eq!(agent.check_worker("acme", "m", "gpu-7"), Ok(()));
    assert!(matches!(agent.check_worker("acme", "m", "cpu-7"), Err(Denied::Worker { .. })));
    assert!(matches!(agent.check_worker("", "m", "gpu-7"), Err(Denied::Partition { .. })));
    assert!(matches!(agent.check_role(Role::Query), Err(Denied::Role { .. })));
    assert!(agent.check_admin_of_all().is_err());
}

#[test]
fn an_adapter_is_announced_by_who_may_use_a_model_of_its_name() {
    let lists = "roles = [\"publish\"]\nmodels = [\"m\", \"m-*\"]\nworkers = [\"*\"]";
    let identities = parse(&entry("agent", "t", lists)).expect("a file");
    let agent = identities.of_token("t").expect("agent");
    assert_eq!(agent.check_adapter("", "m-sql"), Ok(()));
    for (tenant, adapter) in [("", "sql"), ("acme", "m-sql")] {
        let denied = agent.check_adapter(tenant, adapter);
        let principal = "agent".into();
        let adapter = adapter.into();
        assert_eq!(denied, Err(Denied::Adapter { principal, adapter }));
    }
    let text = agent.check_adapter("", "sql").expect_err("another model's").to_string();
    assert!(text.contains("lora_names") && text.contains("models"), "{text}");
    assert_eq!(Principal::anyone().check_adapter("any", "any"), Ok(()));
}

#[test]
fn an_admin_may_do_everything_for_its_tenants() {
    let identities = parse(&entry("ops", "t", "roles = [\"admin\"]\ntenants = [\"acme\"]"));
    let identities = identities.expect("a file");
    let ops = identities.of_token("t").expect("ops");
    assert!([Role::Query, Role::Publish, Role::Admin].iter().all(|role| ops.has(*role)));
    assert_eq!(ops.check_worker("acme", "m", "any"), Ok(()));
    assert!(matches!(ops.check_worker("other", "m", "any"), Err(Denied::Partition { .. })));
    assert!(matches!(ops.check_admin_of_all(), Err(Denied::All { .. })));
    assert_eq!(Principal::anyone().check_admin_of_all(), Ok(()));
}

#[test]
fn what_cannot_be_used_is_refused_with_the_identity_and_the_fix() {
    let hash = token_sha256("t");
    for (text, expected) in [
        ("identity = 3", "line 1"),
        (
            "[[identity]]\nname = \"a\"\ntoken = \"s3cret\"\nroles = []",
            "line 3: an unknown field, expected one of `name`",
        ),
        ("correct-horse-battery = 1", "line 1: an unknown field, expected `identity`"),
        (
            &format!("[[identity]]\nname = \"{hash}\"\ntoken-sha256 = \"a\"\nroles = [\"query\"]"),
            "identity number 1: token-sha256 must be 64",
        ),
        (&entry(&"n".repeat(257), "t", "roles = [\"query\"]"), "identity number 1: name has"),
        (&format!("{hash} = \"a\""), "an unknown field, expected `identity`"),
        ("\"a`, expected\" = 1", "an unknown field, expected `identity`"),
        ("[[identity]]\nname = \"a\"\nroles = [\"query\"]", "neither token-sha256 nor certificate"),
        (
            "[[identity]]\nname = \"a\"\ntoken-sha256 = \"s3cret\"\nroles = [\"query\"]",
            "64 hexadecimal digits",
        ),
        ("[[identity]]\nname = \"a\"\ntoken-sha256 = 3\nroles = [\"query\"]", "wrong type"),
        (
            "[[identity]]\nname = \"a\"\ncertificate = \"\"\nroles = [\"query\"]",
            "certificate is empty",
        ),
        (
            &format!("[[identity]]\nname = \"\"\ntoken-sha256 = \"{hash}\"\nroles = [\"query\"]"),
            "name is empty",
        ),
        (&entry("a", "t", "roles = [\"root\"]"), "a role must be query, publish or admin"),
        (&entry("a", "t", "roles = []"), "roles is empty"),
        (&entry("a", "t", "roles = [\"publish\"]"), "list its workers"),
        (&entry("a", "t", "roles = [\"query\"]\ntenants = [\"a*b\"]"), "at the end of a name only"),
        (&entry("a", "t", "roles = [\"query\"]\ntenants = [\"a**\"]"), "at the end of a name only"),
        (&entry("a", "t", "roles = [\"query\"]\nmodels = [\"\\u001b\"]"), "control character"),
        (
            &entry("a", "t", "roles = [\"query\"]\nqueries-per-second = 0"),
            "queries-per-second is 0 queries per second, must be 1 to 1000000",
        ),
        (
            &entry("a", "t", "roles = [\"query\"]\nquery-burst = 5"),
            "query-burst needs queries-per-second beside it",
        ),
        (&entry("a", "t", "roles = [\"query\"]").repeat(2), "is there twice"),
        (
            &(entry("a", "t", "roles = [\"query\"]") + &entry("b", "t", "roles = [\"query\"]")),
            "another identity",
        ),
    ] {
        let error = parse(text).map(|_identities| ()).expect_err(text);
        assert!(error.contains(expected), "{text}: {error}");
        let shows_secret = ["s3cret", "correct-horse", &hash].iter().any(|at| error.contains(*at));
        assert!(!shows_secret, "{error}");
    }
}

#[test]
fn a_list_has_a_limit() {
    let names = |count| vec!["\"n\""; count].join(",");
    let text =
        |count| entry("a", "t", &format!("roles = [\"query\"]\ntenants = [{}]", names(count)));
    assert!(parse(&text(NAMES_MAX)).is_ok());
    assert!(parse(&text(NAMES_MAX + 1)).expect_err("too many").contains("the limit is 1024"));
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}") {
        let _read = Identities::parse(&text);
    }

    #[test]
    fn an_identity_sees_exactly_what_its_lists_have(
        tenants in prop::collection::vec("[ab]{0,2}[*]?", 0..3),
        models in prop::collection::vec("[ab]{0,2}[*]?", 0..3),
        tenant in "[ab]{0,3}",
        model in "[ab]{0,3}",
    ) {
        let lists = format!("roles = [\"query\"]\ntenants = {tenants:?}\nmodels = {models:?}");
        let identities = parse(&entry("a", "t", &lists)).expect("a file");
        let has = |patterns: &[String], name: &str| patterns.iter().any(|pattern| {
            pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
        });
        let seen = identities.of_token("t").expect("a").sees(&tenant, &model);
        prop_assert_eq!(seen, has(&tenants, &tenant) && has(&models, &model));
    }
}
