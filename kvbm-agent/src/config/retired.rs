//! Options of earlier releases. Each is a constant now, or a key of another option.

use kvasir_process::config::Retired;

/// Retired options of each build.
pub(super) const RETIRED: &[Retired] = &[
    Retired::ignored("metrics-interval", "the agent reads --metrics-url every second"),
    Retired::ignored("sources-max", "the limit is 16 sources"),
    Retired::ignored(
        "heartbeat-interval",
        "the agent sends a heartbeat every twelfth of --lease, at least every 5s",
    ),
    Retired::ignored("batch-blocks", "4,096 waiting blocks end --batch-interval early"),
    Retired::ignored("journal-batches", "--journal-bytes limits the batches"),
    Retired::ignored(
        "held-blocks-max",
        "the limit is 8,388,608 blocks besides the block manager's",
    ),
    Retired::key("total-kv-blocks", "capacity", "total-kv-blocks"),
    Retired::key("request-total-slots", "capacity", "request-total-slots"),
    Retired::key("max-num-batched-tokens", "capacity", "max-num-batched-tokens"),
    Retired::key("image-tokens", "engine-facts", "image-tokens"),
    Retired::key("zmq-listen", "zmq", "listen"),
    Retired::key("zmq-replay-listen", "zmq", "replay-listen"),
    Retired::key("zmq-topic", "zmq", "topic"),
];

/// Retired options of the block manager.
#[cfg(not(feature = "blocks"))]
pub(super) const RETIRED_BLOCKS: &[Retired] = &[];
/// Retired options of the block manager.
#[cfg(feature = "blocks")]
pub(super) const RETIRED_BLOCKS: &[Retired] = &[
    Retired::key("blocks-host-bytes", "blocks-host", "bytes"),
    Retired::key("blocks-arena", "blocks-host", "arena"),
    Retired::key("blocks-threads", "blocks-host", "threads"),
    Retired::key("blocks-bytes", "blocks-geometry", "bytes"),
    Retired::key("blocks-layers", "blocks-geometry", "layers"),
    Retired::key("blocks-inner-dim", "blocks-geometry", "inner-dim"),
    Retired::key("blocks-outer-dim", "blocks-geometry", "outer-dim"),
    Retired::key("blocks-dtype-bytes", "blocks-geometry", "dtype-bytes"),
    Retired::key("blocks-dtype", "blocks-geometry", "dtype"),
    Retired::key("blocks-layout", "blocks-geometry", "layout"),
    Retired::key("blocks-form", "blocks-geometry", "form"),
    Retired::key("blocks-alignment", "blocks-geometry", "alignment"),
    Retired::key("blocks-tp-rank", "blocks-geometry", "tp-rank"),
    Retired::key("blocks-tp-size", "blocks-geometry", "tp-size"),
    Retired::key("blocks-tp-replicas", "blocks-geometry", "tp-replicas"),
    Retired::key("blocks-disk-bytes", "blocks-disk", "bytes"),
    Retired::key("blocks-disk-direct", "blocks-disk", "direct"),
    Retired::key("blocks-disk-offers-min", "blocks-disk", "offers-min"),
    Retired::key("blocks-volume-bytes", "blocks-volume", "bytes"),
    Retired::key("blocks-volume-offers-min", "blocks-volume", "offers-min"),
    Retired::key("blocks-volume-timeout", "blocks-volume", "timeout"),
    Retired::key("blocks-volume-search-interval", "blocks-volume", "search-interval"),
    Retired::key("storage-volume-name", "blocks-volume", "name"),
    Retired::key("blocks-peer-listen", "blocks-peer", "listen"),
    Retired::key("blocks-peer-advertise", "blocks-peer", "advertise"),
    Retired::key("blocks-peer-token-file", "blocks-peer", "token-file"),
    Retired::key("blocks-peer-backend", "blocks-peer", "backend"),
    Retired::key("blocks-peer-nixl-library", "blocks-peer", "nixl-library"),
    Retired::key("storage-batch-interval", "storage-events", "interval"),
    Retired::ignored("blocks-lease-max", "engines may lease slots for up to 60s"),
    Retired::ignored("blocks-lease-grace", "slots stay unused for 1s after their write lease"),
    Retired::ignored("blocks-pin-ttl-max", "blocks stay pinned for up to 1h"),
    Retired::ignored("blocks-sessions-max", "the limit is 512 sessions"),
];
