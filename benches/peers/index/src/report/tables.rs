//! Tables of all measurements.

use super::figures::{At, CHAIN, Figures, INDEXES, OURS, SHARDED, calls};
use crate::plan::Size;
use crate::workload::{Kind, cases};
use bench_figures::number::{millions, short};
use bench_figures::{Part, Table};

/// Adds all tables with measurements.
pub(crate) fn add(part: &mut Part, figures: &Figures, size: Size) {
    let mut add = |title: String, note: &str, table: Table| part.add(title, note, table);
    for kind in Kind::ALL {
        let at = At::new(kind, size.pairs);
        let title = |what: &str| format!("{what}: {}", kind.name());
        add(title("Storing, removing, memory"), THROUGHPUT, throughput(figures, at, &INDEXES));
        add(title("Lookups, quiet"), LOOKUPS, lookups(figures, at, "lookup", &INDEXES));
        add(title("Lookups, cold caches"), COLD, lookups(figures, at, "cold", &INDEXES));
        add(title("Lookups under a writer"), WRITER, writer(figures, at));
        add(title("Churn"), CHURN, churn(figures, at));
        let sharded = is_sharded(figures, at);
        let indexes = if sharded { &SHARDED[..] } else { &[] };
        add(title("1, 2 and 4 shards"), SHARDS, throughput(figures, at, indexes));
        let lookups = lookups(figures, at, "lookup", indexes);
        add(title("1, 2 and 4 shards, lookups"), LOOKUPS, lookups);
    }
    for kind in Kind::ALL {
        let at = At::many(kind, size.pairs);
        let title = |what: &str| format!("{what}, 1,000 workers: {}", kind.name());
        add(title("Storing, removing, memory"), THROUGHPUT, throughput(figures, at, &INDEXES));
        add(title("Lookups, quiet"), LOOKUPS, lookups(figures, at, "lookup", &INDEXES));
    }
    add("A recorded trace".to_owned(), TRACE, trace(figures, size));
    add("Size: distinct".to_owned(), SIZE, sizes(figures, size));
}

fn is_sharded(figures: &Figures, at: At) -> bool {
    SHARDED[1..].iter().any(|index| figures.get(at, index, "memory.full").is_some())
}

const THROUGHPUT: &str = "Blocks per CPU second (in brackets per second). Memory in bytes of RSS per \
    pair, full, by its own account, and when all was removed. Wrong: answers that were wrong when half was removed in \
    random order; healed: answers that were wrong after that half was stored again.";
const SHARDS: &str = "Each shard has the workers of some buckets and shares nothing with the others: a \
    block that workers of several shards hold is kept in each. What must be reached holds for one.";
const LOOKUPS: &str = "p50 / p99 in ns of single calls, clock included (about 20 ns); in brackets \
    CPU ns per call on average, no clock between.";
const COLD: &str = "p50 / p99 in ns, after 8 MiB of other memory were written.";
const WRITER: &str = "p50 / p99 / p99.9 in ns while another thread stores and removes as fast as it \
    can; in brackets blocks it wrote per second. Two threads on two processors that others use too: \
    the tail is scheduling.";
const CHURN: &str = "Bytes per pair, growth of the last half; blocks per CPU second, in brackets \
    beside the first turnovers.";
const TRACE: &str = "A Mooncake trace through 64 engines with room for 16,384 blocks each, least recently \
    used out first: blocks stored and removed per CPU second (in brackets per second), bytes per \
    pair, and the lookup of each prompt before its events, p50 / p99 in ns (CPU ns).";
const SIZE: &str = "p50 in ns of hits of 64, 256, 512 blocks; bytes per pair; stored blocks per CPU \
    second.";

fn throughput(figures: &Figures, at: At, indexes: &[&str]) -> Table {
    let heads = ["index", "store", "tail", "scattered", "events", "random", "full", "accounted"];
    let heads = heads.into_iter().chain(["empty", "wrong", "healed: wrong"]);
    let mut table = Table::new(heads);
    for &index in indexes {
        let rate = |what: &str| {
            let cpu = figures.get(at, index, &format!("{what}.cpu_rate"));
            let wall = figures.get(at, index, &format!("{what}.wall_rate"));
            match (cpu, wall) {
                (Some(cpu), Some(wall)) => {
                    format!("{} ({})", millions(cpu.median), millions(wall.median))
                }
                _ => String::new(),
            }
        };
        let of = |name: &str, show: fn(f64) -> String| {
            figures.get(at, index, name).map_or(String::new(), |figure| show(figure.median))
        };
        let mut row = vec![index.to_owned()];
        row.extend(["store", "remove.tail", "remove.scattered", "remove.events"].map(rate));
        row.push(rate("remove.random"));
        row.extend(["memory.full", "memory.accounted", "memory.empty"].map(|name| of(name, short)));
        row.extend(["remove.random.wrong", "heal.wrong"].map(|name| of(name, percent)));
        if row.iter().skip(1).any(|cell| !cell.is_empty()) {
            table.row(row);
        }
    }
    table
}

fn lookups(figures: &Figures, at: At, measure: &str, indexes: &[&'static str]) -> Table {
    let names: Vec<&str> = cases(at.kind).iter().map(|case| case.name).collect();
    let mut table = Table::new(["call"].into_iter().chain(names.iter().copied()));
    each_call(indexes, |index, call| {
        let cell = |case: &&str| {
            let name = format!("{measure}.{case}.{call}");
            let of = |part: &str| figures.get(at, index, &format!("{name}.{part}_ns"));
            let p50 = of("p50")?;
            let p99 = of("p99")?;
            let cpu = of("cpu").map_or(String::new(), |cpu| format!(" ({})", short(cpu.median)));
            Some(format!("{} / {}{cpu}", short(p50.median), short(p99.median)))
        };
        let cells: Vec<Option<String>> = names.iter().map(cell).collect();
        add_row(&mut table, format!("{index} {call}"), cells);
    });
    table
}

fn writer(figures: &Figures, at: At) -> Table {
    let names: Vec<&str> = cases(at.kind).iter().take(3).map(|case| case.name).collect();
    let mut table = Table::new(["call"].into_iter().chain(names.iter().copied()));
    each_call(&INDEXES, |index, call| {
        let cell = |case: &&str| {
            let name = format!("writer.{case}.{call}");
            let of = |part: &str| figures.get(at, index, &format!("{name}.{part}"));
            let parts = ["p50_ns", "p99_ns", "p999_ns"].map(|part| of(part).map(|at| at.median));
            let [Some(p50), Some(p99), Some(p999)] = parts else {
                return None;
            };
            let write = millions(of("write_rate")?.median);
            Some(format!("{} / {} / {} ({write})", short(p50), short(p99), short(p999)))
        };
        let cells: Vec<Option<String>> = names.iter().map(cell).collect();
        add_row(&mut table, format!("{index} {call}"), cells);
    });
    table
}

fn churn(figures: &Figures, at: At) -> Table {
    let mut table = Table::new(["index", "memory", "growth", "store", "remove"]);
    for index in INDEXES {
        let of = |name: &str| figures.get(at, index, &format!("churn.{name}"));
        let rate = |what: &str| {
            let rate = of(&format!("{what}.cpu_rate"))?;
            let kept = of(&format!("{what}_kept"))?;
            Some(format!("{} ({})", millions(rate.median), percent(kept.median)))
        };
        let memory = of("memory").map(|figure| short(figure.median));
        let growth = of("memory_growth").map(|figure| percent(figure.median));
        add_row(&mut table, index.to_owned(), vec![memory, growth, rate("store"), rate("remove")]);
    }
    table
}

fn trace(figures: &Figures, size: Size) -> Table {
    let at = At::new(Kind::Distinct, size.pairs);
    let mut table = Table::new(["call", "events", "memory", "lookup"]);
    each_call(&INDEXES, |index, call| {
        let of = |name: &str| figures.get(at, index, &format!("trace.{name}")).map(|at| at.median);
        let rates = of("events.cpu_rate").zip(of("events.wall_rate"));
        let rates = rates.map(|(cpu, wall)| format!("{} ({})", millions(cpu), millions(wall)));
        let lookup = |part: &str| of(&format!("lookup.{call}.{part}_ns")).map(short);
        let lookup = lookup("p50").zip(lookup("p99")).zip(lookup("cpu"));
        let lookup = lookup.map(|((p50, p99), cpu)| format!("{p50} / {p99} ({cpu})"));
        let memory = of("memory").map(short);
        add_row(&mut table, format!("{index} {call}"), vec![rates, memory, lookup]);
    });
    table
}

fn sizes(figures: &Figures, size: Size) -> Table {
    let sizes: Vec<usize> = [size.pairs].into_iter().chain(size.sweep.iter().copied()).collect();
    let labels = sizes.iter().map(|&pairs| millions(pairs as f64));
    let mut table = Table::new(["index".to_owned()].into_iter().chain(labels));
    for (index, call) in [
        (OURS, "find"),
        (CHAIN, "score_into"),
        ("crtc", "find_matches"),
        ("positional", "find_matches"),
    ] {
        let cell = |&pairs: &usize| {
            let of = |name: &str| figures.get(At::new(Kind::Distinct, pairs), index, name);
            let p50 = |blocks: usize| {
                Some(short(of(&format!("lookup.hit{blocks}.{call}.p50_ns"))?.median))
            };
            let hits = format!("{}, {}, {}", p50(64)?, p50(256)?, p50(512)?);
            let memory = of("memory.full")?.median;
            let store = of("store.cpu_rate")?.median;
            Some(format!("{hits}; {}; {}", short(memory), millions(store)))
        };
        let cells: Vec<Option<String>> = sizes.iter().map(cell).collect();
        add_row(&mut table, format!("{index} {call}"), cells);
    }
    table
}

fn each_call(indexes: &[&'static str], mut each: impl FnMut(&'static str, &'static str)) {
    for &index in indexes {
        calls(index).iter().for_each(|call| each(index, call));
    }
}

/// Adds a row, if it has any measurement.
fn add_row(table: &mut Table, name: String, cells: Vec<Option<String>>) {
    if cells.iter().any(Option::is_some) {
        table.row([name].into_iter().chain(cells.into_iter().map(Option::unwrap_or_default)));
    }
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}
