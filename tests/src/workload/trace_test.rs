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
