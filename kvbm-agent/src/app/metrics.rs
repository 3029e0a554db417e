use crate::agent::Agent;
use crate::broker::BrokerStatus;
use crate::disk::{DiskStatus, Verdict};
use crate::hub::{Hub, SourceReport};
use crate::load::scrape::ScrapeStatus;
use crate::uplink::UplinkStatus;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;

/// What `/metrics` shows of an agent, read when it is asked for.
#[derive(Debug)]
pub(super) struct AgentMetrics {
    hub: Arc<Hub>,
    indexers: Vec<(String, watch::Receiver<UplinkStatus>)>,
    broker: Option<watch::Receiver<BrokerStatus>>,
    scraped: Option<watch::Receiver<ScrapeStatus>>,
    /// Whether the journal is to be on disk.
    keeps: bool,
}

/// A value with its labels.
type Row = (Vec<(&'static str, String)>, u64);

impl AgentMetrics {
    /// Of an agent that feeds these indexers.
    pub(super) fn of(agent: &Agent, indexers: Vec<String>, keeps: bool) -> Self {
        let indexers = indexers.into_iter().zip(agent.watch_uplinks()).collect();
        let (broker, scraped) = (agent.watch_broker(), agent.watch_scraped());
        Self { hub: Arc::clone(agent.hub()), indexers, broker, scraped, keeps }
    }
}

impl Collector for AgentMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let to = &mut encoder;
        let journal = self.hub.feed().status();
        let alone = |value: usize| vec![(Vec::new(), value as u64)];
        gauge(to, "journal_batches", "Batches kept for indexes", alone(journal.batches))?;
        gauge(to, "journal_memory_bytes", "Memory that they take", alone(journal.batch_bytes))?;
        let help = "Blocks that wait to be said with what comes after them";
        gauge(to, "waiting_blocks", help, alone(self.hub.waiting_blocks()))?;
        gauge(to, "held_blocks", "Names held, over all ranks", alone(journal.held_blocks))?;
        gauge(
            to,
            "inventory_memory_bytes",
            "Memory that these take",
            alone(journal.inventory_bytes),
        )?;

        let reports = self.hub.reports();
        let each = |value: fn(&SourceReport) -> u64| {
            let rows = reports.iter().map(|at| (vec![("source", at.name.clone())], value(at)));
            rows.collect::<Vec<Row>>()
        };
        let connected = each(|at| u64::from(at.status.connected));
        gauge(to, "source_connected", "Whether a source is there", connected)?;
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
        counter(to, "source_lives", "Lives that have said something", each(|at| at.counts.lives))?;
        let losses = each(|at| at.counts.losses);
        counter(to, "source_losses", "Times that events of a source were lost for good", losses)?;
        let drops = reports.iter().flat_map(|at| {
            let source = at.name.clone();
            at.counts.drops.iter().map(move |(reason, count)| {
                (vec![("source", source.clone()), ("reason", reason.as_str().to_owned())], count)
            })
        });
        let help = "Block operations of a source that are not for the index";
        counter(to, "source_dropped_operations", help, drops.collect())?;
        if let Some(scraped) = &self.scraped {
            let ScrapeStatus { scrapes, failures, .. } = *scraped.borrow();
            let help = "Looks at the engine's metrics, by whether they gave something";
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
    fn encode_disk(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if !self.keeps {
            return Ok(());
        }
        let alone = |value: u64| vec![(Vec::new(), value)];
        let disk = self.hub.feed().disk();
        let status = disk.map(|disk| disk.status());
        let is_kept = status.as_ref().is_some_and(|status| status.error.is_none());
        let help =
            "Whether the journal is on disk, so that an agent which comes back may go on from it";
        gauge(to, "disk_usable", help, alone(is_kept.into()))?;
        let (Some(disk), Some(status)) = (disk, status) else { return Ok(()) };
        let DiskStatus { verdict, written_bytes, log_bytes, images, image_bytes, .. } = status;
        let words = Verdict::WORDS
            .map(|word| (vec![("verdict", word.to_owned())], u64::from(word == verdict.as_str())));
        let help = "Whether the incarnation on disk went on (kept), or why a new one began";
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
        let (name, kind) = ("agent_disk_write_seconds", MetricType::Histogram);
        disk.figures().write_seconds.encode(to.encode_descriptor(name, help, None, kind)?)
    }

    fn encode_ways(&self, to: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let head = self.hub.feed().status().head;
        let lag = |there: Option<u64>| {
            let past = |number: Option<u64>| number.map_or(0, |number| number.saturating_add(1));
            past(head).saturating_sub(past(there))
        };
        // What is told of each way: whether it is up, what it lacks, what it skipped.
        let mut ways: Vec<(String, bool, u64, u64)> = Vec::new();
        for (indexer, status) in &self.indexers {
            let at = status.borrow();
            ways.push((indexer.clone(), at.connected, lag(at.acknowledged), at.skipped_batches));
        }
        if let Some(broker) = &self.broker {
            let at = broker.borrow();
            ways.push(("nats".to_owned(), at.connected, lag(at.published), at.skipped_batches));
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

fn gauge(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: Vec<Row>,
) -> Result<(), fmt::Error> {
    family(to, (name, help, MetricType::Gauge), rows, ConstGauge::new)
}

fn counter(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: Vec<Row>,
) -> Result<(), fmt::Error> {
    family(to, (name, help, MetricType::Counter), rows, ConstCounter::new)
}

fn family<M: EncodeMetric>(
    to: &mut DescriptorEncoder<'_>,
    (name, help, kind): (&str, &str, MetricType),
    rows: Vec<Row>,
    metric: fn(u64) -> M,
) -> Result<(), fmt::Error> {
    let name = format!("agent_{name}");
    let mut family = to.encode_descriptor(&name, help, None, kind)?;
    for (labels, value) in rows {
        metric(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
