//! Entry of the process: reads the configuration, then runs the agent.

use kvasir_process::entry;
use kvbm_agent::app;
use kvbm_agent::config::{self, Options};
use mimalloc::MiMalloc;
use std::env;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let read = config::read(env::args_os());
    entry::main::<Options, _, _, _>(read, |config| &config.log, app::run)
}
