//! The engine as a process.

use crate::harness::{MODEL, TOKENIZER, get, metric, post, tokens};
use kvasir_sim::engine::Truth;
use kvasir_sim::engine::openai::ServerProcess;
use serde_json::json;

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
