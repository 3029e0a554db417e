use super::*;

fn line(timestamp: u64, input_length: usize, output_length: usize, ids: &[u64]) -> Entry {
    Entry { timestamp, input_length, output_length, hash_ids: ids.to_vec() }
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
fn the_generated_workload_shares_prefixes() {
    let jobs = generated(1, 50, 64);
    assert!(jobs.is_sorted_by_key(|job| job.arrival));
    assert!(jobs.iter().all(|job| job.names.len() == job.total_tokens() / 64));
    assert!(jobs.iter().all(|job| job.names[..8] == jobs[0].names[..8]), "the system prompt");
    assert!(jobs[1].names[8] != jobs[0].names[8]);
}
