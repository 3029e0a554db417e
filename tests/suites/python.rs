//! The Python package, as its users install it: its own check with the server and the agent that were built here.

use kvasir_sim::{place, server};
use std::path::Path;
use std::process::{Command, Output};

/// Where a machine without Rust finds programs.
const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("a command that can be run");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    output
}

#[test]
fn the_package_is_sound_and_speaks_to_server_and_agent() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut check = Command::new(root.join("clients/python/check"));
    check.arg(place::cache().join("python-client"));
    check.env("KVASIR_INDEXER_SERVER", server::binary().expect("a built server"));
    check.env("KVASIR_KVBM_AGENT", server::agent_binary().expect("a built agent"));
    check.env("KVASIR_ROUTER", server::router_binary().expect("a built router"));
    run(check.env_remove("KVASIR_REGENERATE"));
}

#[test]
fn the_wheel_has_the_program_and_the_client() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let built = server::binary_of("kvasir").expect("a built program");
    let folder = tempfile::tempdir().expect("a folder");
    let made = run(Command::new(root.join("scripts/wheel"))
        .arg("--program")
        .arg(&built)
        .arg(folder.path()));
    let wheel = text(&made.stdout);
    let name = wheel.trim_end().rsplit('/').next().expect("a path");
    assert!(name.starts_with("kvasir-") && name.contains("-py3-none-manylinux_2_"), "{wheel}");

    let venv = folder.path().join("venv");
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    let bin = venv.join("bin");
    run(Command::new(bin.join("pip")).args(["install", "--quiet", wheel.trim_end()]));
    let installed = |arguments: &[&str]| {
        let mut command = Command::new(bin.join(arguments[0]));
        text(&run(command.env_clear().env("PATH", SYSTEM_PATH).args(&arguments[1..])).stdout)
    };
    assert_eq!(
        installed(&["kvasir", "--version"]),
        text(&run(Command::new(&built).arg("--version")).stdout)
    );
    assert!(installed(&["kvasir", "serve", "--help"]).contains("--self-check"));
    let client = "import kvasir; print(kvasir.Indexer.__name__, kvasir.KvEventPublisher.__name__)";
    assert_eq!(installed(&["python", "-c", client]), "Indexer KvEventPublisher\n");
    let size = |path: &Path| path.metadata().expect("a file").len();
    assert!(size(&bin.join("kvasir")) < size(&built), "the program is stripped");
}
