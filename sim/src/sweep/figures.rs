//! Computes the metrics of a run, and their means over seeds.

use super::cluster::{Run, Served};
use crate::engine::timed::{Nanos, SECOND};

/// Divisor: the first tenth of the requests of a run finds empty caches and does not count.
const WARM_UP_FRACTION: usize = 10;

/// Metrics of one run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Figures {
    /// Prompt tokens found in caches, as a fraction of all prompt tokens: a ratio of sums, 0 to 1.
    pub hit_ratio: f64,
    /// Prompt tokens that the router expected in caches, as a fraction of all prompt tokens, 0 to 1.
    pub predicted_ratio: f64,
    /// Sum of the differences between expected and found tokens of each request, as a fraction of all prompt tokens.
    pub misjudged_ratio: f64,
    /// Mean time to the first token, in seconds.
    pub ttft_mean: f64,
    /// Median time to the first token, in seconds.
    pub ttft_p50: f64,
    /// 99th percentile of the time to the first token, in seconds.
    pub ttft_p99: f64,
    /// The part of the mean until the current step ends, in seconds.
    pub wait_step: f64,
    /// The following part of the mean until a step begins with the request, in seconds.
    pub wait_queue: f64,
    /// The rest of the mean, in seconds: steps until the first token, and transfers.
    pub wait_prefill: f64,
    /// Mean time between tokens of answers, in seconds: the sum of all gaps divided by their number.
    pub itl_mean: f64,
    /// Tokens computed by the busiest engine, divided by the mean over engines; 1 is even.
    pub imbalance: f64,
}

/// A mean over seeds, with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half of the interval's width; 0 for a single value.
    pub half: f64,
}

/// 97.5 % quantiles of Student's t by degrees of freedom, from 1.
const STUDENT_T: [f64; 19] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
];
/// 97.5 % quantile for more degrees of freedom than the table: that of 20, which is slightly too wide.
const STUDENT_T_MORE: f64 = 2.086;

// === impl Figures ===

impl Figures {
    /// Computes the metrics of a run.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        let counted = run.served.get(run.served.len() / WARM_UP_FRACTION..).unwrap_or_default();
        let sum = |of: fn(&Served) -> u64| counted.iter().map(of).sum::<u64>() as f64;
        let mut waits: Vec<Nanos> = counted.iter().map(Served::wait).collect();
        waits.sort_unstable();
        let gaps = sum(|at| at.answer_tokens as u64 - 1);
        let computed = || run.computed_tokens.iter().map(|&tokens| tokens as f64);
        let mean = computed().sum::<f64>() / run.computed_tokens.len().max(1) as f64;
        let prompt_tokens = sum(|at| at.prompt_tokens as u64);
        let seconds = (counted.len() as u64 * SECOND) as f64;
        Self {
            hit_ratio: ratio(sum(|at| at.hit_tokens as u64), prompt_tokens),
            predicted_ratio: ratio(sum(|at| at.predicted_tokens as u64), prompt_tokens),
            misjudged_ratio: ratio(sum(Served::misjudged), prompt_tokens),
            ttft_mean: ratio(sum(Served::wait), seconds),
            wait_step: ratio(sum(|at| at.residual), seconds),
            wait_queue: ratio(sum(Served::queued), seconds),
            wait_prefill: ratio(sum(|at| at.first_token - at.begun), seconds),
            ttft_p50: quantile(&waits, 0.5),
            ttft_p99: quantile(&waits, 0.99),
            itl_mean: ratio(sum(|at| at.end - at.first_token), gaps * SECOND as f64),
            imbalance: ratio(computed().fold(0.0, f64::max), mean),
        }
    }
}

// === impl Served ===

impl Served {
    /// Time to the first token.
    fn wait(&self) -> Nanos {
        self.first_token - self.arrival
    }

    /// Time from the end of the current step at arrival to the first step with the request.
    fn queued(&self) -> Nanos {
        (self.begun - self.arrival).saturating_sub(self.residual)
    }

    /// Difference between expected and found prompt tokens.
    fn misjudged(&self) -> u64 {
        self.predicted_tokens.abs_diff(self.hit_tokens) as u64
    }
}

// === impl Estimate ===

impl Estimate {
    /// The estimate from one value per seed.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = ratio(values.iter().sum(), count);
        let Some(freedom) = values.len().checked_sub(1).filter(|&freedom| freedom > 0) else {
            return Self { mean, half: 0.0 };
        };
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let t = STUDENT_T.get(freedom - 1).copied().unwrap_or(STUDENT_T_MORE);
        Self { mean, half: t * (squares / freedom as f64 / count).sqrt() }
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// The quantile `share` of sorted times, in seconds.
fn quantile(sorted: &[Nanos], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    let value = sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0);
    value as f64 / SECOND as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_and_quantiles_are_those_of_the_books() {
        let of = Estimate::of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!((of.mean - 3.0).abs() < 1e-12 && (of.half - 1.9629).abs() < 1e-3, "{of:?}");
        assert_eq!(Estimate::of(&[7.0]), Estimate { mean: 7.0, half: 0.0 });
        let sorted: Vec<Nanos> = (1..=100).map(|at| at * SECOND).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|share| quantile(&sorted, share)), [50.0, 99.0, 100.0]);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn ratios_are_those_of_sums_and_leave_out_the_first_requests() {
        let served = |prompt_tokens, hit_tokens, wait| Served {
            arrival: SECOND,
            residual: SECOND / 4,
            begun: SECOND + SECOND / 2,
            first_token: SECOND + wait * SECOND,
            end: SECOND * (wait + 5),
            prompt_tokens,
            predicted_tokens: 50,
            hit_tokens,
            answer_tokens: 5,
        };
        let mut all = vec![served(100, 0, 50)];
        all.extend([served(100, 100, 1), served(300, 0, 3)]);
        all.extend(vec![served(100, 0, 2); 7]);
        let figures = Figures::of(&Run { served: all, computed_tokens: vec![10, 30] });
        assert!((figures.hit_ratio - 100.0 / 1_100.0).abs() < 1e-12, "{figures:?}");
        assert_eq!((figures.ttft_mean, figures.ttft_p99, figures.itl_mean), (2.0, 3.0, 1.0));
        assert_eq!(figures.imbalance, 1.5);
        assert!((figures.predicted_ratio - 450.0 / 1_100.0).abs() < 1e-12, "{figures:?}");
        assert!((figures.misjudged_ratio - 450.0 / 1_100.0).abs() < 1e-12, "{figures:?}");
        let parts = [figures.wait_step, figures.wait_queue, figures.wait_prefill];
        assert_eq!(parts, [0.25, 0.25, 1.5]);
    }
}
