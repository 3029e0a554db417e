use super::*;
use crate::workload::trace::Entry;
use clap::Parser;

fn args(more: &[&str]) -> Args {
    let small = ["sweep", "--requests", "150", "--seeds", "2", "--engines", "3"];
    Args::parse_from(small.iter().chain(more))
}

#[test]
fn each_row_is_what_the_runs_say() {
    let what = ["--what-if", "workers=6", "--what-if", "traffic=3x", "--what-if", "cache=1x"];
    let answers = run(&args(&what), &Source::Conversations).expect("answers");
    let mean = |row: usize| estimate(&answers.rows[row].1, |at| at.ttft_mean).mean;
    assert!(mean(1) < mean(0), "more workers: {} s, {} s", mean(1), mean(0));
    assert!(mean(2) > mean(0), "more traffic: {} s, {} s", mean(2), mean(0));
    assert_eq!(answers.rows[3].1, answers.rows[0].1, "the same again");
    let text = text(&answers);
    assert!(text.contains("as it is") && text.contains("traffic=3x"), "{text}");
    let folder = tempfile::tempdir().expect("a folder");
    write(&answers, folder.path()).expect("files");
    let plot = fs::read_to_string(folder.path().join("conversations-what-if-ttft.svg"));
    assert_eq!(plot.expect("a plot").matches(">workers=6<").count(), 1);
}

#[test]
fn what_was_recorded_is_said_beside() {
    let line = |worker: &str, cached, ttft_ms| Entry {
        input_length: 100,
        block_size: Some(16),
        worker: Some(worker.to_owned()),
        cached_tokens: Some(cached),
        ttft_ms: Some(ttft_ms),
        ..Entry::default()
    };
    let lines = vec![line("a", 30, 100.0), line("b", 0, 300.0), line("a", 0, 200.0)];
    let recorded = Recorded::of(&Source::Trace("t".to_owned(), lines)).expect("something");
    let text = recorded.to_string();
    assert_eq!(text, "As recorded: 2 workers, hits 10.0 %, mean TTFT 0.200 s.");
    assert_eq!(Recorded::of(&Source::Trace("t".to_owned(), vec![Entry::default()])), None);
}
