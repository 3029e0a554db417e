//! `mock-engine`: an engine as a process, for tests that kill it; see `kvasir_tests::engine::process`.

use anyhow::Result;
use kvasir_tests::engine::process::serve;
use std::io::{stdin, stdout};

fn main() -> Result<()> {
    serve(stdin().lock(), stdout().lock())
}
