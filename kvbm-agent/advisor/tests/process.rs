//! Tests of the program's command line. Because of them, every test run builds the program, which the system tests
//! start.

use std::io;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> io::Result<(Option<i32>, String, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_storage-advisor"));
    let Output { status, stdout, stderr } = command.env_clear().args(arguments).output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((status.code(), text(stdout), text(stderr)))
}

#[test]
fn bad_configuration_exits_64_and_names_the_field() {
    for (arguments, field) in [
        (&["--nats-url", "nats://127.0.0.1:1", "--hooks-max=0"][..], "hooks-max"),
        (&["--nats-url", "nats://127.0.0.1:1", "--no-such-flag"], "--no-such-flag"),
    ] {
        let (code, stdout, stderr) = run(arguments).expect("a binary");
        assert_eq!((code, &*stdout), (Some(64), ""), "{stderr}");
        assert!(stderr.contains(field), "{field} in {stderr}");
    }
}

#[test]
fn the_configuration_is_printed_on_request() {
    let arguments = ["--nats-url", "nats://127.0.0.1:1", "--print-config"];
    let (code, stdout, stderr) = run(&arguments).expect("a binary");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("nats://127.0.0.1:1"), "{stdout}");
}
