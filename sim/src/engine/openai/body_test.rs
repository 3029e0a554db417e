use super::*;
use serde_json::json;

fn limits() -> Limits {
    Limits { model: "m".to_owned(), model_tokens_max: 100, answer_tokens: 30 }
}

fn asked(kind: Kind, body: &Value) -> Result<Asked, ApiError> {
    let text = Text::plain().expect("no tokenizer");
    Body::read(body.to_string().as_bytes())?.asked(kind, &text, &limits())
}

#[test]
fn lengths_follow_the_client_then_the_model() {
    let of = |further: Value| {
        let mut body = json!({"prompt": [1, 2, 3]});
        body.as_object_mut().expect("a body").extend(further.as_object().expect("more").clone());
        let asked = asked(Kind::Completion, &body).expect("a request");
        (asked.answer_tokens, asked.is_cut)
    };
    assert_eq!(of(json!({})), (16, true));
    assert_eq!(of(json!({"max_tokens": 30})), (30, true));
    assert_eq!(of(json!({"max_tokens": 31})), (30, false));
    assert_eq!(of(json!({"max_tokens": 97, "ignore_eos": true})), (97, true));
    assert_eq!(of(json!({"max_tokens": 50, "max_completion_tokens": 5})), (5, true));
    let given = json!([7, 8, 9]);
    assert_eq!(of(json!({"max_tokens": 2, "mock_answer": given})), (2, true));
    assert_eq!(of(json!({"max_tokens": 9, "ignore_eos": true, "mock_answer": given})), (3, false));
}

#[test]
fn a_prompt_comes_in_several_forms() {
    for prompt in [json!([1, 2]), json!([[1, 2]])] {
        let asked = asked(Kind::Completion, &json!({"prompt": prompt, "model": "m"}));
        assert_eq!(asked.expect("a request").prompt, [1, 2]);
    }
}

#[test]
fn what_cannot_be_used_is_refused_with_a_status_and_a_reason() {
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    for (kind, body, status, message) in [
        (Kind::Completion, json!([]), 400, "the body cannot be read"),
        (Kind::Completion, json!({"prompt": [1], "max_tokens": "x"}), 400, "cannot be read"),
        (Kind::Completion, json!({"prompt": [1], "model": "other"}), 404, "`other` does not exist"),
        (Kind::Completion, json!({}), 400, "prompt is missing"),
        (Kind::Completion, json!({"prompt": []}), 400, "no token"),
        (Kind::Completion, json!({"prompt": [-1]}), 400, "prompt must be"),
        (Kind::Completion, json!({"prompt": [[1], [2]]}), 400, "prompt must be"),
        (Kind::Completion, json!({"prompt": "text"}), 400, "no tokenizer"),
        (Kind::Completion, json!({"prompt": [1], "n": 2}), 400, "n must be 1"),
        (Kind::Completion, json!({"prompt": [1], "max_tokens": 0}), 400, "at least 1"),
        (Kind::Completion, json!({"prompt": [1], "mock_answer": []}), 400, "mock_answer has no"),
        (Kind::Completion, json!({"prompt": [1], "max_tokens": 100}), 400, "is 100 tokens"),
        (Kind::Completion, json!({"prompt": vec![1; 100]}), 400, "leaves none for the answer"),
        (Kind::Chat, json!({"messages": []}), 400, "messages is missing"),
        (Kind::Chat, json!({"messages": [{"content": "x"}]}), 400, "no role"),
        (Kind::Chat, user(json!([{"type": "image_url"}])), 400, "no text"),
        (Kind::Chat, user(json!([{"type": "text", "text": "x"}])), 400, "no tokenizer"),
    ] {
        let error = asked(kind, &body).expect_err(message);
        assert_eq!(error.status.as_u16(), status, "{body}");
        assert!(error.message.contains(message), "{body}: {error}");
    }
}

#[test]
fn transfer_parameters_may_have_more_fields_than_are_known() {
    let params = json!({"do_remote_decode": true, "remote_engine_id": null, "new": 1});
    let body = json!({"prompt": [1], "kv_transfer_params": params});
    let asked = asked(Kind::Completion, &body).expect("a request");
    let expected = KvTransferParams { do_remote_decode: true, ..KvTransferParams::default() };
    assert_eq!(asked.transfer, expected);
}
