//! Tests of the program's command line. Because they are here, every test run also builds the program, which the tests
//! of the complete system start.

use std::io;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> io::Result<(Option<i32>, String, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_router"));
    let Output { status, stdout, stderr } = command.env_clear().args(arguments).output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((status.code(), text(stdout), text(stderr)))
}

#[test]
fn bad_configuration_exits_64_and_names_the_field() {
    for (arguments, field) in [
        (&[][..], "indexer"),
        (&["--indexer", "a:1", "--mode", "best"], "--mode"),
        (&["--indexer", "a:1", "--temperature=-1"], "temperature"),
        (&["--indexer", "a:1", "--no-such-flag"], "--no-such-flag"),
    ] {
        let (code, stdout, stderr) = run(arguments).expect("a binary");
        assert_eq!((code, &*stdout), (Some(64), ""), "{stderr}");
        assert!(stderr.contains(field), "{field} in {stderr}");
    }
}

#[test]
fn every_option_has_a_variable_and_a_place_in_the_file() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_router"));
    command
        .env_clear()
        .env("KVASIR_ROUTER_INDEXER", "a:1")
        .env("KVASIR_ROUTER_QUEUE", "policy=wspt,timeout=5s");
    let output =
        command.args(["--mode", "round-robin", "--print-config"]).output().expect("a binary");
    let printed = String::from_utf8(output.stdout).expect("text");
    for line in [
        "indexer = [\"a:1\"]",
        "queue = \"threshold=2,policy=wspt,entries=4096,timeout=5s\"",
        "mode = \"round-robin\"",
    ] {
        assert!(printed.contains(line), "{line} in {printed}");
    }
}

#[test]
fn a_misspelt_variable_is_named_beside_the_error_that_it_causes() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_router"));
    let output = command.env_clear().env("KVASIR_ROUTER_INDEXR", "a:1").output().expect("a binary");
    let printed = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(64), "{printed}");
    let lines: Vec<_> = printed.lines().collect();
    assert!(lines[0].contains("KVASIR_ROUTER_INDEXR is not an option"), "{printed}");
    assert!(lines[0].ends_with("did you mean KVASIR_ROUTER_INDEXER?"), "{printed}");
    assert!(lines[1].starts_with("router: indexer: "), "{printed}");
}

#[test]
fn the_variable_of_document_004_names_the_nats_server() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_router"));
    command.env_clear().env("NATS_SERVER", "http://a:4222");
    let output = command.args(["--indexer", "a:1", "--replica-sync"]).output().expect("a binary");
    let printed = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(64), "{printed}");
    assert!(printed.contains("nats-url: a server must start with nats://"), "{printed}");
}

#[test]
fn it_prints_its_version() {
    let (code, stdout, stderr) = run(&["--version"]).expect("a binary");
    let expected = concat!("router ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!((code, &*stdout, &*stderr), (Some(0), expected, ""));
}
