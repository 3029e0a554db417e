use super::*;

fn line(timestamp: u64, input_length: usize, output_length: usize, ids: &[u64]) -> Entry {
    let hash_ids = ids.to_vec();
    Entry { timestamp, input_length, output_length, hash_ids, ..Entry::default() }
}

#[test]
fn equal_ids_have_equal_names_up_to_where_prompts_differ() {
    let a = names(&line(0, 1_200, 1, &[7, 8, 9]), 64, 1);
    let b = names(&line(0, 1_100, 1, &[7, 8, 9]), 64, 2);
    let c = names(&line(0, 1_200, 1, &[7, 5, 9]), 64, 3);
    assert_eq!((a.len(), b.len(), c.len()), (18, 17, 18));
    assert_eq!(a[..17], b[..], "the shorter one is a prefix");
    assert_eq!(a[..8], c[..8]);
    assert!(a[8..].iter().all(|name| !c.contains(name)), "a name stands for all before it");
    let answered = names(&line(0, 1_200, 400, &[7, 8, 9]), 64, 1);
    assert_eq!((answered.len(), &answered[..18]), (24, &a[..]));
}

#[test]
fn a_window_keeps_ticks_apart() {
    let lines: Vec<_> = (0..30).map(|at| line(at / 10 * 3_000, 600, 5, &[at, at + 1])).collect();
    let jobs = window(&lines, 3, 30, 64);
    assert_eq!(jobs, window(&lines, 3, 30, 64));
    assert_ne!(jobs, window(&lines, 4, 30, 64));
    assert!(jobs.is_sorted_by_key(|job| job.arrival));
    let of_tick = |tick| jobs.iter().filter(|job| job.arrival / (3 * SECOND) == tick).count();
    assert_eq!([0, 1, 2].map(of_tick), [10, 10, 10]);
    assert_eq!(window(&lines, 1, 5, 64).len(), 5);
    assert_eq!(faster(&jobs, 2.0)[29], jobs[29].arrival / 2);
}

#[test]
fn times_of_their_own_are_kept() {
    let lines: Vec<_> = (0..30).map(|at| line(at * 7, 600, 5, &[at, at + 1])).collect();
    let jobs = window(&lines, 3, 30, 64);
    let arrivals: Vec<_> = jobs.iter().map(|job| job.arrival / 1_000_000).collect();
    assert_eq!(arrivals, (0..30).map(|at| at * 7).collect::<Vec<_>>());
}

#[test]
fn texts_share_blocks_up_to_where_they_differ() {
    let a = [(0, 0), (7, 100)];
    let b = [(0, 0), (8, 100)];
    let a = text_names(&a, 300, 64);
    let b = text_names(&b, 310, 64);
    assert_eq!((a.len(), b.len(), a[0]), (4, 4, b[0]));
    assert!(a[1..].iter().all(|name| !b.contains(name)), "{a:?} {b:?}");
    assert_eq!(text_names(&[(0, 0), (7, 128)], 300, 64)[..2], text_names(&[(0, 0)], 300, 64)[..2]);
    let longer = text_names(&[(0, 0), (7, 100)], 900, 64);
    assert_eq!(longer[..4], a[..], "the same text goes on");
}

#[test]
fn a_recorded_trace_is_read_in_blocks_of_its_own() {
    let recorded = |ids: &[u64], input| Entry { block_size: Some(16), ..line(0, input, 20, ids) };
    let a = names(&recorded(&[u64::MAX, 9], 40), 16, 1);
    let b = names(&recorded(&[u64::MAX, 8], 40), 16, 2);
    assert_eq!((a.len(), b.len(), a[0]), (3, 3, b[0]));
    assert!(a[1..].iter().all(|name| !b.contains(name)), "{a:?} {b:?}");
}

#[test]
fn one_of_several_models_has_to_be_named() {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    for model in ["a", "b", "a"] {
        let rest = r#""timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": []"#;
        let line = format!(r#"{{"model": "{model}", "block_size": 16, {rest}}}"#);
        std::io::Write::write_all(&mut file, (line + "\n").as_bytes()).expect("written");
    }
    let error = Source::trace(file.path(), None).expect_err("two models").to_string();
    assert!(error.contains("--model") && error.contains("\"b\""), "{error}");
    let Ok(Source::Trace(_, of_a)) = Source::trace(file.path(), Some("a")) else { panic!("none") };
    assert_eq!(of_a.len(), 2);
    assert!(Source::trace(file.path(), Some("c")).is_err());
}

#[test]
fn the_generated_workload_shares_prefixes() {
    let jobs = generated(1, 50, 64);
    assert!(jobs.is_sorted_by_key(|job| job.arrival));
    assert!(jobs.iter().all(|job| job.names.len() == job.total_tokens() / 64));
    assert!(jobs.iter().all(|job| job.names[..8] == jobs[0].names[..8]), "the system prompt");
    assert!(jobs[1].names[8] != jobs[0].names[8]);
}
