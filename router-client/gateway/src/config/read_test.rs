use super::*;
use std::time::Duration;

fn with(arguments: &[&str]) -> Result<Config, String> {
    let own = ["gateway", "--indexer", "127.0.0.1:50051"];
    match read(own.iter().chain(arguments).map(OsString::from)) {
        Ok(Action::Run(config, _)) => Ok(*config),
        Ok(Action::Print(text)) => Err(text),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn the_defaults_need_an_index_only() {
    let config = with(&[]).expect("defaults");
    assert_eq!(config.routing.shards, [["http://127.0.0.1:50051"]]);
    assert_eq!((config.tokens.source, config.retries), (TokenSource::Render, 2));
    assert_eq!(config.engines.answer_timeout, Duration::from_secs(600));
    assert_eq!(config.process.listen.port(), 8000);
}

#[test]
fn a_tokenizer_is_the_source_of_tokens() {
    let config = with(&["--tokenizer", "a.json;m=b.json"]).expect("options");
    assert_eq!(config.tokens.source, TokenSource::File);
    let files: Vec<_> = config.tokens.files.iter().map(|(model, at)| (&**model, at)).collect();
    assert_eq!(files, [("", &"a.json".into()), ("m", &"b.json".into())]);
}

#[test]
fn requests_wait_for_a_worker_as_long_as_wanted() {
    let config = with(&["--queue", "timeout=2h"]).expect("options");
    assert_eq!(config.routing.queue_timeout, Duration::from_secs(7_200));
}

#[test]
fn what_cannot_be_used_is_refused_by_name() {
    for (arguments, expected) in [
        (&["--engine", "w"][..], "engine: \"w\": must be WORKER=URL"),
        (&["--engine", "w=https://a:1"], "engine: \"w=https://a:1\": https://a:1/ needs the cert"),
        (&["--render-url", "https://a:1"], "render-url: https://a:1/ needs the certificate"),
        (&["--engine", "w=ftp://a"], "engine: \"w=ftp://a\": \"ftp://a\" must be http://"),
        (&["--engine", "w=http://a,w=http://b"], "engine: \"w=http://b\": this worker has"),
        (&["--tokens", "file"], "tokens: is file, which goes with a tokenizer"),
        (&["--tokens", "render", "--tokenizer", "a"], "tokens: is render, which goes without a"),
        (&["--tokens", "guess"], "is not one of file, render, none"),
        (&["--tokenizer", "a;b"], "tokenizer: \"b\": must be one FILE"),
        (&["--render-url", "a:1"], "render-url: "),
        (&["--limits", "retries=17"], "limits: retries: is 17, at most 16"),
        (&["--limits", "body-bytes=0"], "limits: body-bytes: is 0"),
        (&["--timeouts", "answer=0s"], "timeouts: answer: is 0s"),
        (&["--queue", "timeout=0s"], "queue: timeout: is 0s, must be longer"),
    ] {
        let error = with(arguments).expect_err(expected);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

/// A configuration as text, without the times at which its rate limits began.
fn shown(config: &impl std::fmt::Debug) -> String {
    let text = format!("{config:?}");
    let mut parts = text.split("begin: Instant");
    let first = parts.next().unwrap_or_default();
    let rest = parts.filter_map(|part| Some(part.split_once('}')?.1));
    std::iter::once(first).chain(rest).collect()
}

#[test]
fn options_of_the_last_release_keep_their_effect() {
    let given = [
        "--connect-timeout=1s",
        "--answer-timeout=3s",
        "--stall-timeout=4s",
        "--body-timeout=6s",
        "--render-timeout=7s",
        "--max-in-flight=8",
        "--max-connections=9",
        "--body-bytes=10",
        "--token-cache-bytes=11",
        "--retries=12",
        "--queue-threshold=13",
    ];
    let now = [
        "--timeouts=connect=1s,answer=3s,stall=4s,body=6s,render=7s",
        "--limits=in-flight=8,connections=9,body-bytes=10,token-cache-bytes=11,retries=12",
        "--queue=threshold=13",
    ];
    let old = shown(&with(&given).expect("the former options"));
    assert_eq!(old, shown(&with(&now).expect("options")));
    assert_ne!(old, shown(&with(&[]).expect("defaults")));
}
