//! The demo as a user runs it: the binary, a real server, and what is left afterwards.

use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_sim::server::binary_of;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tokio::runtime::Builder;

/// Columns and lines of a terminal as they come.
const SCREEN_WIDTH: usize = 80;
const SCREEN_LINES: usize = 24;
const SMALL: [&str; 10] = [
    "--engines=3",
    "--requests=60",
    "--capacity-blocks=20000",
    "--concurrency=2",
    "--seed=7",
    "--listen=127.0.0.1:0",
    "--http-listen=127.0.0.1:0",
    "--block-size=16",
    "--sliding-window=4096",
    "--exit",
];

fn program() -> Command {
    Command::new(binary_of("demo").expect("the program"))
}

fn demo(arguments: &[&str]) -> Output {
    program().args(arguments).output().expect("the demo runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_engine_equals_its_dump() {
    let report = file_path("report", "json");
    let report_flag = format!("--report={}", report.display());
    let prompts = file_path("prompts", "txt");
    let prompts_flag = format!("--prompts={}", prompts.display());
    let mut arguments = SMALL.to_vec();
    arguments.extend([report_flag.as_str(), prompts_flag.as_str()]);
    let output = demo(&arguments);
    let stdout = text(&output.stdout);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let json = std::fs::read(&report).expect("a report");
    std::fs::remove_file(&report).expect("the report was there");
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    let written = std::fs::read_to_string(&prompts).expect("prompts");
    std::fs::remove_file(&prompts).expect("they were there");
    assert!(written.lines().count() > 10, "{written}");
    let are_tokens = |line: &str| line.split(' ').all(|token| token.parse::<u32>().is_ok());
    assert!(written.lines().all(are_tokens), "{written}");
    for (section, prefix) in [(0, "kv"), (1, "rr")] {
        let section = &json["sections"][section];
        assert_eq!(section["requests"], 60);
        let verdicts = section["verdicts"].as_array().expect("verdicts");
        assert_eq!(verdicts.len(), 3);
        for (number, verdict) in verdicts.iter().enumerate() {
            assert_eq!(verdict["worker_id"], format!("{prefix}-{number}"));
            for difference in ["missing", "phantom", "miscounted"] {
                assert_eq!(verdict[difference], 0, "{verdict}");
            }
            assert!(verdict["blocks"].as_u64() > Some(0), "{verdict}");
        }
    }
    assert_counters_add_up(&json["counters"]);
    assert!(stdout.contains("grpcurl -plaintext"), "{stdout}");
    assert!(stdout.contains("The index equals the engines' caches: 6 of 6 equal"), "{stdout}");
    for rest in ["Event counters", "parked names", "miscounted", "/60 requests"] {
        assert!(!stdout.contains(rest), "{rest:?} is for --verbose, or is progress\n{stdout}");
    }
    assert!(stderr.contains("60/60 requests"), "{stderr}");
    assert!(stdout.lines().count() <= 2 * SCREEN_LINES, "{stdout}");
    let screen: Vec<_> = stdout.lines().take(SCREEN_LINES).collect();
    for policy in ["kv", "round-robin"] {
        let rows = screen.iter().filter(|line| line.trim_start().starts_with(policy));
        let rows: Vec<_> = rows.filter(|line| line.contains(" s")).collect();
        assert!(rows.iter().any(|row| row.contains('%')), "no row of {policy} in {screen:#?}");
        assert!(rows.iter().any(|row| row.contains('█')), "no bar of {policy} in {screen:#?}");
    }
    check_width(&stdout);
}

#[track_caller]
fn check_width(stdout: &str) {
    for line in stdout.lines() {
        let width = line.chars().count();
        assert!(width <= SCREEN_WIDTH, "{width} characters: {line}");
    }
}

/// Each batch and each block operation that was received has one outcome.
fn assert_counters_add_up(counters: &serde_json::Value) {
    let counters = counters.as_array().expect("counters");
    for unit in ["block", "batch"] {
        let of = |is_received: bool| {
            let of_unit = counters.iter().filter(|at| at["unit"] == unit);
            let chosen = of_unit.filter(|at| (at["outcome"] == "received") == is_received);
            chosen.map(|at| at["count"].as_u64().expect("a count")).sum::<u64>()
        };
        assert!(of(true) > 0, "{unit}: nothing was received: {counters:#?}");
        assert_eq!(of(true), of(false), "{unit}: {counters:#?}");
    }
}

/// The blocks of the question that the demo prints.
fn printed_query(seen: &str) -> pb::FindMatchesRequest {
    let (_, question) = seen.split_once("grpcurl -plaintext -d '").expect("a question");
    let (json, _) = question.split_once('\'').expect("its end");
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    let hash = |hash: &serde_json::Value| hash.as_str().expect("text").parse().expect("a number");
    pb::FindMatchesRequest {
        model: json["model"].as_str().expect("a model").to_owned(),
        local_hashes: json["local_hashes"].as_array().expect("hashes").iter().map(hash).collect(),
        ..Default::default()
    }
}

/// How many blocks workers match, each number once.
fn matched_blocks(server: SocketAddr, query: pb::FindMatchesRequest) -> BTreeSet<u32> {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut client = client::connect(server).await.expect("a server that listens");
        let answer = client.find_matches(query).await.expect("an answer").into_inner();
        answer.matches.iter().map(|at| at.matched_blocks).collect()
    })
}

fn file_path(name: &str, extension: &str) -> PathBuf {
    let name = format!("{name}-{}.{extension}", std::process::id());
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Reads the demo's output up to a line that contains `wanted`; returns all of it.
fn read_until(output: impl Read, wanted: &str) -> String {
    let mut seen = String::new();
    for line in BufReader::new(output).lines() {
        let line = line.expect("text");
        seen.push_str(&line);
        seen.push('\n');
        if line.contains(wanted) {
            return seen;
        }
    }
    panic!("the demo ended without printing {wanted:?}:\n{seen}");
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(child.id() as i32).expect("a process id");
    kill_process(pid, Signal::INT).expect("the demo is there");
}

fn start(arguments: &[&str]) -> Child {
    let mut command = program();
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the demo runs")
}

fn finish(mut child: Child) -> (Option<i32>, String) {
    let mut stderr = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
    (child.wait().expect("the demo ends").code(), stderr)
}

/// What `--verbose` adds.
#[track_caller]
fn check_details(seen: &str) {
    check_width(seen);
    for word in ["hit rate: ", "p99: ", "copies: "] {
        let is_explained = seen.lines().any(|line| line.starts_with(word));
        assert!(is_explained, "{word:?} is not explained\n{seen}");
    }
    for part in ["kv-0", "rr-2", "3 of 3", "parked names", "one cache *", "/metrics that are"] {
        assert!(seen.contains(part), "{part:?} is missing\n{seen}");
    }
    let (_, counters) = seen.split_once("Event counters").expect("counters");
    let (counters, _) = counters.split_once("block: received").expect("their sums");
    let zeros = counters.lines().filter(|line| line.replace(' ', "").ends_with("┆0│"));
    assert_eq!(zeros.count(), 0, "{counters}");
}

#[test]
fn the_question_tells_workers_apart_and_an_interrupt_ends_the_server_too() {
    let arguments = SMALL.into_iter().filter(|flag| *flag != "--exit").chain(["--verbose"]);
    let mut child = start(&arguments.collect::<Vec<_>>());
    let seen = read_until(child.stdout.as_mut().expect("a pipe"), "Ctrl-C ends the demo");
    check_details(&seen);
    let address = seen.lines().find_map(|line| line.strip_suffix(" kvasir.v1.Indexer/FindMatches"));
    let address = address.and_then(|line| line.rsplit(' ').next()).expect("the line to paste");
    let address: SocketAddr = address.parse().expect("an address");
    assert!(TcpListener::bind(address).is_err(), "the server listens");
    let blocks = matched_blocks(address, printed_query(&seen));
    assert!(blocks.len() > 1, "all workers match {blocks:?}:\n{seen}");
    interrupt(&child);
    let (code, stderr) = finish(child);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(TcpListener::bind(address).is_ok(), "the server is gone");
}

#[test]
fn an_interrupt_in_the_middle_is_not_success() {
    let mut arguments = SMALL.to_vec();
    arguments[1] = "--requests=1000000";
    // A window of requests so far apart that the pass cannot end by itself.
    arguments.push("--speed=0.001");
    let mut child = start(&arguments);
    read_until(child.stderr.as_mut().expect("a pipe"), "server: gRPC");
    interrupt(&child);
    let (code, stderr) = finish(child);
    assert_eq!(code, Some(130), "{stderr}");
}

#[test]
fn requests_that_never_fit_are_explained() {
    let mut arguments = SMALL.to_vec();
    arguments[2] = "--capacity-blocks=50";
    check_refused(&arguments, "--capacity-blocks must be at least");
}

#[test]
fn a_trace_that_cannot_be_read_is_explained() {
    let path = file_path("trace", "jsonl");
    let line = r#"{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}"#;
    std::fs::write(&path, line).expect("a file");
    let flag = format!("--trace={}", path.display());
    check_refused(&[&flag, "--exit"], "line 1: number of hash_ids is 1, expected at least 2");
    std::fs::write(&path, "").expect("a file");
    check_refused(&[&flag, "--exit"], "is empty");
    std::fs::remove_file(&path).expect("the trace was there");
}

#[track_caller]
fn check_refused(arguments: &[&str], reason: &str) {
    let output = demo(arguments);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains(reason), "{stderr}");
}
