//! Keys of engines' APIs.

use hyper::Uri;
use hyper::header::HeaderValue;
use kvasir_tls::Token;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keys for the APIs of engines, sent as `Authorization: Bearer KEY`. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct EngineKeys {
    /// Keys by `HOST:PORT`.
    by_address: Arc<RwLock<BTreeMap<String, Token>>>,
    /// Key of all other engines.
    others: Option<Token>,
}

impl EngineKeys {
    /// Creates the keys of a fleet whose engines all have the same key, or none.
    #[must_use]
    pub fn of_all(key: Option<Token>) -> Self {
        Self { others: key, ..Self::default() }
    }

    /// Sets the key of one engine.
    pub fn set(&self, engine: &Uri, key: Token) {
        if let Some(authority) = engine.authority() {
            self.by_address.write().insert(authority.to_string(), key);
        }
    }

    /// Removes the key of one engine.
    pub fn remove(&self, engine: &Uri) {
        if let Some(authority) = engine.authority() {
            self.by_address.write().remove(authority.as_str());
        }
    }

    /// The header with the key for an address.
    pub(super) fn header(&self, address: &Uri) -> Option<HeaderValue> {
        let keys = self.by_address.read();
        let own = address.authority().and_then(|authority| keys.get(authority.as_str()));
        own.or(self.others.as_ref()).map(Token::header)
    }
}
