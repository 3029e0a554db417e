//! What must be reached, and whether it was.

use super::figures::{At, CHAIN, Figure, Figures, INDEXES, OURS, calls};
use crate::record::Head;
use crate::workload::Kind;
use peers_report::Table;
use peers_report::number::{millions, short};

/// Fewest blocks that any order of removal must reach per CPU second.
const REMOVE_RATE_MIN: f64 = 1e6;
const ORDERS: [&str; 4] = ["tail", "scattered", "events", "random"];
const KINDS: [Kind; 3] = [Kind::Distinct, Kind::Shared8, Kind::Prefix64];

/// A bound on a ratio, or on a figure.
#[derive(Debug, Clone, Copy)]
enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    fn met(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(limit) => format!("≤ {limit}"),
            Self::AtLeast(limit) => format!("≥ {limit}"),
        }
    }

    /// Whether `a` is nearer to the good side than `b`.
    fn prefers(self, a: f64, b: f64) -> bool {
        match self {
            Self::AtMost(_) => a < b,
            Self::AtLeast(_) => a > b,
        }
    }
}

/// A peer's figure: its index, its name in the raw file, how it is called here.
type Peer = (&'static str, String, String);

struct Rows<'a> {
    figures: &'a Figures,
    at: At,
    table: &'a mut Table,
}

/// The table of bars. Rows that were not measured are left out.
pub(crate) fn table(figures: &Figures, head: &Head) -> Table {
    let mut table =
        Table::new(["measure", "ours", "peer", "which", "ratio", "bar", "", "spread ours, peer"]);
    for kind in KINDS {
        let mut rows = Rows { figures, at: At::new(kind, head.pairs), table: &mut table };
        rows.lookups(kind);
        rows.throughput();
        rows.memory(kind);
        rows.churn();
        rows.writer(kind);
    }
    sizes(figures, head, &mut table);
    table
}

impl Rows<'_> {
    fn name(&self, what: &str) -> String {
        format!("{}: {what}", self.at.kind.name())
    }

    /// Ours beside the best of some peers.
    fn compare(
        &mut self,
        what: &str,
        ours: &str,
        peers: &[Peer],
        bar: Bar,
        show: fn(f64) -> String,
    ) {
        let Some(own) = self.figures.get(self.at, OURS, ours) else {
            return;
        };
        let mut best: Option<(Figure, &str)> = None;
        for (index, figure, label) in peers {
            let Some(peer) = self.figures.get(self.at, index, figure) else {
                continue;
            };
            if best.is_none_or(|(best, _)| bar.prefers(peer.median, best.median)) {
                best = Some((peer, label));
            }
        }
        let Some((peer, label)) = best else {
            return;
        };
        let ratio = own.median / peer.median;
        self.table.row([
            self.name(what),
            show(own.median),
            show(peer.median),
            label.to_owned(),
            format!("{ratio:.2}"),
            bar.text(),
            verdict(bar.met(ratio)),
            format!("{:.0} %, {:.0} %", own.spread * 100.0, peer.spread * 100.0),
        ]);
    }

    /// Ours beside a number.
    fn alone(&mut self, what: &str, ours: &str, bar: Bar, show: fn(f64) -> String) {
        let Some(own) = self.figures.get(self.at, OURS, ours) else {
            return;
        };
        let limit = match bar {
            Bar::AtMost(limit) => format!("≤ {}", show(limit)),
            Bar::AtLeast(limit) => format!("≥ {}", show(limit)),
        };
        let (met, spread) = (verdict(bar.met(own.median)), format!("{:.0} %", own.spread * 100.0));
        let row = [self.name(what), show(own.median), String::new(), String::new()];
        self.table.row(row.into_iter().chain([String::new(), limit, met, spread]));
    }

    fn lookups(&mut self, kind: Kind) {
        let name = |case: &str, call: &str, part: &str| format!("lookup.{case}.{call}.{part}_ns");
        if kind == Kind::Prefix64 {
            for (case, what) in
                [("prompt", "all 64 hold the prompt"), ("prompt_tail64", "all 64, then 64 private")]
            {
                for (call, limit) in [("find_matches", 0.5), ("score_into", 0.9)] {
                    let peers = [(CHAIN, name(case, call, "p50"), format!("chain {call}"))];
                    let what = format!("lookup p50, {what}");
                    self.compare(&what, &name(case, "find", "p50"), &peers, Bar::AtMost(limit), ns);
                }
            }
            return;
        }
        for blocks in ["64", "256", "512"] {
            for (part, limit) in [("p50", 0.8), ("p99", 1.0)] {
                let case = format!("hit{blocks}");
                let what = format!("lookup {part}, hit {blocks}");
                let peers = all_calls(|call| name(&case, call, part));
                self.compare(&what, &name(&case, "find", part), &peers, Bar::AtMost(limit), ns);
            }
        }
    }

    fn throughput(&mut self) {
        let store = "store.cpu_rate";
        self.compare("store, blocks per CPU s", store, &peers(store), Bar::AtLeast(1.0), millions);
        for order in ORDERS {
            let figure = format!("remove.{order}.cpu_rate");
            let what = format!("remove {order}");
            self.compare(&what, &figure, &peers(&figure), Bar::AtLeast(0.8), millions);
            if let "events" | "random" = order {
                let exact = [(CHAIN, figure.clone(), CHAIN.to_owned())];
                let what = format!("remove {order}, of those exact with holes");
                self.compare(&what, &figure, &exact, Bar::AtLeast(0.8), millions);
            }
            self.alone(&what, &figure, Bar::AtLeast(REMOVE_RATE_MIN), millions);
        }
    }

    fn memory(&mut self, kind: Kind) {
        let limit = match kind {
            Kind::Distinct => 0.7,
            Kind::Shared8 => 0.25,
            Kind::Prefix64 => 0.65,
        };
        let full = "memory.full";
        let chain = [(CHAIN, full.to_owned(), CHAIN.to_owned())];
        self.compare("RSS per pair, bytes", full, &chain, Bar::AtMost(limit), short);
        self.compare("RSS per pair, best peer", full, &peers(full), Bar::AtMost(1.0), short);
    }

    fn churn(&mut self) {
        self.alone("churn, growth of RSS", "churn.memory_growth", Bar::AtMost(0.02), percent);
        for what in ["store", "remove"] {
            let figure = format!("churn.{what}_kept");
            let what = format!("churn, {what} speed kept");
            self.alone(&what, &figure, Bar::AtLeast(0.85), percent);
        }
    }

    fn writer(&mut self, kind: Kind) {
        let cases: &[&str] = match kind {
            Kind::Prefix64 => &["hit64", "prompt", "prompt_tail64"],
            Kind::Distinct | Kind::Shared8 => &["hit64", "hit256", "hit512"],
        };
        for case in cases {
            let peer = |call: &&str| {
                (CHAIN, format!("writer.{case}.{call}.p99_ns"), format!("chain {call}"))
            };
            let peers: Vec<Peer> = calls(CHAIN).iter().map(peer).collect();
            let ours = format!("writer.{case}.find.p99_ns");
            self.compare(
                &format!("p99 under a writer, {case}"),
                &ours,
                &peers,
                Bar::AtMost(1.0),
                ns,
            );
        }
    }
}

/// Growth of latency with size.
fn sizes(figures: &Figures, head: &Head, table: &mut Table) {
    let Some(&largest) = head.sweep.last() else {
        return;
    };
    for case in ["hit64", "hit256", "hit512"] {
        let name = format!("lookup.{case}.find.p50_ns");
        let at = |pairs| figures.get(At::new(Kind::Distinct, pairs), OURS, &name);
        let (Some(small), Some(large)) = (at(head.pairs), at(largest)) else {
            continue;
        };
        let bar = Bar::AtMost(2.0);
        let growth = large.median / small.median;
        table.row([
            format!(
                "{case} p50, {} pairs beside {}",
                millions(largest as f64),
                millions(head.pairs as f64)
            ),
            ns(large.median),
            ns(small.median),
            "ours, small".to_owned(),
            format!("{growth:.2}"),
            bar.text(),
            verdict(bar.met(growth)),
            format!("{:.0} %, {:.0} %", large.spread * 100.0, small.spread * 100.0),
        ]);
    }
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

fn verdict(met: bool) -> String {
    if met { "met" } else { "**missed**" }.to_owned()
}

fn ns(value: f64) -> String {
    format!("{} ns", short(value))
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}
