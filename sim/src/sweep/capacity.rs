//! Finds the load of 100 %: the highest arrival rate at which engines keep up under round-robin.
//!
//! The *backlog* at an arrival is the prompt tokens of requests that have arrived and whose first token is not sent. A
//! queue is *bounded* if the mean backlog at the arrivals of a run's last quarter exceeds that of the second quarter by
//! at most 5 % of the prompt tokens that arrive in half of the run. That half is the distance between the middles of
//! these quarters. So engines compute at least 95 % of the arriving tokens, and bursts of the workload count less than
//! its trend. With cold caches the first quarter is slower; it does not count.

use super::cluster::{self, Served};
use super::job::faster;
use super::options::ClusterOptions;
use super::way::{Policy, Way};
use crate::engine::timed::Job;
use anyhow::{Result, ensure};

/// Maximum growth of the backlog, as a fraction of the arriving tokens.
const GROWTH_SHARE: f64 = 0.05;
/// Relative precision of the rate.
const PRECISION: f64 = 0.01;
/// Maximum factor by which a workload is made faster or slower.
const FACTOR_MAX: f64 = 1e6;

/// The highest speed-up of arrivals at which the queue of engines under round-robin stays bounded, by bisection of its
/// logarithm.
///
/// # Errors
/// If a run fails, or no such factor exists.
pub fn find(options: &ClusterOptions, jobs: &[Job]) -> Result<f64> {
    let holds = |factor: f64| {
        let arrivals = faster(jobs, factor);
        let run = cluster::run(options, jobs, &arrivals, Way::of(Policy::RoundRobin), 0)?;
        anyhow::Ok(is_bounded(&run.served))
    };
    let mut low = 1.0;
    let mut high = 2.0;
    while !holds(low)? {
        (low, high) = (low / 2.0, low);
        ensure!(low > 1.0 / FACTOR_MAX, "no rate of arrivals is low enough");
    }
    while holds(high)? {
        (low, high) = (high, high * 2.0);
        ensure!(high < FACTOR_MAX, "no rate of arrivals is too high: use more requests");
    }
    while high / low > 1.0 + PRECISION {
        let middle = (low * high).sqrt();
        let side = if holds(middle)? { &mut low } else { &mut high };
        *side = middle;
    }
    Ok(low)
}

/// Whether the backlog is bounded, as defined in this module's documentation. Requests are in the order of arrival.
fn is_bounded(served: &[Served]) -> bool {
    let backlogs = backlogs(served);
    let quarter = backlogs.len() / 4;
    let mean = |number: usize| {
        let part = backlogs.iter().skip(number * quarter).take(quarter);
        part.sum::<u64>() as f64 / quarter.max(1) as f64
    };
    let arrived: usize = served.iter().map(|at| at.prompt_tokens).sum();
    mean(3) - mean(1) <= GROWTH_SHARE * arrived as f64 / 2.0
}

/// The backlog at each request's arrival, in tokens.
fn backlogs(served: &[Served]) -> Vec<u64> {
    let mut out: Vec<_> = served.iter().map(|at| (at.first_token, at.prompt_tokens)).collect();
    out.sort_unstable();
    let mut out = out.into_iter().peekable();
    let mut backlog = 0;
    let seen = served.iter().map(|at| {
        while let Some((_, tokens)) = out.next_if(|(first, _)| *first <= at.arrival) {
            backlog -= tokens as u64;
        }
        let seen = backlog;
        backlog += at.prompt_tokens as u64;
        seen
    });
    seen.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(arrival: u64, wait: u64) -> Served {
        Served { arrival, first_token: arrival + wait, prompt_tokens: 10, ..Served::default() }
    }

    #[test]
    fn a_backlog_is_what_has_arrived_and_is_not_out() {
        let all = [served(0, 3), served(1, 5), served(2, 1), served(3, 1), served(10, 1)];
        assert_eq!(backlogs(&all), [0, 10, 20, 10, 0]);
    }

    #[test]
    fn a_queue_that_grows_with_time_is_not_bounded() {
        let even: Vec<_> = (0..400).map(|at| served(at, 30)).collect();
        assert!(is_bounded(&even));
        // Engines that compute 90 % of the arriving tokens: each request waits a tenth of the time so far, and at least
        // a step.
        let slow = |at: u64| served(at, 1 + at / 9);
        assert!(!is_bounded(&(0..400).map(slow).collect::<Vec<_>>()));
    }
}
