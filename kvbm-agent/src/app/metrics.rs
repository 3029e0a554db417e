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

/// What `/metrics` shows of an agent.
#[derive(Debug)]
pub(super) struct AgentMetrics(pub(super) Arc<View>);

impl Collector for AgentMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let to = &mut encoder;
        let journal = self.0.hub.feed().status();
        let alone = |value: usize| vec![(Vec::new(), value as u64)];
        gauge(to, "journal_batches", "Batches retained for indexes", alone(journal.batches))?;
        gauge(to, "journal_memory_bytes", "Memory that they take", alone(journal.batch_bytes))?;
        let help = "Blocks that wait to be published with later ones";
        gauge(to, "waiting_blocks", help, alone(self.0.hub.waiting_blocks()))?;
        gauge(to, "held_blocks", "Names held, over all ranks", alone(journal.held_blocks))?;
        gauge(
            to,
            "inventory_memory_bytes",
            "Memory that these take",
            alone(journal.inventory_bytes),
        )?;

        if let Some(pool) = &self.0.engine_pool {
            let help = "Names held in the store of engine-pool";
            gauge(to, "engine_pool_held_blocks", help, alone(pool.status().held_blocks))?;
        }
        self.encode_sources(to)?;
        self.encode_refusals(to)?;
        if let Some(scraped) = &self.0.scraped {
            let ScrapeStatus { scrapes, failures, .. } = *scraped.borrow();
            let help = "Reads of the engine's metrics, by outcome";
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
    fn encode_sources(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let reports = self.0.hub.reports();
        let each = |value: fn(&SourceReport) -> u64| {
            let rows = reports.iter().map(|at| (vec![("source", at.name.clone())], value(at)));
            rows.collect::<Vec<Row>>()
        };
        let connected = each(|at| u64::from(at.status.connected));
        gauge(to, "source_connected", "Whether a source is connected", connected)?;
        let states = reports.iter().flat_map(|at| {
            let labels = |state: SourceState| {
                vec![("source", at.name.clone()), ("state", state.to_string())]
            };
            SourceState::ALL.map(|state| (labels(state), u64::from(state == at.status.state)))
        });
        let help = "How far a source can be trusted: 1 for the state that it is in";
        gauge(to, "source_state", help, states.collect())?;
        let lag = each(|at| at.status.lag_batches());
        gauge(to, "source_lag_batches", "Batches of a source that are not taken yet", lag)?;
        counter(to, "source_batches", "Batches taken", each(|at| at.counts.batches))?;
        counter(
            to,
            "source_operations",
            "Block operations in them",
            each(|at| at.counts.operations),
        )?;
        let refused = each(|at| at.counts.refused);
        counter(to, "source_refused_blocks", "Blocks not taken, for there was no room", refused)?;
        counter(
            to,
            "source_lives",
            "Incarnations that have published something",
            each(|at| at.counts.incarnations),
        )?;
        let losses = each(|at| at.counts.losses);
        counter(to, "source_losses", "Times that events of a source were lost for good", losses)?;
        let others = each(|at| at.counts.other_topic);
        let help = "Batches of other topics on the socket of a source: not taken";
        counter(to, "source_other_topic_batches", help, others)?;
        let cut = each(|at| at.counts.connections_cut);
        let help = "Connections to a source that were closed because it went beyond a limit of frames or messages";
        counter(to, "source_connections_cut", help, cut)?;
        let expired = each(|at| at.counts.expired);
        let help = "Blocks of a source whose time to live on their medium was over";
        counter(to, "source_expired_blocks", help, expired)?;
        let of_pool = each(|at| at.counts.pool_operations);
        let help = "Block operations of a source in the store of engine-pool";
        counter(to, "source_pool_operations", help, of_pool)?;
        let unknown = each(|at| at.counts.pool_unknown);
        let help = "Blocks in that store of which only names came, and nothing else is known: not published";
        counter(to, "source_pool_unknown_blocks", help, unknown)?;
        let drops = reports.iter().flat_map(|at| {
            let source = at.name.clone();
            at.counts.drops.iter().map(move |(reason, count)| {
                (vec![("source", source.clone()), ("reason", reason.as_str().to_owned())], count)
            })
        });
        let help = "Block operations of a source that are not for the index";
        counter(to, "source_dropped_operations", help, drops.collect())
    }

    /// What publishers were refused, where any may publish.
    fn encode_refusals(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(refusals): Option<&Refusals> = self.0.refusals.as_deref() else { return Ok(()) };
        let streams = StreamRefusal::ALL
            .map(|why| (vec![("reason", why.as_str().to_owned())], refusals.streams(why)));
        let help = "Streams of publishers that were refused, by reason";
        counter(to, "refused_streams", help, streams.to_vec())?;
        let help = "Batches of publishers that could not be read";
        counter(to, "refused_batches", help, vec![(Vec::new(), refusals.batches())])
    }

    fn encode_disk(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if !self.0.has_disk {
            return Ok(());
        }
        let alone = |value: u64| vec![(Vec::new(), value)];
        let disk = self.0.hub.feed().disk();
        let status = disk.map(|disk| disk.status());
        let is_usable = status.as_ref().is_some_and(|status| status.error.is_none());
        let help = "Whether the journal is on disk, so that a restarted agent may continue from it";
        gauge(to, "disk_usable", help, alone(is_usable.into()))?;
        let (Some(disk), Some(status)) = (disk, status) else { return Ok(()) };
        let DiskStatus { verdict, written_bytes, log_bytes, images, image_bytes, .. } = status;
        let words = Verdict::WORDS
            .map(|word| (vec![("verdict", word.to_owned())], u64::from(word == verdict.as_str())));
        let help = "Whether the incarnation on disk continued (kept), or why a new one began";
        gauge(to, "disk_verdict", help, words.to_vec())?;
        counter(to, "disk_written_bytes", "Bytes written ahead", alone(written_bytes))?;
        gauge(to, "disk_log_bytes", "Bytes of batches that are in no image", alone(log_bytes))?;
        counter(to, "disk_images", "Images of all that is held, completed", alone(images))?;
        gauge(to, "disk_image_bytes", "Bytes of the image that counts", alone(image_bytes))?;
        let blocks = alone(status.restored_blocks);
        gauge(to, "disk_restored_blocks", "Names that were held when the agent came back", blocks)?;
        let batches = alone(status.restored_batches);
        gauge(to, "disk_restored_batches", "Batches that were read then", batches)?;
        let help = "How long writes ahead of the stream took";
        let name = "agent_disk_write_seconds";
        let kind = MetricType::Histogram;
        disk.figures().write_seconds.encode(to.encode_descriptor(name, help, None, kind)?)
    }

    fn encode_ways(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let feed = self.0.hub.feed();
        // Before it is known which incarnation continues, nothing is published, and nothing lags.
        let journal = feed.is_settled().then(|| feed.status());
        let lag = |incarnation, there| {
            journal.as_ref().map_or(0, |at| lag_batches(at, incarnation, there))
        };
        // For each way out: whether it is connected, its lag, what it skipped.
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
        gauge(to, "uplink_connected", "Whether an uplink is open", each(|way| way.1.into()))?;
        let help = "Batches that are not acknowledged yet";
        gauge(to, "uplink_lag_batches", help, each(|way| way.2))?;
        let help = "Batches that the journal had lost before they could be sent: dumps bring them";
        counter(to, "uplink_skipped_batches", help, each(|way| way.3))
    }
}

/// Batches of the present incarnation that are not known to be there, where batch `there` of incarnation `of` is the
/// last that is. As long as nothing is known, those that this process has published.
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
