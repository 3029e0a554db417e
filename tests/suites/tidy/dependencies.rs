//! What a crate declares, it uses.

use crate::sources::{read, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use toml::Table;

/// Declared for what they build, and named nowhere.
const UNNAMED: [(&str, &str); 1] = [("tests", "kvasir-c")];

/// Folders of the workspace's crates.
fn members() -> Vec<String> {
    let manifest: Table = read("Cargo.toml").parse().expect("a manifest");
    let members = manifest["workspace"]["members"].as_array().expect("a list");
    members.iter().map(|member| member.as_str().expect("a path").to_owned()).collect()
}

/// All Rust text of a folder, without crates in it.
fn text_of(folder: &Path, text: &mut String) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() && !path.join("Cargo.toml").exists() {
            text_of(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("a text file"));
        }
    }
}

/// Crates that a text names in a path or an import.
fn named(text: &str) -> BTreeSet<&str> {
    let is_part = |at: char| at.is_alphanumeric() || at == '_';
    let paths = text.match_indices("::").map(|(at, _)| {
        let before = &text[..at];
        let begin = before.rfind(|at: char| !is_part(at)).map_or(0, |at| at + 1);
        before.get(begin..).unwrap_or_default()
    });
    let imports = text.split("use ").skip(1).map(|rest| rest.split(|at| !is_part(at)).next());
    paths.chain(imports.flatten()).collect()
}

#[test]
fn every_dependency_that_is_declared_is_used() {
    let mut unused = Vec::new();
    for member in members() {
        let folder = root().join(&member);
        let manifest: Table = read(&format!("{member}/Cargo.toml")).parse().expect("a manifest");
        let (mut product, mut all) = (String::new(), String::new());
        text_of(&folder.join("src"), &mut product);
        text_of(&folder, &mut all);
        for (section, text) in
            [("dependencies", &product), ("dev-dependencies", &all), ("build-dependencies", &all)]
        {
            let named = named(text);
            let declared = manifest.get(section).and_then(|section| section.as_table());
            for name in declared.into_iter().flat_map(Table::keys) {
                let is_excepted = UNNAMED.contains(&(member.as_str(), name.as_str()));
                if !is_excepted && !named.contains(name.replace('-', "_").as_str()) {
                    unused.push(format!("{member}: {section}: {name}"));
                }
            }
        }
    }
    assert!(unused.is_empty(), "declared and not used: {unused:#?}");
}
