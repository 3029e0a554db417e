"""Bounds on what the index takes, and on what a publisher keeps."""

NAME_BYTES_MAX = 256
"""Longest model name, tenant, worker id, source name, LoRA name, salt or topic, in UTF-8."""

BLOCK_SIZE_TOKENS_MAX = 65_536
"""Largest block size."""

WORKER_RANKS_MAX = 1_024
"""Most ranks of one worker."""

EVENT_BLOCKS_MAX = 65_536
"""Most blocks in one event."""

LEASE_MS_MIN = 1_000
"""Shortest lease of a worker."""

LEASE_MS_MAX = 3_600_000
"""Longest lease of a worker."""

LOADS_INTERVAL_MS_MIN = 10
"""Shortest time between two answers of how busy a worker is."""

LOADS_INTERVAL_MS_MAX = 60_000
"""Longest time between two answers."""

GRPC_MESSAGE_BYTES_MAX = 8 << 20
"""Largest message in either direction."""

QUEUED_EVENTS_DEFAULT = 4_096
"""Events that may wait for the index to confirm them, where the publisher is not told."""

QUEUED_BYTES_MAX = 64 << 20
"""Bytes of events that may wait before the next event waits too."""

KEPT_EVENTS_DEFAULT = 16_384
"""Confirmed and waiting events that are kept, where the publisher is not told."""

KEPT_BYTES_MAX = 128 << 20
"""Bytes of events that are kept; what waits is kept beyond it."""

HELD_BLOCKS_DEFAULT = 4 << 20
"""Blocks that an engine may hold, where the publisher is not told."""

UNANSWERED_EVENTS_MAX = 64
"""Events that are on their way at a time."""

UNANSWERED_BYTES_MAX = 16 << 20
"""Bytes of events that are on their way before the next event waits."""

REPLAY_BATCHES_DEFAULT = 10_000
"""Batches that a ZeroMQ publisher keeps for replay, where it is not told."""

REPLAY_BYTES_MAX = 256 << 20
"""Bytes of batches that it keeps."""

HIGH_WATER_MARK_DEFAULT = 100_000
"""Batches that a ZeroMQ publisher queues for one slow subscriber, where it is not told; more are
dropped for it, and it has to ask for a replay."""
