//! `sweep`: ways of routing, compared in virtual time; see `--help`.

use anyhow::Result;
use clap::Parser;
use kvasir_tests::sweep::{Args, run};

fn main() -> Result<()> {
    run(Args::parse())
}
