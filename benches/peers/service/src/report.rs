//! Creates the part for the report: medians of both servers, with targets.

use crate::freshness::RATES;
use crate::measure::{Measurement, figure};
use crate::subject::{Dynamo, Kvasir, Subject};
use bench_figures::{Axis, Bar, Figure, Incident, Limit, Part, Plot, Side, Table};

const TITLE: &str = "The service beside Dynamo's";
const METHOD: &str = "`python -m dynamo.indexer` (ai-dynamo 1.6.1) and `indexer-server` on the same \
    streams: 64 PUB sockets, one 16-block store a batch. Each trial starts one of them; they take turns. \
    CPU time and memory of the server's processes, from outside. Queries one at a time over one \
    connection, each by its own protocol, if not said otherwise.";
const MEBIBYTE: f64 = 1_048_576.0;
/// Maximum additional memory of a complete dump that counts as constant, in MiB.
const DUMP_GROWTH_MAX_MIB: f64 = 16.0;
const AGAINST: &str = "Dynamo's";

/// A table row: label, measure, divisor, decimals.
struct Row(&'static str, &'static str, f64, usize);

const ROWS: &[Row] = &[
    Row("ingest, M pairs / CPU s", "ingest_pairs_per_cpu_second", 1e6, 2),
    Row("ingest, M pairs / s", "ingest_pairs_per_second", 1e6, 2),
    Row("2,048 publishers, batches / CPU s", "publishers_2048_batches_per_cpu_second", 1.0, 0),
    Row("… batches / s", "publishers_2048_batches_per_second", 1.0, 0),
    Row("… RSS, MiB", "publishers_2048_resident_bytes", MEBIBYTE, 0),
    Row("RSS, bytes / pair", "resident_bytes_per_pair", 1.0, 1),
    Row("RSS before, MiB", "base_resident_bytes", MEBIBYTE, 1),
    Row("64 blocks by hash, CPU µs", "query_hashes_64_cpu_us", 1.0, 1),
    Row("256 blocks by hash, CPU µs", "query_hashes_256_cpu_us", 1.0, 1),
    Row("… p50 µs", "query_hashes_256_p50_us", 1.0, 0),
    Row("… p99 µs", "query_hashes_256_p99_us", 1.0, 0),
    Row("… ours in a stream, 16 in flight, CPU µs", "query_hashes_stream_256_cpu_us", 1.0, 1),
    Row("512 blocks by hash, CPU µs", "query_hashes_512_cpu_us", 1.0, 1),
    Row("64 blocks by tokens, CPU µs", "query_tokens_64_cpu_us", 1.0, 1),
    Row("256 blocks by tokens, CPU µs", "query_tokens_256_cpu_us", 1.0, 1),
    Row("… p50 µs", "query_tokens_256_p50_us", 1.0, 0),
    Row("… p99 µs", "query_tokens_256_p99_us", 1.0, 0),
    Row("… ours in a stream, 16 in flight, CPU µs", "query_tokens_stream_256_cpu_us", 1.0, 1),
    Row("512 blocks by tokens, CPU µs", "query_tokens_512_cpu_us", 1.0, 1),
    Row("dump of everything, s", "dump_seconds", 1.0, 2),
    Row("… CPU s", "dump_cpu_seconds", 1.0, 2),
    Row("… memory on top, MiB", "dump_peak_growth_bytes", MEBIBYTE, 1),
    Row("… bytes / pair", "dump_bytes_per_pair", 1.0, 1),
];

/// Targets compared with Dynamo: id, title, measure, unit, limit.
type Compared = (&'static str, &'static str, &'static str, (f64, &'static str), Limit);

const COMPARED: &[Compared] = &[
    (
        "service.ingest",
        "service: ingest, pairs per CPU s",
        "ingest_pairs_per_cpu_second",
        (1e6, "M"),
        Limit::AtLeast(4.0),
    ),
    (
        "service.query.unary",
        "service: CPU of a 256-block query by hash, single calls",
        "query_hashes_256_cpu_us",
        (1.0, "µs"),
        Limit::AtMost(0.15),
    ),
    (
        "service.query.stream",
        "service: CPU of a 256-block query by hash, ours in a stream of 16",
        "query_hashes_stream_256_cpu_us",
        (1.0, "µs"),
        Limit::AtMost(0.15),
    ),
    (
        "service.memory",
        "service: RSS per pair",
        "resident_bytes_per_pair",
        (1.0, "bytes"),
        Limit::AtMost(0.6),
    ),
    (
        "service.dump",
        "service: dump of everything, wall time",
        "dump_seconds",
        (1.0, "s"),
        Limit::AtMost(0.1),
    ),
    (
        "service.freshness.100000.stored",
        "service: from a batch to the first answer with its block, at 100,000 blocks/s, p99",
        "freshness_100000_stored_p99_us",
        (1.0, "µs"),
        Limit::AtMost(1.0),
    ),
    (
        "service.freshness.100000.removed",
        "service: from a batch to the first answer without its block, at 100,000 blocks/s, p99",
        "freshness_100000_removed_p99_us",
        (1.0, "µs"),
        Limit::AtMost(1.0),
    ),
    (
        "service.freshness.500000.stored",
        "service: from a batch to the first answer with its block, at 500,000 blocks/s, p99",
        "freshness_500000_stored_p99_us",
        (1.0, "µs"),
        Limit::AtMost(1.0),
    ),
    (
        "service.freshness.500000.removed",
        "service: from a batch to the first answer without its block, at 500,000 blocks/s, p99",
        "freshness_500000_removed_p99_us",
        (1.0, "µs"),
        Limit::AtMost(1.0),
    ),
];

/// The results of the trials.
pub fn part(taken: &[Measurement], incidents: Vec<Incident>) -> Part {
    // Dynamo's server has no stream: Kvasir's stream is compared with Dynamo's single calls.
    let theirs = |measure: &str| figure(taken, Dynamo::NAME, &measure.replace("_stream", ""));
    let ours = |measure: &str| figure(taken, Kvasir::NAME, measure);
    let mut bars: Vec<Bar> = COMPARED
        .iter()
        .map(|&(id, what, measure, unit, limit)| {
            let own = ours(measure);
            let other = theirs(measure);
            let ratio = own.zip(other).map(|(own, other)| own.median / other.median);
            let bar = Bar::ratio(id.to_owned(), what.to_owned(), limit, AGAINST);
            Bar { ours: side(own, unit), other: side(other, unit), ..bar.with_ratio(ratio) }
        })
        .collect();
    bars.push(dump_growth(ours("dump_peak_growth_bytes"), theirs("dump_peak_growth_bytes")));
    let mut table = Table::new(["measure", "dynamo.indexer", "indexer-server", "ratio"]);
    for &Row(title, measure, unit, decimals) in ROWS {
        let other = theirs(measure);
        let own = ours(measure);
        let show = |at: Option<Figure>| {
            at.map_or("not measured".to_owned(), |at| format!("{:.decimals$}", at.median / unit))
        };
        let ratio = own.zip(other).map(|(own, other)| format!("{:.3}", own.median / other.median));
        if own.or(other).is_some() {
            table.row([title.to_owned(), show(other), show(own), ratio.unwrap_or_default()]);
        }
    }
    let title = TITLE.to_owned();
    let notes = vec![METHOD.to_owned()];
    let mut part = Part { title, notes, bars, incidents, ..Part::default() };
    part.add("Service", "Medians of the trials.", table);
    part.add("From a batch to the first answer that shows it, µs", FRESHNESS, freshness(taken));
    plots(taken).into_iter().for_each(|plot| part.add_plot(plot));
    part
}

const FRESHNESS: &str = "p50 / p99 / longest of single blocks, stored and then removed, beside so many other blocks stored and \
    removed a second, half of each. A question follows the answer before it at once; a probe follows the one before it, so a stall counts once. \
    Dynamo's is asked by HTTP requests, ours by gRPC calls, and in a stream, as `router-client` asks. \
    A rate is empty if a block was not shown within 5 s, or the publishers were late.";

/// Servers and query modes, as in the table.
const ASKED: [(&str, &str, &str); 3] = [
    ("dynamo.indexer", Dynamo::NAME, ""),
    ("indexer-server", Kvasir::NAME, ""),
    ("indexer-server, in a stream", Kvasir::NAME, "_stream"),
];

/// Rows for each rate and query mode.
fn freshness(taken: &[Measurement]) -> Table {
    let mut table = Table::new(["blocks / s", "asked", "stored", "removed"]);
    for rate in RATES {
        for (name, server, way) in ASKED {
            let cell = |change| {
                let times = ["p50", "p99", "max"].map(|quantile| {
                    let measure = format!("freshness{way}_{rate}_{change}_{quantile}_us");
                    figure(taken, server, &measure).map(|at| format!("{:.0}", at.median))
                });
                let times: Option<Vec<String>> = times.into_iter().collect();
                times.map(|times| times.join(" / "))
            };
            let cells = ["stored", "removed"].map(cell);
            if cells.iter().any(Option::is_some) {
                let cells = cells.into_iter().map(Option::unwrap_or_default);
                table.row([rate.to_string(), name.to_owned()].into_iter().chain(cells));
            }
        }
    }
    table
}

/// Groups of bars: name of the plot, title, y axis, the groups and their measures.
type Groups = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const GROUPS: &[Groups] = &[
    (
        "ingest",
        "Ingest",
        "pairs a second",
        &[
            ("of CPU time", "ingest_pairs_per_cpu_second"),
            ("of wall time", "ingest_pairs_per_second"),
        ],
    ),
    (
        "memory",
        "Memory",
        "bytes per pair",
        &[("RSS", "resident_bytes_per_pair"), ("dump", "dump_bytes_per_pair")],
    ),
];

/// Numbers of blocks of the queries.
const BLOCKS: [u32; 3] = [64, 256, 512];

/// Plots of the two servers side by side.
fn plots(taken: &[Measurement]) -> Vec<Plot> {
    const SERVERS: [(&str, &str); 2] =
        [(Kvasir::NAME, "indexer-server"), (Dynamo::NAME, "dynamo.indexer")];
    let median = |server: &str, measure: &str| Some(figure(taken, server, measure)?.median);
    let bars = |&(name, title, y, groups): &Groups| {
        let labels = groups.iter().map(|&(label, _)| label);
        let plot = Plot::bars(format!("service-{name}"), title, labels, Axis::linear(y));
        SERVERS.into_iter().fold(plot, |plot, (server, legend)| {
            plot.with_bars(legend, groups.iter().map(|(_, measure)| median(server, measure)))
        })
    };
    let axes = (Axis::linear("blocks"), Axis::logarithmic("CPU µs"));
    let mut queries = Plot::lines("service-query", "Query by its blocks", axes.0, axes.1);
    for (server, legend) in SERVERS {
        for what in ["hashes", "tokens"] {
            let cpu = |blocks| median(server, &format!("query_{what}_{blocks}_cpu_us"));
            let point = |blocks| Some((f64::from(blocks), cpu(blocks)?));
            let points = BLOCKS.into_iter().filter_map(point);
            queries = queries.with_line(format!("{legend}, {what}"), points);
        }
    }
    let axes = (Axis::linear("blocks stored and removed a second"), Axis::linear("µs"));
    let mut fresh = Plot::lines("service-freshness", "From a batch to its answer", axes.0, axes.1);
    for (server, legend) in SERVERS {
        for quantile in ["p50", "p99"] {
            let point = |rate: u64| {
                let measure = format!("freshness_{rate}_stored_{quantile}_us");
                Some((rate as f64, median(server, &measure)?))
            };
            fresh = fresh
                .with_line(format!("{legend}, {quantile}"), RATES.into_iter().filter_map(point));
        }
    }
    GROUPS.iter().map(bars).chain([queries, fresh]).collect()
}

/// The target for dumps in constant memory.
fn dump_growth(ours: Option<Figure>, theirs: Option<Figure>) -> Bar {
    let unit = (MEBIBYTE, "MiB");
    let bar = Bar::new(
        "service.dump.memory".to_owned(),
        "service: memory on top during a dump of everything".to_owned(),
        Limit::AtMost(DUMP_GROWTH_MAX_MIB),
        format!("constant: ≤ {DUMP_GROWTH_MAX_MIB} MiB"),
    );
    let value = ours.map(|at| at.median / MEBIBYTE);
    let measured = value.map_or(String::new(), |value| format!("{value:.1} MiB"));
    Bar { value, measured, ours: side(ours, unit), other: side(theirs, unit), ..bar }
}

fn side(figure: Option<Figure>, (unit, name): (f64, &str)) -> Side {
    figure.map(|at| at.side(|value| format!("{:.2} {name}", value / unit))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_figures::Verdict;

    fn taken(subject: &str, measure: &str, value: f64) -> Measurement {
        let subject = subject.to_owned();
        let measure = measure.to_owned();
        Measurement { subject, trial: 1, measure, value }
    }

    fn verdict(part: &Part, id: &str) -> Verdict {
        let found = part.bars.iter().find(|bar| bar.id == id);
        found.unwrap_or_else(|| panic!("no bar {id}")).verdict()
    }

    #[test]
    fn nothing_measured_is_nothing_met() {
        let part = part(&[], Vec::new());
        assert_eq!(part.bars.len(), 10);
        assert!(part.bars.iter().all(|bar| bar.verdict() == Verdict::NotMeasured));
        assert!(part.sections.is_empty() && part.plots.is_empty());
    }

    #[test]
    fn bars_need_both_sides() {
        let ingest = "ingest_pairs_per_cpu_second";
        let ours = taken("kvasir", ingest, 4e6);
        let alone = part(std::slice::from_ref(&ours), Vec::new());
        assert_eq!(verdict(&alone, "service.ingest"), Verdict::NotMeasured);
        let both = part(&[ours.clone(), taken("dynamo", ingest, 1e6)], Vec::new());
        assert_eq!(verdict(&both, "service.ingest"), Verdict::Met);
        assert_eq!(both.plots.len(), 1);
        assert_eq!(both.plots[0].series.len(), 2);
        let missed = part(&[ours, taken("dynamo", ingest, 1.1e6)], Vec::new());
        assert_eq!(verdict(&missed, "service.ingest"), Verdict::Missed);
    }

    #[test]
    fn a_rate_has_a_row_if_either_server_held_it() {
        let at = |server, rate: u64, value| {
            ["p50", "p99", "max"].map(|quantile| {
                taken(server, &format!("freshness_{rate}_stored_{quantile}_us"), value)
            })
        };
        let all = [at("kvasir", 100_000, 100.0), at("dynamo", 100_000, 99.0)].concat();
        let all = [all, at("kvasir", 500_000, 200.0).to_vec()].concat();
        let part = part(&all, Vec::new());
        assert_eq!(verdict(&part, "service.freshness.100000.stored"), Verdict::Missed);
        assert_eq!(verdict(&part, "service.freshness.500000.stored"), Verdict::NotMeasured);
        let text = part.markdown("");
        for cell in ["99 / 99 / 99", "100 / 100 / 100", "200 / 200 / 200"] {
            assert!(text.contains(cell), "{cell} in {text}");
        }
        assert_eq!(
            text.lines().filter(|line| line.contains("indexer-server |")).count(),
            2,
            "{text}"
        );
    }

    #[test]
    fn a_dump_must_not_take_memory() {
        let part_of = |mebibytes: f64| {
            part(&[taken("kvasir", "dump_peak_growth_bytes", mebibytes * MEBIBYTE)], Vec::new())
        };
        assert_eq!(verdict(&part_of(15.0), "service.dump.memory"), Verdict::Met);
        assert_eq!(verdict(&part_of(17.0), "service.dump.memory"), Verdict::Missed);
    }
}
