//! Every limit on a peer's messages, with its unit in its name. One file keeps server, client and documents consistent:
//! a test checks the table in `docs/reference/indexer-server.md` against it.

/// Maximum length of a model name, tenant, worker id, source name, LoRA name or topic.
pub const NAME_BYTES_MAX: usize = 256;
/// Maximum length of a prompt's cache salt. vLLM accepts 128 characters.
pub const SALT_BYTES_MAX: usize = 512;
/// Maximum length of a multimodal identifier.
pub const MULTIMODAL_IDENTIFIER_BYTES_MAX: usize = 256;
/// Maximum block size.
pub const BLOCK_SIZE_TOKENS_MAX: u32 = 65_536;
/// Maximum number of tokens in one query.
pub const QUERY_TOKENS_MAX: usize = 1 << 20;
/// Maximum number of blocks in one query.
pub const QUERY_BLOCKS_MAX: usize = 65_536;
/// Maximum number of requests in one report of reused tokens.
pub const REUSE_REQUESTS_MAX: usize = 1_024;
/// Maximum number of reasons in one heartbeat.
pub const HEARTBEAT_REASONS_MAX: usize = 64;
/// Maximum length of a reason's example. Longer examples are truncated.
pub const REASON_EXAMPLE_BYTES_MAX: usize = 256;
/// Maximum number of multimodal items in one query.
pub const QUERY_MULTIMODAL_ITEMS_MAX: usize = 1_024;
/// Maximum number of worker ids in a query's filter.
pub const QUERY_WORKER_IDS_MAX: usize = 4_096;
/// Maximum time to live of a placement, in milliseconds.
pub const PLACEMENT_TTL_MS_MAX: u32 = 3_600_000;
/// Default time to live of a placement, in milliseconds.
pub const PLACEMENT_TTL_MS_DEFAULT: u32 = 120_000;
/// Maximum number of workers of one server, over all partitions.
pub const WORKERS_MAX: usize = 16_384;
/// Maximum total size of the registrations of one server's workers: encoded size plus 64 bytes per list entry.
pub const REGISTRATIONS_BYTES_MAX: usize = 256 << 20;
/// Maximum number of ranks of one worker.
pub const WORKER_RANKS_MAX: usize = 1_024;
/// Maximum number of endpoints in one registration.
pub const WORKER_ENDPOINTS_MAX: usize = 64;
/// Maximum number of sources of one worker: endpoints and publishers together.
pub const WORKER_SOURCES_MAX: usize = 128;
/// Maximum number of past incarnations of a source that a server remembers. The server rejects streams of a past
/// incarnation.
pub const SOURCE_PAST_INCARNATIONS_MAX: usize = 64;
/// Maximum number of past incarnations of a source in a dump or in an agent's journal: the most recent ones.
pub const TOLD_PAST_INCARNATIONS_MAX: usize = 8;
/// Maximum sequence number of a batch.
pub const SEQUENCE_MAX: u64 = (1 << 63) - 1;
/// A batch whose sequence number is this far or farther beyond the expected one is rejected.
pub const SEQUENCES_AHEAD_MAX: u64 = 1 << 32;
/// Maximum number of the first batch of an incarnation whose hello does not state `first_sequence`.
pub const UNSTATED_FIRST_SEQUENCE_MAX: u64 = (1 << 48) - 1;
/// Maximum number of names of numbered LoRA adapters in one registration.
pub const WORKER_LORA_NAMES_MAX: usize = 1_024;
/// Maximum number of pools of one worker.
pub const WORKER_POOLS_MAX: usize = 8;
/// Maximum number of pools of one partition.
pub const POOLS_MAX: usize = 64;
/// Maximum number of media with a time to live in one registration.
pub const WORKER_MEDIUM_TTLS_MAX: usize = 16;
/// Minimum time to live of blocks on a medium, in milliseconds.
pub const MEDIUM_TTL_MS_MIN: u32 = 100;
/// Maximum time to live of blocks on a medium, in milliseconds: 30 days.
pub const MEDIUM_TTL_MS_MAX: u32 = 2_592_000_000;
/// Maximum number of media with connector chunks in one registration.
pub const WORKER_CONNECTOR_CHUNKS_MAX: usize = 16;
/// Minimum size of a connector's chunk, in blocks.
pub const CONNECTOR_CHUNK_BLOCKS_MIN: u32 = 2;
/// Maximum size of a connector's chunk, in blocks: LMCache's 256 tokens with blocks of one token.
pub const CONNECTOR_CHUNK_BLOCKS_MAX: u32 = 256;
/// Maximum and default number of workers in one page of ListWorkers.
pub const LIST_PAGE_WORKERS_MAX: usize = 4_096;
/// Maximum total size of the workers in one page of ListWorkers. A page ends before the worker that would exceed it.
pub const LIST_PAGE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of labels of one worker.
pub const WORKER_LABELS_MAX: usize = 64;
/// Minimum lease of a worker, in milliseconds.
pub const LEASE_MS_MIN: u32 = 1_000;
/// Maximum lease of a worker, in milliseconds.
pub const LEASE_MS_MAX: u32 = 3_600_000;
/// Maximum number of a publisher's batches that wait for their acknowledgements. The server then stops reading until it
/// has answered one.
pub const UNANSWERED_BATCHES_MAX: usize = 1_024;
/// Maximum number of partitions of one server.
pub const PARTITIONS_MAX: usize = 4_096;
/// Maximum number of blocks in one stored or removed event.
pub const EVENT_BLOCKS_MAX: usize = 65_536;
/// Maximum number of events in one batch.
pub const BATCH_EVENTS_MAX: usize = 4_096;
/// Maximum number of records in one chunk of a dump.
pub const DUMP_CHUNK_RECORDS_MAX: usize = 8_192;
/// Maximum number of names in one message of a dump that contains meanings of names.
pub const DUMP_MEANINGS_MAX: usize = 4_096;
/// Default number of records in one chunk of a dump.
pub const DUMP_CHUNK_RECORDS_DEFAULT: usize = 2_048;
/// Maximum size of a gRPC message in either direction.
pub const GRPC_MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Maximum size of a NATS message. NATS servers accept 1 MiB by default, including headers and subject.
pub const BROKER_MESSAGE_BYTES_MAX: usize = 1_000_000;
/// Maximum size of an agent's batch on the wire. The agent splits larger batches.
pub const BATCH_WIRE_BYTES_MAX: usize = 512 << 10;
/// Maximum number of unconfirmed parts of a LocalIndexer answer over NATS. The reader confirms each part after reading
/// it.
pub const ANSWER_PARTS_AHEAD_MAX: usize = 8;
/// Maximum length of a chain of blocks in the index, from its first block.
pub const CHAIN_BLOCKS_MAX: usize = 65_536;
/// Maximum number of parked names of one rank: announced blocks whose parent is unknown.
pub const RANK_PARKED_MAX: usize = 65_536;
/// Maximum number of KV-cache groups of an engine besides the main group. Engines have one group per type of layer.
pub const FURTHER_GROUPS_MAX: usize = 32;
/// Maximum number of names of one rank for one block. An engine may give one content several names; a look-ahead block
/// has one name per next token.
pub const BLOCK_NAMES_MAX: usize = 4_096;
/// Maximum number of names that change during one dump. More changes abort the dump.
pub const DUMP_DIRTY_NAMES_MAX: usize = 1 << 16;
/// Minimum time between two answers of WatchLoads, in milliseconds.
pub const LOADS_INTERVAL_MS_MIN: u32 = 10;
/// Maximum time between two answers of WatchLoads, in milliseconds.
pub const LOADS_INTERVAL_MS_MAX: u32 = 60_000;
/// Default time between two answers of WatchLoads, in milliseconds.
pub const LOADS_INTERVAL_MS_DEFAULT: u32 = 100;
/// Maximum number of items in one message between replicas of the router.
pub const SYNC_ITEMS_MAX: usize = 4_096;
/// Maximum number of slots, sequence hashes or pins in one BlockManager call. MatchPrefix, Commit, Read and Verify have
/// other limits.
pub const BLOCK_SLOTS_MAX: usize = 4_096;
/// Maximum number of slots in one Commit, Read or Verify call of BlockManager, which read all bytes of each slot.
pub const BLOCK_CHECKS_MAX: usize = 1_024;
/// Maximum number of bytes in one Write call of BlockManager.
pub const BLOCK_WRITE_BYTES_MAX: usize = 4 << 20;
/// Maximum number of bytes of a block in one message of BlockManager's Read.
pub const BLOCK_PART_BYTES_MAX: usize = 1 << 20;
/// Maximum timeout of BlockManager's Onboard, in milliseconds.
pub const ONBOARD_TIMEOUT_MS_MAX: u32 = 25_000;
/// Default timeout of BlockManager's Onboard, in milliseconds.
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
/// Maximum size of a shard map's text, in bytes.
pub const SHARD_MAP_BYTES_MAX: usize = 64 << 10;

const _: () = assert!(QUERY_TOKENS_MAX * 4 <= GRPC_MESSAGE_BYTES_MAX);
const _: () = assert!(QUERY_BLOCKS_MAX * 8 <= GRPC_MESSAGE_BYTES_MAX);
const _: () = assert!(QUERY_BLOCKS_MAX <= CHAIN_BLOCKS_MAX);
const _: () = assert!(BLOCK_WRITE_BYTES_MAX < GRPC_MESSAGE_BYTES_MAX);
// A cached block takes at most 80 bytes on the wire, and MatchPrefix returns at most as many blocks as a query has.
const _: () = assert!(QUERY_BLOCKS_MAX * 80 <= GRPC_MESSAGE_BYTES_MAX);
const _: () = assert!(DUMP_CHUNK_RECORDS_DEFAULT <= DUMP_CHUNK_RECORDS_MAX);
// The largest worker fits into a page: names of its endpoints (three each), adapters, labels (key and value), sources
// (with the replay endpoint) and ranks, plus 64 bytes for the rest of each entry.
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
// The number after the highest one, and the farthest accepted number beyond it, do not overflow.
const _: () = assert!(UNSTATED_FIRST_SEQUENCE_MAX < SEQUENCE_MAX);
const _: () = assert!(SEQUENCE_MAX.checked_add(SEQUENCES_AHEAD_MAX).is_some());
// A record takes at most 64 bytes on the wire.
const _: () = assert!(DUMP_CHUNK_RECORDS_MAX * 64 <= GRPC_MESSAGE_BYTES_MAX);
