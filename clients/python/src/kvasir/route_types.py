"""The types of the router's arguments and answers."""

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional, TypedDict

from kvasir.types import BlocksByTier, MultimodalItem, WorkerLoad


class RouterMode(enum.Enum):
    """How a worker is chosen."""

    UNSPECIFIED = 0
    """The router's own mode."""
    KV = 1
    """The lowest cost by overlap and load."""
    ROUND_ROBIN = 2
    """Round robin: each worker in turn."""
    RANDOM = 3
    """A random worker."""
    DIRECT = 4
    """The worker that the request names, without choice or filters."""
    POWER_OF_TWO = 5
    """The less loaded of two random workers."""
    LEAST_LOADED = 6
    """The least loaded worker."""


class DecisionReason(enum.Enum):
    """Why a worker was chosen."""

    UNSPECIFIED = 0
    """A reason of a newer router that this package does not know."""
    ONLY_ONE = 1
    """No other worker was left."""
    LOWEST_SCORE = 2
    LEAST_LOADED_OF_EQUAL = 3
    """Other workers have the same score but a higher load."""
    TURN_OF_EQUAL = 4
    """Other workers are equally good; chosen in turn."""
    SAMPLED = 5
    """Sampled with the temperature."""
    TURN = 6
    """Chosen in turn (round robin)."""
    RANDOM = 7
    """Chosen at random."""
    LESS_LOADED_OF_TWO = 8
    """The less loaded of two random workers."""
    DIRECT = 9
    """The request names the worker."""


class IndexOutcome(enum.Enum):
    """What the index contributed to a decision."""

    UNSPECIFIED = 0
    """An outcome of a newer router that this package does not know."""
    NOT_NEEDED = 1
    """The mode or the weight needs no overlap, or the router has no index."""
    ANSWERED = 2
    PARTIAL = 3
    """The index answered without the workers of `missing_shards`."""
    TIMEOUT = 4
    """The index did not answer in time. Load alone decided."""
    UNAVAILABLE = 5
    """The index was unreachable, starting or stopping. Load alone decided."""
    REFUSED = 6
    """The index refused the query; see `index_error`. Load alone decided."""


class IndexTrust(enum.Enum):
    """How far the index's knowledge of a rank can be trusted."""

    UNSPECIFIED = 0
    """A value of a newer router that this package does not know."""
    FULL = 1
    """Fully. The rank may hold more than is known."""
    STALE = 2
    """The rank was verified too long ago. Its blocks are credited in part."""
    BEHIND = 3
    """Events are missing or not applied yet. Its blocks are credited in part."""
    UNKNOWN = 4
    """There is no connection to the engine, or nothing is known. Nothing is credited."""


class PrefillOutcome(enum.Enum):
    """Why a request has a prefill worker, or none."""

    UNSPECIFIED = 0
    """The request did not ask for one; or an outcome of a newer router that this package does not
    know."""
    CHOSEN = 1
    """`prefill` names the prefill worker."""
    NO_WORKER = 2
    """There is no prefill worker, or none may have the request."""
    MOSTLY_CACHED = 3
    """The worker has so much of the prompt that it computes the rest itself."""
    BUSY = 4
    """All prefill workers are too busy."""
    NO_DOMAIN = 5
    """No worker that may have the request can take blocks from the prefill worker."""


class FetchOutcome(enum.Enum):
    """Why there is a plan to fetch blocks from peers, or none."""

    UNSPECIFIED = 0
    """An older router, which plans nothing; or an outcome of a newer router that this package does
    not know."""
    PLANNED = 1
    """`fetch` has the plan."""
    NOT_ASKED = 2
    """Plans are off, or the index was not asked or did not answer."""
    COMPLETE = 3
    """The worker holds all whole blocks of the prompt, or is computing them."""
    NO_AGENT = 4
    """The worker has no agent that fetches."""
    NO_HOLDER = 5
    """No other worker serves more leading blocks."""
    UNKNOWN_RATE = 6
    """The bandwidth or the prefill rate is unknown."""
    NOT_FASTER = 7
    """To compute the blocks takes about as long, or less."""


class WorkerRole(enum.Enum):
    """What a worker is for."""

    UNSPECIFIED = 0
    """Not stated."""
    PREFILL = 1
    DECODE = 2
    BOTH = 3


class ModelType(enum.Enum):
    """A kind of requests."""

    UNSPECIFIED = 0
    """Not stated."""
    CHAT = 1
    """Conversations."""
    COMPLETIONS = 2
    """Plain text to be continued."""


class SelectHints(TypedDict, total=False):
    """What a request may say about itself and about the workers that may have it. All optional."""

    request_id: str
    """Id of the request, unique among those in progress. By default the client makes one."""
    lora_name: str
    """LoRA adapter of the request. Workers that have loaded it are preferred."""
    cache_salt: str
    """Cache salt of the prompt. Only with `tokens`."""
    multimodal: Sequence[MultimodalItem]
    """Multimodal items of the prompt. Only with `tokens`."""
    mode: RouterMode
    """How the worker is chosen; the router's mode by default."""
    overlap_score_weight: float
    """Weight of overlap against load, 0 or more."""
    temperature: float
    """Randomness of mode KV, 0 or more."""
    expected_output_tokens: int
    """Number of output tokens that the client expects."""
    latency_sensitivity: float
    """How many seconds earlier the request counts as arrived in the queue, 0 to 3,600."""
    session_id: str
    """Session of the request. The rank that served it last is preferred."""
    worker_id: str
    """Only this worker. Required in mode DIRECT."""
    dp_rank: int
    """Only this rank of `worker_id`."""
    allowed: Collection[str]
    """Only these workers."""
    excluded: Collection[str]
    """None of these workers."""
    roles: Collection[WorkerRole]
    """Only workers of these roles; by default all but those that only prefill."""
    model_type: ModelType
    """Only workers that serve this kind of requests; workers that state no kind serve all."""
    required_labels: Mapping[str, str]
    """Only workers with all these labels."""
    preferred_labels: Mapping[tuple[str, str], float]
    """Weight of each preferred (key, value). Below 0, workers without the label are preferred."""
    queue_timeout: float
    """Longest wait in the router's queue, in seconds. The router's own is the default and the
    maximum."""
    explain: bool
    """List the state of each rank in the decision."""
    dry_run: bool
    """Choose a worker, but do not count the request as load."""
    disaggregate: bool
    """Choose a prefill worker, too, which computes the prompt for the worker, if there is one and
    it pays. Not with `roles` or `dry_run`."""


@dataclass(frozen=True)
class RouteCost:
    """The terms of a rank's cost, in blocks. The lowest total wins."""

    credited_blocks: float
    """The overlap, weighted by the credit of each tier."""
    new_prefill_tokens: float
    """Tokens of the request that must be computed."""
    prefill_blocks: float
    decode_blocks: float
    """Blocks in use for generation if the request goes there."""
    total: float
    decode_cost: float
    """What blocks in use, and the prompts under way, cost the request."""
    fetch_tokens: float
    """Tokens that the worker computes in the time of its fetch; 0 if it fetches nothing."""


@dataclass(frozen=True)
class RemovedRanks:
    """Ranks that could not be chosen."""

    reason: str
    ranks: int
    """Number of ranks."""


@dataclass(frozen=True)
class RankLoad:
    """Load of a rank by the requests in progress at the router and at its replicas."""

    requests: int
    prefilling_requests: int
    """Requests without a first token yet."""
    prefill_tokens: int
    """Prompt tokens that must still be computed."""
    active_blocks: float
    """Blocks in use. A block that several requests share counts once."""


@dataclass(frozen=True)
class RankExplanation:
    """State of one rank when a worker was chosen."""

    worker_id: str
    dp_rank: int
    removed: str
    """Why the rank could not be chosen; "" if it could."""
    overlap: BlocksByTier
    """Credited blocks of the prompt, each in its best tier only."""
    trust: IndexTrust
    shared_blocks: int
    """Leading blocks of the prompt that requests in progress use there."""
    load: RankLoad
    cost: RouteCost
    preference: float
    """Factor for preferences: below 1 if the rank is preferred, 1 without a preference."""
    slow_start: float
    """Factor for a worker that has just joined, 1 or more."""
    score: float
    """The lowest score wins."""
    fetch_blocks: int
    """Blocks that the rank would fetch from peers."""
    pool_blocks: int
    """Credited blocks that only a pool of the worker holds; not in ``overlap``."""


@dataclass(frozen=True)
class RouteOverhead:
    """Duration of a decision by phase, in microseconds."""

    hashing_us: int
    index_us: int
    queue_us: int
    choosing_us: int


@dataclass(frozen=True)
class FetchPeer:
    """A peer from which blocks are fetched."""

    worker_id: str
    dp_rank: int
    address: str
    """Address of the peer's agent: one of the `peers` of `Session.fetch`."""
    blocks: int
    """Number of blocks expected from this peer."""


@dataclass(frozen=True)
class FetchPlan:
    """Which blocks of the prompt to fetch from peers, and which ones to compute."""

    first_block: int
    """The first block to fetch, from 0. The blocks before it are in the worker's caches."""
    blocks: int
    """Number of blocks to fetch, 1 to 4,096."""
    recompute_blocks: int
    """Number of complete blocks after the fetched ones, to be computed."""
    peers: Sequence[FetchPeer]
    """Peers to ask, in this order: 1 to 8."""
    expected_us: int
    """Expected time of the fetch, in microseconds."""
    compute_us: int
    """Expected time to compute the same blocks, in microseconds."""
    block_bytes: int
    bytes_per_second: float
    """The bandwidth that the plan assumes."""
    bandwidth_is_measured: bool
    """True if the bandwidth comes from reported fetches; False if from the router's setting."""
    prefill_tokens_per_second: float
    """Tokens per second that the worker computes, as the plan assumes."""
    prefill_rate_is_measured: bool
    """True if the rate comes from the worker's first tokens; False if from a router setting."""


@dataclass(frozen=True)
class PrefillChoice:
    """The router's choice of a prefill worker, and why."""

    worker_id: str
    dp_rank: int
    reason: DecisionReason
    cost: RouteCost
    index: IndexOutcome
    fetch: Optional[FetchPlan]
    """Blocks that the prefill worker should fetch from peers; None if there are none."""
    fetch_outcome: FetchOutcome


@dataclass(frozen=True)
class Decision:
    """The router's choice of a worker, and why."""

    request_id: str
    """Id by which the request is reported; "" in a dry run."""
    worker_id: str
    dp_rank: int
    mode: RouterMode
    reason: DecisionReason
    cost: RouteCost
    query_blocks: int
    """Number of complete blocks of the prompt."""
    index: IndexOutcome
    index_error: str
    """Why the index contributed nothing; "" if it did contribute."""
    missing_shards: Sequence[int]
    """Shards of the index of which no replica answered."""
    distrusted_ranks: int
    """Ranks that hold blocks of the prompt but were not credited fully."""
    eligible_ranks: int
    """Ranks that could be chosen."""
    removed: Sequence[RemovedRanks]
    ejection_ignored: bool
    """All workers failed recently, so their failures were ignored."""
    queued: bool
    queue_position: int
    """Number of requests that were ahead in the queue."""
    overhead: RouteOverhead
    explanations: Sequence[RankExplanation]
    """All ranks, if `explain` was given."""
    prefill: Optional[PrefillChoice]
    """The worker that computes the prompt first; None if `worker_id` computes it itself."""
    prefill_outcome: PrefillOutcome
    """Why there is a prefill worker, or none."""
    fetch: Optional[FetchPlan]
    """Blocks that `worker_id` should fetch from peers; None if there are none."""
    fetch_outcome: FetchOutcome
    """Why there is a fetch plan, or none."""


@dataclass(frozen=True)
class RouterRankLoad:
    """Load of one rank, as the router counts it and as the engine reports it."""

    model: str
    tenant: str
    worker_id: str
    dp_rank: int
    routed: RankLoad
    reported: Optional[WorkerLoad]
    """None if the engine reports nothing."""
    reported_is_stale: bool
    """Whether the engine's report is too old to count."""


@dataclass(frozen=True)
class RouterLoads:
    """Loads of all ranks."""

    ranks: Sequence[RouterRankLoad]
    queued_requests: int
    queued_tokens: int
    """Prompt tokens of the queued requests."""


@dataclass(frozen=True)
class BusyThresholds:
    """Loads above which a rank gets no request. None sets no limit."""

    active_decode_blocks: Optional[float] = None
    """Fraction of the rank's blocks that requests in progress use, above 0."""
    active_prefill_tokens: Optional[int] = None
    """Tokens that the rank must still compute, above 0."""
    active_prefill_tokens_fraction: Optional[float] = None
    """Tokens to compute, as a multiple of the tokens that the rank computes per step, above 0."""
