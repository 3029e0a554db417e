use serde::{Serialize, Serializer};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// An option of a volume's store, `key=value`. The value may be a secret, so it is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreOption(String);

impl StoreOption {
    /// Key and value; `None` if the text has another form.
    pub(super) fn expose(&self) -> Option<(&str, &str)> {
        self.0.split_once('=').filter(|(key, _)| !key.is_empty())
    }
}

impl fmt::Display for StoreOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.expose().map_or("", |(key, _secret)| key);
        write!(f, "{key}=***")
    }
}

impl fmt::Debug for StoreOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for StoreOption {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Never fails: options are checked later, where the error does not repeat the value.
impl FromStr for StoreOption {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}
