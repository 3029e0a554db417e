//! Settings of the exchange of blocks between agents.

use crate::blocks::{NixlOptions, PeersConfig};
use kvasir_process::config::ConfigError;
use kvasir_process::options::{ProcessConfig, target};
use kvasir_process::text::{Setting, Settings, Unset};
use kvasir_proto::target::is_tls;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// Exchange of blocks with other agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerSettings {
    /// Address of the port that serves this agent's blocks.
    pub listen: Unset<SocketAddr>,
    /// URL at which other agents reach the port.
    pub advertise: Unset<String>,
    /// File with the bearer token for fetching blocks.
    pub token_file: Unset<String>,
    /// Transport of blocks from other agents.
    pub backend: PeerBackend,
    /// NIXL's library: a path, or a name that the loader searches for.
    pub nixl_library: String,
}

/// Default of `nixl_library`.
const LIBRARY: &str = "libnixl_capi.so";

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            listen: Unset(None),
            advertise: Unset(None),
            token_file: Unset(None),
            backend: PeerBackend::Tcp,
            nixl_library: LIBRARY.to_owned(),
        }
    }
}

impl Settings for PeerSettings {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("listen", &mut self.listen),
            ("advertise", &mut self.advertise),
            ("token-file", &mut self.token_file),
            ("backend", &mut self.backend),
            ("nixl-library", &mut self.nixl_library),
        ]
    }
}

/// Transport of blocks from other agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerBackend {
    /// TCP: over the connection.
    Tcp,
    /// NIXL: reads the other agent's memory.
    Nixl,
}

impl fmt::Display for PeerBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Nixl => "nixl",
        })
    }
}

impl FromStr for PeerBackend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = [Self::Tcp, Self::Nixl].into_iter().find(|at| at.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is not tcp or nixl"))
    }
}

impl PeerSettings {
    /// Whether a setting differs from its default.
    pub(super) fn is_set(&self) -> bool {
        *self != Self::default()
    }

    /// Checks the settings for transfers between agents, together with the agent's other ports. Without TLS, `listen`
    /// on a reachable address requires `is_insecure`.
    pub(super) fn check(
        &self,
        process: &ProcessConfig,
        is_insecure: bool,
    ) -> Result<PeersConfig, ConfigError> {
        let invalid = |field: &'static str, why: String| ConfigError::invalid(field, why);
        let listen = self.listen.0;
        let has_tls = process.guard.tls.is_some();
        if let Some(address) = listen {
            let others = [("listen", process.listen), ("http-listen", process.http.listen)];
            let same = others.into_iter().find(|(_, at)| *at == address && at.port() != 0);
            if let Some((other, _)) = same {
                return Err(invalid("blocks-peer listen", format!("must differ from {other}")));
            }
            if !has_tls && !is_insecure && !address.ip().is_loopback() {
                let why = format!(
                    "{address} can be reached from other machines, and there is no TLS: set tls-cert and tls-key, or \
                     insecure to accept that, or listen on 127.0.0.1"
                );
                return Err(invalid("blocks-peer listen", why));
            }
        }
        let advertise = self.advertised(has_tls)?;
        let dialer = process.dialer.without_token();
        let dialer = match self.token_file.0.clone() {
            None => dialer,
            Some(file) => dialer.with_token(file.into()).map_err(|error| {
                let why = error.to_string();
                invalid("blocks-peer token-file", why)
            })?,
        };
        let nixl = self.nixl(is_insecure)?;
        Ok(PeersConfig { listen, advertise, guard: process.guard.clone(), dialer, nixl })
    }

    fn names_library(&self) -> bool {
        self.nixl_library != LIBRARY
    }

    /// Returns the options of NIXL, or `None` if the backend is TCP. Fails unless `is_insecure`, because NIXL has no
    /// TLS.
    fn nixl(&self, is_insecure: bool) -> Result<Option<NixlOptions>, ConfigError> {
        if self.backend == PeerBackend::Tcp {
            if self.names_library() {
                let why = "is set, but backend is tcp: set backend=nixl, or remove nixl-library";
                return Err(ConfigError::invalid("blocks-peer nixl-library", why));
            }
            return Ok(None);
        }
        if !is_insecure {
            let why = "nixl has neither TLS nor identities, and whoever reaches its ports can read and change the blocks: \
                       set insecure to accept that, or use tcp";
            return Err(ConfigError::invalid("blocks-peer backend", why));
        }
        #[cfg(feature = "nixl")]
        {
            let library = self.nixl_library.clone().into();
            Ok(Some(NixlOptions { library, ..NixlOptions::default() }))
        }
        #[cfg(not(feature = "nixl"))]
        {
            let why =
                "this agent was built without NIXL: build it with --features nixl, or use tcp";
            Err(ConfigError::invalid("blocks-peer backend", why))
        }
    }

    /// Returns the URL for other agents. Returns `None` if `listen` is unset, or if the port is only known once it is
    /// open.
    fn advertised(&self, has_tls: bool) -> Result<Option<String>, ConfigError> {
        const FIELD: &str = "blocks-peer advertise";
        let scheme = if has_tls { "https" } else { "http" };
        match (self.listen.0, &self.advertise.0) {
            (None, None) => Ok(None),
            (None, Some(_)) => {
                let why = "is set without listen: set listen, or remove advertise";
                Err(ConfigError::invalid(FIELD, why))
            }
            (Some(_), Some(text)) => {
                let url = target(FIELD, text)?;
                if is_tls(&url) != has_tls {
                    let why = format!("{url:?} must begin with {scheme}://, as the port does");
                    return Err(ConfigError::invalid(FIELD, why));
                }
                Ok(Some(url))
            }
            (Some(address), None) if address.ip().is_unspecified() => {
                let why = format!("is required where listen is {address}");
                Err(ConfigError::invalid(FIELD, why))
            }
            (Some(address), None) => {
                Ok((address.port() != 0).then(|| format!("{scheme}://{address}")))
            }
        }
    }
}
