//! Connecting to NATS: all programs read a URL, sign on and time out alike. What to do when a connection breaks is
//! theirs to say.

use crate::text::ServerUrl;
use async_nats::{Auth, AuthError, ConnectOptions, ServerAddr};
use std::{fmt, time::Duration};

/// Longest time until a connection is there,
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// and until the server answers a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The server is asked for a sign of life this often. No answer ends the connection.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// The servers of one cluster, and how to sign on to them. Whatever prints it hides the secret.
#[derive(Clone)]
pub struct NatsServers {
    url: ServerUrl,
    addresses: Vec<ServerAddr>,
    auth: Auth,
}

impl NatsServers {
    /// Reads `nats://host:port` or `tls://host:port`, several with commas between, with `user:password@` or `token@`
    /// where the servers ask for that.
    ///
    /// # Errors
    /// If one of them is no such address; the text shows no secret.
    pub fn read(url: &ServerUrl) -> Result<Self, String> {
        let read = |text: &str| {
            if !["nats://", "tls://"].iter().any(|scheme| text.starts_with(scheme)) {
                return Err("a server must start with nats:// or tls://".to_owned());
            }
            let address: ServerAddr = text.parse().map_err(|error| format!("{error}"))?;
            if address.host().is_empty() { Err("there is no host".to_owned()) } else { Ok(address) }
        };
        let addresses: Result<Vec<_>, _> = url.expose().split(',').map(read).collect();
        let addresses = addresses
            .map_err(|why| format!("{why}: write nats://host:port, several with commas between"))?;
        let mut auth = Auth::new();
        for server in &addresses {
            let user = server.username().map(str::to_owned);
            match server.password().map(str::to_owned) {
                Some(password) => (auth.username, auth.password) = (user, Some(password)),
                None => auth.token = user.or(auth.token),
            }
        }
        Ok(Self { url: url.clone(), addresses, auth })
    }

    /// Options that sign on as the URL says, as often as `may_sign_on` allows it.
    pub fn options(
        &self,
        may_sign_on: impl Fn() -> bool + Send + Sync + 'static,
    ) -> ConnectOptions {
        let auth = self.auth.clone();
        let sign_on = move |_nonce| {
            let refused = || AuthError::new("this connection is not made again");
            let answer = if may_sign_on() { Ok(auth.clone()) } else { Err(refused()) };
            async move { answer }
        };
        ConnectOptions::with_auth_callback(sign_on)
            .connection_timeout(CONNECT_TIMEOUT)
            .request_timeout(Some(REQUEST_TIMEOUT))
            .ping_interval(PING_INTERVAL)
    }

    /// Where they are.
    #[must_use]
    pub fn addresses(&self) -> &[ServerAddr] {
        &self.addresses
    }
}

impl fmt::Display for NatsServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for NatsServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for NatsServers {
    fn eq(&self, other: &Self) -> bool {
        self.url == other.url
    }
}

impl Eq for NatsServers {}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<NatsServers, String> {
        NatsServers::read(&ServerUrl::from(url.to_owned()))
    }

    #[test]
    fn servers_and_what_signs_on_are_read() {
        let two = read("nats://a:4222,tls://user:secret@b:1").expect("two servers");
        let hosts: Vec<_> = two.addresses().iter().map(ServerAddr::host).collect();
        assert_eq!(hosts, ["a", "b"]);
        assert!(!format!("{two} {two:?}").contains("secret"));
        assert_eq!(two.auth.username.as_deref(), Some("user"));
        assert_eq!(two.auth.password.as_deref(), Some("secret"));
        let token = read("nats://token@a:4222").expect("a server").auth;
        assert_eq!((token.token.as_deref(), token.password), (Some("token"), None));
    }

    #[test]
    fn what_is_no_server_is_refused_without_its_secret() {
        for url in ["", "a:4222", "user:secret@a:4222", "http://secret@a", "nats://a,b", "nats://"]
        {
            let why = read(url).expect_err(url);
            assert!(why.contains("write nats://host:port") && !why.contains("secret"), "{why}");
        }
    }
}
