use super::*;

fn read(text: &str) -> Result<Vec<Request>, TraceError> {
    Trace::new(text.as_bytes(), 1).collect()
}

fn line(input: usize, output: usize, ids: &[u64]) -> String {
    format!(
        r#"{{"timestamp": 3000, "input_length": {input}, "output_length": {output}, "hash_ids": {ids:?}}}"#
    )
}

#[track_caller]
fn check_error(text: &str, expected: &str) {
    let error = read(text).expect_err("the trace is wrong").to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn lengths_and_times_are_those_of_the_line() {
    let requests = read(&line(1_000, 7, &[4, 5])).unwrap();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].prompt.len(), 1_000);
    assert_eq!(requests[0].answer.len(), 7);
    assert_eq!(requests[0].arrival, Duration::from_secs(3));
}

#[test]
fn an_id_is_the_same_tokens_wherever_it_stands() {
    let text = [line(1_024, 1, &[4, 5]), String::new(), line(600, 1, &[5, 9])].join("\n");
    let requests = read(&text).unwrap();
    assert_eq!(requests[0].prompt[512..], requests[1].prompt[..512]);
    assert_ne!(requests[0].prompt[..512], requests[1].prompt[..512]);
}

#[test]
fn answers_differ_by_line() {
    let text = [line(10, 5, &[4]), line(10, 5, &[4])].join("\n");
    let requests = read(&text).unwrap();
    assert_eq!(requests[0].prompt, requests[1].prompt);
    assert_ne!(requests[0].answer, requests[1].answer);
}

#[test]
fn wrong_lines_are_named() {
    let good = line(10, 5, &[4]);
    check_error(&format!("{good}\n{{}}"), "line 2: missing field `timestamp`");
    check_error(&format!("{good}\n\nnot json"), "line 3");
    check_error(&line(0, 5, &[4]), "line 1: input_length is 0");
    check_error(&line(513, 5, &[4]), "number of hash_ids is 1, expected at least 2");
    check_error(&line(10, usize::MAX >> 1, &[4]), "output_length");
    check_error(&line(2_000_000, 5, &[4]), "input_length");
    check_error(&" ".repeat(1 << 20), "line 1 is longer than");
}

#[test]
fn a_missing_file_is_named() {
    let error = Trace::open(Path::new("/no/such/trace.jsonl"), 1).unwrap_err().to_string();
    assert!(error.contains("/no/such/trace.jsonl"), "{error}");
}

#[test]
fn a_recorded_trace_has_ids_of_whole_blocks_of_its_own_size() {
    let line = r#"{"timestamp": 5, "input_length": 40, "output_length": 2, "hash_ids": [18446744073709551615, 3],
        "block_size": 16, "model": "m", "worker": "w", "cached_tokens": 16, "ttft_ms": 1.5, "total_ms": 9,
        "more": true}"#;
    let line = line.replace('\n', "");
    let entry = Trace::new(line.as_bytes(), 1).next_entry().expect("a line").expect("an entry");
    assert_eq!((entry.id_tokens(), entry.cached_tokens, entry.ttft_ms), (16, Some(16), Some(1.5)));
    assert_eq!((entry.model.as_deref(), entry.worker.as_deref()), (Some("m"), Some("w")));
    let requests = read(&line).expect("a trace");
    assert_eq!((requests[0].prompt.len(), requests[0].answer.len()), (40, 2));
    check_error(&line.replace(": 40,", ": 48,"), "number of hash_ids is 2, expected at least 3");
    check_error(&line.replace(": 16, \"model", ": 0, \"model"), "block_size is 0");
}
