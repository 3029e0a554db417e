use async_nats::Auth;
use nkeys::{KeyPair, KeyPairType};
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum size of a credentials or seed file, in bytes. A JWT with many permissions has some KiB.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// How a program authenticates. Files are read again for each connection, so that they can be replaced.
#[derive(Clone)]
pub(super) enum SignOn {
    /// By the URL: user and password, a token, or none.
    Url(Auth),
    /// By a file: a credentials file (a JWT, and the seed of the user's key), or the seed of a user's nkey alone.
    File(PathBuf),
}

impl SignOn {
    /// The option that selects this method.
    pub(super) const fn option(&self) -> &'static str {
        match self {
            Self::Url(_) => "nats-url",
            Self::File(_) => "nats-credentials",
        }
    }

    /// Builds the authentication for the server's `nonce`. Reads a file: blocks.
    ///
    /// # Errors
    /// If the file cannot be read or is malformed. The text contains nothing of the file.
    pub(super) fn answer(&self, nonce: &[u8]) -> Result<Auth, String> {
        match self {
            Self::Url(auth) => Ok(auth.clone()),
            Self::File(path) => by_file(path, nonce),
        }
    }
}

/// Signs on by a file: a credentials file, which has sections, or a file with a seed.
fn by_file(path: &Path, nonce: &[u8]) -> Result<Auth, String> {
    let text = read_file(path)?;
    let mut auth = Auth::new();
    if text.contains("-----BEGIN ") {
        let part = |title| section(&text, title).ok_or_else(|| lacks(path, title));
        let jwt = part("NATS USER JWT")?;
        let seed = part("USER NKEY SEED")?;
        auth.jwt = Some(jwt.to_owned());
        auth.signature = Some(sign(path, seed, nonce)?.1);
        return Ok(auth);
    }
    let seed = text.lines().map(str::trim).find(|line| line.starts_with("SU")).unwrap_or_default();
    let (key, signature) = sign(path, seed, nonce)?;
    auth.nkey = Some(key);
    auth.signature = Some(signature);
    Ok(auth)
}

/// Reads a small file. Fails if it is larger than [`FILE_BYTES_MAX`].
pub(super) fn read_file(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let text = || {
        let bytes = fs::metadata(path)?.len();
        if bytes > FILE_BYTES_MAX { Ok(None) } else { fs::read_to_string(path).map(Some) }
    };
    match text() {
        Ok(Some(text)) => Ok(text),
        Ok(None) => Err(format!("{shown} has more than {FILE_BYTES_MAX} bytes")),
        Err(error) => Err(format!("{shown} cannot be read: {error}")),
    }
}

/// The line after `-----BEGIN title-----`.
fn section<'a>(text: &'a str, title: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| line.trim_matches('-').strip_prefix("BEGIN ") == Some(title))?;
    lines.next().filter(|line| !line.is_empty() && !line.starts_with('-'))
}

fn lacks(path: &Path, title: &str) -> String {
    format!("{} has no line after -----BEGIN {title}-----", path.display())
}

/// Returns the public key of a seed, and its signature of the nonce. Errors do not contain the seed.
fn sign(path: &Path, seed: &str, nonce: &[u8]) -> Result<(String, Vec<u8>), String> {
    // The library's error is left out, because it might quote the seed.
    let refused = || format!("{} has no seed of a user's key (SU…)", path.display());
    let pair = KeyPair::from_seed(seed).map_err(|_secret| refused())?;
    if pair.key_pair_type() != KeyPairType::User {
        return Err(refused());
    }
    let signature = pair.sign(nonce).map_err(|_secret| refused())?;
    Ok((pair.public_key(), signature))
}
