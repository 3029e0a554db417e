//! Parts of the documents that are made from the code, and facts that two places must agree on.

use crate::sources::{read, root};
use kvasir_process::config::options_table;
use std::fs;
use std::sync::{Mutex, PoisonError};

/// Held while a document is rewritten: it has several generated parts, and tests run side by side.
static REWRITING: Mutex<()> = Mutex::new(());

/// Compares the part of a document between `<!-- name -->` and `<!-- /name -->`, or rewrites it.
fn check(path: &str, name: &str, fresh: &str) {
    let _guard = REWRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let document = read(path);
    let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let (head, rest) = document.split_once(&open).unwrap_or_else(|| panic!("{path}: no {open}"));
    let (old, tail) = rest.split_once(&close).unwrap_or_else(|| panic!("{path}: no {close}"));
    if std::env::var("KVASIR_REGENERATE").is_ok() {
        let text = format!("{head}{open}{fresh}{close}{tail}");
        fs::write(root().join(path), text).expect("a writable document");
        return;
    }
    assert!(old == fresh, "{path}: the part {name} is stale: run .ci/fix\n{fresh}");
}

#[test]
fn configuration_table_is_current() {
    check("README.md", "configuration", &options_table::<indexer_server::config::Options>());
    let agent = options_table::<kvbm_agent::config::Options>();
    check("README.md", "agent configuration", &agent);
}

#[test]
fn limits_table_is_current() {
    let mut table = String::from("| limit | value | meaning |\n| --- | --- | --- |\n");
    let mut meaning = String::new();
    for line in read("proto/src/limits.rs").lines() {
        if let Some(text) = line.strip_prefix("/// ") {
            meaning = format!("{meaning} {text}").trim().to_owned();
        } else if let Some(constant) = line.strip_prefix("pub const ") {
            let (name, rest) = constant.split_once(':').expect("a typed constant");
            let value = rest.split_once("= ").expect("a value").1.trim_end_matches(';');
            let meaning = std::mem::take(&mut meaning);
            table.push_str(&format!("| `{name}` | {value} | {meaning} |\n"));
        }
    }
    assert!(table.lines().count() > 15, "{table}");
    check("README.md", "limits", &table);
}

#[test]
fn the_card_of_packages_is_declared() {
    let manifest = read("Cargo.toml");
    for name in [
        "tonic",
        "prost",
        "tokio",
        "zeromq",
        "async-nats",
        "dashmap",
        "tower",
        "tracing",
        "opentelemetry",
        "rocksdb",
    ] {
        let declared = manifest.lines().any(|line| line.starts_with(&format!("{name} = ")));
        assert!(declared, "{name} is not in [workspace.dependencies]");
    }
}

#[test]
fn nothing_else_lies_at_the_top() {
    let allowed = [
        ".ci",
        ".git",
        ".gitignore",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE",
        "README.md",
        "benches",
        "clippy.toml",
        "deny.toml",
        "docker",
        "indexer-server",
        "kvbm-agent",
        "proto",
        "router-client",
        "rustfmt.toml",
        "target",
        "tests",
    ];
    for entry in fs::read_dir(root()).expect("the root") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        assert!(allowed.contains(&name.as_str()), "{name} does not belong at the top");
    }
}

#[test]
fn paths_in_the_documents_exist() {
    let folders = [
        ".ci/",
        "benches/",
        "docker/",
        "indexer-server/",
        "kvbm-agent/",
        "proto/",
        "router-client/",
        "tests/",
    ];
    let mut seen = 0;
    let mut missing = Vec::new();
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docker/README.md"] {
        let text = read(document);
        for word in text.split(['`', '(', ')', ' ', '\n']) {
            if folders.iter().any(|folder| word.starts_with(folder)) {
                seen += 1;
                if !root().join(word.trim_end_matches([',', '.', ':', ';'])).exists() {
                    missing.push(format!("{document}: {word}"));
                }
            }
        }
    }
    assert!(seen > 20, "{seen} paths");
    assert!(missing.is_empty(), "{missing:#?}");
}
