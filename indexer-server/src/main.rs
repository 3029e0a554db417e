//! Entry point of the process: reads the configuration, then runs the application.

use indexer_server::app;
use indexer_server::config::{self, Options};
use kvasir_process::entry;
use mimalloc::MiMalloc;
use std::env;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let read = config::read(env::args_os());
    entry::main::<Options, _, _, _>(read, |config| &config.log, app::serve)
}
