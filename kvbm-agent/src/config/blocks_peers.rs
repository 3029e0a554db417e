//! Options of blocks between agents.

use crate::blocks::PeersConfig;
use clap::Args;
use kvasir_process::config::ConfigError;
use kvasir_process::options::{ProcessConfig, target};
use kvasir_proto::target::is_tls;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Options of transfers between agents.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PeerOptions {
    /// Address of the port that serves this agent's blocks to other agents; none if not set. It uses the TLS and identities
    /// of the other ports
    #[arg(long, value_name = "ADDRESS")]
    pub blocks_peer_listen: Option<SocketAddr>,
    /// URL by which other agents reach that port, such as http://10.0.0.7:50053; the listen address if not set. The worker
    /// is registered with it as label blocks-peer
    #[arg(long, value_name = "URL")]
    pub blocks_peer_advertise: Option<String>,
    /// File with the token that this agent sends to peers when it fetches blocks. It is sent only to https:// peers and
    /// loopback addresses, because engines choose the peers. The token of token-file is never sent to peers
    #[arg(long, value_name = "FILE")]
    pub blocks_peer_token_file: Option<PathBuf>,
}

impl PeerOptions {
    /// The option that is set, if one is.
    pub(super) fn first_set(&self) -> Option<&'static str> {
        let set = [
            ("blocks-peer-listen", self.blocks_peer_listen.is_some()),
            ("blocks-peer-advertise", self.blocks_peer_advertise.is_some()),
            ("blocks-peer-token-file", self.blocks_peer_token_file.is_some()),
        ];
        set.into_iter().find(|(_, is_set)| *is_set).map(|(field, _)| field)
    }

    /// Checks them, beside the other ports.
    pub(super) fn check(
        &self,
        process: &ProcessConfig,
        is_insecure: bool,
    ) -> Result<PeersConfig, ConfigError> {
        let invalid = |field: &'static str, why: String| ConfigError::invalid(field, why);
        let (listen, has_tls) = (self.blocks_peer_listen, process.guard.tls.is_some());
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
        Ok(PeersConfig { listen, advertise, guard: process.guard.clone(), dialer })
    }

    /// What other agents connect to; none if that is known only once the port is open.
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
