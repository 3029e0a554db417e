use super::super::report;
use super::*;
use clap::Parser;

fn args(more: &[&str]) -> Args {
    let args = ["sweep", "--requests", "120", "--seeds", "2", "--loads", "70", "--engines", "3"];
    Args::parse_from(args.iter().chain(more))
}

#[test]
fn a_small_sweep_gives_each_point_once_whatever_the_threads() {
    let outcome = run(&args(&["--threads", "2"])).expect("a sweep");
    assert_eq!(outcome.points.len(), 8 * 2);
    assert_eq!(outcome, run(&args(&["--threads", "1"])).expect("a sweep"));
    let text = report::text(&outcome);
    assert_eq!(text.matches("70 % of load, kv").count(), 3, "{text}");
    let folder = tempfile::tempdir().expect("a folder");
    report::write(&outcome, folder.path()).expect("files");
    for name in ["ttft.svg", "hits.svg", "points.csv"] {
        assert!(folder.path().join(name).metadata().expect("a file").len() > 500, "{name}");
    }
}

#[test]
fn a_trace_that_cannot_be_read_is_named() {
    let error = run(&args(&["--trace", "no/such/file"])).expect_err("no file");
    assert!(format!("{error:#}").contains("no/such/file"));
}
