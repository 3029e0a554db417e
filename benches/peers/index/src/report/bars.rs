//! Targets of the index, measured or not.

use super::figures::{At, CHAIN, Figures, INDEXES, OURS, calls};
use crate::plan::Size;
use crate::workload::Kind;
use bench_figures::number::{millions, short};
use bench_figures::{Bar, Figure, Limit, Side};

/// Minimum blocks per CPU second for any order of removal.
const REMOVE_RATE_MIN: f64 = 1e6;
/// Maximum relative difference between the index's own account of its memory and RSS.
const ACCOUNT_SLACK: f64 = 0.1;
const ORDERS: [&str; 4] = ["tail", "scattered", "events", "random"];
const BEST: &str = "the best peer";
/// Maximum time of a lookup, as a multiple of the lower bound.
const FLOOR_FACTOR_MAX: f64 = 1.3;
/// Maximum time of a lookup beside a writer at full speed, as a multiple of the peer's.
const WRITER_FACTOR_MAX: f64 = 1.5;
const FLOOR: &str = "two dependent cache misses and reading the hashes";
const WITH_MAPS: &str = "ChainIndex with its lane maps";

/// A peer's figure: its index, its name in the raw file, its name in the report.
type Peer = (&'static str, String, String);

struct Rows<'a> {
    figures: &'a Figures,
    at: At,
    bars: &'a mut Vec<Bar>,
}

/// All bars of the index.
pub(crate) fn all(figures: &Figures, size: Size) -> Vec<Bar> {
    let mut bars = Vec::new();
    let each = |bars: &mut Vec<Bar>, add: fn(&mut Rows<'_>)| {
        for kind in Kind::ALL {
            add(&mut Rows { figures, at: At::new(kind, size.pairs), bars });
        }
    };
    each(&mut bars, |rows| rows.lookups());
    each(&mut bars, |rows| rows.prompts());
    each(&mut bars, |rows| rows.store());
    each(&mut bars, |rows| rows.removals());
    each(&mut bars, |rows| rows.memory());
    each(&mut bars, |rows| rows.churn());
    each(&mut bars, |rows| rows.writer());
    bars.extend(["hit64", "hit256", "hit512"].map(|case| growth(figures, size, case)));
    each(&mut bars, |rows| rows.account());
    bars
}

impl Rows<'_> {
    fn kind(&self) -> String {
        self.at.kind.name()
    }

    /// Kvasir's figure compared with the best peer's: not measured if a peer was not measured.
    fn compare(&mut self, bar: Bar, ours: &str, peers: &[Peer], show: fn(f64) -> String) {
        let own = self.figures.get(self.at, OURS, ours);
        let mut best: Option<(Figure, &str)> = None;
        for (index, figure, label) in peers {
            if let Some(peer) = self.figures.get(self.at, index, figure)
                && best.is_none_or(|(best, _)| bar.limit.prefers(peer.median, best.median))
            {
                best = Some((peer, label));
            }
        }
        let has_figure = |at: &Peer| self.figures.get(self.at, at.0, &at.1).is_some();
        let measured = |index| peers.iter().any(|at| at.0 == index && has_figure(at));
        let all = peers.iter().all(|at| measured(at.0));
        let ratio = own.zip(best).filter(|_| all);
        let ratio = ratio.map(|(own, (best, _))| own.median / best.median);
        let ours = side(own, "", show);
        let other = best.map_or(Side::default(), |(best, label)| side(Some(best), label, show));
        self.bars.push(Bar { ours, other, ..bar.with_ratio(ratio) });
    }

    /// Kvasir's figure compared with a number.
    fn alone(&mut self, id: &str, what: &str, ours: &str, limit: Limit, show: fn(f64) -> String) {
        let own = self.figures.get(self.at, OURS, ours);
        let (id, what) = self.names(id, what);
        let bar = Bar::new(id, what, limit, limit.text(show));
        self.bars.push(bar.with_figure(own, show));
    }

    /// Id and title of a target.
    fn names(&self, id: &str, what: &str) -> (String, String) {
        (format!("index.{}.{id}", self.kind()), format!("{what}, {}", self.kind()))
    }

    fn bar(&self, id: &str, what: &str, limit: Limit, against: &str) -> Bar {
        let (id, what) = self.names(id, what);
        Bar::ratio(id, what, limit, against)
    }

    fn lookups(&mut self) {
        if self.at.kind == Kind::Prefix64 {
            return;
        }
        for blocks in [64, 256, 512] {
            for (part, limit) in [("p50", 0.8), ("p99", 1.0)] {
                let name = |call: &str| format!("lookup.hit{blocks}.{call}.{part}_ns");
                let id = format!("lookup.hit{blocks}.{part}");
                let what = format!("lookup {part}, hit {blocks}");
                let bar = self.bar(&id, &what, Limit::AtMost(limit), BEST);
                self.compare(bar, &name("find"), &all_calls(name), ns);
            }
            let name = |call: &str| format!("cold.hit{blocks}.{call}.p50_ns");
            let what = format!("lookup p50, hit {blocks}, cold caches");
            let id = format!("floor.hit{blocks}");
            let bar = self.bar(&id, &what, Limit::AtMost(FLOOR_FACTOR_MAX), FLOOR);
            let floor = [(OURS, name("floor"), "floor".to_owned())];
            self.compare(bar, &name("find"), &floor, ns);
        }
    }

    fn prompts(&mut self) {
        if self.at.kind != Kind::Prefix64 {
            return;
        }
        for (case, what) in [
            ("prompt", "all 64 workers hold the prompt"),
            ("prompt_tail64", "all 64 hold the prompt, then 64 private blocks"),
        ] {
            for (call, limit) in [("find_matches", 0.5), ("score_into", 0.9)] {
                let name = |call: &str| format!("lookup.{case}.{call}.p50_ns");
                let peers = [(CHAIN, name(call), format!("chain {call}"))];
                let id = format!("lookup.{case}.{call}");
                let against = format!("ChainIndex {call}");
                let what = format!("lookup p50, {what}");
                let bar = self.bar(&id, &what, Limit::AtMost(limit), &against);
                self.compare(bar, &name("find"), &peers, ns);
            }
        }
    }

    fn store(&mut self) {
        let store = "store.cpu_rate";
        let bar = self.bar("store", "store, blocks per CPU s", Limit::AtLeast(1.0), BEST);
        self.compare(bar, store, &peers(store), millions);
    }

    fn removals(&mut self) {
        for order in ORDERS {
            let figure = format!("remove.{order}.cpu_rate");
            let id = format!("remove.{order}");
            let what = format!("remove {order}, per CPU s");
            let limit = Limit::AtLeast(if order == "tail" { 0.9 } else { 1.0 });
            self.compare(self.bar(&id, &what, limit, BEST), &figure, &peers(&figure), millions);
            if let "events" | "random" = order {
                let exact = [(CHAIN, figure.clone(), CHAIN.to_owned())];
                let bar = self.bar(&format!("{id}.exact"), &what, limit, "peers exact with holes");
                self.compare(bar, &figure, &exact, millions);
            }
            let least = Limit::AtLeast(REMOVE_RATE_MIN);
            self.alone(&format!("{id}.least"), &what, &figure, least, millions);
        }
    }

    fn memory(&mut self) {
        let limit = match self.at.kind {
            Kind::Distinct => 0.7,
            Kind::Shared8 => 0.25,
            Kind::Prefix64 => 0.65,
        };
        let full = "memory.full";
        let what = "RSS per pair, bytes";
        let chain = [(CHAIN, full.to_owned(), CHAIN.to_owned())];
        let bar = self.bar("memory", what, Limit::AtMost(limit), WITH_MAPS);
        self.compare(bar, full, &chain, short);
        let bar = self.bar("memory.best", what, Limit::AtMost(1.0), BEST);
        self.compare(bar, full, &peers(full), short);
    }

    fn churn(&mut self) {
        let growth = "churn.memory_growth";
        let most = Limit::AtMost(0.02);
        self.alone(
            "churn.growth",
            "churn, growth of RSS over the last half",
            growth,
            most,
            percent,
        );
        for what in ["store", "remove"] {
            let id = format!("churn.{what}");
            let figure = format!("churn.{what}_kept");
            let what = format!("churn, {what} speed beside fresh");
            self.alone(&id, &what, &figure, Limit::AtLeast(0.85), percent);
        }
    }

    fn writer(&mut self) {
        let cases: &[&str] = match self.at.kind {
            Kind::Prefix64 => &["hit64", "prompt", "prompt_tail64"],
            Kind::Distinct | Kind::Shared8 => &["hit64", "hit256", "hit512"],
        };
        for case in cases {
            let name = |call: &str| format!("writer.{case}.{call}.p99_ns");
            let peer = |call: &&str| (CHAIN, name(call), format!("chain {call}"));
            let peers: Vec<Peer> = calls(CHAIN).iter().map(peer).collect();
            let what = format!("lookup p99 with a writer flat out, {case}");
            let most = Limit::AtMost(WRITER_FACTOR_MAX);
            let bar = self.bar(&format!("writer.{case}"), &what, most, "ChainIndex");
            self.compare(bar, &name("find"), &peers, ns);
        }
    }

    fn account(&mut self) {
        let of = |name| self.figures.get(self.at, OURS, name);
        let accounted = of("memory.accounted");
        let full = of("memory.full");
        let beside = accounted.zip(full).map(|(accounted, full)| accounted.median / full.median);
        let (id, what) = self.names("accounted", "bytes by its own account beside RSS");
        let limit = Limit::AtMost(ACCOUNT_SLACK);
        let bar = Bar::new(id, what, limit, format!("within {} of RSS", percent(ACCOUNT_SLACK)));
        // In hundredths of a percent: 0.9 is not exactly a tenth away from 1.
        let value = beside.map(|beside| ((beside - 1.0).abs() * 1e4).round() / 1e4);
        let measured = beside.map_or(String::new(), |beside| format!("{beside:.2} ×"));
        let ours = side(accounted, "accounted", short);
        let other = side(full, "RSS", short);
        self.bars.push(Bar { value, measured, ours, other, ..bar });
    }
}

/// Growth of latency with size.
fn growth(figures: &Figures, size: Size, case: &str) -> Bar {
    let name = format!("lookup.{case}.find.p50_ns");
    let largest = size.sweep.last().copied().unwrap_or(size.pairs);
    let at = |pairs| figures.get(At::new(Kind::Distinct, pairs), OURS, &name);
    let small = at(size.pairs);
    let large = at(largest);
    let pairs = |pairs: usize| millions(pairs as f64);
    let what = format!("lookup p50, {case}, {} pairs, distinct", pairs(largest));
    let against = format!("with {} pairs", pairs(size.pairs));
    let bar = Bar::ratio(format!("index.size.{case}"), what, Limit::AtMost(2.0), &against);
    let ratio = large.zip(small).map(|(large, small)| large.median / small.median);
    let ours = side(large, "", ns);
    let other = side(small, "smaller", ns);
    Bar { ours, other, ..bar.with_ratio(ratio) }
}

fn side(figure: Option<Figure>, label: &str, show: fn(f64) -> String) -> Side {
    let text = |value: f64| match label {
        "" => show(value),
        label => format!("{}: {label}", show(value)),
    };
    figure.map(|at| at.side(text)).unwrap_or_default()
}

/// One figure of each peer.
fn peers(figure: &str) -> Vec<Peer> {
    INDEXES[1..].iter().map(|&index| (index, figure.to_owned(), index.to_owned())).collect()
}

/// One figure of each call of each peer.
fn all_calls(figure: impl Fn(&str) -> String) -> Vec<Peer> {
    let of = |&index: &&'static str| {
        let label = move |call: &str| format!("{index} {call}");
        calls(index).iter().map(|call| (index, figure(call), label(call))).collect::<Vec<_>>()
    };
    INDEXES[1..].iter().flat_map(of).collect()
}

fn ns(value: f64) -> String {
    format!("{} ns", short(value))
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}
