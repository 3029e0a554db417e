//! Modules import an item from the module that defines it. The re-exports of `lib.rs` are for other crates: an import
//! of them would make each module depend on the root, which depends on all modules.

use crate::modules::children;
use crate::names::Named;
use crate::sources::rust_files;

/// Crates whose modules still import from the root.
const EXEMPT: [&str; 2] = ["kit/access", "kit/tls"];

#[test]
fn modules_import_no_reexport_of_their_crate() {
    let files: Vec<_> = rust_files().into_iter().filter(|source| !source.is_test()).collect();
    let mut faults = Vec::new();
    for root in &files {
        let Some(krate) = root.path.strip_suffix("/src/lib.rs") else { continue };
        if EXEMPT.contains(&krate) {
            continue;
        }
        let modules = children(krate, &[]);
        let reexports = Named::of(&root.text).imports;
        let is_reexport = |path: &[String]| match path {
            [first, name, ..] if first == "crate" => {
                reexports.contains_key(name) && !modules.contains(name)
            }
            _ => false,
        };
        let folder = format!("{krate}/src/");
        for file in files.iter().filter(|file| file.path.starts_with(&folder)) {
            let paths = Named::of(&file.text).paths.into_iter().filter(|path| is_reexport(path));
            faults.extend(paths.map(|path| format!("{}: {}", file.path, path.join("::"))));
        }
    }
    assert!(faults.is_empty(), "name the module that defines the item: {faults:#?}");
}
