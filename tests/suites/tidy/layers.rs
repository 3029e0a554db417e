//! The table of allowed imports. Cargo keeps crates apart; within a crate this does.

use crate::names::Named;
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
            ("partitions", &[]),
            ("ingest", &["partitions"]),
            ("snapshot", &["partitions"]),
            ("siblings", &["partitions"]),
            ("query", &["partitions"]),
            ("broker", &["ingest", "snapshot"]),
            ("grpc", &["partitions", "ingest", "snapshot", "siblings", "query"]),
            (
                "config",
                &["partitions", "ingest", "snapshot", "siblings", "broker", "query", "grpc"],
            ),
            (
                "app",
                &[
                    "config",
                    "partitions",
                    "ingest",
                    "snapshot",
                    "siblings",
                    "broker",
                    "query",
                    "grpc",
                ],
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
            ("nats", &["text"]),
            ("options", &["config", "http", "nats", "telemetry", "text"]),
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
        "kvbm-agent/feed/src",
        &[
            ("journal", &[]),
            ("disk", &["journal"]),
            ("feed", &["journal", "disk"]),
            ("consolidate", &[]),
            ("hub", &["consolidate", "journal", "disk", "feed"]),
            ("publisher", &["hub"]),
            ("pause", &[]),
            ("uplink", &["journal", "feed", "pause"]),
        ],
    ),
    (
        "kvbm-agent/src",
        &[
            ("relay", &[]),
            ("ingest", &[]),
            ("load", &[]),
            ("service", &["ingest", "load"]),
            ("broker", &["load", "service"]),
            ("zmq", &[]),
            ("agent", &["load", "relay", "ingest", "service", "broker", "zmq"]),
            ("config", &["agent", "broker", "ingest", "load", "relay", "service", "zmq"]),
            ("app", &["agent", "broker", "config", "ingest", "load"]),
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
            (
                "convert",
                &["types", "hash", "digest", "shard", "limits", "target", "code", "codec", "pb"],
            ),
        ],
    ),
];

/// The module of its crate that a file belongs to.
fn module<'a>(source: &'a Source, folder: &str) -> Option<&'a str> {
    let inside = source.path.strip_prefix(folder)?.strip_prefix('/')?;
    Some(inside.split('/').next()?.trim_end_matches(".rs"))
}

/// Modules that a file names with `crate::`.
fn named(source: &Source) -> BTreeSet<String> {
    let paths = Named::of(&source.text).paths.into_iter();
    let inside = paths.filter(|path| path.first().is_some_and(|first| first == "crate"));
    let modules = inside.filter_map(|path| path.into_iter().nth(1));
    modules.filter(|name| name.starts_with(|first: char| first.is_ascii_lowercase())).collect()
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
            for name in named(source) {
                if name != at && !allowed.contains(&name.as_str()) {
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

/// Only the server's gRPC port works with generated messages; conversions hand everything else values.
#[test]
fn messages_stay_at_the_port() {
    let files = rust_files();
    let server = files.iter().filter(|source| {
        source.path.starts_with("indexer-server/src/")
            && !source.path.starts_with("indexer-server/src/grpc/")
            && !source.is_test()
    });
    for source in server {
        for line in source.text.lines().take(source.production_lines()) {
            let is_word = |at: char| at.is_ascii_alphanumeric() || at == '_';
            let names_messages = line.split(|at| !is_word(at)).any(|word| word == "pb");
            assert!(!names_messages, "{}: {line}", source.path);
        }
    }
}

#[test]
fn crates_stay_without_what_is_not_theirs() {
    for (name, banned) in [
        ("kvasir-index", &["tokio", "tonic", "tracing", "prost"][..]),
        ("kvasir-engine", &["tonic", "prost"][..]),
        // Engines link it: without the agent, and without a journal on disk.
        ("kvasir-c", &["kvbm-agent", "kvasir-store", "rocksdb", "librocksdb-sys"][..]),
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
