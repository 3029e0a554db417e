//! Options for the exchange of blocks between agents.

use crate::blocks::{NixlOptions, PeersConfig};
use clap::Args;
use kvasir_process::config::ConfigError;
use kvasir_process::options::{ProcessConfig, target};
use kvasir_process::text;
use kvasir_proto::target::is_tls;
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Options of transfers between agents.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PeerOptions {
    /// Address of the port that serves this agent's blocks to other agents. The port uses the TLS and identities of the
    /// other ports. If not set: no port
    #[arg(long, value_name = "ADDRESS")]
    pub blocks_peer_listen: Option<SocketAddr>,
    /// URL at which other agents reach --blocks-peer-listen, such as http://10.0.0.7:50053. The worker is registered
    /// with it as label blocks-peer. Required if the port listens on all addresses. If not set: the listen address
    #[arg(long, value_name = "URL")]
    pub blocks_peer_advertise: Option<String>,
    /// File with the bearer token for fetching blocks from peers. The agent sends the token only to https:// peers and
    /// loopback addresses, because engines choose the peers. Peers never receive the token of --token-file
    #[arg(long, value_name = "FILE")]
    pub blocks_peer_token_file: Option<PathBuf>,
    /// Transport of blocks from other agents: tcp or nixl. nixl reads the other agent's memory; it requires a build
    /// with feature nixl, and --insecure: UCX, which NIXL uses, lacks TLS and identities. An agent with nixl serves
    /// both
    #[arg(long, value_name = "NAME", default_value_t = PeerBackend::Tcp)]
    #[serde(serialize_with = "text::serialize")]
    pub blocks_peer_backend: PeerBackend,
    /// NIXL's libnixl_capi.so, as in pip install nixl-cu12. Give a path, or a name that the loader searches for.
    /// Requires --blocks-peer-backend nixl
    #[arg(long, value_name = "FILE", default_value = LIBRARY)]
    pub blocks_peer_nixl_library: PathBuf,
}

/// Default of `blocks-peer-nixl-library`.
const LIBRARY: &str = "libnixl_capi.so";

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

impl PeerOptions {
    /// Name of the first option that is set, if any.
    pub(super) fn first_set(&self) -> Option<&'static str> {
        let set = [
            ("blocks-peer-listen", self.blocks_peer_listen.is_some()),
            ("blocks-peer-advertise", self.blocks_peer_advertise.is_some()),
            ("blocks-peer-token-file", self.blocks_peer_token_file.is_some()),
            ("blocks-peer-backend", self.blocks_peer_backend != PeerBackend::Tcp),
            ("blocks-peer-nixl-library", self.names_library()),
        ];
        set.into_iter().find(|(_, is_set)| *is_set).map(|(field, _)| field)
    }

    /// Checks the options together with the other ports.
    pub(super) fn check(
        &self,
        process: &ProcessConfig,
        is_insecure: bool,
    ) -> Result<PeersConfig, ConfigError> {
        let invalid = |field: &'static str, why: String| ConfigError::invalid(field, why);
        let listen = self.blocks_peer_listen;
        let has_tls = process.guard.tls.is_some();
        if let Some(address) = listen {
            let others = [("listen", process.listen), ("http-listen", process.http.listen)];
            let same = others.into_iter().find(|(_, at)| *at == address && at.port() != 0);
            if let Some((other, _)) = same {
                return Err(invalid("blocks-peer-listen", format!("must differ from {other}")));
            }
            if !has_tls && !is_insecure && !address.ip().is_loopback() {
                let why = format!(
                    "{address} can be reached from other machines, and there is no TLS: set tls-cert and tls-key, or \
                     insecure to accept that, or listen on 127.0.0.1"
                );
                return Err(invalid("blocks-peer-listen", why));
            }
        }
        let advertise = self.advertised(has_tls)?;
        let dialer = process.dialer.without_token();
        let dialer = match self.blocks_peer_token_file.clone() {
            None => dialer,
            Some(file) => dialer.with_token(file).map_err(|error| {
                let why = error.to_string();
                invalid("blocks-peer-token-file", why)
            })?,
        };
        let nixl = self.nixl(is_insecure)?;
        Ok(PeersConfig { listen, advertise, guard: process.guard.clone(), dialer, nixl })
    }

    fn names_library(&self) -> bool {
        self.blocks_peer_nixl_library.as_os_str() != LIBRARY
    }

    /// Options of NIXL; `None` for TCP.
    fn nixl(&self, is_insecure: bool) -> Result<Option<NixlOptions>, ConfigError> {
        if self.blocks_peer_backend == PeerBackend::Tcp {
            if self.names_library() {
                let why = "is set, but blocks-peer-backend is tcp: set that to nixl, or remove this option";
                return Err(ConfigError::invalid("blocks-peer-nixl-library", why));
            }
            return Ok(None);
        }
        if !is_insecure {
            let why = "nixl has neither TLS nor identities, and whoever reaches its ports can read and change the blocks: \
                       set insecure to accept that, or use tcp";
            return Err(ConfigError::invalid("blocks-peer-backend", why));
        }
        #[cfg(feature = "nixl")]
        {
            let library = self.blocks_peer_nixl_library.clone();
            Ok(Some(NixlOptions { library, ..NixlOptions::default() }))
        }
        #[cfg(not(feature = "nixl"))]
        {
            let why =
                "this agent was built without NIXL: build it with --features nixl, or use tcp";
            Err(ConfigError::invalid("blocks-peer-backend", why))
        }
    }

    /// Address for other agents; `None` if it is known only once the port is open.
    fn advertised(&self, has_tls: bool) -> Result<Option<String>, ConfigError> {
        const FIELD: &str = "blocks-peer-advertise";
        let scheme = if has_tls { "https" } else { "http" };
        match (self.blocks_peer_listen, &self.blocks_peer_advertise) {
            (None, None) => Ok(None),
            (None, Some(_)) => {
                let why = "is set without blocks-peer-listen: nothing is served there";
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
                let why = format!("is required where blocks-peer-listen is {address}");
                Err(ConfigError::invalid(FIELD, why))
            }
            (Some(address), None) => {
                Ok((address.port() != 0).then(|| format!("{scheme}://{address}")))
            }
        }
    }
}
