//! No module depends on itself by way of others.

use crate::names::Named;
use crate::sources::{Source, rust_files};
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use std::collections::{BTreeMap, BTreeSet};
use std::slice;

/// A module of a crate: its source folder, and the path inside.
type Module = (String, Vec<String>);

/// Crates that still have cycles between modules of one folder.
const CYCLIC: [&str; 2] = ["indexer-server", "kvbm-agent"];
/// The longest chain of re-exports that is followed.
const REEXPORTS_MAX: usize = 8;

fn module(source: &Source) -> Option<Module> {
    let (folder, inside) = source.path.rsplit_once("/src/")?;
    let mut path: Vec<String> =
        inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    let last = path.last()?;
    if last == "mod" || path.len() == 1 && (last == "lib" || last == "main") {
        path.pop();
    }
    Some((folder.to_owned(), path))
}

struct Files(BTreeMap<Module, Named>);

impl Files {
    fn has(&self, at: &Module) -> bool {
        self.0.contains_key(at)
    }

    /// The module in which a path ends that is named in another one; none outside of the crate.
    fn find(&self, from: &Module, path: &[String], steps: usize) -> Option<Module> {
        let (folder, mut at) = from.clone();
        let mut rest = path;
        let mut is_inside = false;
        while let [first, more @ ..] = rest {
            match first.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()?),
                _ => break,
            }
            (rest, is_inside) = (more, true);
        }
        while let [name, more @ ..] = rest {
            let child = (folder.clone(), [&at[..], slice::from_ref(name)].concat());
            if self.has(&child) {
                (at, rest, is_inside) = (child.1, more, true);
                continue;
            }
            let here = (folder.clone(), at.clone());
            if is_inside
                && steps < REEXPORTS_MAX
                && let Some(import) = self.0.get(&here).and_then(|named| named.imports.get(name))
                && let Some((_, found)) = self.find(&here, import, steps + 1)
            {
                (at, rest) = (found, more);
                continue;
            }
            break;
        }
        is_inside.then_some((folder, at))
    }
}

/// The sibling modules by which one file depends on another one: what lies in a folder counts as the folder's, at each
/// level. None where one lies in the other, which is how modules nest.
fn siblings(from: &Module, to: &Module) -> Option<(Module, Module)> {
    let level = from.1.iter().zip(&to.1).take_while(|(from, to)| from == to).count();
    let at = |module: &Module| Some((module.0.clone(), module.1.get(..=level)?.to_vec()));
    Some((at(from)?, at(to)?))
}

/// What ties modules that depend on one another, at any level: the files that do.
fn cycles() -> Vec<Vec<String>> {
    let sources = rust_files();
    let product = sources.iter().filter(|source| {
        source.path.starts_with("benches/") && source.path.contains("/src/") || !source.is_test()
    });
    let files = Files(product.filter_map(|at| Some((module(at)?, Named::of(&at.text)))).collect());
    let mut ties: BTreeMap<(Module, Module), BTreeSet<String>> = BTreeMap::new();
    for (from, named) in &files.0 {
        for path in &named.paths {
            let Some(to) = files.find(from, path, 0) else { continue };
            let Some(pair) = siblings(from, &to) else { continue };
            let tie = format!("{}: {} -> {}", from.0, from.1.join("::"), to.1.join("::"));
            ties.entry(pair).or_default().insert(tie);
        }
    }
    ties.retain(|(from, _), _| !CYCLIC.contains(&from.0.as_str()));
    let graph: DiGraphMap<&Module, ()> = ties.keys().map(|(from, to)| (from, to)).collect();
    let loops = tarjan_scc(&graph).into_iter().filter(|modules| modules.len() > 1);
    let ties_of = |modules: Vec<&Module>| {
        let ties =
            ties.iter().filter(|((from, to), _)| [from, to].iter().all(|at| modules.contains(at)));
        ties.flat_map(|(_, files)| files.iter().cloned()).collect()
    };
    loops.map(ties_of).collect()
}

#[test]
fn modules_do_not_depend_on_one_another() {
    let cycles = cycles();
    assert!(cycles.is_empty(), "{cycles:#?}");
}
