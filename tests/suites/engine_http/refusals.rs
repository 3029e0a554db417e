//! What is refused, in OpenAI's form.

use crate::harness::{MODEL, config, get, post, start};
use kvasir_sim::engine::openai::ServerConfig;
use serde_json::{Value, json};

#[tokio::test]
async fn errors_have_openais_form() {
    let config = ServerConfig { model_tokens_max: Some(50), body_bytes_max: 2_000, ..config() };
    let engine = start(config).await;
    let at = engine.address();
    let long: Vec<u32> = vec![1; 60];
    let huge = json!({"prompt": "x".repeat(3_000)});
    for (path, body, status, kind, message) in [
        ("/v1/completions", "{".to_owned(), 400, "BadRequestError", "cannot be read"),
        (
            "/v1/completions",
            json!({"model": "x", "prompt": "a"}).to_string(),
            404,
            "NotFoundError",
            "`x`",
        ),
        (
            "/v1/completions",
            json!({"prompt": long}).to_string(),
            400,
            "BadRequestError",
            "50 tokens",
        ),
        ("/v1/chat/completions", json!({}).to_string(), 400, "BadRequestError", "messages"),
        ("/v1/chat/completions/render", json!({}).to_string(), 400, "BadRequestError", "messages"),
        ("/v1/completions", huge.to_string(), 413, "PayloadTooLargeError", "limit"),
        ("/v1/embeddings", json!({}).to_string(), 404, "NotFoundError", "Not Found"),
    ] {
        let (given, error) = post(at, path, body).await;
        assert_eq!((given, &error["error"]["code"]), (status, &json!(status)), "{path}: {error}");
        assert_eq!(error["error"]["type"], kind, "{path}");
        let text = error["error"]["message"].as_str().expect("a message");
        assert!(text.contains(message), "{path}: {text}");
    }
    let (status, error) = get(at, "/v1/completions").await;
    let error: Value = serde_json::from_str(&error).expect("JSON");
    assert_eq!((status, &error["error"]["code"]), (405, &json!(405)));
    engine.stop().await.expect("an end");
}

#[tokio::test]
async fn more_requests_than_allowed_are_refused() {
    let mut config = config();
    config.live.requests_max = 1;
    config.live.model.step = 50_000_000;
    let engine = start(config).await;
    let at = engine.address();
    let body = json!({"model": MODEL, "prompt": [1], "max_tokens": 3_000, "stream": true, "ignore_eos": true});
    let first = crate::harness::Streaming::post(at, "/v1/completions", &body).await;
    let (status, error) = post(at, "/v1/completions", body.to_string()).await;
    assert_eq!((status, &error["error"]["type"]), (503, &json!("ServiceUnavailableError")));
    drop(first);
    engine.stop().await.expect("an end");
}

#[tokio::test]
async fn a_request_that_the_cache_never_has_room_for_is_refused() {
    let config = ServerConfig { model_tokens_max: Some(10_000), ..config() };
    let engine = start(config).await;
    let body = json!({"prompt": vec![1; 5_000]}).to_string();
    let (status, error) = post(engine.address(), "/v1/completions", body).await;
    assert_eq!(status, 400);
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains("needs 1254 blocks, the pool has 1000"), "{message}");
    engine.stop().await.expect("an end");
}
