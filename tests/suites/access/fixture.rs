//! Programs with identities.

use anyhow::Result;
use kvasir_access::token_sha256;
use kvasir_sim::server::Server;
use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use tempfile::TempDir;

/// An identity: its name, which is its token too, and the lines behind these.
pub type Identity<'a> = (&'a str, &'a str);

/// Those of most tests. Tokens are longer in life.
pub const IDENTITIES: &[Identity<'_>] = &[
    ("query-a", "roles = [\"query\"]\ntenants = [\"a\"]"),
    ("publish-a", "roles = [\"publish\"]\ntenants = [\"a\"]\nworkers = [\"w*\"]"),
    ("admin-a", "roles = [\"admin\"]\ntenants = [\"a\"]"),
    ("query-b", "roles = [\"query\"]\ntenants = [\"b\"]"),
    ("publish-b", "roles = [\"publish\"]\ntenants = [\"b\"]\nworkers = [\"w*\"]"),
    ("admin-b", "roles = [\"admin\"]\ntenants = [\"b\"]"),
    ("query-a-m1", "roles = [\"query\"]\ntenants = [\"a\"]\nmodels = [\"m1\"]"),
    ("query", "roles = [\"query\"]\ntenants = [\"*\"]"),
    ("publish", "roles = [\"publish\"]\ntenants = [\"*\"]\nworkers = [\"*\"]"),
    ("admin", "roles = [\"admin\"]\ntenants = [\"*\"]"),
];

/// Writes a file of identities.
pub fn write(path: &Path, identities: &[Identity<'_>]) -> Result<()> {
    let mut text = String::new();
    for (name, rest) in identities {
        let hash = token_sha256(name);
        writeln!(text, "[[identity]]\nname = {name:?}\ntoken-sha256 = {hash:?}\n{rest}\n")?;
    }
    Ok(fs::write(path, text)?)
}

/// An index with [`IDENTITIES`], and the folder of the file.
pub async fn index(flags: &[&str]) -> Result<(Server, TempDir)> {
    let folder = TempDir::new()?;
    let file = folder.path().join("identities.toml");
    write(&file, IDENTITIES)?;
    let file = file.display().to_string();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let flags: Vec<_> = ["--identities", &file].iter().chain(flags).copied().collect();
    Ok((Server::start_with(any, any, &flags).await?, folder))
}

/// A router with [`IDENTITIES`] that queries an index of [`index`], whose folder it shares.
pub async fn router(index: &Server, folder: &TempDir) -> Result<Server> {
    let target = format!("http://{}", index.addresses.grpc);
    let file = folder.path().join("identities.toml");
    let token = folder.path().join("token");
    fs::write(&token, "query\n")?;
    let file = file.display().to_string();
    let token = token.display().to_string();
    let flags =
        [["--identities", &file], ["--token-file", &token], ["--indexer", &target]].concat();
    Server::router(&flags).await
}
