use crate::file::{Entry, File};
use crate::{NAMES_MAX, Names, Principal, Rate, Role};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Maximum number of identities in one file.
pub const IDENTITIES_MAX: usize = 65_536;
/// Maximum length of a token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 4_096;
/// Maximum length of an identity's name, or of a name in one of its lists, in bytes.
const NAME_BYTES_MAX: usize = 256;

type TokenHash = [u8; SHA256_OUTPUT_LEN];

/// All identities. Tokens are looked up by hash, so that the time of a lookup reveals nothing about other tokens.
#[derive(Debug, Clone, Default)]
pub struct Identities {
    by_token: HashMap<TokenHash, Arc<Principal>>,
    by_certificate: HashMap<Box<str>, Arc<Principal>>,
}

/// Why a file of identities cannot be used. The texts show names of identities, so they contain a token only if it
/// stands in the place of a name. They never contain a hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentitiesError {
    /// The file is not TOML of the required form.
    #[error("line {line}: {problem}")]
    Malformed {
        /// The line, from 1.
        line: usize,
        /// Problem of the line.
        problem: String,
    },
    /// An identity is invalid.
    #[error("identity {identity}: {problem}")]
    Identity {
        /// Name of the identity, in quotes. If the name may be the hash of a token: the identity's number in the file,
        /// from 1.
        identity: String,
        /// Problem of the identity, and how to fix it.
        problem: String,
    },
    /// The file has too many identities.
    #[error("{0} identities, the limit is {IDENTITIES_MAX}")]
    TooMany(usize),
}

/// SHA-256 of a token in the file's form: the output of `printf %s "$TOKEN" | sha256sum`.
#[must_use]
pub fn token_sha256(token: &str) -> String {
    hash(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash(token: &str) -> TokenHash {
    let mut hash = [0; SHA256_OUTPUT_LEN];
    // Both have the same length.
    hash.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    hash
}

impl Identities {
    /// Parses a file: TOML with a table `[[identity]]` for each identity.
    ///
    /// # Errors
    /// If the file is malformed, or an identity contradicts itself or another identity.
    pub fn parse(text: &str) -> Result<Self, IdentitiesError> {
        let file: File = toml::from_str(text).map_err(|error| {
            // The error's own text quotes the line, which may contain a secret.
            let begin = error.span().map_or(0, |span| span.start);
            let before = text.get(..begin).unwrap_or_default();
            let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
            IdentitiesError::Malformed { line, problem: problem(error.message()) }
        })?;
        if file.identities.len() > IDENTITIES_MAX {
            return Err(IdentitiesError::TooMany(file.identities.len()));
        }
        let mut names = HashSet::new();
        let mut identities = Self::default();
        for (number, entry) in (1..).zip(file.identities) {
            let identity = shown(&entry.name, number);
            let added = if names.insert(entry.name.clone()) {
                identities.add(entry)
            } else {
                Err("is there twice: give each identity a name of its own".to_owned())
            };
            added.map_err(|problem| IdentitiesError::Identity { identity, problem })?;
        }
        Ok(identities)
    }

    /// Checks an entry of the file and adds it. Fails if it has neither token nor certificate, or one that another
    /// identity has.
    fn add(&mut self, entry: Entry) -> Result<(), String> {
        let token = entry.token_sha256.as_deref().map(read_hash).transpose()?;
        let certificate = entry.certificate.clone();
        if token.is_none() && certificate.is_none() {
            return Err("has neither token-sha256 nor certificate: set one of them".to_owned());
        }
        let principal = Arc::new(principal(entry)?);
        if let Some(token) = token
            && self.by_token.insert(token, Arc::clone(&principal)).is_some()
        {
            return Err("has the token-sha256 of another identity".to_owned());
        }
        if let Some(certificate) = certificate {
            check_name("certificate", &certificate)?;
            if certificate.is_empty() {
                return Err("certificate is empty".to_owned());
            }
            if self.by_certificate.insert(certificate.into(), principal).is_some() {
                return Err("has the certificate of another identity".to_owned());
            }
        }
        Ok(())
    }

    /// The identity with this token.
    #[must_use]
    pub fn of_token(&self, token: &str) -> Option<&Arc<Principal>> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        self.by_token.get(&hash(token))
    }

    /// The identity with a name of a verified certificate. The first name that belongs to an identity decides.
    #[must_use]
    pub fn of_certificate<'a>(
        &self,
        mut names: impl Iterator<Item = &'a str>,
    ) -> Option<&Arc<Principal>> {
        names.find_map(|name| self.by_certificate.get(name))
    }

    /// Number of identities.
    #[must_use]
    pub fn len(&self) -> usize {
        let both = self.by_token.values().chain(self.by_certificate.values());
        both.map(|principal| principal.name()).collect::<HashSet<_>>().len()
    }

    /// Whether the file has no identities: all callers are then denied.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_token.is_empty() && self.by_certificate.is_empty()
    }
}

/// Removes quoted values and keys from an error of serde, because they may be a misplaced token or hash.
fn problem(message: &str) -> String {
    if let Some(unknown) = message.strip_prefix("unknown field `") {
        let expected = unknown.rsplit_once("`, expected").map_or("", |(_, expected)| expected);
        return format!("an unknown field, expected{expected}");
    }
    if message.contains("unknown variant") {
        return "a role must be query, publish or admin".to_owned();
    }
    let quotes_value = message.contains("invalid value") || message.contains("invalid type");
    if quotes_value { "a value has the wrong type".to_owned() } else { message.to_owned() }
}

/// Returns the name of an identity for an error, or its number if the name may be a hash or is too long.
fn shown(name: &str, number: usize) -> String {
    let longest_digits = name.split(|at: char| !at.is_ascii_hexdigit()).map(str::len).max();
    let may_be_hash = longest_digits >= Some(2 * SHA256_OUTPUT_LEN);
    if may_be_hash || name.len() > NAME_BYTES_MAX {
        format!("number {number}")
    } else {
        format!("{name:?}")
    }
}

/// Checks an entry's roles, rate and names. If `tenants` is missing, the identity may use only the tenant without a
/// name; if `models` is missing, all models.
fn principal(entry: Entry) -> Result<Principal, String> {
    check_name("name", &entry.name)?;
    if entry.name.is_empty() {
        return Err("name is empty".to_owned());
    }
    if entry.roles.is_empty() {
        return Err("roles is empty: list query, publish or admin".to_owned());
    }
    let publishes = entry.roles.contains(&Role::Publish) && !entry.roles.contains(&Role::Admin);
    if publishes && entry.workers.as_ref().is_none_or(Vec::is_empty) {
        return Err(
            "publishes for no worker: list its workers, such as workers = [\"gpu-*\"]".to_owned()
        );
    }
    let rate = rate(&entry)?;
    let tenants = entry.tenants.unwrap_or_else(|| vec![String::new()]);
    let models = entry.models.unwrap_or_else(|| vec!["*".to_owned()]);
    let workers = entry.workers.unwrap_or_default();
    Ok(Principal {
        name: entry.name.into(),
        roles: entry.roles,
        tenants: names("tenants", &tenants)?,
        models: names("models", &models)?,
        workers: names("workers", &workers)?,
        rate,
    })
}

/// Reads the query rate of an identity, if it is limited. Fails if only the burst is given.
fn rate(entry: &Entry) -> Result<Option<Rate>, String> {
    let Some(per_second) = entry.queries_per_second else {
        return match entry.query_burst {
            Some(_) => Err("query-burst needs queries-per-second beside it".to_owned()),
            None => Ok(None),
        };
    };
    let rate = Rate::new(per_second, entry.query_burst);
    rate.map(Some).map_err(|error| format!("queries-per-second {error}"))
}

/// Checks the length of a list and the form of its patterns.
fn names(list: &str, patterns: &[String]) -> Result<Names, String> {
    if patterns.len() > NAMES_MAX {
        return Err(format!("{list} has {} names, the limit is {NAMES_MAX}", patterns.len()));
    }
    for pattern in patterns {
        check_name(list, pattern)?;
        if pattern.trim_end_matches('*').contains('*') || pattern.ends_with("**") {
            return Err(format!("{list}: a * stands at the end of a name only"));
        }
    }
    Ok(Names::parse(patterns))
}

/// Checks the length of a name, and that it has no control character.
fn check_name(field: &str, name: &str) -> Result<(), String> {
    if name.len() > NAME_BYTES_MAX {
        return Err(format!(
            "{field} has a name of {} bytes, the limit is {NAME_BYTES_MAX}",
            name.len()
        ));
    }
    if name.chars().any(char::is_control) {
        return Err(format!("{field} has a control character"));
    }
    Ok(())
}

/// Reads a SHA-256 hash of 64 hexadecimal digits.
fn read_hash(text: &str) -> Result<TokenHash, String> {
    let wrong = || {
        "token-sha256 must be 64 hexadecimal digits: printf %s \"$TOKEN\" | sha256sum".to_owned()
    };
    let mut hash = [0; SHA256_OUTPUT_LEN];
    if text.len() != 2 * hash.len() || !text.is_ascii() {
        return Err(wrong());
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        let digits = text.get(2 * at..2 * at + 2).ok_or_else(wrong)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        *byte = u8::from_str_radix(digits, 16).map_err(|_error| wrong())?;
    }
    Ok(hash)
}

#[cfg(test)]
#[path = "identities_test.rs"]
mod tests;
