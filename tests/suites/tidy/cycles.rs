//! No module depends on itself by way of others.

use crate::modules::{Module, TIES};
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

/// What ties modules that depend on one another, at any level: the files that do.
fn cycles() -> Vec<Vec<String>> {
    let graph: DiGraphMap<&Module, ()> = TIES.keys().map(|(from, to)| (from, to)).collect();
    let loops = tarjan_scc(&graph).into_iter().filter(|modules| modules.len() > 1);
    let ties_of = |modules: Vec<&Module>| {
        let ties =
            TIES.iter().filter(|((from, to), _)| [from, to].iter().all(|at| modules.contains(at)));
        ties.flat_map(|(_, files)| files.iter().cloned()).collect()
    };
    loops.map(ties_of).collect()
}

#[test]
fn modules_do_not_depend_on_one_another() {
    let cycles = cycles();
    assert!(cycles.is_empty(), "{cycles:#?}");
}
