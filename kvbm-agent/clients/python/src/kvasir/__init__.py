"""Publish KV-cache events to Kvasir and query its index.

- `KvEventPublisher`: publishes what an engine holds to the index, or to an agent beside the engine
- `Indexer`: queries the index for the workers that hold a prompt
- `WorkerLoads`: reports and watches how busy a worker is, through its agent
- `kvasir.zmq_publisher.ZmqKvEventPublisher`: publishes in vLLM's wire format; needs
  `kvasir-client[zmq]`
"""

from kvasir.errors import (
    ClosedError,
    DeadlineError,
    InvalidArgumentError,
    KvasirError,
    NotFoundError,
    QueueFullError,
    RefusedError,
    RpcError,
    UnavailableError,
    UnconfirmedError,
    WrongShardError,
)
from kvasir.hashing import local_hashes, sequence_hashes
from kvasir.indexer import Indexer
from kvasir.loads import WorkerLoads
from kvasir.publisher import KvEventPublisher, PublisherState, PublisherStatus
from kvasir.types import (
    BlocksByTier,
    Counter,
    Cursor,
    DumpEnd,
    DumpPart,
    DumpRecord,
    Engine,
    EngineEndpoint,
    FindMatchesResult,
    MultimodalItem,
    PartitionStats,
    RankInfo,
    SourceInfo,
    Stats,
    Tier,
    WorkerInfo,
    WorkerLoad,
    WorkerMatch,
    WorkerState,
)

__all__ = [
    "BlocksByTier",
    "ClosedError",
    "Counter",
    "Cursor",
    "DeadlineError",
    "DumpEnd",
    "DumpPart",
    "DumpRecord",
    "Engine",
    "EngineEndpoint",
    "FindMatchesResult",
    "Indexer",
    "InvalidArgumentError",
    "KvEventPublisher",
    "KvasirError",
    "MultimodalItem",
    "NotFoundError",
    "PartitionStats",
    "PublisherState",
    "PublisherStatus",
    "QueueFullError",
    "RankInfo",
    "RefusedError",
    "RpcError",
    "SourceInfo",
    "Stats",
    "Tier",
    "UnavailableError",
    "UnconfirmedError",
    "WorkerInfo",
    "WorkerLoad",
    "WorkerLoads",
    "WorkerMatch",
    "WorkerState",
    "WrongShardError",
    "local_hashes",
    "sequence_hashes",
]
