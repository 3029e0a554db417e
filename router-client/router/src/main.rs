//! Entry point of the router process: reads the configuration, then runs the router.

use kvasir_process::entry;
use kvasir_router::app;
use kvasir_router::config::{self, Options};
use mimalloc::MiMalloc;
use std::env;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let read = config::read(env::args_os());
    entry::main::<Options, _, _, _>(read, |config| &config.process.log, app::run)
}
