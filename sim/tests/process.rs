//! Tests of the mock engine's command line. Because they are here, every test run also builds the programs, which the
//! tests of the complete system start.

use tokio::process::Command;

const MOCK_ENGINE: &str = env!("CARGO_BIN_EXE_mock-engine");

#[tokio::test]
async fn options_that_cannot_be_used_are_refused_with_a_reason() {
    for (flags, reason) in [
        (["--block-size", "0"], "blocks have no tokens"),
        (["--time-scale", "0"], "the time scale is not above 0"),
        (["--step-tokens-max", "1"], "a step has no token for each request"),
        (["--tokenizer", "/nowhere/tokenizer.json"], "/nowhere/tokenizer.json"),
    ] {
        let output =
            Command::new(MOCK_ENGINE).args(["--listen", "127.0.0.1:0"]).args(flags).output();
        let output = output.await.expect("an end");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(reason), "{flags:?}: {text}");
    }
}

#[tokio::test]
async fn the_help_names_every_group_of_options() {
    let output = Command::new(MOCK_ENGINE).arg("--help").output().await.expect("an end");
    let text = String::from_utf8_lossy(&output.stdout);
    for option in
        ["--listen", "--tokenizer", "--max-num-seqs", "--transfer-ns", "--fail-prefill-after"]
    {
        assert!(text.contains(option), "no {option} in {text}");
    }
}

#[tokio::test]
async fn options_without_an_address_are_refused() {
    let output = Command::new(MOCK_ENGINE).args(["--model", "m"]).output().await.expect("an end");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("options need --listen"), "{text}");
}
