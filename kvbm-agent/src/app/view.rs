use crate::agent::Agent;
use crate::broker::BrokerStatus;
use crate::ingest::Refusals;
use crate::load::scrape::ScrapeStatus;
use kvasir_feed::feed::Feed;
use kvasir_feed::hub::{Hub, SourceReport};
use kvasir_feed::uplink::UplinkStatus;
use kvasir_proto::types::SourceState;
use std::sync::Arc;
use tokio::sync::watch;

/// State of an agent for its operator, read on request.
#[derive(Debug)]
pub(super) struct View {
    pub(super) hub: Arc<Hub>,
    pub(super) indexers: Vec<(String, watch::Receiver<UplinkStatus>)>,
    /// Uplinks of the pools; empty without a pool.
    pools: Vec<(String, watch::Receiver<UplinkStatus>)>,
    /// The stream of the store that engines share, if there is one.
    pub(super) engine_pool: Option<Arc<Feed>>,
    pub(super) broker: Option<watch::Receiver<BrokerStatus>>,
    pub(super) scraped: Option<watch::Receiver<ScrapeStatus>>,
    pub(super) refusals: Option<Arc<Refusals>>,
    /// Whether a journal on disk is configured.
    pub(super) has_disk: bool,
}

impl View {
    /// Creates the view of an agent that feeds these indexers.
    pub(super) fn of_agent(agent: &Agent, indexers: Vec<String>, has_disk: bool) -> Self {
        let of_pools = agent.watch_pool_uplinks().into_iter();
        let of_pools =
            of_pools.map(|((pool, url), status)| (format!("{url}, of pool {pool}"), status));
        Self {
            hub: Arc::clone(agent.hub()),
            pools: of_pools.collect(),
            indexers: indexers.into_iter().zip(agent.watch_uplinks()).collect(),
            engine_pool: agent.engine_pool().map(Arc::clone),
            broker: agent.watch_broker(),
            scraped: agent.watch_scraped(),
            refusals: agent.refusals().map(Arc::clone),
            has_disk,
        }
    }

    /// Returns the current problems, one line each: outputs, sources, journal and engine pool. The agent accepts events
    /// despite them.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (indexer, status) in self.indexers.iter().chain(&self.pools) {
            let status = status.borrow();
            problems.extend(of_way(indexer, status.connected, status.error.as_deref()));
        }
        if let Some(status) = &self.broker {
            let status = status.borrow();
            problems.extend(of_way("nats", status.connected, status.error.as_deref()));
        }
        problems.extend(self.hub.reports().iter().filter_map(of_source));
        if self.has_disk {
            let feeds = [(self.hub.feed(), "journal-dir")].into_iter();
            let of_pool = self.engine_pool.iter().map(|pool| (pool, "journal-dir of engine-pool"));
            problems.extend(feeds.chain(of_pool).filter_map(|(feed, of)| of_journal(feed, of)));
        }
        if self.engine_pool.as_ref().is_some_and(|pool| pool.status().incomplete) {
            let why = "engine-pool: the store has more blocks than the agent tracks: a restart forgets the others";
            problems.push(why.to_owned());
        }
        let error = self.scraped.as_ref().and_then(|status| status.borrow().error.clone());
        problems.extend(error.map(|error| format!("metrics-url: {error}")));
        problems
    }
}

/// Problem of an output to indexes; `None` if it works.
fn of_way(to: &str, is_up: bool, error: Option<&str>) -> Option<String> {
    match (is_up, error) {
        (_, Some(error)) => Some(format!("uplink {to}: {error}")),
        (false, None) => Some(format!("uplink {to}: not open yet")),
        (true, None) => None,
    }
}

/// Problem of a journal on disk; `None` if it works.
fn of_journal(feed: &Feed, of: &str) -> Option<String> {
    match feed.disk().map(|disk| disk.status().error) {
        None => Some(format!("{of}: not used; the log has the reason")),
        Some(error) => error.map(|error| format!("{of}: {error}")),
    }
}

/// Returns the problem of a source, or `None` if it is exact and connected.
fn of_source(report: &SourceReport) -> Option<String> {
    let SourceReport { name, status, problem, .. } = report;
    if status.state == SourceState::Exact && status.connected {
        return None;
    }
    let mut line = format!("source {name}: {}", status.state);
    if !status.connected {
        line.push_str(", not connected");
    }
    if let Some(problem) = problem {
        line = format!("{line}, {problem}");
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_feed::hub::SourceCounts;
    use kvasir_proto::types::CopyMode;
    use kvasir_proto::types::SourceStatus;

    #[test]
    fn what_is_well_is_not_complained_of() {
        assert_eq!(of_way("http://i:1", true, None), None);
        let not_yet = of_way("http://i:1", false, None);
        assert_eq!(not_yet.as_deref(), Some("uplink http://i:1: not open yet"));
        let down = of_way("nats", false, Some("no connection"));
        assert_eq!(down.as_deref(), Some("uplink nats: no connection"));
    }

    #[test]
    fn sources_are_complained_of_by_name() {
        let report = |connected, state, problem: Option<&str>| SourceReport {
            name: "tcp://e:1".to_owned(),
            copy_mode: CopyMode::Set,
            status: SourceStatus { state, connected, ..SourceStatus::default() },
            counts: SourceCounts::default(),
            problem: problem.map(str::to_owned),
        };
        let check = |report: &SourceReport, expected: Option<&str>| {
            assert_eq!(of_source(report).as_deref(), expected);
        };
        check(&report(true, SourceState::Exact, Some("of an incarnation before")), None);
        check(
            &report(false, SourceState::Cold, None),
            Some("source tcp://e:1: cold, not connected"),
        );
        check(
            &report(true, SourceState::Partial, Some("9 blocks were not taken")),
            Some("source tcp://e:1: partial, 9 blocks were not taken"),
        );
    }
}
