//! Tests of the program's command line. Because they are here, every test run also builds the program, which the tests
//! of the complete system start.

use std::io;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> io::Result<(Option<i32>, String, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    let Output { status, stdout, stderr } = command.env_clear().args(arguments).output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((status.code(), text(stdout), text(stderr)))
}

#[test]
fn bad_configuration_exits_64_and_names_the_field() {
    for (arguments, field) in [
        (&[][..], "indexer"),
        (&["--indexer", "a:1", "--mode", "best"], "--mode"),
        (&["--indexer", "a:1", "--engine", "w"], "engine"),
        (&["--indexer", "a:1", "--no-such-flag"], "--no-such-flag"),
    ] {
        let (code, stdout, stderr) = run(arguments).expect("a binary");
        assert_eq!((code, &*stdout), (Some(64), ""), "{stderr}");
        assert!(stderr.contains(field), "{field} in {stderr}");
    }
}

#[test]
fn every_option_has_a_variable_and_a_place_in_the_file() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gateway"));
    command
        .env_clear()
        .env("KVASIR_GATEWAY_INDEXER", "a:1")
        .env("KVASIR_GATEWAY_ENGINE", "w=http://a:1,v=http://b:2");
    let output = command.args(["--tenant", "t", "--print-config"]).output().expect("a binary");
    let printed = String::from_utf8(output.stdout).expect("text");
    let engines = "engine = [\"w=http://a:1\", \"v=http://b:2\"]";
    for line in ["indexer = [\"a:1\"]", engines, "tenant = \"t\"", "mode = \"kv\""] {
        assert!(printed.contains(line), "{line} in {printed}");
    }
}

#[test]
fn a_tokenizer_that_is_none_ends_the_start_and_is_named() {
    let any = "127.0.0.1:0";
    let arguments = ["--indexer", "a:1", "--listen", any, "--http-listen", any];
    let (code, _, stderr) =
        run(&[&arguments[..], &["--tokenizer", "/nowhere/t.json"]].concat()).expect("a binary");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("tokenizer: /nowhere/t.json: "), "{stderr}");
}

#[test]
fn it_prints_its_version() {
    let (code, stdout, stderr) = run(&["--version"]).expect("a binary");
    let expected = concat!("gateway ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!((code, &*stdout, &*stderr), (Some(0), expected, ""));
}
