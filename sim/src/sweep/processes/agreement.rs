//! Checks whether processes and virtual time agree (pure).

use super::super::cluster::{Run, Served};
use super::super::figures::Figures;
use super::super::way::Policy;
use super::drive::Reply;
use super::requests::Request;
use crate::engine::timed::{Job, Nanos, SECOND};
use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use std::fmt::Write as _;
use std::time::Duration;

/// Maximum deviation at which both agree.
pub const DEVIATION_MAX: f64 = 0.1;
/// Maximum mean lateness of arrivals for a valid result, as a fraction of the mean time to the first token in virtual
/// time. Clients' times include the lateness; the maximum is a fifth of the allowed deviation.
pub const LATENESS_SHARE_MAX: f64 = 0.02;

/// Lateness of arrivals, in seconds of the model.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lateness {
    /// Mean lateness.
    pub mean: f64,
    /// 99th percentile of the lateness.
    pub p99: f64,
    /// Maximum lateness.
    pub max: f64,
}

/// Measurements with processes. All times are those of the model: real time multiplied by the scale.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Times measured by clients. Times known only to engines are missing.
    pub run: Run,
    /// Mean time from a request's arrival at its engine to its first token, by the engines' clocks, in seconds.
    pub engines_ttft_mean: f64,
    /// Lateness of the sent requests.
    pub lateness: Lateness,
    /// Upper bound of the index's mean delay behind the caches, in seconds.
    pub index_delay: f64,
    /// Number of measurements of this delay.
    pub probes: usize,
    /// Number of requests placed without the index's answer, although the policy queries it.
    pub uninformed: usize,
}

/// One routing policy, with processes and in virtual time.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Routing policy.
    pub policy: Policy,
    /// The run in virtual time, with the measured delay of the index.
    pub twin: Run,
    /// The run with processes.
    pub measured: Measured,
}

/// Result of comparing a figure of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Both agree.
    Agrees,
    /// Both deviate.
    Deviates,
    /// The machine was too busy for a result.
    Unknown,
}

/// Results of the comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Agreement {
    /// Name of the workload.
    pub workload: String,
    /// Load, in percent of the rate that round-robin sustains.
    pub load: f64,
    /// Seed of the workload.
    pub seed: u64,
    /// Number of engines.
    pub engines: usize,
    /// Factor by which the processes were faster than the model.
    pub time_scale: f64,
    /// The compared policies.
    pub pairs: Vec<Pair>,
}

// === impl Measured ===

impl Measured {
    /// Combines the clients' measurements.
    pub(super) fn new(
        jobs: &[Job],
        arrivals: &[Nanos],
        requests: &[Request],
        replies: &[Reply],
        engines: usize,
        time_scale: f64,
    ) -> Self {
        let nanos = |time: Duration| (time.as_nanos() as f64 * time_scale) as Nanos;
        let mut computed_tokens = vec![0; engines];
        let mut served = Vec::with_capacity(replies.len());
        for reply in replies {
            let Job { prompt_tokens, answer_tokens, .. } = jobs[reply.number];
            let arrival = arrivals[reply.number];
            let hit_tokens = reply.cached_tokens as usize;
            let computed = prompt_tokens - hit_tokens + answer_tokens - 1;
            computed_tokens[reply.engine] += computed as u64;
            let real =
                |time: Duration| arrival + nanos(time.saturating_sub(requests[reply.number].due));
            served.push(Served {
                arrival,
                begun: arrival,
                first_token: real(reply.first_token),
                end: real(reply.end),
                prompt_tokens,
                answer_tokens,
                predicted_tokens: reply.expected_tokens as usize,
                hit_tokens,
                ..Served::default()
            });
        }
        let mut late: Vec<_> = replies.iter().map(|at| nanos(at.lateness)).collect();
        Self {
            run: Run { served, computed_tokens },
            engines_ttft_mean: 0.0,
            lateness: Lateness::of(&mut late),
            index_delay: 0.0,
            probes: 0,
            uninformed: replies.iter().filter(|reply| !reply.is_informed).count(),
        }
    }
}

// === impl Lateness ===

impl Lateness {
    /// The lateness of requests.
    fn of(nanos: &mut [Nanos]) -> Self {
        nanos.sort_unstable();
        let seconds = |nanos: Nanos| nanos as f64 / SECOND as f64;
        let last = nanos.len().saturating_sub(1);
        let p99 = (last as f64 * 0.99).round() as usize;
        Self {
            mean: seconds(nanos.iter().sum()) / nanos.len().max(1) as f64,
            p99: nanos.get(p99).copied().map_or(0.0, seconds),
            max: nanos.last().copied().map_or(0.0, seconds),
        }
    }
}

// === impl Pair ===

impl Pair {
    /// Deviation of the mean time to the first token, as a fraction of virtual time's.
    #[must_use]
    pub fn ttft_deviation(&self) -> f64 {
        let [twin, measured] = self.figures();
        deviation(measured.ttft_mean, twin.ttft_mean)
    }

    /// Deviation of the hit tokens, as a fraction of virtual time's.
    #[must_use]
    pub fn hit_deviation(&self) -> f64 {
        let [twin, measured] = self.figures();
        deviation(measured.hit_ratio, twin.hit_ratio)
    }

    /// Deviation of the mean time from the arrival at the engine to the first token, over all requests. The load of the
    /// machine hardly changes it: engines take their steps at the model's times, even if late.
    #[must_use]
    pub fn engines_ttft_deviation(&self) -> f64 {
        deviation(self.measured.engines_ttft_mean, mean_wait(&self.twin))
    }

    /// The part of the mean time to the first token outside the engines, in seconds: until requests are sent, in the
    /// router, and on the way.
    #[must_use]
    pub fn outside(&self) -> f64 {
        mean_wait(&self.measured.run) - self.measured.engines_ttft_mean
    }

    /// Whether times and hit tokens agree.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let [twin, _] = self.figures();
        let deviations = [self.ttft_deviation(), self.hit_deviation()];
        if self.measured.lateness.mean > LATENESS_SHARE_MAX * twin.ttft_mean {
            Verdict::Unknown
        } else if deviations.iter().all(|at| at.abs() <= DEVIATION_MAX) {
            Verdict::Agrees
        } else {
            Verdict::Deviates
        }
    }

    /// Metrics in virtual time, and with processes.
    fn figures(&self) -> [Figures; 2] {
        [&self.twin, &self.measured.run].map(Figures::of)
    }
}

fn mean_wait(run: &Run) -> f64 {
    let waits = run.served.iter().map(|at| at.first_token - at.arrival);
    waits.sum::<Nanos>() as f64 / (run.served.len().max(1) as u64 * SECOND) as f64
}

fn deviation(measured: f64, twin: f64) -> f64 {
    let difference = measured - twin;
    if difference == 0.0 { 0.0 } else { difference / twin }
}

// === impl Agreement ===

impl Agreement {
    /// The worst result of all pairs.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let verdicts: Vec<_> = self.pairs.iter().map(Pair::verdict).collect();
        let has = |verdict| verdicts.contains(&verdict);
        match (has(Verdict::Unknown), has(Verdict::Deviates)) {
            (true, _) => Verdict::Unknown,
            (false, true) => Verdict::Deviates,
            (false, false) => Verdict::Agrees,
        }
    }

    /// Checks that all pairs agree.
    ///
    /// # Errors
    /// If a pair deviates, or the machine was too busy for a result.
    pub fn check(&self) -> Result<()> {
        let Self { workload, load, seed, .. } = self;
        match self.verdict() {
            Verdict::Agrees => Ok(()),
            Verdict::Deviates => bail!(
                "{workload} at {load} %, seed {seed}: processes and virtual time deviate by more than {:.0} %",
                DEVIATION_MAX * 100.0
            ),
            Verdict::Unknown => bail!(
                "{workload} at {load} %, seed {seed}: no verdict, as arrivals were too late: try on a quieter machine, or \
                 with a smaller --time-scale"
            ),
        }
    }

    /// The table and its conclusions.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { workload, load, seed, engines, time_scale, pairs } = self;
        let requests = pairs.first().map_or(0, |pair| pair.twin.served.len());
        let mut text = format!(
            "{workload}, {load} % of load, seed {seed}: {requests} requests to {engines} engines, once with processes and \
             once in virtual time.\nTimes are the model's; the processes went {time_scale} times as fast.\n\n{}\n\n",
            table(pairs)
        );
        for pair in pairs {
            text += &pair.text();
        }
        text
    }
}

fn table(pairs: &[Pair]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "way",
        "by",
        "TTFT mean s",
        "p50 s",
        "p99 s",
        "hits %",
        "predicted %",
        "ITL ms",
        "imbalance",
    ]);
    for pair in pairs {
        let figures = pair.figures();
        let values = figures.map(|at| {
            [
                at.ttft_mean,
                at.ttft_p50,
                at.ttft_p99,
                at.hit_ratio * 100.0,
                at.predicted_ratio * 100.0,
                at.itl_mean * 1e3,
                at.imbalance,
            ]
        });
        let digits = [3, 3, 3, 2, 2, 2, 3];
        let row = |by: &str, cells: Vec<String>| {
            [pair.policy.to_string(), by.to_owned()].into_iter().chain(cells).collect::<Vec<_>>()
        };
        let [twin, measured] = values.map(|values| {
            let cells = values.iter().zip(digits);
            cells.map(|(value, digits)| format!("{value:.digits$}")).collect()
        });
        let [of_twin, of_measured] = values;
        let deviations = of_measured.iter().zip(of_twin);
        let deviations = deviations.map(|(&a, b)| format!("{:+.1} %", deviation(a, b) * 100.0));
        table.add_row(row("virtual time", twin));
        table.add_row(row("processes", measured));
        table.add_row(row("deviation", deviations.collect()));
    }
    table
}

impl Pair {
    /// The result, with an explanation.
    fn text(&self) -> String {
        let Measured { lateness, index_delay, probes, uninformed, .. } = &self.measured;
        let mut text = String::new();
        let policy = self.policy;
        let [twin, _] = self.figures();
        let limit = LATENESS_SHARE_MAX * twin.ttft_mean;
        let lines = [
            format!(
                "arrivals were late by {:.1} ms in the mean (limit: {:.1}), {:.1} ms at the 99th percentile, {:.1} ms at \
                 most",
                lateness.mean * 1e3,
                limit * 1e3,
                lateness.p99 * 1e3,
                lateness.max * 1e3
            ),
            format!(
                "{:.1} ms of the mean time to the first token pass outside the engines; by their own clocks it deviates by \
                 {:+.1} %",
                self.outside() * 1e3,
                self.engines_ttft_deviation() * 100.0
            ),
            format!(
                "the index heard of caches after {:.1} ms ({probes} probes), as in virtual time; {uninformed} requests were \
                 placed without it",
                index_delay * 1e3
            ),
        ];
        let verdict = match self.verdict() {
            Verdict::Agrees => "yes",
            Verdict::Deviates => "NO ",
            Verdict::Unknown => "?? ",
        };
        let what = match self.verdict() {
            Verdict::Unknown => {
                "no verdict: arrivals were too late, the machine is too busy".to_owned()
            }
            Verdict::Agrees | Verdict::Deviates => format!(
                "mean TTFT deviates by {:+.1} %, hit tokens by {:+.1} %; wanted: at most {:.0} %",
                self.ttft_deviation() * 100.0,
                self.hit_deviation() * 100.0,
                DEVIATION_MAX * 100.0
            ),
        };
        // Writing to a string does not fail.
        let _written = writeln!(text, "{verdict} {policy}: {what}");
        for line in lines {
            let _written = writeln!(text, "    {line}");
        }
        text
    }
}

#[cfg(test)]
#[path = "agreement_test.rs"]
mod agreement_test;
