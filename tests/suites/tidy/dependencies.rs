//! What a crate declares, it uses.

use crate::names::Named;
use crate::sources::{read, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use toml::Table;

/// Declared for what they build or switch on, and named nowhere.
const UNNAMED: [(&str, &str); 2] = [("tests", "kvasir-c"), ("kvbm-agent/tiers", "reqwest")];

/// Folders of the workspace's crates.
fn members() -> Vec<String> {
    let manifest: Table = read("Cargo.toml").parse().expect("a manifest");
    let members = manifest["workspace"]["members"].as_array().expect("a list");
    members.iter().map(|member| member.as_str().expect("a path").to_owned()).collect()
}

/// Crates that the Rust files of a folder name, those of crates in it excepted.
fn named(folder: &Path, names: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() && !path.join("Cargo.toml").exists() {
            named(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a text file");
            let paths = Named::with_tests(&text).paths.into_iter();
            names.extend(paths.filter_map(|path| path.into_iter().next()));
        }
    }
}

#[test]
fn every_dependency_that_is_declared_is_used() {
    let mut unused = Vec::new();
    for member in members() {
        let folder = root().join(&member);
        let manifest: Table = read(&format!("{member}/Cargo.toml")).parse().expect("a manifest");
        let mut product = BTreeSet::new();
        let mut all = BTreeSet::new();
        named(&folder.join("src"), &mut product);
        named(&folder, &mut all);
        for (section, names) in
            [("dependencies", &product), ("dev-dependencies", &all), ("build-dependencies", &all)]
        {
            let declared = manifest.get(section).and_then(|section| section.as_table());
            for name in declared.into_iter().flat_map(Table::keys) {
                let is_excepted = UNNAMED.contains(&(member.as_str(), name.as_str()));
                if !is_excepted && !names.contains(name.replace('-', "_").as_str()) {
                    unused.push(format!("{member}: {section}: {name}"));
                }
            }
        }
    }
    assert!(unused.is_empty(), "declared and not used: {unused:#?}");
}

/// Each would be linked a second time, only to run no test.
#[test]
fn programs_without_tests_are_not_built_as_tests() {
    let mut programs = 0;
    for member in members() {
        let manifest: Table = read(&format!("{member}/Cargo.toml")).parse().expect("a manifest");
        let bins = manifest.get("bin").and_then(|bins| bins.as_array());
        for bin in bins.into_iter().flatten() {
            programs += 1;
            let path = bin["path"].as_str().expect("a path");
            let is_tested = bin.get("test").and_then(toml::Value::as_bool).unwrap_or(true);
            let has_tests = read(&format!("{member}/{path}")).contains("#[test]");
            assert_eq!(is_tested, has_tests, "{member}/{path}: set test = {has_tests}");
        }
    }
    assert!(programs > 10, "{programs} programs");
}

/// Engines load libkvasir into their own process.
const LIBRARY_CRATES_MAX: usize = 110;

#[test]
fn the_c_library_depends_on_few_crates() {
    let tree = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
        .args(["tree", "--locked", "--offline", "--package", "kvasir-c"])
        .args(["--edges", "normal", "--prefix", "none"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let lines = String::from_utf8(tree.stdout).expect("names");
    let crates: BTreeSet<&str> =
        lines.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let count = crates.len();
    assert!((20..=LIBRARY_CRATES_MAX).contains(&count), "{count} crates: {crates:?}");
}

/// Versions of the packages of a lock file that come from folders.
fn local_versions(lock: &str) -> BTreeSet<(String, String)> {
    let lock: Table = read(lock).parse().expect("a lock file");
    let packages = lock["package"].as_array().expect("a list").iter();
    let local = packages.filter(|package| package.get("source").is_none());
    let text = |package: &toml::Value, key: &str| package[key].as_str().expect("a text").to_owned();
    local.map(|package| (text(package, "name"), text(package, "version"))).collect()
}

/// Otherwise `benches/report` refuses to build: it builds its own workspace with `--locked`.
#[test]
fn the_lock_file_of_the_benches_has_the_versions_of_our_crates() {
    let ours = local_versions("Cargo.lock");
    let names: BTreeSet<_> = ours.iter().map(|(name, _)| name).collect();
    let peers = local_versions("benches/peers/Cargo.lock");
    let stale: Vec<_> =
        peers.iter().filter(|at| names.contains(&at.0) && !ours.contains(at)).collect();
    assert!(
        stale.is_empty(),
        "run `cargo metadata --manifest-path benches/peers/Cargo.toml`: {stale:?}"
    );
}
