//! Reports the growth of fleets: tables, straight lines through the sizes, and targets.

use bench_figures::{Axis, Bar, Figure, Limit, Part, Plot, Table};
use hdrhistogram::Histogram;

/// Number of pairs for which the start must take at most [`START_SECONDS_MAX`].
const START_PAIRS: u64 = 50_000_000;
/// Maximum duration of the start with [`START_PAIRS`], in seconds.
const START_SECONDS_MAX: f64 = 5.0;
/// Number of pairs to which the measured sizes are extrapolated.
const EXTENDED_TO: f64 = 200e6;
const MEBIBYTE: f64 = 1_048_576.0;

const METHOD: &str = "A real indexer-server, `load` as its only client, one call at a time; latencies are p50 / p99 / longest, in µs, from \
    outside. By pairs: 64 workers, a chain of blocks each at a time, which no other worker holds; one model. By workers: all \
    ranks hold one prompt of 16 blocks, two workers a second one. By models: one worker each, with a prompt of 16 blocks. \
    Memory is what grew since the server was empty; with few models or ranks that includes what connections take. One trial; \
    the start is the median of all kills.";

/// Times of single calls, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    pub(super) max_us: u64,
}

/// An index with this many pairs and 64 workers.
#[derive(Debug)]
pub(super) struct ByPairs {
    pub(super) pairs: u64,
    pub(super) resident_bytes: u64,
    pub(super) hit_64_blocks: Times,
    pub(super) hit_256_blocks: Times,
    /// Measured while the first checkpoint, of everything, is written.
    pub(super) hit_64_blocks_beside_checkpoint: Times,
    pub(super) checkpoint_ms: u64,
    pub(super) disk_bytes: u64,
    /// Times from the start of the process to ready, after each kill, in milliseconds.
    pub(super) ready_ms: Vec<f64>,
}

/// A fleet whose ranks all have one short prompt; two workers have another prompt.
#[derive(Debug)]
pub(super) struct ByWorkers {
    pub(super) workers: u64,
    pub(super) ranks: u64,
    pub(super) resident_bytes: u64,
    pub(super) registered_and_published_s: f64,
    pub(super) list_workers_ms: f64,
    pub(super) held_by_two_workers: Times,
    pub(super) held_by_all_best_ten: Times,
    /// Only for small fleets.
    pub(super) held_by_all: Option<Times>,
}

/// A server with this many models and one worker per model.
#[derive(Debug)]
pub(super) struct ByModels {
    pub(super) models: u64,
    pub(super) resident_bytes: u64,
    pub(super) hit: Times,
}

impl ByPairs {
    /// Median of all starts, in seconds.
    fn ready_s(&self) -> f64 {
        Figure::of(self.ready_ms.iter().map(|at| at / 1e3)).map_or(f64::NAN, |at| at.median)
    }
}

impl Times {
    pub(super) fn of(times: &Histogram<u64>) -> Self {
        Self {
            p50_us: times.value_at_quantile(0.5),
            p99_us: times.value_at_quantile(0.99),
            max_us: times.max(),
        }
    }
}

/// Results of all sizes.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    pub(super) by_pairs: Vec<ByPairs>,
    pub(super) by_workers: Vec<ByWorkers>,
    pub(super) by_models: Vec<ByModels>,
}

/// The part for the report of all benches.
pub(super) fn part(sizes: &Sizes) -> Part {
    let title = "What one server carries".to_owned();
    let notes = vec![METHOD.to_owned()];
    let mut part = Part { title, notes, bars: vec![start(sizes)], ..Part::default() };
    part.add("By pairs", "", by_pairs(sizes));
    part.add("By workers", "", by_workers(sizes));
    part.add("By models", "", by_models(sizes));
    part.add("Straight lines through the sizes", "", lines(sizes));
    let axes = || (Axis::linear("million pairs"), Axis::linear("seconds"));
    let points = |figure: fn(&ByPairs) -> f64| {
        sizes.by_pairs.iter().map(move |at| (at.pairs as f64 / 1e6, figure(at)))
    };
    let plot =
        Plot::lines("scale-start", "Start and first checkpoint by pairs", axes().0, axes().1);
    let plot = plot.with_line("ready after a kill", points(ByPairs::ready_s));
    part.add_plot(plot.with_line("first checkpoint", points(|at| at.checkpoint_ms as f64 / 1e3)));
    part
}

fn start(sizes: &Sizes) -> Bar {
    let is_of_size = |pairs: u64| (START_PAIRS..START_PAIRS / 100 * 101).contains(&pairs);
    let of_size = sizes.by_pairs.iter().filter(|at| is_of_size(at.pairs));
    let measured = Figure::of(of_size.flat_map(|at| at.ready_ms.iter().map(|at| at / 1e3)));
    let what = format!("ready after a kill with {} M pairs", START_PAIRS / 1_000_000);
    let limit = Limit::AtMost(START_SECONDS_MAX);
    let show = |seconds: f64| format!("{seconds:.1} s");
    Bar::new("scale.start".to_owned(), what, limit, limit.text(show)).with_figure(measured, show)
}

fn latency(times: Times) -> String {
    format!("{} / {} / {}", times.p50_us, times.p99_us, times.max_us)
}

fn by_pairs(sizes: &Sizes) -> Table {
    let heads = [
        "million pairs",
        "bytes a pair",
        "query of 64 blocks",
        "of 256 blocks",
        "of 64 beside the first checkpoint",
        "checkpoint, s",
        "bytes a pair on disk",
        "ready after a kill, s",
    ];
    let mut table = Table::new(heads);
    for at in &sizes.by_pairs {
        let pairs = at.pairs as f64;
        table.row([
            format!("{}", pairs / 1e6),
            format!("{:.1}", at.resident_bytes as f64 / pairs),
            latency(at.hit_64_blocks),
            latency(at.hit_256_blocks),
            latency(at.hit_64_blocks_beside_checkpoint),
            format!("{:.2}", at.checkpoint_ms as f64 / 1e3),
            format!("{:.1}", at.disk_bytes as f64 / pairs),
            format!("{:.2}", at.ready_s()),
        ]);
    }
    table
}

fn by_workers(sizes: &Sizes) -> Table {
    let heads = [
        "workers",
        "ranks",
        "MiB",
        "all registered and published, s",
        "ListWorkers, ms",
        "prompt of two workers",
        "ten best of all",
        "all ranks",
    ];
    let mut table = Table::new(heads);
    for at in &sizes.by_workers {
        table.row([
            at.workers.to_string(),
            at.ranks.to_string(),
            format!("{:.1}", at.resident_bytes as f64 / MEBIBYTE),
            format!("{:.2}", at.registered_and_published_s),
            format!("{:.1}", at.list_workers_ms),
            latency(at.held_by_two_workers),
            latency(at.held_by_all_best_ten),
            at.held_by_all.map_or_else(String::new, latency),
        ]);
    }
    table
}

fn by_models(sizes: &Sizes) -> Table {
    let mut table = Table::new(["models", "MiB", "query of 16 blocks"]);
    for at in &sizes.by_models {
        let mebibytes = at.resident_bytes as f64 / MEBIBYTE;
        table.row([at.models.to_string(), format!("{mebibytes:.1}"), latency(at.hit)]);
    }
    table
}

fn lines(sizes: &Sizes) -> Table {
    let heads = ["what", "each further one", "the line is off by at most", "200 M pairs"];
    let mut table = Table::new(heads);
    let mut row = |what: &str, points: Vec<(f64, f64)>, show: fn(f64) -> String, is_extended| {
        let Some(line) = Line::through(&points) else { return };
        let off = format!("{:.0} %", 100.0 * line.deviation(&points));
        let extended = if is_extended { show(line.at(EXTENDED_TO)) } else { String::new() };
        table.row([what.to_owned(), show(line.slope), off, extended]);
    };
    let bytes = |bytes: f64| match bytes {
        1e9.. => format!("{:.1} GB", bytes / 1e9),
        1e3.. => format!("{:.1} KB", bytes / 1e3),
        _ => format!("{bytes:.1} B"),
    };
    let of_pairs = |figure: fn(&ByPairs) -> f64| {
        sizes.by_pairs.iter().map(|at| (at.pairs as f64, figure(at))).collect::<Vec<_>>()
    };
    row("memory of a pair", of_pairs(|at| at.resident_bytes as f64), bytes, true);
    row("disk of a pair", of_pairs(|at| at.disk_bytes as f64), bytes, true);
    let seconds =
        |at: f64| if at < 1.0 { format!("{:.0} ns", at * 1e9) } else { format!("{at:.0} s") };
    row("start, of a pair", of_pairs(ByPairs::ready_s), seconds, true);
    let ranks = sizes.by_workers.iter().map(|at| (at.ranks as f64, at.resident_bytes as f64));
    row("memory of a rank", ranks.collect(), bytes, false);
    let models = sizes.by_models.iter().map(|at| (at.models as f64, at.resident_bytes as f64));
    row("memory of a model", models.collect(), bytes, false);
    table
}

/// A straight line `at(x) = base + slope * x`, by least squares.
#[derive(Debug, Clone, Copy)]
struct Line {
    base: f64,
    slope: f64,
}

impl Line {
    /// Fits a line; none with fewer than two points.
    fn through(points: &[(f64, f64)]) -> Option<Self> {
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let x = mean(|at| at.0);
        let y = mean(|at| at.1);
        let spread = points.iter().map(|at| (at.0 - x).powi(2)).sum::<f64>();
        let common = points.iter().map(|at| (at.0 - x) * (at.1 - y)).sum::<f64>();
        let slope = common / spread;
        (points.len() > 1 && spread > 0.0).then_some(Self { base: y - slope * x, slope })
    }

    fn at(self, x: f64) -> f64 {
        self.slope.mul_add(x, self.base)
    }

    /// Largest deviation of a point, as a fraction of its value.
    fn deviation(self, points: &[(f64, f64)]) -> f64 {
        let measured = points.iter().filter(|at| at.1 > 0.0);
        measured.map(|&(x, y)| (self.at(x) - y).abs() / y).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_figures::Verdict;

    fn of_pairs(pairs: u64, ready_ms: f64) -> ByPairs {
        let times = Times { p50_us: 1, p99_us: 2, max_us: 3 };
        ByPairs {
            pairs,
            resident_bytes: 40 * pairs,
            hit_64_blocks: times,
            hit_256_blocks: times,
            hit_64_blocks_beside_checkpoint: times,
            checkpoint_ms: 1,
            disk_bytes: 20 * pairs,
            ready_ms: vec![ready_ms],
        }
    }

    fn verdict(by_pairs: Vec<ByPairs>) -> Verdict {
        part(&Sizes { by_pairs, ..Sizes::default() }).bars[0].verdict()
    }

    #[test]
    fn the_start_is_met_or_missed_where_its_size_was_measured_only() {
        assert_eq!(verdict(vec![of_pairs(START_PAIRS, 4_900.0)]), Verdict::Met);
        assert_eq!(verdict(vec![of_pairs(START_PAIRS + 64, 5_100.0)]), Verdict::Missed);
        assert_eq!(verdict(vec![of_pairs(4 * START_PAIRS, 4_900.0)]), Verdict::NotMeasured);
        let small = [of_pairs(1_000_000, 100.0), of_pairs(2_000_000, 200.0)];
        assert_eq!(verdict(small.into()), Verdict::NotMeasured);
    }

    #[test]
    fn a_line_is_extended_beyond_the_sizes() {
        let by_pairs = vec![of_pairs(1_000_000, 200.0), of_pairs(2_000_000, 300.0)];
        let text = lines(&Sizes { by_pairs, ..Sizes::default() }).to_string();
        for cell in ["40.0 B", "8.0 GB", "100 ns", "20 s"] {
            assert!(text.contains(cell), "{cell} in {text}");
        }
    }

    #[test]
    fn a_line_goes_through_points_and_says_how_far_they_are_off() {
        let line = Line::through(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]).expect("three points");
        assert!((line.at(10.0) - 23.0).abs() < 1e-9, "{line:?}");
        let off = line.deviation(&[(1.0, 5.0), (2.0, 7.7), (0.0, 0.0)]);
        assert!((off - 0.7 / 7.7).abs() < 1e-9, "{off} of {line:?}");
        assert!(Line::through(&[(1.0, 5.0)]).is_none(), "one point");
        assert!(Line::through(&[(1.0, 5.0), (1.0, 6.0)]).is_none(), "one size twice");
    }
}
