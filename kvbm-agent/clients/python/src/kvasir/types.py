"""What the index speaks of."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional, Union


class Tier(enum.Enum):
    """Memory of a worker that a block lies in."""

    DEVICE = 1
    """The accelerator's own memory."""
    HOST = 2
    """Memory of the host."""
    DISK = 3
    """Local disk."""


class WorkerState(enum.Enum):
    """How far a worker's entry in the index can be trusted."""

    UNSPECIFIED = 0
    """A state that this package does not know: the server is newer."""
    EXACT = 1
    """Every event up to the cursor is in the index."""
    CATCHING_UP = 2
    """A replay, dump or restore is on its way; blocks may be missing."""
    GAP = 3
    """Events are known to be missing; they are being fetched."""
    DEGRADED = 4
    """Events were lost for good; blocks may be phantoms."""
    PARTIAL = 5
    """Blocks were refused or dropped; answers credit less."""
    COLD = 6
    """Nothing has been heard yet."""


class Engine(enum.Enum):
    """Whose conventions a worker's events follow."""

    VLLM = 1
    """VLLM 0.9 and later."""
    SGLANG = 2
    """SGLang 0.5.6 and later."""
    TRTLLM = 3
    """TensorRT-LLM."""
    CUSTOM = 4
    """Any other."""


@dataclass(frozen=True)
class MultimodalItem:
    """An item whose content, not its placeholder tokens, decides what a block holds."""

    identifier: str
    """The engine's name of the content, 1 to 256 bytes."""
    token_offset: int
    """Its first token, from 0."""
    token_count: int
    """Tokens that it spans, at least 1."""


@dataclass(frozen=True)
class Cursor:
    """Position in one numbered event stream."""

    incarnation: bytes
    """One life of the source's cache; compare for equality only."""
    sequence: int
    """Number of the last batch that is in the index."""


@dataclass(frozen=True)
class BlocksByTier:
    """How many blocks lie in each tier; one may lie in several."""

    device: int
    host: int
    disk: int


@dataclass(frozen=True)
class WorkerMatch:
    """What one rank of a worker holds of a prompt."""

    worker_id: str
    dp_rank: int
    matched_blocks: int
    """Leading blocks of the prompt that it holds, confirmed by events."""
    matched_tokens: int
    blocks_by_tier: BlocksByTier
    state: WorkerState
    """Worst state among the sources that feed this rank."""
    applied: Optional[Cursor]
    """Where that source stands; none while nothing was heard."""
    lag_batches: int
    """Batches that were announced and are not applied."""
    verified_age_ms: Optional[int]
    """Milliseconds since the source was last seen to have nothing newer; none if never."""
    speculative_blocks: int
    """Leading blocks that it is expected to hold soon; `matched_blocks` does not count them."""
    shed_blocks: int
    """Blocks that the index dropped for its memory budget."""
    connected: bool
    """Whether all sources that feed this rank are connected.

    It tells a worker that is gone from one that is slow.
    """


@dataclass(frozen=True)
class FindMatchesResult:
    """Who holds how much of a prompt, best first."""

    query_blocks: int
    """Whole blocks of the prompt."""
    best_overlap_blocks: int
    block_size: int
    matches: Sequence[WorkerMatch]
    missing_shards: Sequence[int]
    """Shards whose workers are not in the answer."""
    restoring_worker_ids: Sequence[str]
    """Workers of which not all is back yet after a start of the index."""


@dataclass(frozen=True)
class DumpRecord:
    """What one source says of one block."""

    dp_rank: int
    name: int
    """The engine's hash of the block."""
    parent_name: Optional[int]
    """That of the block before; none at the start of a prompt, and where it is not known."""
    local_hash: Optional[int]
    """Hash of its tokens; none where it was announced without."""
    placed: bool
    """Whether the chain to the start of the prompt is known, so that the block scores."""
    source_index: int
    """Which `DumpEnd` tells of its source."""
    device_copies: int
    host_copies: int
    disk_copies: int


@dataclass(frozen=True)
class DumpEnd:
    """The end of one source's part of a dump."""

    source_index: int
    source: str
    watermark: Optional[Cursor]
    """The last batch that the records contain; none if there was none."""
    records: int
    """Records of this source, those replaced by later ones included."""
    state: WorkerState
    incomplete: bool
    """Whether blocks are missing that the source announced."""


DumpPart = Union[DumpRecord, DumpEnd]
"""One part of a dump: records, then the ends of all sources."""


@dataclass(frozen=True)
class RankInfo:
    """One rank of a worker."""

    dp_rank: int
    placed_blocks: int
    parked_blocks: int
    """Blocks held whose parent is not known yet."""
    shed_blocks: int


@dataclass(frozen=True)
class SourceInfo:
    """One event stream of a worker."""

    source: str
    replay_endpoint: str
    connected: bool
    state: WorkerState
    applied: Optional[Cursor]
    lag_batches: int
    buffered_batches: int
    verified_age_ms: Optional[int]


@dataclass(frozen=True)
class WorkerInfo:
    """One worker."""

    worker_id: str
    model: str
    tenant: str
    block_size: int
    engine: Engine
    ranks: Sequence[RankInfo]
    sources: Sequence[SourceInfo]


@dataclass(frozen=True)
class EngineEndpoint:
    """Sockets of one engine rank, to which the index attaches."""

    endpoint: str
    """Where the engine publishes: tcp://host:port."""
    replay_endpoint: str = ""
    """Where it replays; "" if it does not."""
    topic: str = ""
    """Prefix of the topics to subscribe to; "" for all."""
    dp_rank: int = 0
    """Rank of batches that name none."""


@dataclass(frozen=True)
class PartitionStats:
    """Sizes of one model and tenant."""

    model: str
    tenant: str
    block_size: int
    workers: int
    blocks: int
    """Distinct blocks."""
    pairs: int
    """Pairs of a rank and a block that it holds."""
    parked: int
    index_bytes: int


@dataclass(frozen=True)
class Counter:
    """What became of how many block operations or batches, since the server's start."""

    unit: str
    outcome: str
    reason: str
    """Why, for those ignored or rejected; else ""."""
    count: int


@dataclass(frozen=True)
class Stats:
    """Sizes and counters of a server."""

    version: str
    partitions: Sequence[PartitionStats]
    counters: Sequence[Counter]
    queries: int
    index_bytes: int
    index_bytes_max: Optional[int]
    """Most bytes of the index; none if there is no limit."""


@dataclass(frozen=True)
class WorkerLoad:
    """How busy one rank of a worker is. What is not known is None, which is not 0."""

    dp_rank: int = 0
    num_requests_waiting: Optional[int] = None
    gpu_cache_usage_perc: Optional[float] = None
    """Part of the device's blocks that running requests use, 0 to 1."""
    gpu_prefix_cache_hit_rate: Optional[float] = None
    """Part of the tokens looked up in the device's prefix cache that were there, 0 to 1."""
    request_active_slots: Optional[int] = None
    """Requests that run."""
    request_total_slots: Optional[int] = None
    """Most that may."""
    kv_active_blocks: Optional[int] = None
    """Blocks of the device that running requests use."""
    kv_total_blocks: Optional[int] = None
    age_ms: int = 0
    """How long ago this was so, when it was said."""
