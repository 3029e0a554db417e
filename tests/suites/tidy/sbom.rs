//! The bill of materials of each program, against the program and the lock file.

use crate::sources::{read, root};
use kvasir_sim::server::{agent_binary, binary, router_binary};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

/// What precedes the folder of a crate in the paths that its panics name.
const REGISTRY: &[u8] = b"/registry/src/";

type Crate = (String, String);

fn bill(package: &str) -> Vec<Value> {
    let output = Command::new(root().join("scripts/sbom")).arg(package).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut bill: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(bill["bomFormat"], "CycloneDX");
    match bill["components"].take() {
        Value::Array(components) => components,
        other => panic!("{other}"),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Packages from registries with their checksums.
fn locked() -> BTreeMap<Crate, String> {
    let lock: toml::Table = read("Cargo.lock").parse().expect("TOML");
    let packages = lock["package"].as_array().expect("packages");
    let field = |of: &toml::Value, name: &str| {
        of.get(name).and_then(toml::Value::as_str).unwrap_or_default().to_owned()
    };
    packages
        .iter()
        .filter(|package| package.get("checksum").is_some())
        .map(|of| ((field(of, "name"), field(of, "version")), field(of, "checksum")))
        .collect()
}

/// Crates of registries whose code is in a program, as far as it names their files.
fn named_in(program: &[u8], locked: &BTreeMap<Crate, String>) -> BTreeSet<Crate> {
    let mut named = BTreeSet::new();
    let mut rest = program;
    while let Some(at) = rest.windows(REGISTRY.len()).position(|window| window == REGISTRY) {
        rest = &rest[at + REGISTRY.len()..];
        let folder = rest.split(|byte| *byte == b'/').nth(1).unwrap_or_default();
        let folder = String::from_utf8_lossy(folder);
        let is_it = |(name, version): &&Crate| *folder == format!("{name}-{version}");
        named.extend(locked.keys().find(is_it).cloned());
    }
    named
}

#[test]
fn a_bill_lists_what_is_linked_with_the_locked_checksums() {
    let locked = locked();
    for (package, program) in [
        ("indexer-server", binary()),
        ("kvbm-agent", agent_binary()),
        ("kvasir-router", router_binary()),
    ] {
        let mut listed = BTreeSet::new();
        for component in bill(package) {
            let at = (text(&component["name"]), text(&component["version"]));
            let url = format!("pkg:cargo/{}@{}", at.0, at.1);
            if component["purl"] != url.as_str() {
                assert!(text(&component["purl"]).starts_with("pkg:github/facebook/rocksdb@v"));
                continue;
            }
            assert!(!text(&component["licenses"][0]["expression"]).is_empty(), "{url}");
            if let Some(checksum) = locked.get(&at) {
                assert_eq!(component["hashes"][0]["content"], checksum.as_str(), "{url}");
            } else {
                assert_eq!(at.1, env!("CARGO_PKG_VERSION"), "{url} is not in Cargo.lock");
            }
            listed.insert(at);
        }
        let program = fs::read(program.expect("it is built")).expect("readable");
        let linked = named_in(&program, &locked);
        assert!(linked.len() > 20, "{package}: {linked:?}");
        let missing: Vec<_> = linked.difference(&listed).collect();
        assert!(missing.is_empty(), "{package}: {missing:?}");
    }
}
