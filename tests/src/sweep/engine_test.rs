use super::super::fixtures_test::{SMALL, job, play, times};
use super::*;
use proptest::prelude::*;

#[test]
fn one_request_takes_a_step_and_its_tokens() {
    let jobs = [(5, job(1, 1, 10, 1))];
    let out = play(&mut Engine::new(SMALL), &jobs);
    assert_eq!(times(&out)[&0], (5 + 1_000 + 10 * 10, 1_105, 0));
    let jobs = [(0, job(1, 1, 10, 3))];
    let mut engine = Engine::new(SMALL);
    // Two steps for the answer's other tokens, with 10 and 11 tokens of context.
    let end = 1_100 + (1_000 + 100 + 10) + (1_000 + 100 + 11);
    assert_eq!(times(&play(&mut engine, &jobs))[&0], (1_100, end, 0));
    assert_eq!(engine.computed_tokens(), 12);
}

#[test]
fn a_cached_prefix_shortens_it() {
    let jobs = [(0, job(1, 1, 12, 1)), (10_000, job(1, 2, 12, 1)), (20_000, job(2, 3, 12, 1))];
    let times = times(&play(&mut Engine::new(SMALL), &jobs));
    assert_eq!(times[&0].0, 1_120);
    // The last token is always computed, so its block is, too; 8 tokens are read.
    assert_eq!((times[&1].0 - 10_000, times[&1].2), (1_000 + 4 * 10 + 8, 8));
    assert_eq!((times[&2].0 - 20_000, times[&2].2), (1_120, 0));
}

#[test]
fn two_prompts_queue() {
    let jobs = [(0, job(1, 1, 16, 1)), (0, job(2, 2, 8, 1)), (0, job(3, 3, 8, 1))];
    let times = times(&play(&mut Engine::new(SMALL), &jobs));
    assert_eq!(times[&0].0, 1_160);
    // Both fit into the next step.
    assert_eq!((times[&1].0, times[&2].0), (1_160 + 1_160, 2_320));
}

#[test]
fn a_long_prompt_in_chunks_lets_answers_go_on() {
    let jobs = [(0, job(1, 1, 4, 5)), (100, job(2, 2, 40, 1))];
    let times = times(&play(&mut Engine::new(SMALL), &jobs));
    let first = 1_000 + 40;
    // The answer takes one token of 16 a step: chunks of 15, 15 and 10.
    let chunks = [(15, 4), (15, 5 + 15), (10, 6 + 30)];
    let long = chunks.iter().map(|(tokens, context)| 1_100 + 10 * tokens + context).sum::<u64>();
    assert_eq!((times[&0].0, times[&1].0), (first, first + long));
    assert_eq!(times[&0].1, first + long + 1_100 + 7, "one token a step all along");
}

#[test]
fn who_has_no_room_waits_until_another_one_ends() {
    let options = EngineOptions { capacity_blocks: 5, ..SMALL };
    let jobs = [(0, job(1, 1, 12, 5)), (0, job(2, 2, 8, 1))];
    let times = times(&play(&mut Engine::new(options), &jobs));
    assert_eq!(times[&1].0, times[&0].1 + 1_080);
}

#[test]
fn a_request_that_comes_in_the_midst_of_quiet_steps_waits_for_one_of_them() {
    let jobs = [(0, job(1, 1, 4, 20)), (3_500, job(2, 2, 4, 1))];
    let ends = [1_040, 1_040 + 1_104, 2_144 + 1_105, 3_249 + 1_106];
    let times = times(&play(&mut Engine::new(SMALL), &jobs));
    assert_eq!(times[&1].0, ends[3] + 1_000 + 100 + 40 + 7);
}

proptest! {
    #[test]
    fn steps_at_once_equal_steps_one_by_one(
        requests in prop::collection::vec((0..4_000_u64, 0..4_u64, 1..70_usize, 1..50_usize), 1..30),
        capacity_blocks in 30..100_usize,
    ) {
        let mut now = 0;
        let jobs: Vec<_> = requests.iter().zip(0..).map(|(&(gap, family, prompt, answer), own)| {
            now += gap;
            (now, job(family, own, prompt, answer))
        }).collect();
        let options = EngineOptions { capacity_blocks, ..SMALL };
        let mut fast = Engine::new(options);
        let mut slow = Engine::new(options).stepping();
        let (fast_out, slow_out) = (play(&mut fast, &jobs), play(&mut slow, &jobs));
        prop_assert_eq!(times(&fast_out).len(), jobs.len());
        prop_assert_eq!(fast_out, slow_out);
        prop_assert_eq!(fast.computed_tokens(), slow.computed_tokens());
        prop_assert_eq!(fast.pool.contents(0), slow.pool.contents(0));
    }
}
