//! Finds the NIXL library installed for tests.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the path of `libnixl_capi.so`. `script` is the path of a script, relative to the crate's folder, that
/// downloads the library into the cache once.
pub fn library(script: &str) -> PathBuf {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/kvasir"));
    let cache = env::var_os("KVASIR_CACHE").map(PathBuf::from).or_else(home);
    let folder = cache.unwrap_or_else(env::temp_dir).join("nixl");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let output = Command::new(script).arg(folder).stderr(Stdio::inherit()).output();
    let output = output.expect("the script");
    assert!(output.status.success(), "the library can't be downloaded: {}", output.status);
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
}
