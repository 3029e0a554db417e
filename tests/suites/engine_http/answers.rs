//! Whole answers, streams and rendered prompts.

use crate::harness::{
    MODEL, Streaming, TOKENIZER, complete, config, get, post, start, tokens, until_idle,
};
use kvasir_sim::engine::openai::ServerConfig;
use kvasir_sim::engine::timed::StepModel;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

const PROMPT: &str = "Where are the blocks of this prompt?";

#[tokio::test]
async fn a_completion_has_its_text_and_counts_what_was_cached() {
    let engine = start(config()).await;
    let at = engine.address();
    let prompt = tokens(PROMPT);
    let body = json!({"model": MODEL, "prompt": PROMPT, "max_tokens": 7, "temperature": 0.3});
    let (status, first) = post(at, "/v1/completions", body.to_string()).await;
    assert_eq!((status, &first["object"]), (200, &json!("text_completion")));
    let choice = &first["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let text = choice["text"].as_str().expect("a text");
    assert_eq!(tokens(text).len(), 7, "{text}");
    let total = prompt.len() + 7;
    let usage = json!({
        "prompt_tokens": prompt.len(), "completion_tokens": 7, "total_tokens": total,
        "prompt_tokens_details": {"cached_tokens": 0},
    });
    assert_eq!(first["usage"], usage);
    // The same prompt as tokens has the same answer, and all its whole blocks but that of the last token are there.
    let again = complete(at, &prompt, 7).await;
    assert_eq!(again["choices"][0]["text"], text);
    let cached = (prompt.len() - 1) / 4 * 4;
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], cached);
    engine.stop().await.expect("an end");
}

#[tokio::test]
async fn a_chat_is_what_its_template_makes_of_it() {
    let engine = start(config()).await;
    let at = engine.address();
    let chat = json!({"messages": [{"role": "user", "content": PROMPT}]});
    let (status, answer) = post(at, "/v1/chat/completions", chat.to_string()).await;
    assert_eq!((status, &answer["object"]), (200, &json!("chat.completion")));
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        (&message["role"], &answer["choices"][0]["finish_reason"]),
        (&json!("assistant"), &json!("stop"))
    );
    assert_eq!(answer["usage"]["completion_tokens"], 20, "as long as the model's answers are");
    let text = format!("<|user|>\n{PROMPT}\n<|assistant|>\n");
    let expected = tokens(&text);
    assert_eq!(answer["usage"]["prompt_tokens"], expected.len());
    let (status, rendered) = post(at, "/v1/chat/completions/render", chat.to_string()).await;
    assert_eq!((status, &rendered["token_ids"]), (200, &json!(expected)));
    assert!(rendered["request_id"].is_string() && rendered["features"].is_null(), "{rendered}");
    // The answer as a part of the next turn is found in the cache.
    let turn =
        format!("{text}{}\n<|user|>\nAnd now?\n", message["content"].as_str().expect("text"));
    let next = complete(at, &tokens(&turn), 1).await;
    let cached = next["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached > Some(expected.len() as u64), "{next}");
    engine.stop().await.expect("an end");
}

#[tokio::test]
async fn prompts_are_rendered_as_tokens() {
    let engine = start(config()).await;
    let body = json!({"model": MODEL, "prompt": PROMPT});
    let rendered = post(engine.address(), "/v1/completions/render", body.to_string()).await;
    assert_eq!(rendered, (200, json!([{"token_ids": tokens(PROMPT), "features": null}])));
    let (status, models) = get(engine.address(), "/v1/models").await;
    let models: Value = serde_json::from_str(&models).expect("JSON");
    assert_eq!((status, &models["data"][0]["id"]), (200, &json!(MODEL)));
    assert_eq!(models["data"][0]["max_model_len"], 4_000);
    assert_eq!(get(engine.address(), "/health").await, (200, String::new()));
    engine.stop().await.expect("an end");
}

#[tokio::test]
async fn a_streamed_completion_is_the_whole_one_in_parts() {
    let engine = start(config()).await;
    let at = engine.address();
    let whole = complete(at, &tokens(PROMPT), 9).await;
    let body = json!({
        "prompt": PROMPT, "max_tokens": 9, "stream": true, "stream_options": {"include_usage": true},
    });
    let mut events = Streaming::post(at, "/v1/completions", &body).await.events().await;
    let usage = events.pop().expect("the usage");
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(9)));
    assert_eq!(events.len(), 9, "a part for each token");
    let texts = events.iter().map(|event| event["choices"][0]["text"].as_str().expect("text"));
    assert_eq!(texts.collect::<String>(), whole["choices"][0]["text"]);
    let reasons: Vec<_> =
        events.iter().map(|event| &event["choices"][0]["finish_reason"]).collect();
    assert!(reasons[..8].iter().all(|reason| reason.is_null()) && *reasons[8] == "length");
    assert!(events.iter().all(|event| event["usage"].is_null() && event["id"] == usage["id"]));
    engine.stop().await.expect("an end");
}

#[tokio::test]
async fn a_streamed_chat_begins_with_its_role() {
    let engine = start(config()).await;
    let chat =
        json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "stream": true});
    let events =
        Streaming::post(engine.address(), "/v1/chat/completions", &chat).await.events().await;
    let deltas: Vec<_> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    assert_eq!((deltas.len(), deltas[0]), (4, &json!({"role": "assistant", "content": ""})));
    assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk"));
    assert!(events[0].get("usage").is_none(), "not asked for");
    engine.stop().await.expect("an end");
}

/// What takes time takes at least the time of the model; how much longer, the machine decides.
#[tokio::test]
async fn answers_take_the_time_of_the_model() {
    let model = StepModel {
        step: 20_000_000,
        prefill_token: 1_000_000,
        decode_sequence: 0,
        context_token: 0,
        ..StepModel::default()
    };
    let mut config = config();
    (config.live.model, config.live.time_scale) = (model, 2.0);
    let engine = start(config).await;
    let prompt: Vec<u32> = (0..100).collect();
    let body = json!({"prompt": prompt, "max_tokens": 6, "stream": true});
    let begin = Instant::now();
    let mut streaming = Streaming::post(engine.address(), "/v1/completions", &body).await;
    streaming.event().await.expect("a token");
    let first = begin.elapsed();
    while streaming.event().await.is_some() {}
    let whole = begin.elapsed();
    // A step with 100 tokens, then five steps, twice as fast.
    assert!(first >= Duration::from_millis(120 / 2), "{first:?}");
    assert!(whole >= Duration::from_millis(220 / 2), "{whole:?}");
    engine.stop().await.expect("an end");
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() {
    let model = StepModel {
        step: 5_000_000,
        prefill_token: 0,
        decode_sequence: 0,
        context_token: 0,
        ..StepModel::default()
    };
    let mut config = config();
    config.live.model = model;
    let engine = start(ServerConfig { answer_tokens: 2_000, ..config }).await;
    let at = engine.address();
    let prompt: Vec<u32> = (0..40).collect();
    let body = json!({"prompt": prompt, "max_tokens": 2_000, "stream": true});
    let mut streaming = Streaming::post(at, "/v1/completions", &body).await;
    streaming.event().await.expect("a token");
    drop(streaming);
    // A client that waits for a whole answer, and leaves.
    let whole = json!({"prompt": prompt, "max_tokens": 2_000}).to_string();
    let left = tokio::time::timeout(Duration::from_millis(50), post(at, "/v1/completions", whole));
    left.await.expect_err("10 seconds of answer");
    until_idle(at).await;
    // The prompt stays: its ten blocks, and fewer than the 500 of the answer.
    let truth = engine.engine().truth().await.expect("an engine");
    assert!((10..400).contains(&truth.copies.len()), "{} blocks", truth.copies.len());
    let again = complete(at, &prompt, 1).await;
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 36);
    engine.stop().await.expect("an end");
}

#[tokio::test]
async fn an_engine_that_stops_ends_its_streams_with_an_error() {
    let model = StepModel {
        step: 5_000_000,
        prefill_token: 0,
        decode_sequence: 0,
        context_token: 0,
        ..StepModel::default()
    };
    let mut config = config();
    config.live.model = model;
    let engine = start(config).await;
    let body =
        json!({"prompt": [1, 2, 3], "max_tokens": 3_000, "stream": true, "ignore_eos": true});
    let mut streaming = Streaming::post(engine.address(), "/v1/completions", &body).await;
    streaming.event().await.expect("a token");
    let error = async {
        loop {
            let event = streaming.event().await.expect("an error before the end");
            if event.get("error").is_some() {
                break event;
            }
        }
    };
    let (stopped, error) = tokio::join!(engine.stop(), error);
    stopped.expect("an end");
    assert_eq!(error["error"]["message"], "the engine has stopped");
}

#[test]
fn the_tokenizer_is_worth_the_name() {
    assert!(TOKENIZER.get_vocab_size(true) > 500);
    assert!(tokens(PROMPT).len() < PROMPT.len() / 2);
}
