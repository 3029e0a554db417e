use crate::build::{self, Linked, compile, succeeded};
use crate::driver::{PATIENCE, indexed_until};
use kvasir_sim::server::Server;
use std::fs;
use std::process::Command;

/// The example in the README of the C bindings, with this agent's address, linked statically.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_of_the_readme_runs() {
    let readme = build::root().join("clients/c/README.md");
    let readme = fs::read_to_string(readme).expect("a README");
    let (_, rest) = readme.split_once("```c\n").expect("an example in C");
    let (example, _) = rest.split_once("```").expect("its end");
    assert!(example.lines().count() <= 30, "it grows too long to be read");

    let mut index = Server::start_anywhere().await.expect("an index");
    let indexers = format!("http://{}", index.addresses.grpc);
    let flags = ["--worker-id", "gpu-0", "--model", "llama", "--block-size", "16"];
    let flags = [&flags[..], &["--indexers", &indexers]].concat();
    let mut agent = Server::agent(&flags).await.expect("an agent");
    let address = format!("http://{}", agent.addresses.grpc);
    assert!(example.contains("http://127.0.0.1:50052"), "{example}");
    let example = example.replace("http://127.0.0.1:50052", &address);

    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("example.c");
    fs::write(&path, example).expect("a file");
    let program = compile("cc", "-std=c11", &path, Linked::Statically);
    let output = succeeded(&mut Command::new(&program.path));
    let printed = String::from_utf8(output.stdout).expect("text");
    assert!(readme.contains(&format!("prints `{}`", printed.trim())), "it prints {printed}");
    indexed_until(&index, ("llama", "gpu-0"), &[101].into(), PATIENCE).await;
    agent.stop().await;
    index.stop().await;
}
