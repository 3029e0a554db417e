"""Publish KV-cache events to Kvasir and query its index.

- `KvEventPublisher`: publishes an engine's blocks to the index, or to an agent beside the engine
- `Indexer`: queries the index for the workers that hold a prompt
- `Router`: chooses the worker for a prompt, for asyncio
- `RoutedClient`: sends prompts to the workers that a router chooses
- `WorkerLoads`: reports and watches how busy a worker is, through its agent
- `kvasir.blocks.BlockManager`: saves KV blocks at the agent, and loads them again
- `kvasir.zmq_publisher.ZmqKvEventPublisher`: publishes in vLLM's wire format; needs
  `kvasir[zmq]`
"""

from kvasir.errors import (
    ArenaError,
    ClosedError,
    DeadlineError,
    InvalidArgumentError,
    KvasirError,
    NotFoundError,
    QueueFullError,
    RefusedError,
    RpcError,
    SessionLostError,
    UnavailableError,
    UnconfirmedError,
    WrongShardError,
)
from kvasir.hashing import local_hashes, sequence_hashes
from kvasir.images import ImageTokens, with_images
from kvasir.indexer import Indexer
from kvasir.loads import WorkerLoads
from kvasir.publisher import KvEventPublisher, PublisherState, PublisherStatus
from kvasir.reservation import Reservation
from kvasir.route_types import (
    BusyThresholds,
    Decision,
    DecisionReason,
    FetchOutcome,
    FetchPeer,
    FetchPlan,
    IndexOutcome,
    IndexTrust,
    ModelType,
    PrefillChoice,
    PrefillOutcome,
    RankExplanation,
    RankLoad,
    RemovedRanks,
    RouteCost,
    RouteOverhead,
    RouterLoads,
    RouterMode,
    RouterRankLoad,
    SelectHints,
    WorkerRole,
)
from kvasir.routed import RoutedClient
from kvasir.router import Router
from kvasir.tls import tls_credentials
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
    Placement,
    RankInfo,
    ReusedTokens,
    SourceInfo,
    Stats,
    Tier,
    WorkerInfo,
    WorkerLoad,
    WorkerMatch,
    WorkerState,
)

__all__ = [
    "ArenaError",
    "BlocksByTier",
    "BusyThresholds",
    "ClosedError",
    "Counter",
    "Cursor",
    "DeadlineError",
    "Decision",
    "DecisionReason",
    "DumpEnd",
    "DumpPart",
    "DumpRecord",
    "Engine",
    "EngineEndpoint",
    "FetchOutcome",
    "FetchPeer",
    "FetchPlan",
    "FindMatchesResult",
    "ImageTokens",
    "IndexOutcome",
    "IndexTrust",
    "Indexer",
    "InvalidArgumentError",
    "KvEventPublisher",
    "KvasirError",
    "ModelType",
    "MultimodalItem",
    "NotFoundError",
    "PartitionStats",
    "Placement",
    "PrefillChoice",
    "PrefillOutcome",
    "PublisherState",
    "PublisherStatus",
    "QueueFullError",
    "RankExplanation",
    "RankInfo",
    "RankLoad",
    "RefusedError",
    "RemovedRanks",
    "Reservation",
    "ReusedTokens",
    "RouteCost",
    "RouteOverhead",
    "RoutedClient",
    "Router",
    "RouterLoads",
    "RouterMode",
    "RouterRankLoad",
    "RpcError",
    "SelectHints",
    "SessionLostError",
    "SourceInfo",
    "Stats",
    "Tier",
    "UnavailableError",
    "UnconfirmedError",
    "WorkerInfo",
    "WorkerLoad",
    "WorkerLoads",
    "WorkerMatch",
    "WorkerRole",
    "WorkerState",
    "WrongShardError",
    "local_hashes",
    "sequence_hashes",
    "tls_credentials",
    "with_images",
]
