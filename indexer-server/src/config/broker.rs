use super::{ConfigError, Options};
use crate::broker::{BrokerConfig, Delivery, StreamConfig};
use kvasir_process::options::positive;
use kvasir_process::text::ByteCount;
use std::path::Path;

/// Value of `--shard-map` in place of a file: the map of shards is in NATS' key-value store.
const SHARD_MAP_BY_BROKER: &str = "nats";

/// Minimum size of the stream: a batch or two.
const STREAM_BYTES_MIN: usize = 1 << 20;

/// Validates the options of events over NATS. Returns `None` if NATS is off.
pub(super) fn broker(options: &Options) -> Result<Option<BrokerConfig>, ConfigError> {
    let is_wanted = options.reset_states || map_is_by_broker(options);
    let Some((servers, delivery)) = options.nats.check(is_wanted)? else { return Ok(None) };
    let stream = &options.nats_stream.0;
    let ByteCount(bytes_max) = stream.bytes;
    if bytes_max < STREAM_BYTES_MIN {
        let least = ByteCount(STREAM_BYTES_MIN);
        let why = format!("is {}, must be {least} or more", stream.bytes);
        return Err(ConfigError::invalid("nats-stream: bytes", why));
    }
    let stays = options.checkpoint_dir.is_some() && delivery == Delivery::Jetstream;
    if options.reset_states && !stays {
        let why =
            "needs nats-delivery jetstream and checkpoint-dir: else there is nothing to reset";
        return Err(ConfigError::invalid("reset-states", why));
    }
    if stream.snapshot_threshold == 0 {
        return Err(ConfigError::invalid(
            "nats-stream: snapshot-threshold",
            "is 0, must be 1 or more",
        ));
    }
    Ok(Some(BrokerConfig {
        servers,
        delivery,
        stream: StreamConfig {
            age_max: positive("nats-stream: age", stream.age)?,
            bytes_max: bytes_max as u64,
        },
        snapshot_threshold: stream.snapshot_threshold,
        reset: options.reset_states,
    }))
}

/// Whether the map of shards comes from NATS.
pub(super) fn map_is_by_broker(options: &Options) -> bool {
    options.shard_map.as_deref() == Some(Path::new(SHARD_MAP_BY_BROKER))
}
