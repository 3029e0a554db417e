//! Modules of the product, and which of them depends on which.

use crate::names::Named;
use crate::sources::{Source, rust_files};
use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::LazyLock;

/// A module of a crate: its source folder, and the path inside.
pub type Module = (String, Vec<String>);

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

/// Modules that depend on one another, and the files that make them do so.
pub type Ties = BTreeMap<(Module, Module), BTreeSet<String>>;

/// Modules that depend on a sibling, at any level, and the files that make them do so.
pub static TIES: LazyLock<Ties> = LazyLock::new(|| {
    let sources = rust_files();
    let product = sources.iter().filter(|source| {
        source.path.starts_with("benches/") && source.path.contains("/src/") || !source.is_test()
    });
    let files = Files(product.filter_map(|at| Some((module(at)?, Named::of(&at.text)))).collect());
    let mut ties = Ties::new();
    for (from, named) in &files.0 {
        for path in &named.paths {
            let Some(to) = files.find(from, path, 0) else { continue };
            let Some(pair) = siblings(from, &to) else { continue };
            let tie = format!("{}: {} -> {}", from.0, from.1.join("::"), to.1.join("::"));
            ties.entry(pair).or_default().insert(tie);
        }
    }
    ties
});

/// The modules that lie directly in one; in the crate, where `inside` is empty.
pub fn children(krate: &str, inside: &[&str]) -> BTreeSet<String> {
    let sources = rust_files().into_iter().filter(|source| !source.is_test());
    let modules = sources.filter_map(|source| module(&source)).filter(|(at, _)| at == krate);
    let children = modules.filter_map(|(_, path)| {
        let rest = path.get(inside.len()..)?;
        if path.iter().zip(inside).any(|(at, wanted)| at != wanted) {
            return None;
        }
        rest.first().cloned()
    });
    children.collect()
}
