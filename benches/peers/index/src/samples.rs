//! Samples of latencies, in nanoseconds.

/// Measured latencies.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<u64>);

impl Samples {
    pub(crate) fn with_capacity(len: usize) -> Self {
        Self(Vec::with_capacity(len))
    }

    pub(crate) fn push(&mut self, nanoseconds: u128) {
        self.0.push(nanoseconds as u64);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Sorts the samples, to read quantiles.
    pub(crate) fn sorted(mut self) -> Sorted {
        assert!(!self.0.is_empty(), "nothing was measured");
        self.0.sort_unstable();
        Sorted(self.0)
    }
}

/// Sorted latencies.
#[derive(Debug)]
pub(crate) struct Sorted(Vec<u64>);

impl Sorted {
    /// The latency that `share` of the samples does not exceed.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0[rank.clamp(1, self.0.len()) - 1] as f64
    }
}
