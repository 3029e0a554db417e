//! The engine as a process.

use crate::harness::{MODEL, TOKENIZER, get, metric, post, tokens};
use kvasir_tests::engine::Truth;
use kvasir_tests::engine::openai::ServerProcess;
use kvasir_tests::server::binary_of;
use serde_json::json;
use tokio::process::Command;

#[tokio::test]
async fn a_process_serves_with_a_tokenizer_and_says_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokenizer.json");
    TOKENIZER.save(&file, false).expect("a file");
    let file = file.to_str().expect("a path");
    let flags = ["--model", MODEL, "--tokenizer", file, "--block-size", "4", "--time-scale", "20"];
    let engine = ServerProcess::start(&flags).await.expect("an engine");
    let at = engine.addresses().http;
    let body = json!({"prompt": "Where are the blocks?", "max_tokens": 5}).to_string();
    let (status, answer) = post(at, "/v1/completions", body).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["usage"]["prompt_tokens"], tokens("Where are the blocks?").len());
    let (_, truth) = get(at, "/mock/truth").await;
    let truth: Truth = serde_json::from_str(&truth).expect("a truth");
    assert_eq!(truth.copies.len(), (tokens("Where are the blocks?").len() + 4) / 4);
    let (_, text) = get(at, "/metrics").await;
    assert_eq!(metric(&text, "vllm:generation_tokens_total"), 5.0);
    engine.stop().await.expect("an end");
}

#[tokio::test]
async fn a_process_that_is_killed_is_gone() {
    let engine = ServerProcess::start(&[]).await.expect("an engine");
    complete_default(engine.addresses().http).await;
    engine.kill().await.expect("an end");
}

async fn complete_default(at: std::net::SocketAddr) {
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 2}).to_string();
    let (status, answer) = post(at, "/v1/completions", body).await;
    assert_eq!((status, &answer["model"]), (200, &json!("mock")));
}

#[tokio::test]
async fn options_that_cannot_be_used_are_refused_with_a_reason() {
    for (flags, reason) in [
        (["--block-size", "0"], "blocks have no tokens"),
        (["--time-scale", "0"], "the time scale is not above 0"),
        (["--step-tokens-max", "1"], "a step has no token for each request"),
        (["--tokenizer", "/nowhere/tokenizer.json"], "/nowhere/tokenizer.json"),
    ] {
        let program = binary_of("mock-engine").expect("the program");
        let output = Command::new(program).args(["--listen", "127.0.0.1:0"]).args(flags).output();
        let output = output.await.expect("an end");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(reason), "{flags:?}: {text}");
    }
}

#[tokio::test]
async fn the_help_names_every_group_of_options() {
    let program = binary_of("mock-engine").expect("the program");
    let output = Command::new(program).arg("--help").output().await.expect("an end");
    let text = String::from_utf8_lossy(&output.stdout);
    for option in
        ["--listen", "--tokenizer", "--max-num-seqs", "--transfer-ns", "--fail-prefill-after"]
    {
        assert!(text.contains(option), "no {option} in {text}");
    }
}

#[tokio::test]
async fn options_without_an_address_are_refused() {
    let program = binary_of("mock-engine").expect("the program");
    let output = Command::new(program).args(["--model", "m"]).output().await.expect("an end");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("options need --listen"), "{text}");
}
