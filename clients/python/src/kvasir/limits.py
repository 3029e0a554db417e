"""Limits of the index and of publishers."""

NAME_BYTES_MAX = 256
SALT_BYTES_MAX = 512
"""Longest model name, tenant, worker id, source name, LoRA name, salt or topic, in UTF-8."""

BLOCK_SIZE_TOKENS_MAX = 65_536
"""Largest block size."""

WORKER_RANKS_MAX = 1_024
"""Maximum number of ranks of one worker."""

EVENT_BLOCKS_MAX = 65_536
"""Maximum number of blocks in one event."""

LEASE_MS_MIN = 1_000
"""Shortest lease of a worker."""

LEASE_MS_MAX = 3_600_000
"""Longest lease of a worker."""

LOADS_INTERVAL_MS_MIN = 10
"""Shortest interval between two answers of `WorkerLoads.watch`."""

LOADS_INTERVAL_MS_MAX = 60_000
"""Longest interval between two answers of `WorkerLoads.watch`."""

PLACEMENT_TTL_MS_MAX = 3_600_000
"""Longest time to live of a recorded placement."""

REUSE_REQUESTS_MAX = 1_024
"""Maximum requests of one `Indexer.report_reuse`."""

QUERY_TOKENS_MAX = 1_048_576
"""Longest prompt of a reported request, in tokens."""

LATENCY_SENSITIVITY_SECONDS_MAX = 3_600
"""Largest `latency_sensitivity` of a request."""

QUEUE_SECONDS_MAX = 25
"""Longest time that a request may wait in a router's queue."""

REPORT_ITEMS = 32
"""`RoutedClient` reports the output whenever it has grown by so many items."""

QUERY_BLOCKS_MAX = 65_536
"""Maximum blocks of one `Session.match_prefix`."""

BLOCK_SLOTS_MAX = 4_096
"""Maximum slots, hashes or pins of one call to the block manager."""

BLOCK_CHECKS_MAX = 1_024
"""Maximum blocks of one `Session.commit`, `read` or `verify`: the agent checksums them."""

BLOCK_WRITE_BYTES_MAX = 4 << 20
"""Maximum bytes of one Write call; `Session.write` makes several calls."""

ONBOARD_TIMEOUT_MS_MAX = 25_000
"""Longest `timeout_ms` of `Session.onboard` and `fetch`."""

ONBOARD_TIMEOUT_MS_DEFAULT = 10_000
"""Default `timeout_ms` of `Session.onboard` and `fetch`."""

FETCH_PEERS_MAX = 64
"""Maximum peers of one `Session.fetch`."""

SLOT_LEASE_MS_DEFAULT = 30_000
"""Default of `lease_ms` of `Session.allocate`, if the agent allows it."""

BLOCK_PRIORITY_MAX = 255
"""Highest priority of a block or a transfer."""

GRPC_MESSAGE_BYTES_MAX = 8 << 20
"""Largest message in either direction."""

QUEUED_EVENTS_DEFAULT = 4_096
"""Default of `queued_events`: events that may wait for the index's ack."""

QUEUED_BYTES_MAX = 64 << 20
"""Bytes of waiting events at which the queue is full."""

KEPT_EVENTS_DEFAULT = 16_384
"""Default of `kept_events`: events that are retained, including those that wait."""

KEPT_BYTES_MAX = 128 << 20
"""Maximum bytes of retained events. Waiting events are retained even above this limit."""

HELD_BLOCKS_DEFAULT = 4 << 20
"""Default of `held_blocks`: blocks that an engine may hold."""

UNANSWERED_EVENTS_MAX = 64
"""Maximum number of events in flight."""

UNANSWERED_BYTES_MAX = 16 << 20
"""Bytes of events in flight at which sending pauses."""

REPLAY_BATCHES_DEFAULT = 10_000
"""Default of `replay_batches`: batches that a ZeroMQ publisher retains for replay."""

REPLAY_BYTES_MAX = 256 << 20
"""Maximum bytes of the batches that a ZeroMQ publisher retains."""

HIGH_WATER_MARK_DEFAULT = 100_000
"""Default of `high_water_mark`: batches that a ZeroMQ publisher queues for one slow subscriber. The
subscriber loses further batches and must request a replay."""
