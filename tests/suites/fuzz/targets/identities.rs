//! Any text as a file of identities: what is accepted lets in whom it names and nobody else, and no error shows a hash.

use kvasir_access::Identities;

/// Digits of a hash.
const HASH_DIGITS: usize = 64;

pub(super) fn target(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    match Identities::parse(text) {
        Ok(identities) => {
            assert!(identities.len() <= text.matches("name").count(), "more identities than names");
            assert!(identities.of_token("a token that no file has").is_none(), "a stranger");
            assert!(identities.of_certificate(std::iter::empty()).is_none());
            !identities.is_empty()
        }
        Err(error) => {
            let shown = error.to_string();
            let hashes = text.split(|at: char| !at.is_ascii_hexdigit());
            for hash in hashes.filter(|hash| hash.len() == HASH_DIGITS) {
                assert!(!shown.contains(hash), "the error shows a hash: {shown}");
            }
            false
        }
    }
}
