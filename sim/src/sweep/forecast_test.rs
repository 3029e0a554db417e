use super::*;
use crate::engine::timed::fixtures_test::{SMALL, job, play, times};
use proptest::prelude::*;

/// The forecast for the last request, and the actual time.
fn both(jobs: &[(Nanos, Job)], options: EngineOptions) -> (Nanos, Nanos) {
    let (last, before) = jobs.split_last().expect("a request");
    let mut engine = Engine::new(options);
    let mut out = Vec::new();
    for (id, (at, job)) in before.iter().enumerate() {
        engine.run_until(*at, &mut out);
        engine.submit(id, job, *at, &mut out);
    }
    engine.run_until(last.0, &mut out);
    let forecast = time_to_first_token(&engine, &last.1, last.0);
    let out = play(&mut Engine::new(options), jobs);
    (forecast, times(&out)[&(jobs.len() - 1)].0 - last.0)
}

#[test]
fn a_prefix_that_is_being_computed_counts() {
    let jobs = [(0, job(1, 1, 16, 1)), (0, job(1, 2, 16, 1)), (1, job(1, 3, 16, 1))];
    let (forecast, truth) = both(&jobs, SMALL);
    assert_eq!(forecast, truth);
}

proptest! {
    /// Without later requests and shared prefixes, the forecast is exact.
    #[test]
    fn the_forecast_is_true_of_prompts_that_share_nothing(
        requests in prop::collection::vec((0..3_000_u64, 1..70_usize, 1..40_usize), 1..20),
        capacity_blocks in 30..100_usize,
    ) {
        let mut now = 0;
        let jobs: Vec<_> = requests.iter().zip(0..).map(|(&(gap, prompt, answer), own)| {
            now += gap;
            (now, job(own, own, prompt, answer))
        }).collect();
        let (forecast, truth) = both(&jobs, EngineOptions { capacity_blocks, ..SMALL });
        prop_assert_eq!(forecast, truth);
    }
}
