//! Parts of the documents that are made from the code, and facts that two places must agree on.

use crate::sources::{read, root};
use kvasir_process::config::{
    Options, VARIABLE_PREFIXES, options_table, own_options_table, retired,
};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Documents with the most words that they may have, generated parts aside.
const WORDS_MAX: [(&str, usize); 8] = [
    ("README.md", 900),
    ("ARCHITECTURE.md", 3_500),
    ("CONTRIBUTING.md", 1_200),
    ("indexer-server/README.md", 2_500),
    ("kvbm-agent/README.md", 2_500),
    ("router-client/router/README.md", 2_500),
    ("router-client/gateway/README.md", 2_500),
    ("router-client/kvasir/README.md", 1_200),
];
/// Words of all documents together, generated parts aside.
const ALL_WORDS_MAX: usize = 45_000;
/// Where decisions stand.
const DECISIONS: &str = "DECISIONS.md";
/// Pages with generated tables.
const SERVER: &str = "docs/reference/indexer-server.md";
const AGENT: &str = "docs/reference/kvbm-agent.md";

/// Held while a document is rewritten: it has several generated parts, and tests run side by side.
static REWRITING: Mutex<()> = Mutex::new(());

/// Compares the part of a document between `<!-- name -->` and `<!-- /name -->`, or rewrites it.
fn check(path: &str, name: &str, fresh: &str) {
    let _guard = REWRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let document = read(path);
    let open = format!("<!-- {name} -->\n");
    let close = format!("<!-- /{name} -->");
    let (head, rest) = document.split_once(&open).unwrap_or_else(|| panic!("{path}: no {open}"));
    let (old, tail) = rest.split_once(&close).unwrap_or_else(|| panic!("{path}: no {close}"));
    if std::env::var("KVASIR_REGENERATE").is_ok() {
        let text = format!("{head}{open}{fresh}{close}{tail}");
        fs::write(root().join(path), text).expect("a writable document");
        return;
    }
    assert!(old == fresh, "{path}: the part {name} is stale: run scripts/fix\n{fresh}");
}

#[test]
fn configuration_table_is_current() {
    check(SERVER, "configuration", &options_table::<indexer_server::config::Options>());
    check(AGENT, "agent configuration", &options_table::<kvbm_agent::config::Options>());
    let router = options_table::<kvasir_router::config::Options>();
    check("docs/reference/router.md", "router configuration", &router);
    type Gateway = kvasir_gateway::config::Options;
    let gateway = own_options_table::<Gateway, kvasir_router::config::Options>();
    check("docs/reference/gateway.md", "gateway configuration", &gateway);
    let serve = own_options_table::<kvasir_serve::config::Options, Gateway>();
    check("docs/reference/serve.md", "serve configuration", &serve);
}

/// Otherwise a program warns of another one's variables, and of none of its own.
#[test]
fn the_prefix_of_each_program_is_known() {
    let prefixes = [
        indexer_server::config::Options::VARIABLE_PREFIX,
        kvbm_agent::config::Options::VARIABLE_PREFIX,
        kvasir_router::config::Options::VARIABLE_PREFIX,
        kvasir_gateway::config::Options::VARIABLE_PREFIX,
        kvasir_serve::config::Options::VARIABLE_PREFIX,
    ];
    assert_eq!(BTreeSet::from(prefixes), BTreeSet::from(VARIABLE_PREFIXES));
}

/// Number of options that a program accepts.
fn count_options<O: Options>() -> usize {
    const HEAD_LINES: usize = 2;
    options_table::<O>().lines().count() - HEAD_LINES
}

#[test]
fn programs_have_few_options() {
    let counts = [
        ("indexer-server", count_options::<indexer_server::config::Options>(), 40),
        ("router", count_options::<kvasir_router::config::Options>(), 40),
        ("gateway", count_options::<kvasir_gateway::config::Options>(), 45),
        ("kvasir serve", count_options::<kvasir_serve::config::Options>(), 50),
        ("kvbm-agent", count_options::<kvbm_agent::config::Options>(), 60),
    ];
    for (program, options, most) in counts {
        assert!(options <= most, "{program} has {options} options: at most {most}");
    }
}

/// Options that replace retired ones, and options of the short help, exist.
fn check_names<O: Options>() {
    let table = options_table::<O>();
    let replacements = retired::<O>().filter_map(|retired| retired.replacement());
    for name in replacements.chain(O::SHORT_HELP.iter().copied()) {
        assert!(table.contains(&format!("| `--{name}` |")), "{}: no {name}", O::PROGRAM);
    }
    assert!(O::SHORT_HELP.len() <= 12, "{}: a dozen options are enough", O::PROGRAM);
    for retired in retired::<O>() {
        let row = format!("| `--{}` |", retired.name());
        assert!(!table.contains(&row), "{}: {row} is retired", O::PROGRAM);
    }
}

#[test]
fn options_named_by_other_options_exist() {
    check_names::<indexer_server::config::Options>();
    check_names::<kvbm_agent::config::Options>();
    check_names::<kvasir_router::config::Options>();
    check_names::<kvasir_gateway::config::Options>();
    check_names::<kvasir_serve::config::Options>();
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
    check(SERVER, "limits", &table);
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
        ".github",
        ".gitignore",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE",
        "Makefile",
        "README.md",
        "SECURITY.md",
        "benches",
        "clients",
        "clippy.toml",
        "deny.toml",
        "deploy",
        "docker",
        "docs",
        "engine",
        "findings",
        "indexer-server",
        "kit",
        "kvbm-agent",
        "proto",
        "router-client",
        "rustfmt.toml",
        "scripts",
        "sim",
        "target",
        "tests",
    ];
    for entry in fs::read_dir(root()).expect("the root") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        assert!(allowed.contains(&name.as_str()), "{name} does not belong at the top");
    }
}

/// All documents.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if path.is_symlink() {
                // Another path of the same documents.
            } else if path.is_dir() {
                let is_hidden = name.starts_with('.') && name != ".github";
                if !is_hidden && name != "target" {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 10, "the walk found {found:?}");
    found.sort();
    found
}

#[test]
fn documents_are_as_short_as_their_readers_want() {
    for (path, most) in WORDS_MAX {
        let words = words(&read(path));
        assert!(words <= most, "{path} has {words} words: at most {most}");
    }
    let all: usize =
        documents().iter().map(|path| words(&fs::read_to_string(path).expect("a text"))).sum();
    assert!(all <= ALL_WORDS_MAX, "the documents have {all} words: at most {ALL_WORDS_MAX}");
}

/// Words of a document, generated parts aside: what lies between `<!-- name -->` and `<!-- /name -->`.
fn words(text: &str) -> usize {
    let mut is_generated = false;
    let mut words = 0;
    for line in text.lines() {
        if line.starts_with("<!-- ") && line.ends_with(" -->") {
            is_generated = !line.starts_with("<!-- /");
        } else if !is_generated {
            words += line.split_whitespace().count();
        }
    }
    words
}

/// Which file has which decisions; no number is given twice.
#[test]
fn the_list_of_decisions_is_current() {
    let mut table = String::from("| decisions of | |\n| --- | --- |\n");
    let mut all = BTreeSet::new();
    for path in documents().iter().filter(|path| path.ends_with(DECISIONS)) {
        let path = path.strip_prefix(root()).expect("in the checkout").display().to_string();
        let headings = read(&path);
        let headings = headings.lines().filter_map(|line| line.strip_prefix("## D"));
        let numbers = headings.map(|heading| {
            let number = heading.split_once('.').and_then(|(number, _)| number.parse().ok());
            number.unwrap_or_else(|| panic!("{path}: no number: {heading}"))
        });
        let numbers: Vec<u32> = numbers.collect();
        assert!(!numbers.is_empty(), "{path} has no decisions");
        for number in &numbers {
            assert!(all.insert(*number), "D{number} is given twice, the second time in {path}");
        }
        let list: Vec<_> = numbers.iter().map(|number| format!("D{number}")).collect();
        let folder = path.strip_suffix(DECISIONS).unwrap_or(&path).trim_end_matches('/');
        table.push_str(&format!("| [{folder}]({path}) | {} |\n", list.join(", ")));
    }
    check("ARCHITECTURE.md", "decisions", &table);
}

#[test]
fn paths_in_the_documents_exist() {
    let folders = [
        ".ci/",
        "benches/",
        "clients/",
        "docker/",
        "indexer-server/",
        "kit/",
        "kvbm-agent/",
        "proto/",
        "router-client/",
        "scripts/",
        "sim/",
        "tests/",
    ];
    let mut seen = 0;
    let mut missing = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a text");
        let folder = document.parent().expect("its folder");
        for word in text.split(['`', '(', ')', ' ', '\n']) {
            if folders.iter().any(|folder| word.starts_with(folder)) {
                seen += 1;
                let path = word.split_once('#').map_or(word, |(path, _heading)| path);
                let path = path.trim_end_matches([',', '.', ':', ';']);
                if !root().join(path).exists() && !folder.join(path).exists() {
                    missing.push(format!("{}: {word}", document.display()));
                }
            }
        }
    }
    assert!(seen > 20, "{seen} paths");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn links_in_the_documents_lead_somewhere() {
    let mut seen = 0;
    let mut broken = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a text");
        let folder = document.parent().expect("its folder");
        for link in text.split("](").skip(1) {
            let Some((target, _rest)) = link.split_once(')') else { continue };
            if target.starts_with("http") {
                continue;
            }
            seen += 1;
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = if path.is_empty() { document.clone() } else { folder.join(path) };
            let leads = match heading {
                "" => to.exists(),
                _ => anchors(&to).iter().any(|anchor| anchor == heading),
            };
            if !leads {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(seen > 50, "{seen} links");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// What the headings of a document are linked to by. None if it cannot be read.
fn anchors(document: &Path) -> Vec<String> {
    let text = fs::read_to_string(document).unwrap_or_default();
    let anchor = |heading: &str| -> String {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|at| at.is_alphanumeric() || " -_".contains(*at));
        kept.map(|at| if at == ' ' { '-' } else { at }).collect()
    };
    text.lines().filter(|line| line.starts_with('#')).map(anchor).collect()
}
