use super::view::View;
use crate::ingest::{Refusals, StreamRefusal};
use crate::load::scrape::ScrapeStatus;
use kvasir_feed::disk::{DiskStatus, Verdict};
use kvasir_feed::hub::SourceReport;
use kvasir_feed::journal::JournalStatus;
use kvasir_process::telemetry::{Row, encode_counter, encode_gauge};
use kvasir_proto::types::{Incarnation, SourceState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use std::fmt;
use std::sync::Arc;

/// Metrics of an agent for `/metrics`.
#[derive(Debug)]
pub(super) struct AgentMetrics(pub(super) Arc<View>);

impl Collector for AgentMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let to = &mut encoder;
        let journal = self.0.hub.feed().status();
        let alone = |value: usize| vec![(Vec::new(), value as u64)];
        gauge(
            to,
            "journal_batches",
            "Batches retained in the journal for indexes that missed them",
            alone(journal.batches),
        )?;
        gauge(
            to,
            "journal_memory_bytes",
            "Memory used by the batches retained in the journal",
            alone(journal.batch_bytes),
        )?;
        let help = "Blocks that wait to be published together with later blocks";
        gauge(to, "waiting_blocks", help, alone(self.0.hub.waiting_blocks()))?;
        gauge(
            to,
            "held_blocks",
            "Block names currently held in the agent's journal, over all ranks",
            alone(journal.held_blocks),
        )?;
        gauge(
            to,
            "inventory_memory_bytes",
            "Memory used by the journal's inventory of held block names",
            alone(journal.inventory_bytes),
        )?;

        if let Some(pool) = &self.0.engine_pool {
            let help = "Block names held in the shared store of engine-pool";
            gauge(to, "engine_pool_held_blocks", help, alone(pool.status().held_blocks))?;
        }
        self.encode_sources(to)?;
        self.encode_refusals(to)?;
        if let Some(scraped) = &self.0.scraped {
            let ScrapeStatus { scrapes, failures, .. } = *scraped.borrow();
            let help = "Scrapes of the engine's metrics, by outcome";
            let outcome = |word: &str, count| (vec![("outcome", word.to_owned())], count);
            counter(
                to,
                "scrapes",
                help,
                vec![outcome("read", scrapes), outcome("failed", failures)],
            )?;
        }
        self.encode_disk(to)?;
        self.encode_ways(to)
    }
}

impl AgentMetrics {
    /// Writes the metrics of each event source: connection, state, lag and counts.
    fn encode_sources(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let reports = self.0.hub.reports();
        let each = |value: fn(&SourceReport) -> u64| {
            let rows = reports.iter().map(|at| (vec![("source", at.name.clone())], value(at)));
            rows.collect::<Vec<Row>>()
        };
        let connected = each(|at| u64::from(at.status.connected));
        gauge(to, "source_connected", "1 while an event source is connected", connected)?;
        let states = reports.iter().flat_map(|at| {
            let labels = |state: SourceState| {
                vec![("source", at.name.clone()), ("state", state.to_string())]
            };
            SourceState::ALL.map(|state| (labels(state), u64::from(state == at.status.state)))
        });
        let help = "State of an event source: 1 for the current state, 0 for the others";
        gauge(to, "source_state", help, states.collect())?;
        let lag = each(|at| at.status.lag_batches());
        gauge(to, "source_lag_batches", "Batches of an event source not yet processed", lag)?;
        counter(to, "source_batches", "Batches read from a source", each(|at| at.counts.batches))?;
        counter(
            to,
            "source_operations",
            "Block operations in the processed batches of an event source",
            each(|at| at.counts.operations),
        )?;
        let refused = each(|at| at.counts.refused);
        counter(to, "source_refused_blocks", "Blocks of a source refused: no room left", refused)?;
        counter(
            to,
            "source_lives",
            "Incarnations of an event source that published at least one batch",
            each(|at| at.counts.incarnations),
        )?;
        let losses = each(|at| at.counts.losses);
        counter(to, "source_losses", "Times that a source permanently lost events", losses)?;
        let others = each(|at| at.counts.other_topic);
        let help =
            "Batches ignored on the socket of an event source because they have another topic";
        counter(to, "source_other_topic_batches", help, others)?;
        let cut = each(|at| at.counts.connections_cut);
        let help =
            "Connections to an event source closed because a frame or message exceeded a limit";
        counter(to, "source_connections_cut", help, cut)?;
        let expired = each(|at| at.counts.expired);
        let help =
            "Blocks of an event source removed because the time to live of their medium expired";
        counter(to, "source_expired_blocks", help, expired)?;
        let of_pool = each(|at| at.counts.pool_operations);
        let help = "Block operations of an event source on the shared store of engine-pool";
        counter(to, "source_pool_operations", help, of_pool)?;
        let unknown = each(|at| at.counts.pool_unknown);
        let help = "Operations on the shared store of engine-pool not published: only the block's name is known";
        counter(to, "source_pool_unknown_blocks", help, unknown)?;
        let drops = reports.iter().flat_map(|at| {
            let source = at.name.clone();
            at.counts.drops.iter().map(move |(reason, count)| {
                (vec![("source", source.clone()), ("reason", reason.as_str().to_owned())], count)
            })
        });
        let help = "Block operations of an event source dropped before the journal, by reason";
        counter(to, "source_dropped_operations", help, drops.collect())
    }

    /// Writes the counts of refused publishers, if `EventIngest` is enabled.
    fn encode_refusals(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(refusals): Option<&Refusals> = self.0.refusals.as_deref() else { return Ok(()) };
        let streams = StreamRefusal::ALL
            .map(|why| (vec![("reason", why.as_str().to_owned())], refusals.streams(why)));
        let help = "PublishEvents streams refused, by reason";
        counter(to, "refused_streams", help, streams.to_vec())?;
        let help = "Batches of publishers that could not be decoded";
        counter(to, "refused_batches", help, vec![(Vec::new(), refusals.batches())])
    }

    /// Writes the metrics of the journal on disk, if a journal folder is configured. If the folder cannot be used,
    /// writes only `disk_usable`.
    fn encode_disk(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if !self.0.has_disk {
            return Ok(());
        }
        let alone = |value: u64| vec![(Vec::new(), value)];
        let disk = self.0.hub.feed().disk();
        let status = disk.map(|disk| disk.status());
        let is_usable = status.as_ref().is_some_and(|status| status.error.is_none());
        let help = "1 if the journal is on disk, so that a restarted agent can continue from it";
        gauge(to, "disk_usable", help, alone(is_usable.into()))?;
        let (Some(disk), Some(status)) = (disk, status) else { return Ok(()) };
        let DiskStatus { verdict, written_bytes, log_bytes, images, image_bytes, .. } = status;
        let words = Verdict::WORDS
            .map(|word| (vec![("verdict", word.to_owned())], u64::from(word == verdict.as_str())));
        let help = "1 for the outcome of the last start: kept if the incarnation on disk continued, else why a new one began";
        gauge(to, "disk_verdict", help, words.to_vec())?;
        counter(
            to,
            "disk_written_bytes",
            "Bytes written to the journal's write-ahead log on disk",
            alone(written_bytes),
        )?;
        gauge(
            to,
            "disk_log_bytes",
            "Bytes of journalled batches on disk that no image contains yet",
            alone(log_bytes),
        )?;
        counter(
            to,
            "disk_images",
            "Completed images of all held blocks, written to the journal on disk",
            alone(images),
        )?;
        gauge(
            to,
            "disk_image_bytes",
            "Size of the current image in the journal on disk",
            alone(image_bytes),
        )?;
        let blocks = alone(status.restored_blocks);
        gauge(
            to,
            "disk_restored_blocks",
            "Block names restored from the journal on disk at the last start",
            blocks,
        )?;
        let batches = alone(status.restored_batches);
        gauge(
            to,
            "disk_restored_batches",
            "Batches restored from the journal on disk at the last start",
            batches,
        )?;
        let help = "Duration of a write to the journal's write-ahead log on disk, in seconds";
        let name = "agent_disk_write_seconds";
        let kind = MetricType::Histogram;
        disk.figures().write_seconds.encode(to.encode_descriptor(name, help, None, kind)?)
    }

    /// Writes the metrics of each output: uplinks, NATS and ZMQ.
    fn encode_ways(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let feed = self.0.hub.feed();
        // Until the incarnation is settled, no batch is published, so the lag is 0.
        let journal = feed.is_settled().then(|| feed.status());
        let lag = |incarnation, there| {
            journal.as_ref().map_or(0, |at| lag_batches(at, incarnation, there))
        };
        // Each output: whether it is connected, its lag, its skipped batches.
        let mut ways: Vec<(String, bool, u64, u64)> = Vec::new();
        for (indexer, status) in &self.0.indexers {
            let at = status.borrow();
            ways.push((
                indexer.clone(),
                at.connected,
                lag(at.incarnation, at.acknowledged),
                at.skipped_batches,
            ));
        }
        if let Some(broker) = &self.0.broker {
            let at = broker.borrow();
            ways.push((
                "nats".to_owned(),
                at.connected,
                lag(at.incarnation, at.published),
                at.skipped_batches,
            ));
        }
        let each = |value: fn(&(String, bool, u64, u64)) -> u64| {
            let rows = ways.iter().map(|way| (vec![("to", way.0.clone())], value(way)));
            rows.collect::<Vec<Row>>()
        };
        gauge(
            to,
            "uplink_connected",
            "1 while the output to an index or to NATS is connected",
            each(|way| way.1.into()),
        )?;
        let help = "Batches of the current incarnation that an index or NATS has not acknowledged";
        gauge(to, "uplink_lag_batches", help, each(|way| way.2))?;
        let help =
            "Batches evicted from the journal before they were sent; the index requests a dump";
        counter(to, "uplink_skipped_batches", help, each(|way| way.3))
    }
}

/// Lag of an output: batches of the current incarnation after batch `there`, the last one of incarnation `of` that
/// arrived. Before any arrival, counts the batches that this process has published.
fn lag_batches(journal: &JournalStatus, of: Incarnation, there: Option<u64>) -> u64 {
    let past = |number: u64| number.saturating_add(1);
    let has = there.filter(|_| of == journal.incarnation).map_or(journal.own_first, past);
    journal.head.map_or(0, |head| past(head).saturating_sub(has))
}

pub(super) fn gauge(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: Vec<Row>,
) -> Result<(), fmt::Error> {
    encode_gauge(to, &format!("agent_{name}"), help, rows)
}

pub(super) fn counter(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: Vec<Row>,
) -> Result<(), fmt::Error> {
    encode_counter(to, &format!("agent_{name}"), help, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_feed::journal::{Journal, JournalConfig};

    #[test]
    fn what_lacks_is_counted_within_the_incarnation() {
        let incarnation = Incarnation(7);
        let mut journal = Journal::new(incarnation, 1_000, JournalConfig::DEFAULT);
        assert_eq!(lag_batches(&journal.status(), incarnation, None), 0, "nothing was published");
        for _ in 0..10 {
            journal.append(0, Vec::new()).expect("a batch");
        }
        let lag = |of, there| lag_batches(&journal.status(), of, there);
        assert_eq!(lag(incarnation, None), 10, "not its number");
        assert_eq!(lag(incarnation, Some(1_003)), 6);
        assert_eq!(lag(incarnation, Some(1_009)), 0);
        assert_eq!(lag(Incarnation(6), Some(1_009)), 10, "of another incarnation");
    }
}
