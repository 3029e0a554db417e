//! Tests of the program's command line. Because they are here, every test run also builds the program, which the tests
//! of the complete system start.

use std::io;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> io::Result<(Option<i32>, String, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    let Output { status, stdout, stderr } = command.env_clear().args(arguments).output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((status.code(), text(stdout), text(stderr)))
}

#[test]
fn each_command_is_a_program() {
    for (command, option) in [
        ("serve", "--self-check"),
        ("check", "--engines-from"),
        ("index", "--checkpoint-interval"),
        ("router", "--replica-sync"),
        ("gateway", "--tokenizer"),
        ("agent", "--journal-dir"),
    ] {
        let (code, stdout, stderr) = run(&[command, "--help"]).expect("a binary");
        assert_eq!((code, &*stderr), (Some(0), ""), "{command}");
        assert!(stdout.contains(option), "{command}: {option} in {stdout}");
    }
}

#[test]
fn bad_usage_exits_64_and_names_what_is_wrong() {
    for (arguments, text) in [
        (&[][..], "Usage: kvasir COMMAND"),
        (&["sevre"], "there is no command \"sevre\""),
        (&["serve"], "engine: is required"),
        (&["serve", "a:1"], "checkpoint-dir: is needed"),
        (&["serve", "a:1", "--checkpoint-dir=off", "--no-such-flag"], "--no-such-flag"),
        (&["check", "a:1,key=2"], "there is no \"key\""),
    ] {
        let (code, stdout, stderr) = run(arguments).expect("a binary");
        assert_eq!((code, &*stdout), (Some(64), ""), "{stderr}");
        assert!(stderr.contains(text), "{text} in {stderr}");
    }
}

#[test]
fn engines_can_stand_in_the_file() {
    let folder = std::env::temp_dir().join(format!("kvasir-engines-{}", std::process::id()));
    std::fs::write(&folder, "engines = [\"a:1\", \"b:2,block-size=16\"]\n").expect("a file");
    let file = folder.display().to_string();
    let flags = ["serve", "--config", &file, "--checkpoint-dir=off", "--print-config"];
    let (code, stdout, stderr) = run(&flags).expect("a binary");
    std::fs::remove_file(&folder).expect("a file");
    assert_eq!(code, Some(0), "{stderr}");
    let expected = "engines = [\"a:1\", \"b:2,block-size=16\"]";
    assert!(stdout.contains(expected) && !stdout.contains("refused"), "{stdout}");
}

#[test]
fn it_prints_its_version() {
    let expected = concat!("kvasir ", env!("CARGO_PKG_VERSION"), "\n");
    for flag in ["-V", "--version"] {
        let (code, stdout, stderr) = run(&[flag]).expect("a binary");
        assert_eq!((code, &*stdout, &*stderr), (Some(0), expected, ""));
    }
}
