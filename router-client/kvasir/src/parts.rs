//! The parts that serving and checking share: engines, their check, and the way to the index in this process.

use crate::check::Checker;
use crate::config::Config;
use kvasir_discovery::{Engines, Registrar};
use kvasir_engine_http::EngineClient;
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
        let gateway = &config.gateway;
        let reached = &gateway.engines;
        let keys = reached.keys.clone();
        let client =
            EngineClient::new(reached.dialer.clone(), reached.connect_timeout, keys.clone());
        let engines = Engines {
            named: config.engines.clone(),
            source: config.source.clone(),
            client: client.clone(),
            keys,
            registrar: Registrar::new(dialer.lazy(IN_PROCESS)?, None),
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
            let workers = Stub::new(dialer.lazy(IN_PROCESS)?)
                .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
                .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
            let tokens = Tokens::new(tokens, renderer)?;
            checker = Some(Checker { tokens, client, index, workers });
        }
        Ok(Self { dialer, engines, checker })
    }
}
