//! The table of allowed imports. Cargo keeps crates apart; within a crate this does.

use crate::sources::{Source, root, rust_files};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// A module, and the modules of its crate that it may name.
type Edges = (&'static str, &'static [&'static str]);

/// For each crate, its modules.
const EDGES: &[(&str, &[Edges])] = &[
    (
        "indexer-server/src",
        &[
            ("index", &[]),
            ("ingest", &["index"]),
            ("snapshot", &["index"]),
            ("siblings", &["index"]),
            ("query", &["index"]),
            ("broker", &["ingest", "snapshot"]),
            ("grpc", &["index", "ingest", "snapshot", "siblings", "query"]),
            ("config", &["index", "ingest", "snapshot", "siblings", "broker", "query", "grpc"]),
            (
                "app",
                &["config", "index", "ingest", "snapshot", "siblings", "broker", "query", "grpc"],
            ),
        ],
    ),
    (
        "proto/process/src",
        &[
            ("causes", &[]),
            ("text", &[]),
            ("telemetry", &[]),
            ("descriptors", &[]),
            ("net", &[]),
            ("port", &["net"]),
            ("http", &["telemetry", "net"]),
            ("answer_timer", &[]),
            ("tasks", &[]),
            ("environment", &[]),
            ("config", &["environment", "telemetry"]),
            ("entry", &["causes", "config", "descriptors", "telemetry"]),
        ],
    ),
    (
        "proto/engine/src",
        &[
            ("zmtp", &[]),
            ("decode", &[]),
            ("normalise", &["decode"]),
            ("order", &[]),
            ("sequence", &["order"]),
            ("recover", &["order"]),
            ("throttle", &[]),
            ("expiry", &["normalise", "order"]),
            ("link", &["zmtp", "decode", "normalise", "expiry", "sequence", "throttle"]),
        ],
    ),
    (
        "kvbm-agent/src",
        &[
            ("journal", &[]),
            ("disk", &["journal"]),
            ("feed", &["journal", "disk"]),
            ("consolidate", &[]),
            ("hub", &["consolidate", "journal", "disk", "feed"]),
            ("relay", &["disk", "hub"]),
            ("publisher", &["hub"]),
            ("ingest", &["disk", "hub"]),
            ("load", &[]),
            ("pause", &[]),
            ("uplink", &["journal", "feed", "pause"]),
            ("service", &["journal", "feed", "ingest", "load"]),
            ("broker", &["journal", "feed", "load", "pause", "service"]),
            ("zmq", &["journal", "feed"]),
            (
                "agent",
                &[
                    "journal", "disk", "feed", "hub", "load", "relay", "ingest", "uplink",
                    "service", "broker", "zmq",
                ],
            ),
            (
                "config",
                &[
                    "agent", "broker", "feed", "hub", "ingest", "journal", "load", "relay",
                    "service", "zmq",
                ],
            ),
            (
                "app",
                &[
                    "agent", "broker", "config", "disk", "hub", "ingest", "journal", "load",
                    "uplink",
                ],
            ),
        ],
    ),
    (
        "kvbm-agent/clients/c/src",
        &[
            ("types", &[]),
            ("fault", &["types"]),
            ("publisher", &["fault"]),
            ("handles", &["fault", "publisher"]),
            ("read", &["fault", "types"]),
            ("abi", &["fault", "handles", "publisher", "read", "types"]),
        ],
    ),
    (
        "proto/src",
        &[
            ("limits", &[]),
            ("target", &["limits"]),
            ("code", &[]),
            ("types", &["limits"]),
            ("hash", &["types"]),
            ("digest", &["types"]),
            ("shard", &["types", "hash"]),
            ("codec", &["limits"]),
            ("find_codec", &["codec", "convert"]),
            ("broker", &["convert", "hash", "limits", "types"]),
            ("convert", &["types", "hash", "digest", "shard", "limits", "target", "code", "pb"]),
        ],
    ),
];

/// The module of its crate that a file belongs to.
fn module<'a>(source: &'a Source, folder: &str) -> Option<&'a str> {
    let inside = source.path.strip_prefix(folder)?.strip_prefix('/')?;
    Some(inside.split('/').next()?.trim_end_matches(".rs"))
}

/// Modules that a text names with `crate::`.
fn named(text: &str) -> BTreeSet<&str> {
    let after = text.split("crate::").skip(1);
    let paths = after.flat_map(|rest| match rest.strip_prefix('{') {
        Some(group) => group_paths(group),
        None => vec![rest],
    });
    let is_word = |at: char| at.is_ascii_alphanumeric() || at == '_';
    paths
        .map(|rest| rest.trim().split(|at| !is_word(at)).next().unwrap_or_default())
        .filter(|name| name.chars().next().is_some_and(|first| first.is_ascii_lowercase()))
        .collect()
}

/// The paths of a group, up to its closing brace; nested groups stay whole.
fn group_paths(group: &str) -> Vec<&str> {
    let mut depth = 0;
    let mut start = 0;
    let mut paths = Vec::new();
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' | ',' if depth == 0 => {
                paths.push(&group[start..at]);
                start = at + 1;
                if letter == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    paths
}

#[test]
fn imports_follow_the_table() {
    let files = rust_files();
    let mut faults = Vec::new();
    for (folder, modules) in EDGES {
        let table: BTreeMap<&str, &[&str]> = modules.iter().copied().collect();
        let mut seen = BTreeSet::new();
        for source in files.iter().filter(|source| !source.is_test()) {
            let Some(at) = module(source, folder).filter(|at| *at != "lib" && *at != "main") else {
                continue;
            };
            seen.insert(at.to_owned());
            let Some(allowed) = table.get(at) else {
                faults.push(format!("{}: {at} is not in the table", source.path));
                continue;
            };
            for name in named(&source.text) {
                if name != at && !allowed.contains(&name) {
                    faults.push(format!("{}: {at} must not import {name}", source.path));
                }
            }
        }
        for at in table.keys().filter(|at| !seen.contains(**at)) {
            faults.push(format!("{folder}: {at} is in the table only"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn crates_stay_without_what_is_not_theirs() {
    for (name, banned) in [
        ("kvasir-index", &["tokio", "tonic", "tracing", "prost"][..]),
        ("kvasir-engine", &["tonic", "prost"][..]),
        // What engines link: nothing of the agent's journal on disk.
        ("kvasir-c", &["kvasir-store", "rocksdb", "librocksdb-sys"][..]),
    ] {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let output = Command::new(cargo)
            .args(["tree", "--locked", "--offline", "--edges", "normal", "--prefix", "none"])
            .args(["--package", name])
            .current_dir(root())
            .output()
            .expect("cargo tree runs");
        let tree = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(tree.starts_with(name), "{tree}");
        for line in tree.lines() {
            let package = line.split(' ').next().unwrap_or_default();
            assert!(!banned.contains(&package), "{name} depends on {package}");
        }
    }
}
