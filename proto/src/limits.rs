//! Every bound on what a peer may send, with its unit in its name. One file, so that server,
//! client and documents cannot disagree; a test checks the table in `docs/reference/indexer-server.md` against it.

/// Longest model name, tenant, worker id, source name, LoRA name or topic.
pub const NAME_BYTES_MAX: usize = 256;
/// Longest cache salt of a prompt: vLLM takes 128 characters.
pub const SALT_BYTES_MAX: usize = 512;
/// Longest multimodal identifier.
pub const MULTIMODAL_IDENTIFIER_BYTES_MAX: usize = 256;
/// Largest block size.
pub const BLOCK_SIZE_TOKENS_MAX: u32 = 65_536;
/// Most tokens in one query.
pub const QUERY_TOKENS_MAX: usize = 1 << 20;
/// Most blocks in one query.
pub const QUERY_BLOCKS_MAX: usize = 65_536;
/// Most reasons in one heartbeat.
pub const HEARTBEAT_REASONS_MAX: usize = 64;
/// Most bytes of the example of a reason; the rest is cut off.
pub const REASON_EXAMPLE_BYTES_MAX: usize = 256;
/// Most multimodal items in one query.
pub const QUERY_MULTIMODAL_ITEMS_MAX: usize = 1_024;
/// Most worker ids in a query's filter.
pub const QUERY_WORKER_IDS_MAX: usize = 4_096;
/// Longest time to live of a placement, in milliseconds.
pub const PLACEMENT_TTL_MS_MAX: u32 = 3_600_000;
/// Time to live of a placement, in milliseconds, if the request does not set it.
pub const PLACEMENT_TTL_MS_DEFAULT: u32 = 120_000;
/// Most workers (all partitions) one server accepts.
pub const WORKERS_MAX: usize = 16_384;
/// Most bytes of the registrations of all workers of one server: encoded, and 64 more for each entry of their lists.
pub const REGISTRATIONS_BYTES_MAX: usize = 256 << 20;
/// Most ranks of one worker.
pub const WORKER_RANKS_MAX: usize = 1_024;
/// Most endpoints in one registration.
pub const WORKER_ENDPOINTS_MAX: usize = 64;
/// Most sources of one worker: endpoints and publishers together.
pub const WORKER_SOURCES_MAX: usize = 128;
/// Past incarnations of a source that a server remembers, so that none of them comes back.
pub const SOURCE_PAST_INCARNATIONS_MAX: usize = 64;
/// Past incarnations of a source in a dump, or in an agent's journal: the latest.
pub const TOLD_PAST_INCARNATIONS_MAX: usize = 8;
/// Highest sequence number of a batch.
pub const SEQUENCE_MAX: u64 = (1 << 63) - 1;
/// Shortest distance beyond the expected sequence number at which a batch is refused.
pub const SEQUENCES_AHEAD_MAX: u64 = 1 << 32;
/// Highest number of the first batch of an incarnation whose hello does not state `first_sequence`.
pub const UNSTATED_FIRST_SEQUENCE_MAX: u64 = (1 << 48) - 1;
/// Most names of numbered LoRA adapters in one registration.
pub const WORKER_LORA_NAMES_MAX: usize = 1_024;
/// Most pools that a worker names.
pub const WORKER_POOLS_MAX: usize = 8;
/// Most pools of a partition.
pub const POOLS_MAX: usize = 64;
/// Most media with a time to live in one registration.
pub const WORKER_MEDIUM_TTLS_MAX: usize = 16;
/// Shortest time to live of blocks on a medium, in milliseconds.
pub const MEDIUM_TTL_MS_MIN: u32 = 100;
/// Longest time to live of blocks on a medium, in milliseconds: 30 days.
pub const MEDIUM_TTL_MS_MAX: u32 = 2_592_000_000;
/// Most media with chunks of a connector in one registration.
pub const WORKER_CONNECTOR_CHUNKS_MAX: usize = 16;
/// Smallest chunk of a connector, in blocks.
pub const CONNECTOR_CHUNK_BLOCKS_MIN: u32 = 2;
/// Largest chunk of a connector, in blocks: LMCache's 256 tokens with blocks of one token.
pub const CONNECTOR_CHUNK_BLOCKS_MAX: u32 = 256;
/// Most workers in one page of ListWorkers, and the default.
pub const LIST_PAGE_WORKERS_MAX: usize = 4_096;
/// Most bytes of the workers in one page of ListWorkers: a page ends before the worker that would exceed it.
pub const LIST_PAGE_BYTES_MAX: usize = 1 << 20;
/// Most labels of one worker.
pub const WORKER_LABELS_MAX: usize = 64;
/// Shortest lease of a worker, in milliseconds.
pub const LEASE_MS_MIN: u32 = 1_000;
/// Longest lease of a worker, in milliseconds.
pub const LEASE_MS_MAX: u32 = 3_600_000;
/// Most batches of one publisher that wait for their answers; the server reads no more until one is answered.
pub const UNANSWERED_BATCHES_MAX: usize = 1_024;
/// Most partitions one server accepts.
pub const PARTITIONS_MAX: usize = 4_096;
/// Most blocks in one stored or removed event.
pub const EVENT_BLOCKS_MAX: usize = 65_536;
/// Most events in one batch.
pub const BATCH_EVENTS_MAX: usize = 4_096;
/// Most records in one chunk of a dump.
pub const DUMP_CHUNK_RECORDS_MAX: usize = 8_192;
/// Most names in one message of a dump that says what names mean.
pub const DUMP_MEANINGS_MAX: usize = 4_096;
/// Records in one chunk of a dump, if the request does not set it.
pub const DUMP_CHUNK_RECORDS_DEFAULT: usize = 2_048;
/// Largest gRPC message in either direction.
pub const GRPC_MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Largest message over NATS: servers accept 1 MiB by default, headers and subject included.
pub const BROKER_MESSAGE_BYTES_MAX: usize = 1_000_000;
/// Maximum size of an agent's batch on the wire. The agent splits larger batches.
pub const BATCH_WIRE_BYTES_MAX: usize = 512 << 10;
/// Most unconfirmed parts of an answer of LocalIndexer over NATS; the reader confirms each part it has read.
pub const ANSWER_PARTS_AHEAD_MAX: usize = 8;
/// Deepest chain of blocks in the index.
pub const CHAIN_BLOCKS_MAX: usize = 65_536;
/// Most parked names of one rank: held, parent unknown.
pub const RANK_PARKED_MAX: usize = 65_536;
/// Most names of one rank for one block: an engine may give one content several names. A look-ahead block has one for each token after it.
pub const BLOCK_NAMES_MAX: usize = 4_096;
/// Most names that may change during one dump; more abort it.
pub const DUMP_DIRTY_NAMES_MAX: usize = 1 << 16;
/// Shortest time between two answers of WatchLoads, in milliseconds.
pub const LOADS_INTERVAL_MS_MIN: u32 = 10;
/// Longest time between two answers of WatchLoads, in milliseconds.
pub const LOADS_INTERVAL_MS_MAX: u32 = 60_000;
/// Time between two answers of WatchLoads, in milliseconds, if the request does not set it.
pub const LOADS_INTERVAL_MS_DEFAULT: u32 = 100;
/// Most items of a message among replicas of the router.
pub const SYNC_ITEMS_MAX: usize = 4_096;
/// Most slots, sequence hashes or pins in one call of BlockManager, but for those below and MatchPrefix.
pub const BLOCK_SLOTS_MAX: usize = 4_096;
/// Most slots in one Commit, Read or Verify of BlockManager, whose bytes are all read.
pub const BLOCK_CHECKS_MAX: usize = 1_024;
/// Most bytes of one Write of BlockManager.
pub const BLOCK_WRITE_BYTES_MAX: usize = 4 << 20;
/// Most bytes of a block in one message of Read of BlockManager.
pub const BLOCK_PART_BYTES_MAX: usize = 1 << 20;
/// Longest time that Onboard of BlockManager takes, in milliseconds.
pub const ONBOARD_TIMEOUT_MS_MAX: u32 = 25_000;
/// Time that Onboard of BlockManager takes at most, in milliseconds, if the request does not set it.
pub const ONBOARD_TIMEOUT_MS_DEFAULT: u32 = 10_000;
/// Maximum number of events in one batch of storage events.
pub const STORAGE_BATCH_EVENTS_MAX: usize = 4_096;
/// Maximum length of the name of a storage location, in bytes.
pub const STORAGE_LOCATION_BYTES_MAX: usize = 64;
/// Maximum number of `extra_metadata` entries in a storage event.
pub const STORAGE_METADATA_ENTRIES_MAX: usize = 8;
/// Maximum length of a key in `extra_metadata`, in bytes.
pub const STORAGE_METADATA_KEY_BYTES_MAX: usize = 32;
/// Maximum length of a value in `extra_metadata`, in bytes.
pub const STORAGE_METADATA_VALUE_BYTES_MAX: usize = 64;
/// Maximum number of peers in one Fetch call of BlockManager.
pub const FETCH_PEERS_MAX: usize = 64;
/// Largest shard map, as text, in bytes.
pub const SHARD_MAP_BYTES_MAX: usize = 64 << 10;

const _: () = assert!(QUERY_TOKENS_MAX * 4 <= GRPC_MESSAGE_BYTES_MAX);
const _: () = assert!(QUERY_BLOCKS_MAX * 8 <= GRPC_MESSAGE_BYTES_MAX);
const _: () = assert!(QUERY_BLOCKS_MAX <= CHAIN_BLOCKS_MAX);
const _: () = assert!(BLOCK_WRITE_BYTES_MAX < GRPC_MESSAGE_BYTES_MAX);
// A held block is at most 80 bytes on the wire, and MatchPrefix may hold as many as a query has.
const _: () = assert!(QUERY_BLOCKS_MAX * 80 <= GRPC_MESSAGE_BYTES_MAX);
const _: () = assert!(DUMP_CHUNK_RECORDS_DEFAULT <= DUMP_CHUNK_RECORDS_MAX);
// The largest worker fits into a page: names of its endpoints (three each), adapters, labels (key
// and value), sources (with the replay endpoint) and ranks, with 64 bytes for the rest of each entry.
const _: () = assert!(
    WORKER_ENDPOINTS_MAX * (3 * NAME_BYTES_MAX + 64)
        + WORKER_LORA_NAMES_MAX * (NAME_BYTES_MAX + 64)
        + (WORKER_MEDIUM_TTLS_MAX + WORKER_CONNECTOR_CHUNKS_MAX) * (NAME_BYTES_MAX + 64)
        + WORKER_LABELS_MAX * (2 * NAME_BYTES_MAX + 64)
        + WORKER_SOURCES_MAX * (2 * NAME_BYTES_MAX + 128)
        + WORKER_RANKS_MAX * 64
        + 16 * NAME_BYTES_MAX
        <= LIST_PAGE_BYTES_MAX
);
const _: () = assert!(LIST_PAGE_BYTES_MAX * 2 <= GRPC_MESSAGE_BYTES_MAX);
const _: () = assert!(TOLD_PAST_INCARNATIONS_MAX <= SOURCE_PAST_INCARNATIONS_MAX);
// The number after the highest, and one that is as far ahead as can be believed, are numbers.
const _: () = assert!(UNSTATED_FIRST_SEQUENCE_MAX < SEQUENCE_MAX);
const _: () = assert!(SEQUENCE_MAX.checked_add(SEQUENCES_AHEAD_MAX).is_some());
// A record is at most 64 bytes on the wire.
const _: () = assert!(DUMP_CHUNK_RECORDS_MAX * 64 <= GRPC_MESSAGE_BYTES_MAX);
