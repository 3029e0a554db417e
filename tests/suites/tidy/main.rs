//! Rules of the repository that the compiler does not know: who may import whom, how large things
//! may grow, which words stay out, and which parts of the documents are made from the code.
//! With `KVASIR_REGENERATE=1` the generated parts are rewritten instead of compared.

#![allow(clippy::disallowed_methods, reason = "tests read their switches from the environment")]

mod cycles;
mod dependencies;
mod documents;
mod imports;
mod layers;
mod modules;
mod named_tests;
mod names;
mod reexports;
mod sbom;
mod sizes;
mod sources;
mod summary;
mod words;
