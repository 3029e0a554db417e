//! Creates the part for the report from trials' lines.
//!
//! - [`figures`]: medians by index, workload and size;
//! - [`bars`]: targets, as ratios to peers in the same run;
//! - [`tables`]: all measurements;
//! - [`plots`]: measurements that are easier to see than to read.

mod bars;
mod figures;
mod plots;
mod tables;

use crate::plan::Size;
use crate::trial::Record;
use bench_figures::{Incident, Part};
use figures::Figures;

const TITLE: &str = "The index beside published ones";
const PEERS: &str = "chain: `ChainIndex` of kv-index 2.0.0 with its lane maps; crtc and positional: \
    `ConcurrentRadixTreeCompressed` and `PositionalIndexer` of dynamo-kv-router 1.6.1; kvasir-2 and \
    kvasir-4: ours in 2 and 4 shards by worker. The same prebuilt work for each, each trial in a \
    process of its own, trials interleaved, medians; allocator: ";

/// The results of the trials.
pub(crate) fn part(records: &[Record], mut incidents: Vec<Incident>, size: Size) -> Part {
    let figures = Figures::new(records);
    for record in records {
        if let Record::Skipped { index, pairs } = record {
            incidents.push((format!("{index}, {pairs} pairs"), "not enough memory".to_owned()));
        }
    }
    let allocator = match cfg!(feature = "mimalloc") {
        true => "mimalloc, collected.",
        false => "the system's, trimmed.",
    };
    let title = TITLE.to_owned();
    let notes = vec![format!("{PEERS}{allocator}")];
    let bars = bars::all(&figures, size);
    let mut part = Part { title, notes, bars, incidents, ..Part::default() };
    tables::add(&mut part, &figures, size);
    plots::add(&mut part, &figures, size);
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Line;
    use crate::workload::Kind;
    use bench_figures::{Bar, Verdict};

    fn line(index: &str, pairs: usize, figures: &[(&str, f64)]) -> Record {
        let figures = figures.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        let workload = Kind::Distinct;
        let workers = 64;
        let seed = 1;
        let index = index.to_owned();
        Record::Trial(Line { index, workload, workers, pairs, seed, figures })
    }

    fn bar(part: &Part, id: &str) -> Bar {
        let found = part.bars.iter().find(|bar| bar.id == id);
        found.unwrap_or_else(|| panic!("no bar {id}")).clone()
    }

    #[test]
    fn nothing_measured_is_nothing_met() {
        let part = part(&[], Vec::new(), Size::new(false));
        assert!(part.bars.len() > 70, "{} bars", part.bars.len());
        for bar in &part.bars {
            assert_eq!(bar.verdict(), Verdict::NotMeasured, "{}", bar.id);
        }
        assert!(part.sections.is_empty() && part.plots.is_empty());
    }

    #[test]
    fn ours_is_compared_with_the_best_peer() {
        let pairs = Size::new(false).pairs;
        let find = "lookup.hit64.find.p50_ns";
        let records = [
            line("kvasir", pairs, &[(find, 80.0), ("remove.random.cpu_rate", 9e5)]),
            line("kvasir", pairs, &[(find, 90.0)]),
            line("kvasir", pairs, &[(find, 70.0)]),
            line("chain", pairs, &[("lookup.hit64.find_matches.p50_ns", 200.0)]),
            line("chain", pairs, &[("lookup.hit64.score_into.p50_ns", 100.0)]),
            line("crtc", pairs, &[("lookup.hit64.find_matches.p50_ns", 160.0)]),
        ];
        let of = |records: &[Record]| part(records, Vec::new(), Size::new(false));
        let without = of(&records);
        let p50 = bar(&without, "index.distinct.lookup.hit64.p50");
        assert_eq!(p50.verdict(), Verdict::NotMeasured, "the best may be the one that is missing");
        let last = line("positional", pairs, &[("lookup.hit64.find_matches.p50_ns", 900.0)]);
        let part = of(&[&records[..], &[last]].concat());
        let p50 = bar(&part, "index.distinct.lookup.hit64.p50");
        assert_eq!((p50.value, p50.verdict()), (Some(0.8), Verdict::Met));
        assert_eq!((p50.ours.trials, p50.other.trials), (3, 1));
        assert!(p50.other.text.contains("score_into"), "{p50:?}");
        assert_eq!(bar(&part, "index.distinct.lookup.hit64.p99").verdict(), Verdict::NotMeasured);
        let least = bar(&part, "index.distinct.remove.random.least");
        assert_eq!(least.verdict(), Verdict::Missed);
    }

    #[test]
    fn growth_is_between_the_smallest_and_the_largest() {
        let size = Size::new(false);
        let largest = *size.sweep.last().expect("a sweep");
        let find = "lookup.hit256.find.p50_ns";
        let of = |pairs, value| line("kvasir", pairs, &[(find, value)]);
        let small = of(size.pairs, 100.0);
        let part_of = |records: &[Record]| part(records, Vec::new(), size);
        let id = "index.size.hit256";
        let missed = part_of(&[small.clone(), of(largest, 201.0)]);
        assert_eq!(bar(&missed, id).verdict(), Verdict::Missed);
        let absent = part_of(&[small, of(size.sweep[0], 110.0)]);
        assert_eq!(bar(&absent, id).verdict(), Verdict::NotMeasured);
    }

    #[test]
    fn accounted_bytes_must_be_near_either_way() {
        let pairs = Size::new(false).pairs;
        for (accounted, verdict) in [
            (45.0, Verdict::Met),
            (55.0, Verdict::Met),
            (44.0, Verdict::Missed),
            (56.0, Verdict::Missed),
        ] {
            let figures = [("memory.full", 50.0), ("memory.accounted", accounted)];
            let part = part(&[line("kvasir", pairs, &figures)], Vec::new(), Size::new(false));
            assert_eq!(bar(&part, "index.distinct.accounted").verdict(), verdict, "{accounted}");
        }
    }
}
