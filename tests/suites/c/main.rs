//! The C bindings, from C: programs compiled against the header and linked with the library that was
//! built here, beside a real agent and a real index.

#![allow(clippy::disallowed_methods, reason = "tests read their switches from the environment")]

mod build;
mod driver;
mod example;
mod header;
mod misuse;
mod publish;
