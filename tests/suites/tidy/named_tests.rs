//! The tables of names say which test shows a row: each of these tests exists, and is run.

use crate::sources::{read, root, rust_files};
use std::collections::BTreeMap;
use std::fs;

const TABLES: [&str; 1] = ["router-client/COMING-FROM-DYNAMO.md"];
const PYTHON_TESTS: &str = "clients/python/tests";

/// Texts of the files that may have tests, by the name of the file.
fn files() -> BTreeMap<String, Vec<String>> {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    for source in rust_files() {
        files.entry(name(&source.path)).or_default().push(source.text);
    }
    for entry in fs::read_dir(root().join(PYTHON_TESTS)).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "py") {
            let text = fs::read_to_string(&path).expect("a text file");
            files.entry(name(&path.display().to_string())).or_default().push(text);
        }
    }
    files
}

/// Whether a file has a test of that name.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let is_rust = |at: usize| {
        let above = lines.get(at.saturating_sub(4)..at).unwrap_or_default();
        // The attribute of a test, and not of a function before it.
        let last = above.iter().rposition(|line| line.starts_with("#[") && line.contains("test"));
        last.is_some_and(|last| !above.iter().skip(last).any(|line| line.starts_with('}')))
    };
    let is_test = |(at, line): (usize, &&str)| {
        let line = line.trim_start_matches("pub ").trim_start_matches("async ");
        let is_named = |keyword: &str| {
            let rest = line.strip_prefix(keyword).and_then(|rest| rest.strip_prefix(name));
            rest.is_some_and(|rest| rest.starts_with(['(', '<']))
        };
        (is_named("fn ") && is_rust(at)) || is_named("def ")
    };
    lines.iter().enumerate().any(is_test)
}

/// The tests that a line of a table names: file and test. A name alone is one of the file before it.
fn named(line: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let quoted = line.split('`').skip(1).step_by(2);
    for text in quoted {
        if let Some((file, test)) = text.split_once("::")
            && [".rs", ".py"].iter().any(|end| file.ends_with(end))
        {
            let file = file.rsplit('/').next().unwrap_or(file);
            found.push((file.to_owned(), test.to_owned()));
        } else if let Some((file, _)) = found.last().cloned()
            && text.matches('_').count() > 2
            && text.chars().all(|at| at.is_ascii_lowercase() || at.is_ascii_digit() || at == '_')
        {
            found.push((file, text.to_owned()));
        }
    }
    found
}

#[test]
fn tests_that_the_tables_of_names_name_are_there() {
    let files = files();
    let mut count = 0;
    let mut missing = Vec::new();
    for table in TABLES {
        for (number, line) in read(table).lines().enumerate() {
            for (file, test) in named(line) {
                count += 1;
                let texts = files.get(&file).map_or(&[][..], Vec::as_slice);
                if !texts.iter().any(|text| has_test(text, &test)) {
                    missing.push(format!("{table}:{}: {file}::{test}", number + 1));
                }
            }
        }
    }
    assert!(missing.is_empty(), "there are no such tests:\n{}", missing.join("\n"));
    assert!(count > 100, "{count} tests are named");
}

#[test]
fn only_tests_are_found() {
    let text = "#[test]\nfn a_test() {\n}\nfn helper() {\n}\n    #[tokio::test(start_paused = true)]\n    async fn other() {";
    assert!(has_test(text, "a_test") && has_test(text, "other"));
    assert!(!has_test(text, "helper") && !has_test(text, "a_te") && !has_test(text, "missing"));
    let line = "| 1 | x | `a.rs::one_is_two`, `two_is_one_of_three`, `lora_id`; `b.py::test_x` |";
    let expected = [("a.rs", "one_is_two"), ("a.rs", "two_is_one_of_three"), ("b.py", "test_x")];
    let expected = expected.map(|(file, test)| (file.to_owned(), test.to_owned()));
    assert_eq!(named(line), expected);
}
