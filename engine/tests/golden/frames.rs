//! Reads the golden files.

use kvasir_engine::decode::EngineKind;
use serde_json::Value;

/// One frame with a payload.
pub(crate) struct Frame {
    pub(crate) engine: EngineKind,
    pub(crate) version: String,
    pub(crate) case: String,
    pub(crate) hash_mode: String,
    pub(crate) dp_rank: Option<u64>,
    pub(crate) payload: Vec<u8>,
    pub(crate) decoded: Value,
}

impl Frame {
    /// Description for messages of failed assertions.
    pub(crate) fn label(&self) -> String {
        let Self { engine, version, case, hash_mode, dp_rank, .. } = self;
        format!("{engine:?} {version} {case} rank {dp_rank:?} {hash_mode}")
    }
}

pub(crate) fn hex(digits: &str) -> Vec<u8> {
    assert!(digits.len().is_multiple_of(2), "odd number of digits");
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal"))
        .collect()
}

pub(crate) fn lines(file: &str) -> Vec<Value> {
    let path = format!("{}/tests/data/golden-frames/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("golden file");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn frames_of(file: &str, engine: EngineKind) -> Vec<Frame> {
    let text = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
    lines(file)
        .into_iter()
        .filter(|line| !line["payload_hex"].is_null())
        .map(|mut line| Frame {
            engine,
            version: text(&line, "version"),
            case: text(&line, "case"),
            hash_mode: text(&line, "hash_mode"),
            dp_rank: line["dp_rank"].as_u64(),
            payload: hex(line["payload_hex"].as_str().expect("payload")),
            decoded: line["decoded"].take(),
        })
        .collect()
}

/// All frames of all engines.
pub(crate) fn frames() -> Vec<Frame> {
    let vllm = frames_of("vllm.jsonl", EngineKind::Vllm);
    let sglang = frames_of("sglang.jsonl", EngineKind::Sglang);
    let trtllm = frames_of("trtllm.jsonl", EngineKind::Trtllm);
    assert_eq!((vllm.len(), sglang.len(), trtllm.len()), (1065, 174, 7));
    vllm.into_iter().chain(sglang).chain(trtllm).collect()
}
