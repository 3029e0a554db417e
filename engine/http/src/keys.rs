//! Keys of engines' APIs.

use hyper::Uri;
use hyper::header::{HeaderValue, InvalidHeaderValue};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keys for the APIs of engines, by `HOST:PORT`. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct EngineKeys(Arc<RwLock<BTreeMap<String, HeaderValue>>>);

impl EngineKeys {
    /// Sets the key that is sent to an engine as `Authorization: Bearer KEY`. It is never printed.
    ///
    /// # Errors
    /// If the key has characters that a header cannot have.
    pub fn set(&self, engine: &Uri, key: &str) -> Result<(), InvalidHeaderValue> {
        let mut header = HeaderValue::from_str(&format!("Bearer {key}"))?;
        header.set_sensitive(true);
        if let Some(authority) = engine.authority() {
            self.0.write().insert(authority.to_string(), header);
        }
        Ok(())
    }

    /// Removes the key of an engine.
    pub fn remove(&self, engine: &Uri) {
        if let Some(authority) = engine.authority() {
            self.0.write().remove(authority.as_str());
        }
    }

    /// The header with the key for an address.
    pub(super) fn header(&self, address: &Uri) -> Option<HeaderValue> {
        let keys = self.0.read();
        // Most fleets have no keys.
        (!keys.is_empty()).then(|| keys.get(address.authority()?.as_str()).cloned())?
    }
}
