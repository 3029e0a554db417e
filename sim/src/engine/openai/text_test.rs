use super::super::training::train;
use super::*;

/// A text of the project.
const SAMPLE: &str = include_str!("../../../../README.md");

fn text() -> Text {
    Text::new(train(SAMPLE, 2_000).expect("a tokenizer"), &Json::Null).expect("a text")
}

#[test]
fn answers_are_equal_for_equal_prompts_and_shorter_ones_are_their_beginnings() {
    for text in [text(), Text::plain().expect("no tokenizer")] {
        let long = text.answer(&[1, 2, 3], 40).expect("an answer");
        let short = text.answer(&[1, 2, 3], 7).expect("an answer");
        assert_eq!(long, text.answer(&[1, 2, 3], 40).expect("an answer"));
        assert_eq!((&long.tokens[..7], &long.pieces[..7]), (&*short.tokens, &*short.pieces));
        assert_ne!(long.tokens, text.answer(&[1, 2, 4], 40).expect("an answer").tokens);
    }
}

#[test]
fn an_answer_in_a_later_prompt_has_its_own_tokens() {
    let text = text();
    let prompt = text.encode("Where are the blocks?", true).expect("tokens");
    let answer = text.answer(&prompt, 200).expect("an answer");
    let whole = format!("Where are the blocks?{}", answer.pieces.concat());
    assert_eq!(text.encode(&whole, true).expect("tokens"), [prompt, answer.tokens].concat());
}

#[test]
fn a_tokenizer_without_words_answers_with_what_is_text() {
    let text = Text::new(train("", 256).expect("a tokenizer"), &Json::Null).expect("a text");
    let answer = text.answer(&[1], 100).expect("an answer").pieces.concat();
    assert!(!answer.contains(char::REPLACEMENT_CHARACTER) && answer.len() == 100, "{answer}");
}

#[test]
fn without_a_tokenizer_text_is_refused() {
    let error = Text::plain().expect("no tokenizer").encode("hello", true).expect_err("no tokens");
    assert_eq!(error.to_string(), "this engine has no tokenizer: send token ids");
}

#[test]
fn a_tokenizer_and_the_template_beside_it_are_read_from_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokenizer.json");
    train(SAMPLE, 500).expect("a tokenizer").save(&file, false).expect("a file");
    let template = r#"{"chat_template": "{{ messages[0].content }}!"}"#;
    std::fs::write(folder.path().join(CONFIG_FILE), template).expect("a file");
    let text = Text::load(&file, None).expect("a text");
    assert_eq!(text.encode("index", true).expect("tokens"), {
        let trained = train(SAMPLE, 500).expect("a tokenizer");
        trained.encode("index", true).expect("tokens").get_ids().to_vec()
    });
    let chat = super::super::template::Chat {
        messages: vec![serde_json::json!({"role": "user", "content": "Hello"})],
        tools: None,
        add_generation_prompt: true,
        further: serde_json::Map::new(),
    };
    assert_eq!(text.template().render(&chat).expect("a chat"), "Hello!");
    let missing = Text::load(&folder.path().join("none.json"), None).expect_err("no file");
    assert!(missing.to_string().contains("none.json"), "{missing}");
}
