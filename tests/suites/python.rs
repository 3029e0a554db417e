//! The Python package, as its users install it: its own check with the server and the agent that were built here.

use kvasir_sim::{place, server};
use std::path::Path;
use std::process::Command;

#[test]
fn the_package_is_sound_and_speaks_to_server_and_agent() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let check = Command::new(root.join("clients/python/check"))
        .arg(place::cache().join("python-client"))
        .env("KVASIR_INDEXER_SERVER", server::binary().expect("a built server"))
        .env("KVASIR_KVBM_AGENT", server::agent_binary().expect("a built agent"))
        .env("KVASIR_ROUTER", server::router_binary().expect("a built router"))
        .env_remove("KVASIR_REGENERATE")
        .output()
        .expect("a script that can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let out = text(&check.stdout);
    let err = text(&check.stderr);
    assert!(check.status.success(), "{out}\n{err}");
}
