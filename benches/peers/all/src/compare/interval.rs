//! Statistics of paired ratios: the median with a distribution-free confidence interval (order statistics).

use bench_figures::number::median;

/// Minimum number of pairs of measurements for a result.
pub(crate) const PAIRS_MIN: usize = 5;
/// Minimum probability that an interval contains the true median. Five pairs reach 94 %.
const CONFIDENCE: f64 = 0.95;

/// A confidence interval for the median of ratios, bounded by two of these ratios.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

/// Result of comparing a build with another one, by the cost of the same work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The complete interval lies above the bound.
    Worse,
    /// Any other case: the difference is smaller, or too uncertain.
    NotWorse,
    /// The complete interval lies beyond the bound on the other side.
    Better,
    /// Too few pairs.
    NotMeasured,
}

impl Interval {
    /// The interval of some ratios; none with too few ratios.
    pub(crate) fn of(ratios: &[f64]) -> Option<Self> {
        let mut sorted = ratios.to_vec();
        sorted.retain(|ratio| ratio.is_finite());
        sorted.sort_unstable_by(f64::total_cmp);
        let outside = outside(sorted.len());
        let low = *sorted.get(outside)?;
        let high = *sorted.iter().rev().nth(outside)?;
        let is_enough = sorted.len() >= PAIRS_MIN;
        is_enough.then_some(Self { low, median: median(&sorted), high })
    }
}

/// Number of smallest and of largest values outside the interval.
///
/// Each value is below the median with probability 1/2. So the median is below the interval if at most that many values
/// are below the median. The probability of this is a sum of binomials.
fn outside(count: usize) -> usize {
    let pairs = count as f64;
    let mut term = 0.5_f64.powf(pairs);
    let mut below = term;
    for outside in 0..count {
        let next = outside as f64;
        term *= (pairs - next) / (next + 1.0);
        below += term;
        if 1.0 - 2.0 * below < CONFIDENCE {
            return outside;
        }
    }
    0
}

impl Verdict {
    /// The result for an interval. `bound` is a fraction: 0.03 is 3 %.
    pub(crate) fn of(interval: Option<Interval>, bound: f64) -> Self {
        match interval {
            None => Self::NotMeasured,
            Some(at) if at.low > 1.0 + bound => Self::Worse,
            Some(at) if at.high < 1.0 / (1.0 + bound) => Self::Better,
            Some(_) => Self::NotWorse,
        }
    }

    /// The result as text.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Worse => "**worse**",
            Self::NotWorse => "not worse",
            Self::Better => "better",
            Self::NotMeasured => "**not measured**",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(ratios: &[f64]) -> (f64, f64, f64) {
        let at = Interval::of(ratios).expect("enough pairs");
        (at.low, at.median, at.high)
    }

    #[test]
    fn few_pairs_have_no_interval() {
        assert_eq!(Interval::of(&[]), None);
        assert_eq!(Interval::of(&[1.0; PAIRS_MIN - 1]), None);
        assert_eq!(Interval::of(&[1.0, 1.0, 1.0, 1.0, f64::NAN]), None);
        assert_eq!(Verdict::of(None, 0.03), Verdict::NotMeasured);
    }

    #[test]
    fn the_interval_leaves_out_as_many_as_its_confidence_allows() {
        // From tables of the sign test: with 5 to 8 pairs no value is outside, with 9 to 11 one at each end, with 12 to
        // 14 two, with 20 five.
        for (count, wanted) in [(5, 0), (8, 0), (9, 1), (11, 1), (12, 2), (14, 2), (20, 5)] {
            assert_eq!(outside(count), wanted, "{count} pairs");
        }
        let ratios = [1.05, 0.90, 1.00, 1.02, 1.01, 0.99, 1.03, 1.04, 2.00];
        assert_eq!(interval(&ratios), (0.99, 1.02, 1.05));
        assert_eq!(interval(&ratios[..5]), (0.90, 1.01, 1.05));
    }

    #[test]
    fn only_an_interval_wholly_beyond_the_bound_is_worse() {
        let verdict = |ratios: &[f64]| Verdict::of(Interval::of(ratios), 0.03);
        assert_eq!(verdict(&[1.04, 1.05, 1.04, 1.06, 1.10]), Verdict::Worse);
        assert_eq!(verdict(&[1.04, 1.05, 1.02, 1.06, 1.10]), Verdict::NotWorse);
        assert_eq!(verdict(&[1.00, 1.01, 0.99, 1.00, 1.02]), Verdict::NotWorse);
        assert_eq!(verdict(&[0.90, 0.91, 0.96, 0.90, 0.92]), Verdict::Better);
        // A single outlier among nine values has no effect.
        let mut nine = [1.05; 9];
        nine[0] = 0.5;
        assert_eq!(verdict(&nine), Verdict::Worse);
    }
}
