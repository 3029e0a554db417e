"""The types of arguments and results."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional, Union


class Tier(enum.Enum):
    """Memory tier of a worker that holds a block."""

    DEVICE = 1
    """The accelerator's own memory."""
    HOST = 2
    """Memory of the host."""
    DISK = 3
    """Local disk."""


class WorkerState(enum.Enum):
    """How far the index's knowledge of a rank or source can be trusted."""

    UNSPECIFIED = 0
    """A state of a newer server that this package does not know."""
    EXACT = 1
    """Every event up to the cursor is in the index."""
    CATCHING_UP = 2
    """A replay, dump or restore is in progress, or a source is away. Blocks may be missing."""
    GAP = 3
    """Events are known to be missing and are being fetched."""
    DEGRADED = 4
    """Events were lost permanently. Blocks from before the loss may no longer exist."""
    PARTIAL = 5
    """Blocks were refused or evicted from the index. Answers credit too little."""
    COLD = 6
    """No event has arrived yet, or none since the source timed out."""


class Engine(enum.Enum):
    """The engine whose conventions a worker's events follow."""

    VLLM = 1
    """VLLM 0.9 and later."""
    SGLANG = 2
    """SGLang 0.5.6 and later."""
    TRTLLM = 3
    """TensorRT-LLM."""
    CUSTOM = 4
    """Any other engine."""


@dataclass(frozen=True)
class MultimodalItem:
    """An item of a prompt. Its content, not its placeholder tokens, tells blocks apart."""

    identifier: str
    """The engine's identifier of the content, 1 to 256 bytes."""
    token_offset: int
    """Position of the item's first token, counted from 0."""
    token_count: int
    """Number of tokens of the item, at least 1."""


@dataclass(frozen=True)
class Cursor:
    """Position in one numbered event stream."""

    incarnation: bytes
    """Id of one lifetime of the source's cache. Compare it for equality only."""
    sequence: int
    """Number of the last batch that the index has applied."""


@dataclass(frozen=True)
class BlocksByTier:
    """Number of blocks in each tier. A block may be in several."""

    device: int
    host: int
    disk: int


@dataclass(frozen=True)
class WorkerMatch:
    """How much of a prompt one rank of a worker holds."""

    worker_id: str
    dp_rank: int
    matched_blocks: int
    """Leading blocks of the prompt that the rank holds, confirmed by events."""
    matched_tokens: int
    blocks_by_tier: BlocksByTier
    state: WorkerState
    """Worst state among the sources that feed this rank."""
    applied: Optional[Cursor]
    """Cursor of the source with that state; None while it is cold."""
    lag_batches: int
    """Batches that this source announced and the index has not applied yet."""
    verified_age_ms: Optional[int]
    """Milliseconds since the index verified that the source has nothing newer; None if never."""
    speculative_blocks: int
    """Leading blocks that the rank is expected to hold soon. Not part of `matched_blocks`."""
    shed_blocks: int
    """Blocks that the index dropped or did not take because of its byte budget."""
    connected: bool
    """Whether all sources that feed this rank are connected. Distinguishes slow from gone."""
    may_be_high: bool
    """Whether the rank may hold less than `matched_blocks`, for a reason that the index noted."""
    reusable_tokens: int
    """Tokens of the prompt that the engine will not compute; never its last token."""
    main_group_blocks: int
    """Leading blocks in the main KV-cache group alone, at least `matched_blocks`."""


@dataclass(frozen=True)
class FindMatchesResult:
    """The ranks that hold leading blocks of a prompt, best first."""

    query_blocks: int
    """Number of complete blocks of the prompt."""
    best_overlap_blocks: int
    block_size: int
    matches: Sequence[WorkerMatch]
    missing_shards: Sequence[int]
    """Shards whose workers are missing from the answer."""
    restoring_worker_ids: Sequence[str]
    """Workers that are not completely restored after a server start."""


@dataclass(frozen=True)
class Placement:
    """Result of recording a prompt that was sent to a worker."""

    prompt_blocks: int
    """Number of complete blocks of the prompt. All are now speculative at the rank."""
    new_blocks: int
    """Number of blocks that were not speculative at the rank before."""


@dataclass(frozen=True)
class ReusedTokens:
    """What an engine reused of one prompt, beside what the index had said."""

    prompt_tokens: int
    """Tokens of the prompt."""
    expected_tokens: int
    """`reusable_tokens` of the rank in the answer; 0 if the answer did not list the rank."""
    cached_tokens: int
    """Cached prompt tokens that the engine reported."""


@dataclass(frozen=True)
class DumpRecord:
    """The state of one block at one source."""

    dp_rank: int
    name: int
    """The engine's hash of the block."""
    parent_name: Optional[int]
    """Name of the preceding block; None if it is unknown, or at the start of a prompt."""
    local_hash: Optional[int]
    """None if the block was announced without tokens."""
    placed: bool
    """Whether the chain to the start of the prompt is known. Only such blocks score."""
    source_index: int
    """`source_index` of the source's `DumpEnd`."""
    device_copies: int
    host_copies: int
    disk_copies: int


@dataclass(frozen=True)
class DumpEnd:
    """The end of one source's part of a dump."""

    source_index: int
    source: str
    watermark: Optional[Cursor]
    """The last batch that the records contain; None if none was applied."""
    records: int
    """Records of this source, including those that later ones replace."""
    state: WorkerState
    incomplete: bool
    """Whether blocks that the source announced are missing."""


DumpPart = Union[DumpRecord, DumpEnd]
"""One part of a dump: records, then the ends of all sources."""


@dataclass(frozen=True)
class RankInfo:
    """One rank of a worker."""

    dp_rank: int
    placed_blocks: int
    parked_blocks: int
    """Held blocks whose parent is not known yet."""
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
    """Sockets of one engine rank, to which the index connects."""

    endpoint: str
    """The engine's publisher socket: tcp://host:port."""
    replay_endpoint: str = ""
    """The engine's replay socket; "" if it has none."""
    topic: str = ""
    """Topic to take, or its beginning up to the end of a name; "" for all."""
    dp_rank: int = 0
    """Rank of batches that state none."""


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
    """(rank, block) pairs that are held."""
    parked: int
    index_bytes: int


@dataclass(frozen=True)
class Counter:
    """Number of block operations or batches with one outcome since the server started."""

    unit: str
    outcome: str
    reason: str
    """Reason of ignored or rejected operations; otherwise ""."""
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
    """Maximum bytes of the index; None if there is no limit."""


@dataclass(frozen=True)
class WorkerLoad:
    """How busy one rank of a worker is. Unknown values are None, not 0."""

    dp_rank: int = 0
    num_requests_waiting: Optional[int] = None
    gpu_cache_usage_perc: Optional[float] = None
    """Fraction of the device's blocks that running requests use, 0 to 1."""
    gpu_prefix_cache_hit_rate: Optional[float] = None
    """Fraction of the tokens looked up in the device's prefix cache that were found, 0 to 1."""
    request_active_slots: Optional[int] = None
    """Running requests."""
    request_total_slots: Optional[int] = None
    """Maximum number of running requests."""
    kv_active_blocks: Optional[int] = None
    """Blocks of the device that running requests use."""
    kv_total_blocks: Optional[int] = None
    age_ms: int = 0
    """Age of the values when the message was made."""
