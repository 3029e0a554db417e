//! Selects the endpoint of a server that creates tokens: `/render`, or `/tokenize` if `/render` is closed, as in vLLM
//! 0.32 without `--enable-scale-out`. Both return the same tokens.

use hyper::StatusCode;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Time after which a closed endpoint is tried again: its server may have restarted with other options.
const RELEARN: Duration = Duration::from_secs(60);
/// Maximum servers whose endpoints are stored.
const SERVERS_MAX: usize = 4_096;
/// Status codes of a closed or missing endpoint.
const CLOSED: [StatusCode; 3] =
    [StatusCode::FORBIDDEN, StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED];

/// The endpoint of a server that creates tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Endpoint {
    /// `/v1/chat/completions/render` and `/v1/completions/render`.
    Render,
    /// `/render` for models, but not for their adapters, as in vLLM 0.19.
    RenderModels,
    /// `/tokenize`; `/render` answered this status.
    Tokenize(u16),
    /// No endpoint; `/render` answered this status, and `/tokenize` is closed too.
    None(u16),
}

#[derive(Debug, Clone, Copy)]
struct Known {
    endpoint: Endpoint,
    learnt_at: Instant,
}

/// The endpoints of all queried servers, by address.
#[derive(Debug, Default)]
pub(super) struct Endpoints(Mutex<BTreeMap<String, Known>>);

impl Endpoint {
    /// All endpoint kinds, each with the statuses that close `/render`: rows of a metric.
    pub(super) fn all_kinds() -> Vec<Self> {
        let closed = CLOSED.map(|status| status.as_u16());
        let kinds = [Self::Tokenize as fn(u16) -> Self, Self::None];
        let of_kind = kinds.iter().flat_map(|kind| closed.map(kind));
        [Self::Render, Self::RenderModels].into_iter().chain(of_kind).collect()
    }

    /// Endpoint name and status of `/render`, as labels of a metric.
    pub(super) const fn labels(self) -> (&'static str, u16) {
        match self {
            Self::Render => ("render", 200),
            Self::RenderModels => ("render_models", 200),
            Self::Tokenize(status) => ("tokenize", status),
            Self::None(status) => ("none", status),
        }
    }

    /// Logs the endpoint that is used from now on.
    fn log(self, server: &str) {
        match self {
            Self::Render => tracing::info!(server, "tokens of prompts come from /render"),
            Self::RenderModels => tracing::info!(
                server,
                "/render does not know adapters: tokens of their prompts are asked by the name of the adapter's model"
            ),
            Self::Tokenize(status) => tracing::info!(
                server,
                status,
                "tokens of prompts come from /tokenize: /render is closed (vLLM opens it with --enable-scale-out)"
            ),
            Self::None(status) => tracing::warn!(
                server,
                status,
                "the server makes no tokens of prompts, /render and /tokenize are closed: load alone chooses workers; start \
                 vLLM with --enable-scale-out, or the gateway with --tokenizer"
            ),
        }
    }

    /// Returns the problem to show for `count` servers with this endpoint, or `None` for `/render`.
    fn problem(self, count: usize, server: &str) -> Option<String> {
        let of_servers = format!("{count} servers, such as {server}");
        match self {
            Self::Render | Self::RenderModels => None,
            Self::Tokenize(status) => Some(format!(
                "tokens of prompts come from /tokenize of {of_servers}: /render answers {status} (vLLM opens it with \
                 --enable-scale-out)"
            )),
            Self::None(status) => Some(format!(
                "no tokens of prompts come from {of_servers}: /render answers {status}, and /tokenize is closed, too: load \
                 alone chooses workers; start vLLM with --enable-scale-out, or the gateway with --tokenizer"
            )),
        }
    }
}

/// Whether an answer means that the endpoint is closed or missing.
pub(super) fn is_closed(status: StatusCode, body: &[u8]) -> bool {
    CLOSED.contains(&status) && !is_unknown_model(status, body)
}

/// Whether an answer means that the endpoint does not know the request's model.
pub(super) fn is_unknown_model(status: StatusCode, body: &[u8]) -> bool {
    let body = String::from_utf8_lossy(body);
    let names_the_model = body.contains("does not exist") || body.contains("\"param\":\"model\"");
    status == StatusCode::NOT_FOUND && names_the_model
}

impl Endpoints {
    /// The endpoint to query: `Render` if no other endpoint was found recently.
    pub(super) fn for_server(&self, server: &str, now: Instant) -> Endpoint {
        let servers = self.0.lock();
        let known = servers.get(server).filter(|known| now < known.learnt_at + RELEARN);
        known.map_or(Endpoint::Render, |known| known.endpoint)
    }

    /// Stores the endpoint that a server has. Logs the first server of each kind.
    pub(super) fn learn(&self, server: &str, endpoint: Endpoint, now: Instant) {
        if self.insert(server, endpoint, now) {
            endpoint.log(server);
        }
    }

    /// Stores the endpoint of a server. Returns whether the server is the first with this endpoint.
    fn insert(&self, server: &str, endpoint: Endpoint, now: Instant) -> bool {
        let mut servers = self.0.lock();
        if let Some(known) = servers.get_mut(server).filter(|known| known.endpoint == endpoint) {
            if now >= known.learnt_at + RELEARN {
                known.learnt_at = now;
            }
            return false;
        }
        if servers.len() >= SERVERS_MAX {
            servers.retain(|_, known| now < known.learnt_at + RELEARN);
        }
        if servers.len() >= SERVERS_MAX {
            return false;
        }
        let is_first = !servers.values().any(|known| known.endpoint == endpoint);
        servers.insert(server.to_owned(), Known { endpoint, learnt_at: now });
        is_first
    }

    /// Returns the number of servers by endpoint, each with the name of one server.
    pub(super) fn count(&self, servers: &[String]) -> BTreeMap<Endpoint, (usize, String)> {
        let known = self.0.lock();
        let mut counted: BTreeMap<Endpoint, (usize, String)> = BTreeMap::new();
        for server in servers {
            let Some(Known { endpoint, .. }) = known.get(server) else { continue };
            counted.entry(*endpoint).or_insert_with(|| (0, server.clone())).0 += 1;
        }
        counted
    }

    /// Problems of the servers, one line for each kind of endpoint.
    pub(super) fn problems(&self, servers: &[String]) -> Vec<String> {
        let counted = self.count(servers);
        let lines =
            counted.iter().map(|(endpoint, (count, first))| endpoint.problem(*count, first));
        lines.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_endpoint_is_asked_again_after_a_minute() {
        let endpoints = Endpoints::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(endpoints.for_server("a", at(0)), Endpoint::Render);
        assert!(endpoints.insert("a", Endpoint::Tokenize(403), at(0)));
        assert_eq!(endpoints.for_server("a", at(59)), Endpoint::Tokenize(403));
        assert_eq!(endpoints.for_server("a", at(60)), Endpoint::Render);
        assert!(!endpoints.insert("a", Endpoint::Tokenize(403), at(60)), "nothing new");
        assert_eq!(endpoints.for_server("a", at(119)), Endpoint::Tokenize(403));
        assert!(endpoints.insert("a", Endpoint::Render, at(120)));
        assert_eq!(endpoints.problems(&["a".to_owned()]), Vec::<String>::new());
    }

    #[test]
    fn the_log_names_one_server_of_a_kind_and_readiness_counts_all() {
        let endpoints = Endpoints::default();
        let now = Instant::now();
        assert!(endpoints.insert("a", Endpoint::Tokenize(403), now));
        assert!(!endpoints.insert("b", Endpoint::Tokenize(403), now));
        assert!(endpoints.insert("c", Endpoint::None(404), now));
        let servers = ["a", "b", "c", "d"].map(str::to_owned);
        let problems = endpoints.problems(&servers);
        let [tokenize, none] = problems.as_slice() else { panic!("{problems:?}") };
        assert!(tokenize.contains("/tokenize of 2 servers, such as a: /render answers 403"));
        assert!(
            none.contains("from 1 servers, such as c") && none.contains("--tokenizer"),
            "{none}"
        );
        assert_eq!(
            endpoints.problems(&["d".to_owned()]),
            Vec::<String>::new(),
            "the others are gone"
        );
    }

    #[test]
    fn a_model_that_is_not_there_is_no_closed_endpoint() {
        let body = |text: &str| text.as_bytes().to_vec();
        assert!(is_closed(StatusCode::FORBIDDEN, &body("{\"error\": \"Scale-out\"}")));
        assert!(is_closed(StatusCode::NOT_FOUND, &body("{\"detail\":\"Not Found\"}")));
        let missing = "{\"error\": {\"message\": \"The model `x` does not exist.\"}}";
        assert!(!is_closed(StatusCode::NOT_FOUND, &body(missing)));
        assert!(!is_closed(StatusCode::BAD_REQUEST, b""));
        assert!(!is_closed(StatusCode::OK, b""));
    }
}
