//! Tests of the program's command line. Because of them, every test run builds the program, which the system tests
//! start.

use std::io;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> io::Result<(Option<i32>, String, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvbm-agent"));
    let Output { status, stdout, stderr } = command.env_clear().args(arguments).output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((status.code(), text(stdout), text(stderr)))
}

#[test]
fn bad_configuration_exits_64_and_names_the_field() {
    let some = ["--worker-id", "w", "--model", "m", "--engine", "vllm"];
    for (arguments, field) in [
        (&["--block-size", "0"][..], "block-size"),
        (&["--block-size", "16", "--lease", "10ms"], "lease"),
        (&["--no-such-flag"], "--no-such-flag"),
    ] {
        let (code, stdout, stderr) = run(&[&some, arguments].concat()).expect("a binary");
        assert_eq!((code, &*stdout), (Some(64), ""), "{stderr}");
        assert!(stderr.contains(field), "{field} in {stderr}");
    }
}

#[test]
fn it_says_its_version() {
    let (code, stdout, stderr) = run(&["--version"]).expect("a binary");
    let expected = concat!("kvbm-agent ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!((code, &*stdout, &*stderr), (Some(0), expected, ""));
}
