//! Leftovers that must not land.

use crate::sources::rust_files;

#[test]
fn no_leftovers() {
    // Put together here, so that this file does not find itself.
    let banned: Vec<String> =
        [("TO", "DO"), ("FIX", "ME"), ("XX", "X:"), ("#[ign", "ore"), ("#[should_", "panic")]
            .iter()
            .map(|(head, tail)| format!("{head}{tail}"))
            .collect();
    let mut faults = Vec::new();
    for source in rust_files() {
        for (number, line) in source.text.lines().enumerate() {
            for word in banned.iter().filter(|word| line.contains(word.as_str())) {
                faults.push(format!("{}:{}: {word}", source.path, number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// The C bindings and the block manager's memory, which meet pointers, and the instruction that fetches memory ahead: leave for it,
/// and where it is.
const POINTERS: [&str; 19] = [
    "clients/c/src/lib.rs",
    "clients/c/src/abi.rs",
    "clients/c/src/read.rs",
    "kvbm-agent/memory/src/lib.rs",
    "kvbm-agent/memory/src/arena/mod.rs",
    "kvbm-agent/memory/src/arena/view.rs",
    "kvbm-agent/memory/src/device/driver.rs",
    "kvbm-agent/memory/src/device/mod.rs",
    "kvbm-agent/memory/src/mapping.rs",
    "kvbm-agent/memory/src/nixl/agent.rs",
    "kvbm-agent/memory/src/nixl/calls.rs",
    "kvbm-agent/memory/src/nixl/lists.rs",
    "kvbm-agent/memory/src/nixl/mod.rs",
    "kvbm-agent/memory/src/raw.rs",
    "kvbm-agent/memory/src/raw_test.rs",
    "kvbm-agent/memory/src/system.rs",
    "kvbm-agent/memory/src/pinned.rs",
    "kvbm-agent/memory/src/shared.rs",
    "indexer-server/index/src/prefetch.rs",
];
/// What shows how a third party plugs memory in.
const EXAMPLES: [&str; 1] = ["kvbm-agent/memory/tests/third_party.rs"];

/// The product has no unsafe code, not even by exception from the lint, but for these. The peers' benches
/// are another workspace.
#[test]
fn no_unsafe_code() {
    // Put together here, so that this file does not find itself.
    let banned = ["{", "fn", "impl", "extern"].map(|what| format!("{} {what}", "unsafe"));
    let lint = format!("({}_code", "unsafe");
    let ours = rust_files().into_iter().filter(|at| !at.path.starts_with("benches/peers/"));
    let is_excepted = |path: &str| POINTERS.contains(&path) || EXAMPLES.contains(&path);
    let (excepted, ours): (Vec<_>, Vec<_>) = ours.partition(|at| is_excepted(&at.path));
    let exceptions = POINTERS.len() + EXAMPLES.len();
    assert_eq!(excepted.len(), exceptions, "an exception that is no more");
    let faults: Vec<String> = ours
        .into_iter()
        .filter(|at| banned.iter().chain([&lint]).any(|word| at.text.contains(word.as_str())))
        .map(|at| at.path)
        .collect();
    assert!(faults.is_empty(), "unsafe code, or leave for it: {faults:#?}");
}

#[test]
fn every_folder_says_what_it_is() {
    // A folder's mod.rs and a crate's lib.rs are where a reader arrives.
    let arrivals = |path: &str| path.ends_with("/mod.rs") || path.ends_with("/lib.rs");
    let silent: Vec<String> = rust_files()
        .into_iter()
        .filter(|source| arrivals(&source.path) && !source.text.starts_with("//!"))
        .map(|source| source.path)
        .collect();
    assert!(silent.is_empty(), "files without a first line of documentation: {silent:#?}");
}
