//! Entry point: chooses the program by the first argument.

use indexer_server::config::Options as IndexOptions;
use kvasir_gateway::config::Options as GatewayOptions;
use kvasir_process::entry;
use kvasir_process::telemetry::VERSION;
use kvasir_router::config::Options as RouterOptions;
use kvasir_serve::config::{CheckOptions, Options as ServeOptions};
use kvasir_serve::{config, once, serve};
use kvbm_agent::config::Options as AgentOptions;
use mimalloc::MiMalloc;
use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Exit code for invalid usage.
const EXIT_USAGE: u8 = 64;

const HELP: &str = "\
Kvasir: a KV-cache index for fleets of inference engines

Usage: kvasir COMMAND [OPTIONS]

  serve ENGINE...   an OpenAI API in front of engines, with index, router and gateway in one process
  check ENGINE...   check what serve needs of engines, and print a table
  index             the index server (indexer-server)
  router            the router (router)
  gateway           the gateway (gateway)
  agent             the agent of one engine (kvbm-agent)

Example:
  kvasir serve http://gpu-0:8000 http://gpu-1:8000

kvasir COMMAND --help shows the options of a command.
";

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let command = arguments.next().unwrap_or_default();
    let name = command.to_string_lossy().into_owned();
    let rest: Vec<_> =
        [OsString::from(format!("kvasir {name}"))].into_iter().chain(arguments).collect();
    match name.as_str() {
        "serve" => entry::main::<ServeOptions, _, _, _>(
            config::read(rest),
            |config| &config.gateway.process.log,
            serve::run,
        ),
        "check" => entry::main::<CheckOptions, _, _, _>(
            config::read_for_check(rest),
            |config| &config.gateway.process.log,
            once::run,
        ),
        "index" => entry::main::<IndexOptions, _, _, _>(
            indexer_server::config::read(rest),
            |config| &config.log,
            indexer_server::app::serve,
        ),
        "router" => entry::main::<RouterOptions, _, _, _>(
            kvasir_router::config::read(rest),
            |config| &config.process.log,
            kvasir_router::app::run,
        ),
        "gateway" => entry::main::<GatewayOptions, _, _, _>(
            kvasir_gateway::config::read(rest),
            |config| &config.process.log,
            kvasir_gateway::app::run,
        ),
        "agent" => entry::main::<AgentOptions, _, _, _>(
            kvbm_agent::config::read(rest),
            |config| &config.log,
            kvbm_agent::app::run,
        ),
        "-h" | "--help" | "help" => print(&mut io::stdout(), HELP, ExitCode::SUCCESS),
        "-V" | "--version" => {
            print(&mut io::stdout(), &format!("kvasir {VERSION}\n"), ExitCode::SUCCESS)
        }
        "" => print(&mut io::stderr(), HELP, ExitCode::from(EXIT_USAGE)),
        _ => {
            let text = format!("kvasir: there is no command {name:?}\n\n{HELP}");
            print(&mut io::stderr(), &text, ExitCode::from(EXIT_USAGE))
        }
    }
}

/// Prints the text. A failure to print is ignored: no reader is left.
fn print(to: &mut impl Write, text: &str, code: ExitCode) -> ExitCode {
    let _unread = to.write_all(text.as_bytes());
    code
}
