//! Entry point of the gateway process: reads the configuration, then runs the gateway.

use kvasir_gateway::app;
use kvasir_gateway::config::{self, Options};
use kvasir_process::entry;
use mimalloc::MiMalloc;
use std::env;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let read = config::read(env::args_os());
    entry::main::<Options, _, _, _>(read, |config| &config.process.log, app::run)
}
