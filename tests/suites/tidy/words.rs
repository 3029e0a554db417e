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
