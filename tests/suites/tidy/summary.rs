//! What `scripts/test` says at its end, of recorded output of `cargo test --no-fail-fast`.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

/// The lines of the summary of a file in `tests/data/cargo-test`.
fn summary(log: &str, status: &str) -> Vec<String> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let log = File::open(tests.join("data/cargo-test").join(log)).expect("the recorded output");
    let script = tests.join("../scripts/summary");
    let output = Command::new(script).arg(status).stdin(Stdio::from(log)).output();
    let output = output.expect("the script");
    assert!(output.status.success(), "{}", output.status);
    String::from_utf8(output.stdout).expect("a text").lines().map(str::to_owned).collect()
}

#[test]
fn a_test_program_that_died_counts_as_failed() {
    assert_eq!(
        summary("died.log", "101"),
        [
            "died: --test aborts (signal: 6, SIGABRT: process abort signal)",
            "died: --test ends_badly (signal: 11, SIGSEGV: invalid memory reference)",
            "died: --test exits (exit status: 3)",
            "total: 3 passed, 5 failed, 1 skipped",
        ]
    );
}

#[test]
fn what_does_not_compile_counts_as_failed() {
    assert_eq!(
        summary("not-compiled.log", "101"),
        [r#"not compiled: example (test "wrong")"#, "total: 0 passed, 1 failed, 0 skipped",]
    );
}

#[test]
fn an_error_of_cargo_counts_as_failed() {
    assert_eq!(
        summary("locked.log", "101"),
        ["cargo test failed: exit status 101, see above", "total: 0 passed, 1 failed, 0 skipped",]
    );
}
