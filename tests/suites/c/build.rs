//! From C to programs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// The package that is tested.
pub fn package() -> PathBuf {
    root().join("clients/c")
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// One of our sources.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("suites/c").join(name)
}

/// How a program gets at the library.
#[derive(Debug, Clone, Copy)]
pub enum Linked {
    Dynamically,
    Statically,
}

/// A compiled program; its folder goes with it.
pub struct Program {
    pub path: PathBuf,
    _folder: TempDir,
}

/// The library lies where cargo puts what tests depend on: beside this test.
fn library_folder() -> PathBuf {
    let own = env::current_exe().expect("a path");
    own.parent().expect("a folder").to_owned()
}

/// Compiles one file, by a compiler that takes no warning for an answer.
pub fn compile(compiler: &str, standard: &str, source: &Path, linked: Linked) -> Program {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("program");
    let libraries = library_folder();
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", standard, "-I"]);
    command.arg(package().join("include")).arg(source).arg("-o").arg(&path);
    match linked {
        Linked::Dynamically => {
            command.arg("-L").arg(&libraries).arg("-lkvasir");
            command.arg(format!("-Wl,-rpath,{}", libraries.display()));
        }
        Linked::Statically => {
            // Built with the whole workspace, it has the agent's disk in it, which is C++.
            command.arg(libraries.join("libkvasir.a")).arg("-lstdc++");
        }
    }
    succeeded(command.args(["-pthread", "-ldl", "-lm"]));
    Program { path, _folder: folder }
}

/// Runs a command that must succeed; what it says is shown if it does not.
pub fn succeeded(command: &mut Command) -> Output {
    let output = command.output().expect("a command that can be run");
    let program = command.get_program().to_os_string();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let out = text(&output.stdout);
    let err = text(&output.stderr);
    assert!(output.status.success(), "{}: {out}\n{err}", program.display());
    output
}
