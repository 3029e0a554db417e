//! The paths that a Rust file names, as the parser reads them.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeMap;
use syn::visit::{self, Visit};
use syn::{Attribute, File, ItemMod, ItemUse, Macro, Meta, UseTree, Visibility};

/// Segments of a path, such as `["crate", "grpc", "serve"]`.
pub type Names = Vec<String>;

/// What a file names and defines outside its unit tests.
#[derive(Default)]
pub struct Named {
    /// Every path, those of imports included.
    pub paths: Vec<Names>,
    /// What imports bring in, by the name it has in the file.
    pub imports: BTreeMap<String, Names>,
    with_tests: bool,
}

impl Named {
    /// Reads a file, its unit tests excepted.
    pub fn of(text: &str) -> Self {
        Self::default().read(text)
    }

    /// Reads a file, its unit tests included.
    pub fn with_tests(text: &str) -> Self {
        Self { with_tests: true, ..Self::default() }.read(text)
    }

    fn read(mut self, text: &str) -> Self {
        let file: File = syn::parse_file(text).expect("a Rust file");
        self.visit_file(&file);
        self
    }

    fn import(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &dyn ToString| [before, &[name.to_string()]].concat();
        let (path, name) = match tree {
            UseTree::Path(path) => return self.import(&with(&path.ident), &path.tree),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(before, tree));
            }
            // `a::{self}` is a itself.
            UseTree::Name(name) if name.ident == "self" => {
                (before.to_vec(), before.last().cloned())
            }
            UseTree::Name(name) => (with(&name.ident), Some(name.ident.to_string())),
            UseTree::Rename(name) => (with(&name.ident), Some(name.rename.to_string())),
            UseTree::Glob(_) => (with(&"*"), None),
        };
        self.imports.extend(name.map(|name| (name, path.clone())));
        self.paths.push(path);
    }

    /// Paths in what a macro is given, which only the macro could parse.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path = Names::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.paths.push(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(sign) if sign.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.paths.push(std::mem::take(&mut path));
                    self.scan(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.paths.push(std::mem::take(&mut path));
                }
            }
        }
        self.paths.push(path);
        self.paths.retain(|path| !path.is_empty());
    }
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Meta::List(list) = &attribute.meta else { return false };
        list.path.is_ident("cfg") && list.tokens.to_string().contains("test")
    })
}

impl<'a> Visit<'a> for Named {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if self.with_tests || !is_of_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        if self.with_tests || !is_of_tests(&item.attrs) {
            self.import(&[], &item.tree);
        }
    }

    fn visit_attribute(&mut self, attribute: &'a Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.scan(list.tokens.clone());
        }
    }

    /// `pub(crate)` imports nothing.
    fn visit_visibility(&mut self, _: &'a Visibility) {}

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.paths.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a Macro) {
        visit::visit_path(self, &call.path);
        self.paths.push(call.path.segments.iter().map(|at| at.ident.to_string()).collect());
        self.scan(call.tokens.clone());
    }
}
