//! The parts that serving and checking share: engines, their check, and the way to the index in this process.

use crate::check::Checker;
use crate::config::Config;
use crate::engines::Engines;
use kvasir_gateway::engines::EngineClient;
use kvasir_gateway::tokens::{Renderer, Tokens};
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb::indexer_client::IndexerClient as Stub;
use kvasir_tls::{Dialer, IN_PROCESS, LocalServer};
use router_client::{ClientConfig, IndexerClient};
use std::time::Duration;

/// Timeout of a check's queries to the index.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Reaches the index.
    pub(crate) dialer: Dialer,
    pub(crate) engines: Engines,
    /// `None`: the check is off.
    pub(crate) checker: Option<Checker>,
}

impl Parts {
    /// Creates the parts for an index in this process.
    ///
    /// # Errors
    /// If a tokenizer cannot be loaded.
    pub(crate) fn new(config: &Config, index: LocalServer) -> anyhow::Result<Self> {
        let dialer = Dialer::default().with_local(index);
        let workers = Stub::new(dialer.lazy(IN_PROCESS)?)
            .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
        let gateway = &config.gateway;
        let client = EngineClient::new(&gateway.engines);
        let engines = Engines {
            named: config.engines.clone(),
            source: config.source.clone(),
            client: client.clone(),
            keys: gateway.engines.keys.clone(),
            index: workers.clone(),
            timeout: config.worker_timeout,
        };
        let mut checker = None;
        if config.self_check {
            let tokens = &gateway.tokens;
            let renderer =
                Renderer::new(client.clone(), tokens.render_url.clone(), tokens.render_timeout);
            let queries = ClientConfig {
                deadline: QUERY_TIMEOUT,
                dialer: dialer.clone(),
                ..ClientConfig::default()
            };
            let index = IndexerClient::connect(IN_PROCESS, queries)?;
            let tokens = Tokens::new(tokens, renderer)?;
            checker = Some(Checker { tokens, client, index, workers });
        }
        Ok(Self { dialer, engines, checker })
    }
}
