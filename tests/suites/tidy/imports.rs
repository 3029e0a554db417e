//! Imports have one form: a line for each module, `use module::{Name, Other};`.

use crate::sources::rust_files;
use syn::visit::{self, Visit};
use syn::{ItemUse, UseTree};

/// Imports of a file that name several modules.
#[derive(Default)]
struct Nested(usize);

impl<'ast> Visit<'ast> for Nested {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.0 += usize::from(is_nested(&item.tree));
        visit::visit_item_use(self, item);
    }
}

/// Whether the names of a list are paths.
fn is_nested(tree: &UseTree) -> bool {
    match tree {
        UseTree::Path(path) => is_nested(&path.tree),
        UseTree::Group(group) => group.items.iter().any(|item| matches!(item, UseTree::Path(_))),
        UseTree::Name(_) | UseTree::Rename(_) | UseTree::Glob(_) => false,
    }
}

#[test]
fn an_import_names_one_module() {
    let mut nested = Vec::new();
    for file in rust_files() {
        let mut found = Nested::default();
        found.visit_file(&syn::parse_file(&file.text).expect("Rust"));
        if found.0 > 0 {
            nested.push(format!("{}: {}", file.path, found.0));
        }
    }
    assert!(
        nested.is_empty(),
        "write `use a::b::C;` and `use a::D;`, not `use a::{{b::C, D}};`: {nested:#?}"
    );
}
