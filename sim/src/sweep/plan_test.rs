use super::super::report;
use super::*;
use clap::Parser;

fn args(more: &[&str]) -> Args {
    let args = ["sweep", "--requests", "120", "--seeds", "2", "--loads", "70", "--engines", "3"];
    Args::parse_from(args.iter().chain(more))
}

#[test]
fn a_small_sweep_gives_each_point_once_whatever_the_threads() {
    let run = |threads| {
        let args = args(&["--threads", threads]);
        super::run(&args, &Source::Conversations).expect("a sweep")
    };
    let outcome = run("2");
    assert_eq!(outcome.points.len(), 14 * 2);
    assert_eq!(outcome, run("1"));
    let text = report::text(&outcome);
    assert_eq!(text.matches("70 % of load, kv").count(), 7, "{text}");
    let folder = tempfile::tempdir().expect("a folder");
    report::write(&outcome, folder.path()).expect("files");
    for name in ["ttft", "p99", "hits"].map(|plot| format!("conversations-{plot}.svg")) {
        assert!(folder.path().join(&name).metadata().expect("a file").len() > 500, "{name}");
    }
    let all = std::fs::read_to_string(folder.path().join("conversations-points.csv"));
    assert_eq!(all.expect("a file").lines().count(), 1 + 14 * 2);
}

#[test]
fn a_trace_that_cannot_be_read_is_named() {
    let error = args(&["--trace", "no/such/file"]).sources().expect_err("no file");
    assert!(format!("{error:#}").contains("no/such/file"));
}
