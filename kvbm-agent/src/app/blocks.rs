//! Metrics of the block manager for `/metrics`.

use super::metrics::{counter, gauge};
use crate::blocks::{Blocks, VerdictCounts};
use crate::storage::StorageStats;
use kvasir_blocks::{BlockTier, LaneStats, PoolStats};
use kvasir_process::telemetry::Row;
use kvasir_tiers::manager::ManagerMetrics;
use kvasir_tiers::manager::metrics::{CommitCounts, OnboardCounts, SessionCounts, TransferCounts};
use kvasir_transfer::TransferMetrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::collections::BTreeMap;
use std::fmt::{Display, Error};
use std::sync::Arc;
use std::time::Duration;

/// Collector of a block manager's metrics.
#[derive(Debug)]
pub(super) struct BlocksMetrics(pub(super) Arc<Blocks>);

impl Collector for BlocksMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let to = &mut encoder;
        let metrics = self.0.metrics();
        encode_pools(to, &metrics)?;
        encode_lanes(to, &metrics)?;
        encode_sessions(to, &metrics)?;
        encode_transfers(to, &metrics)?;
        encode_events(to, &metrics)?;
        if let Some(storage) = self.0.storage() {
            encode_storage(to, &storage.stats())?;
        }
        encode_peers(to, &self.0.peer_metrics())?;
        self.encode_gate(to)
    }
}

type Encoder<'a, 'b> = &'a mut DescriptorEncoder<'b>;

/// Label of a value, and how to read the value.
type Figure<T> = (&'static str, fn(&T) -> u64);

fn row(label: &'static str, of: &dyn Display, value: u64) -> Row {
    (vec![(label, of.to_string())], value)
}

fn alone(value: u64) -> Vec<Row> {
    vec![(Vec::new(), value)]
}

/// One row per value of a label.
fn words(label: &'static str, rows: &[(&str, u64)]) -> Vec<Row> {
    rows.iter().map(|(word, value)| row(label, word, *value)).collect()
}

/// Writes the metrics of each tier's slots, pins and evictions.
fn encode_pools(to: Encoder<'_, '_>, metrics: &ManagerMetrics) -> Result<(), Error> {
    let pools = &metrics.blocks.pools;
    let each = |value: fn(&PoolStats) -> u64| {
        pools.iter().map(|(tier, pool)| row("tier", tier, value(pool))).collect::<Vec<_>>()
    };
    let states: [Figure<PoolStats>; 5] = [
        ("free", |pool| pool.free),
        ("writing", |pool| pool.mutable + pool.quarantined),
        ("active", |pool| pool.active),
        ("inactive", |pool| pool.inactive),
        ("duplicate", |pool| pool.duplicates),
    ];
    let of_state = |(tier, pool)| {
        states.map(|(state, value)| {
            let labels = vec![("tier", BlockTier::to_string(tier)), ("state", state.to_owned())];
            (labels, value(pool))
        })
    };
    let help = "Slots of a tier by state: free, writing (being written), active (block in use), inactive (evictable), \
                duplicate (second copy)";
    gauge(to, "blocks_slots", help, pools.iter().flat_map(of_state).collect())?;
    gauge(to, "blocks_pins", "Pins on blocks in a tier", each(|pool| pool.pins))?;
    counter(to, "blocks_registered", "Blocks registered in a tier", each(|at| at.registrations))?;
    counter(
        to,
        "blocks_evicted",
        "Blocks evicted from a tier to make room",
        each(|at| at.evictions),
    )?;
    let help = "Blocks dropped from a tier because the bytes were wrong or unreadable";
    counter(to, "blocks_withdrawn", help, each(|at| at.withdrawals))?;
    let help = "Requests for slots in a tier refused for lack of room";
    counter(to, "blocks_allocations_refused", help, each(|at| at.allocations_refused))?;
    let corrupt = metrics.corrupt.iter().map(|(tier, count)| row("tier", tier, *count));
    let help = "Times that wrong bytes were found in a tier; engines never receive such bytes";
    counter(to, "blocks_corrupt", help, corrupt.collect())
}

/// Writes the metrics of each copy route between two tiers.
fn encode_lanes(to: Encoder<'_, '_>, metrics: &ManagerMetrics) -> Result<(), Error> {
    let lanes = &metrics.blocks.lanes;
    let each = |value: fn(&LaneStats) -> u64| {
        lanes.iter().map(|(route, lane)| row("route", route, value(lane))).collect::<Vec<_>>()
    };
    gauge(
        to,
        "blocks_queued",
        "Blocks queued for a copy to another tier",
        each(|lane| lane.queued),
    )?;
    gauge(
        to,
        "blocks_in_flight",
        "Block copies between tiers in progress",
        each(|lane| lane.in_flight),
    )?;
    gauge(
        to,
        "blocks_in_flight_bytes",
        "Bytes of block copies between tiers in progress",
        each(|lane| lane.in_flight_bytes),
    )?;
    let ends: [Figure<LaneStats>; 6] = [
        ("committed", |lane| lane.committed),
        ("failed", |lane| lane.failed),
        ("corrupt", |lane| lane.corrupt),
        ("cancelled", |lane| lane.cancelled),
        ("late", |lane| lane.late),
        ("refused", |lane| lane.refused),
    ];
    let of_end = |(route, lane): (&dyn Display, &LaneStats)| {
        let labels = |end: &str| vec![("route", route.to_string()), ("outcome", end.to_owned())];
        ends.map(|(end, value)| (labels(end), value(lane)))
    };
    let rows = lanes.iter().flat_map(|(route, lane)| of_end((route, lane)));
    counter(
        to,
        "blocks_copies",
        "Finished block copies between tiers, by outcome",
        rows.collect(),
    )?;
    let help = "Bytes copied and verified from one tier to another";
    counter(to, "blocks_copied_bytes", help, each(|lane| lane.committed_bytes))?;
    let skips: [Figure<LaneStats>; 5] = [
        ("present", |lane| lane.skipped_present),
        ("infrequent", |lane| lane.skipped_infrequent),
        ("queue_full", |lane| lane.skipped_full),
        ("gone", |lane| lane.gone),
        ("no_room", |lane| lane.no_room),
    ];
    let of_skip = |(route, lane): (&dyn Display, &LaneStats)| {
        let labels = |why: &str| vec![("route", route.to_string()), ("reason", why.to_owned())];
        skips.map(|(why, value)| (labels(why), value(lane)))
    };
    let rows = lanes.iter().flat_map(|(route, lane)| of_skip((route, lane)));
    counter(
        to,
        "blocks_not_copied",
        "Offers of blocks to another tier that led to no copy, by reason",
        rows.collect(),
    )
}

/// Writes the metrics of engine sessions: leases, commits and onboards.
fn encode_sessions(to: Encoder<'_, '_>, metrics: &ManagerMetrics) -> Result<(), Error> {
    let SessionCounts { open, opened, lost, leases, leases_over, leases_aborted } =
        metrics.sessions;
    gauge(to, "blocks_sessions", "Open engine sessions", alone(open))?;
    counter(to, "blocks_sessions_opened", "Engine sessions opened since start", alone(opened))?;
    let help = "Engine sessions lost: the connection ended before the session was closed";
    counter(to, "blocks_sessions_lost", help, alone(lost))?;
    counter(to, "blocks_leases", "Slots leased to engines since start", alone(leases))?;
    let help =
        "Slot leases that ended without a committed block, by reason: expired (over) or aborted";
    let ends = [("over", leases_over), ("aborted", leases_aborted)];
    counter(to, "blocks_leases_unused", help, words("reason", &ends))?;
    let CommitCounts { new, duplicate, existing, refused } = metrics.commits;
    let rows =
        [("new", new), ("duplicate", duplicate), ("existing", existing), ("refused", refused)];
    counter(
        to,
        "blocks_commits",
        "Blocks that engines committed, by outcome",
        words("outcome", &rows),
    )?;
    let OnboardCounts { requests, blocks_in_memory, blocks_loaded, .. } = metrics.onboards;
    counter(
        to,
        "blocks_onboards",
        "Requests of engines to load the blocks of a prompt (onboard)",
        alone(requests),
    )?;
    let rows = [("memory", blocks_in_memory), ("loaded", blocks_loaded)];
    let help =
        "Blocks provided by onboard requests: already in engine memory, or loaded and verified";
    counter(to, "blocks_onboarded", help, words("from", &rows))?;
    let at = &metrics.onboards;
    let stops = [
        ("missing", at.stopped_missing),
        ("corrupt", at.stopped_corrupt),
        ("unreadable", at.stopped_unreadable),
        ("timed_out", at.stopped_timed_out),
        ("given_up", at.stopped_given_up),
    ];
    let help = "Onboard requests that stopped before the last block, by reason";
    counter(to, "blocks_onboards_stopped", help, words("reason", &stops))
}

/// Writes the metrics of reads, recovered blocks, erasures and transfers that wait.
fn encode_transfers(to: Encoder<'_, '_>, metrics: &ManagerMetrics) -> Result<(), Error> {
    let TransferCounts {
        reads_verified,
        restored,
        restored_in_volume,
        restore_refused,
        damaged_records,
        ..
    } = metrics.transfers;
    let help = "Blocks whose bytes were verified for an engine's read";
    counter(to, "blocks_reads_verified", help, alone(reads_verified))?;
    let found = [("taken", restored), ("refused", restore_refused), ("damaged", damaged_records)];
    let help = "Blocks found on disk at start, by outcome";
    counter(to, "blocks_found_on_disk", help, words("outcome", &found))?;
    let help =
        "Blocks found in the shared volume and registered: stored earlier or by another agent";
    counter(to, "blocks_found_in_volume", help, alone(restored_in_volume))?;
    let erased = [("done", metrics.transfers.erased), ("failed", metrics.transfers.erase_failures)];
    let help = "Attempts to erase the disk records of evicted blocks, by outcome";
    counter(to, "blocks_erasures", help, words("outcome", &erased))?;
    let help = "Block transfers queued for the threads of a storage";
    let waits = metrics.waits.iter().map(|(tier, waits)| row("tier", tier, waits.blocks));
    gauge(to, "blocks_storage_waits", help, waits.collect())?;
    let waits = metrics.waits.iter().map(|(tier, waits)| row("tier", tier, waits.bytes));
    gauge(
        to,
        "blocks_storage_wait_bytes",
        "Bytes of block transfers queued for the threads of a storage",
        waits.collect(),
    )
}

fn encode_events(to: Encoder<'_, '_>, metrics: &ManagerMetrics) -> Result<(), Error> {
    let events = &metrics.blocks.events;
    gauge(to, "blocks_held", "Distinct blocks in any tier", alone(events.held_blocks))?;
    let help = "Block changes queued for the agent's event stream";
    gauge(to, "blocks_events_queued", help, alone(events.queued_events))?;
    let help = "Times that the queue to the agent's event stream overflowed and all blocks were sent again";
    counter(to, "blocks_event_overflows", help, alone(events.overflows))
}

/// Writes the metrics of published storage events.
fn encode_storage(to: Encoder<'_, '_>, stats: &StorageStats) -> Result<(), Error> {
    let help = "1 while the connection that publishes storage events is open";
    gauge(to, "storage_connected", help, alone(stats.is_connected.into()))?;
    let help = "Storage events published, excluding the blocks of images";
    counter(to, "storage_events", help, alone(stats.events))?;
    let help = "Batches of storage events published, including images and heartbeats";
    counter(to, "storage_batches", help, alone(stats.batches))?;
    counter(
        to,
        "storage_images",
        "Images of all stored blocks published as storage events",
        alone(stats.images),
    )?;
    counter(
        to,
        "storage_image_blocks",
        "Blocks in the published images of stored blocks",
        alone(stats.image_blocks),
    )?;
    let help = "Storage events queued for publication";
    gauge(to, "storage_events_queued", help, alone(stats.queued_events))?;
    let help = "Storage events not published because an image replaced them";
    counter(to, "storage_events_dropped", help, alone(stats.dropped_events))?;
    let help = "Times that the queue of storage events overflowed";
    counter(to, "storage_overflows", help, alone(stats.overflows))
}

/// Writes the metrics of transfers between this agent and other agents.
fn encode_peers(to: Encoder<'_, '_>, metrics: &TransferMetrics) -> Result<(), Error> {
    let figures: [(&str, Figure<TransferMetrics>); 7] = [
        ("served", ("Blocks sent to other agents, verified", |at| at.served)),
        ("served_bytes", ("Bytes of blocks sent to other agents", |at| at.served_bytes)),
        ("requests", ("Requests for blocks received from other agents", |at| at.serve_requests)),
        ("fetched", ("Blocks fetched from other agents, verified and registered", |at| at.fetched)),
        ("fetched_bytes", ("Bytes of blocks fetched from other agents", |at| at.fetched_bytes)),
        ("fetches", ("Fetches from other agents, counted per agent", |at| at.fetches)),
        ("corrupt", ("Blocks of other agents refused: wrong bytes or hash", |at| at.corrupt)),
    ];
    for (name, (help, value)) in figures {
        counter(to, &format!("blocks_peer_{name}"), help, alone(value(metrics)))?;
    }
    let rows = |counts: &BTreeMap<&'static str, u64>| {
        counts.iter().map(|(why, count)| row("reason", why, *count)).collect::<Vec<_>>()
    };
    let help = "Connections of other agents closed by this agent, by reason";
    counter(to, "blocks_peer_disconnected", help, rows(&metrics.disconnected))?;
    let help = "Fetches from other agents that stopped before the last block, by reason";
    counter(to, "blocks_peer_fetches_stopped", help, rows(&metrics.stopped))
}

impl BlocksMetrics {
    /// Writes measured bandwidths, and the counts of load-or-compute answers with the inputs of the latest one.
    fn encode_gate(&self, to: Encoder<'_, '_>) -> Result<(), Error> {
        let measured = self.0.bandwidths().into_iter();
        let measured = measured.filter_map(|(route, rate)| Some(row("route", &route, rate?)));
        let help = "Recently measured bandwidth between two tiers, in bytes per second";
        gauge(to, "blocks_bytes_per_second", help, measured.collect())?;
        let verdicts = self.0.verdicts();
        let of = |(tier, at): (&BlockTier, &VerdictCounts)| {
            let labels =
                |word: &str| vec![("tier", tier.to_string()), ("verdict", word.to_owned())];
            [(labels("load"), at.loads), (labels("compute"), at.computes)]
        };
        let help = "Load-or-compute answers to engines, by tier and verdict";
        counter(to, "blocks_verdicts", help, verdicts.iter().flat_map(of).collect())?;
        let inputs: [(&str, Figure<VerdictCounts>); 5] = [
            (
                "load_bytes",
                ("Bytes to load, in the latest load-or-compute answer", |at| {
                    at.last.inputs.load_bytes
                }),
            ),
            (
                "queued_bytes",
                ("Bytes queued ahead of the load, in the latest load-or-compute answer", |at| {
                    at.last.inputs.queued_bytes
                }),
            ),
            (
                "tokens",
                (
                    "Tokens to compute instead of loading, in the latest load-or-compute answer",
                    |at| at.last.inputs.tokens,
                ),
            ),
            (
                "load_us",
                (
                    "Expected microseconds to load, in the latest load-or-compute answer; 0 if unknown",
                    |at| micros(at.last.load),
                ),
            ),
            (
                "compute_us",
                ("Expected microseconds to compute, in the latest load-or-compute answer", |at| {
                    micros(at.last.compute)
                }),
            ),
        ];
        inputs.iter().try_for_each(|(name, (help, value))| {
            let rows = verdicts.iter().map(|(tier, at)| row("tier", tier, value(at)));
            gauge(to, &format!("blocks_verdict_{name}"), help, rows.collect())
        })
    }
}

fn micros(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}
