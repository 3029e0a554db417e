use serde::{Deserialize, Serialize, Serializer};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// Placeholder of a password or a token.
const HIDDEN: &str = "***";

/// Address of a server, optionally with a user and a password, or with a token: `nats://user:password@host:port`.
/// `Display`, `Debug` and `Serialize` hide the secret: they write `nats://user:***@host:port`. Only
/// [`ServerUrl::expose`] returns the complete URL.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct ServerUrl(String);

impl ServerUrl {
    /// The URL with its secret, only for the client that connects.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for ServerUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl FromStr for ServerUrl {
    type Err = Infallible;

    fn from_str(url: &str) -> Result<Self, Infallible> {
        Ok(Self(url.to_owned()))
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<&str> = self.0.split(',').collect();
        // A comma may belong to a password; then the beginning of the password is unclear.
        let is_unclear = |part: &&str| part.contains('@') && !part.contains("://");
        if parts.iter().skip(1).any(is_unclear) {
            let shown = self.0.rsplit_once('@').map_or("", |(_, host)| host);
            return write!(f, "{HIDDEN}@{shown}");
        }
        for (index, part) in parts.into_iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write_hidden(f, part)?;
        }
        Ok(())
    }
}

/// Writes the URL of one server, without its secret.
fn write_hidden(f: &mut fmt::Formatter<'_>, url: &str) -> fmt::Result {
    let Some((before, host)) = url.rsplit_once('@') else { return f.write_str(url) };
    let (scheme, credentials) = match before.split_once("://") {
        Some((scheme, credentials)) => (format!("{scheme}://"), credentials),
        None => (String::new(), before),
    };
    match credentials.split_once(':') {
        Some((user, _password)) => write!(f, "{scheme}{user}:{HIDDEN}@{host}"),
        None => write!(f, "{scheme}{HIDDEN}@{host}"),
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl Serialize for ServerUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_tokens_are_hidden_wherever_a_url_is_printed() {
        for (url, shown) in [
            ("nats://host:4222", "nats://host:4222"),
            ("host", "host"),
            ("", ""),
            ("nats://user:secret@host:4222", "nats://user:***@host:4222"),
            ("tls://secret@host", "tls://***@host"),
            ("secret@host", "***@host"),
            ("user:secret@host", "user:***@host"),
            ("nats://user:se@cret@host", "nats://user:***@host"),
            ("nats://user:se:cret/?@host", "nats://user:***@host"),
            ("nats://user:@host", "nats://user:***@host"),
            ("nats://a:secret@b:1,nats://secret@c:2,d:3", "nats://a:***@b:1,nats://***@c:2,d:3"),
            ("nats://user:sec,ret@host", "***@host"),
            ("a:1,user:secret@b:2", "***@b:2"),
        ] {
            let read: ServerUrl = url.parse().expect("any text is taken");
            assert_eq!(read.to_string(), shown, "{url}");
            assert_eq!(format!("{read:?}"), format!("{shown:?}"), "{url}");
            assert_eq!(in_a_file(&read), shown, "{url}");
            assert_eq!(read.expose(), url);
        }
    }

    /// The URL as a configuration file contains it.
    fn in_a_file(url: &ServerUrl) -> String {
        #[derive(Serialize)]
        struct File<'a> {
            url: &'a ServerUrl,
        }
        let text = toml::to_string(&File { url }).expect("a table");
        let table: toml::Table = text.parse().expect("a table");
        table["url"].as_str().expect("a text").to_owned()
    }
}
