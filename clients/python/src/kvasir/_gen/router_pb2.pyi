from kvasir._gen import loads_pb2 as _loads_pb2
from kvasir._gen import indexer_pb2 as _indexer_pb2
from kvasir._gen import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RouterMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUTER_MODE_UNSPECIFIED: _ClassVar[RouterMode]
    ROUTER_MODE_KV: _ClassVar[RouterMode]
    ROUTER_MODE_ROUND_ROBIN: _ClassVar[RouterMode]
    ROUTER_MODE_RANDOM: _ClassVar[RouterMode]
    ROUTER_MODE_DIRECT: _ClassVar[RouterMode]
    ROUTER_MODE_POWER_OF_TWO: _ClassVar[RouterMode]
    ROUTER_MODE_LEAST_LOADED: _ClassVar[RouterMode]

class DecisionReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_REASON_UNSPECIFIED: _ClassVar[DecisionReason]
    DECISION_REASON_ONLY_ONE: _ClassVar[DecisionReason]
    DECISION_REASON_LOWEST_SCORE: _ClassVar[DecisionReason]
    DECISION_REASON_LEAST_LOADED_OF_EQUAL: _ClassVar[DecisionReason]
    DECISION_REASON_TURN_OF_EQUAL: _ClassVar[DecisionReason]
    DECISION_REASON_SAMPLED: _ClassVar[DecisionReason]
    DECISION_REASON_TURN: _ClassVar[DecisionReason]
    DECISION_REASON_RANDOM: _ClassVar[DecisionReason]
    DECISION_REASON_LESS_LOADED_OF_TWO: _ClassVar[DecisionReason]
    DECISION_REASON_DIRECT: _ClassVar[DecisionReason]

class IndexOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INDEX_OUTCOME_UNSPECIFIED: _ClassVar[IndexOutcome]
    INDEX_OUTCOME_NOT_NEEDED: _ClassVar[IndexOutcome]
    INDEX_OUTCOME_ANSWERED: _ClassVar[IndexOutcome]
    INDEX_OUTCOME_PARTIAL: _ClassVar[IndexOutcome]
    INDEX_OUTCOME_TIMEOUT: _ClassVar[IndexOutcome]
    INDEX_OUTCOME_UNAVAILABLE: _ClassVar[IndexOutcome]
    INDEX_OUTCOME_REFUSED: _ClassVar[IndexOutcome]

class IndexTrust(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INDEX_TRUST_UNSPECIFIED: _ClassVar[IndexTrust]
    INDEX_TRUST_FULL: _ClassVar[IndexTrust]
    INDEX_TRUST_STALE: _ClassVar[IndexTrust]
    INDEX_TRUST_BEHIND: _ClassVar[IndexTrust]
    INDEX_TRUST_UNKNOWN: _ClassVar[IndexTrust]

class PrefillOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREFILL_OUTCOME_UNSPECIFIED: _ClassVar[PrefillOutcome]
    PREFILL_OUTCOME_CHOSEN: _ClassVar[PrefillOutcome]
    PREFILL_OUTCOME_NO_WORKER: _ClassVar[PrefillOutcome]
    PREFILL_OUTCOME_MOSTLY_CACHED: _ClassVar[PrefillOutcome]
    PREFILL_OUTCOME_BUSY: _ClassVar[PrefillOutcome]
    PREFILL_OUTCOME_NO_DOMAIN: _ClassVar[PrefillOutcome]

class FetchOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FETCH_OUTCOME_UNSPECIFIED: _ClassVar[FetchOutcome]
    FETCH_OUTCOME_PLANNED: _ClassVar[FetchOutcome]
    FETCH_OUTCOME_NOT_ASKED: _ClassVar[FetchOutcome]
    FETCH_OUTCOME_COMPLETE: _ClassVar[FetchOutcome]
    FETCH_OUTCOME_NO_AGENT: _ClassVar[FetchOutcome]
    FETCH_OUTCOME_NO_HOLDER: _ClassVar[FetchOutcome]
    FETCH_OUTCOME_UNKNOWN_RATE: _ClassVar[FetchOutcome]
    FETCH_OUTCOME_NOT_FASTER: _ClassVar[FetchOutcome]
ROUTER_MODE_UNSPECIFIED: RouterMode
ROUTER_MODE_KV: RouterMode
ROUTER_MODE_ROUND_ROBIN: RouterMode
ROUTER_MODE_RANDOM: RouterMode
ROUTER_MODE_DIRECT: RouterMode
ROUTER_MODE_POWER_OF_TWO: RouterMode
ROUTER_MODE_LEAST_LOADED: RouterMode
DECISION_REASON_UNSPECIFIED: DecisionReason
DECISION_REASON_ONLY_ONE: DecisionReason
DECISION_REASON_LOWEST_SCORE: DecisionReason
DECISION_REASON_LEAST_LOADED_OF_EQUAL: DecisionReason
DECISION_REASON_TURN_OF_EQUAL: DecisionReason
DECISION_REASON_SAMPLED: DecisionReason
DECISION_REASON_TURN: DecisionReason
DECISION_REASON_RANDOM: DecisionReason
DECISION_REASON_LESS_LOADED_OF_TWO: DecisionReason
DECISION_REASON_DIRECT: DecisionReason
INDEX_OUTCOME_UNSPECIFIED: IndexOutcome
INDEX_OUTCOME_NOT_NEEDED: IndexOutcome
INDEX_OUTCOME_ANSWERED: IndexOutcome
INDEX_OUTCOME_PARTIAL: IndexOutcome
INDEX_OUTCOME_TIMEOUT: IndexOutcome
INDEX_OUTCOME_UNAVAILABLE: IndexOutcome
INDEX_OUTCOME_REFUSED: IndexOutcome
INDEX_TRUST_UNSPECIFIED: IndexTrust
INDEX_TRUST_FULL: IndexTrust
INDEX_TRUST_STALE: IndexTrust
INDEX_TRUST_BEHIND: IndexTrust
INDEX_TRUST_UNKNOWN: IndexTrust
PREFILL_OUTCOME_UNSPECIFIED: PrefillOutcome
PREFILL_OUTCOME_CHOSEN: PrefillOutcome
PREFILL_OUTCOME_NO_WORKER: PrefillOutcome
PREFILL_OUTCOME_MOSTLY_CACHED: PrefillOutcome
PREFILL_OUTCOME_BUSY: PrefillOutcome
PREFILL_OUTCOME_NO_DOMAIN: PrefillOutcome
FETCH_OUTCOME_UNSPECIFIED: FetchOutcome
FETCH_OUTCOME_PLANNED: FetchOutcome
FETCH_OUTCOME_NOT_ASKED: FetchOutcome
FETCH_OUTCOME_COMPLETE: FetchOutcome
FETCH_OUTCOME_NO_AGENT: FetchOutcome
FETCH_OUTCOME_NO_HOLDER: FetchOutcome
FETCH_OUTCOME_UNKNOWN_RATE: FetchOutcome
FETCH_OUTCOME_NOT_FASTER: FetchOutcome

class PinnedWorker(_message.Message):
    __slots__ = ("worker_id", "dp_rank")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    dp_rank: int
    def __init__(self, worker_id: _Optional[str] = ..., dp_rank: _Optional[int] = ...) -> None: ...

class PreferredLabel(_message.Message):
    __slots__ = ("key", "value", "weight")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    weight: float
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class SelectWorkerRequest(_message.Message):
    __slots__ = ("model", "tenant", "request_id", "lora_name", "cache_salt", "block_size", "token_ids", "token_ids_le", "local_hashes", "input_tokens", "multimodal", "next_tokens_le", "wide_token_ids", "mode", "overlap_score_weight", "temperature", "expected_output_tokens", "latency_sensitivity", "session_id", "queue_timeout_ms", "pinned", "allowed_worker_ids", "excluded_worker_ids", "roles", "required_labels", "preferred_labels", "model_type", "explain", "dry_run", "disaggregate")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LORA_NAME_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_LE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_HASHES_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MULTIMODAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKENS_LE_FIELD_NUMBER: _ClassVar[int]
    WIDE_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_SCORE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SENSITIVITY_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_LABELS_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_LABELS_FIELD_NUMBER: _ClassVar[int]
    MODEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    DISAGGREGATE_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    request_id: str
    lora_name: str
    cache_salt: str
    block_size: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    token_ids_le: bytes
    local_hashes: _containers.RepeatedScalarFieldContainer[int]
    input_tokens: int
    multimodal: _containers.RepeatedCompositeFieldContainer[_types_pb2.MultimodalItem]
    next_tokens_le: bytes
    wide_token_ids: _containers.RepeatedScalarFieldContainer[int]
    mode: RouterMode
    overlap_score_weight: float
    temperature: float
    expected_output_tokens: int
    latency_sensitivity: float
    session_id: str
    queue_timeout_ms: int
    pinned: PinnedWorker
    allowed_worker_ids: _containers.RepeatedScalarFieldContainer[str]
    excluded_worker_ids: _containers.RepeatedScalarFieldContainer[str]
    roles: _containers.RepeatedScalarFieldContainer[_indexer_pb2.WorkerRole]
    required_labels: _containers.RepeatedCompositeFieldContainer[_indexer_pb2.Label]
    preferred_labels: _containers.RepeatedCompositeFieldContainer[PreferredLabel]
    model_type: _indexer_pb2.ModelType
    explain: bool
    dry_run: bool
    disaggregate: bool
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., request_id: _Optional[str] = ..., lora_name: _Optional[str] = ..., cache_salt: _Optional[str] = ..., block_size: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., token_ids_le: _Optional[bytes] = ..., local_hashes: _Optional[_Iterable[int]] = ..., input_tokens: _Optional[int] = ..., multimodal: _Optional[_Iterable[_Union[_types_pb2.MultimodalItem, _Mapping]]] = ..., next_tokens_le: _Optional[bytes] = ..., wide_token_ids: _Optional[_Iterable[int]] = ..., mode: _Optional[_Union[RouterMode, str]] = ..., overlap_score_weight: _Optional[float] = ..., temperature: _Optional[float] = ..., expected_output_tokens: _Optional[int] = ..., latency_sensitivity: _Optional[float] = ..., session_id: _Optional[str] = ..., queue_timeout_ms: _Optional[int] = ..., pinned: _Optional[_Union[PinnedWorker, _Mapping]] = ..., allowed_worker_ids: _Optional[_Iterable[str]] = ..., excluded_worker_ids: _Optional[_Iterable[str]] = ..., roles: _Optional[_Iterable[_Union[_indexer_pb2.WorkerRole, str]]] = ..., required_labels: _Optional[_Iterable[_Union[_indexer_pb2.Label, _Mapping]]] = ..., preferred_labels: _Optional[_Iterable[_Union[PreferredLabel, _Mapping]]] = ..., model_type: _Optional[_Union[_indexer_pb2.ModelType, str]] = ..., explain: bool = ..., dry_run: bool = ..., disaggregate: bool = ...) -> None: ...

class RouteCost(_message.Message):
    __slots__ = ("credited_blocks", "new_prefill_tokens", "prefill_blocks", "decode_blocks", "total", "decode_cost", "fetch_tokens")
    CREDITED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NEW_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DECODE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    DECODE_COST_FIELD_NUMBER: _ClassVar[int]
    FETCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    credited_blocks: float
    new_prefill_tokens: float
    prefill_blocks: float
    decode_blocks: float
    total: float
    decode_cost: float
    fetch_tokens: float
    def __init__(self, credited_blocks: _Optional[float] = ..., new_prefill_tokens: _Optional[float] = ..., prefill_blocks: _Optional[float] = ..., decode_blocks: _Optional[float] = ..., total: _Optional[float] = ..., decode_cost: _Optional[float] = ..., fetch_tokens: _Optional[float] = ...) -> None: ...

class RemovedRanks(_message.Message):
    __slots__ = ("reason", "ranks")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    ranks: int
    def __init__(self, reason: _Optional[str] = ..., ranks: _Optional[int] = ...) -> None: ...

class RankLoad(_message.Message):
    __slots__ = ("requests", "prefilling_requests", "prefill_tokens", "active_blocks")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PREFILLING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    requests: int
    prefilling_requests: int
    prefill_tokens: int
    active_blocks: float
    def __init__(self, requests: _Optional[int] = ..., prefilling_requests: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., active_blocks: _Optional[float] = ...) -> None: ...

class RankExplanation(_message.Message):
    __slots__ = ("worker_id", "dp_rank", "removed", "overlap", "trust", "shared_blocks", "load", "cost", "preference", "slow_start", "score", "fetch_blocks", "pool_blocks")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    TRUST_FIELD_NUMBER: _ClassVar[int]
    SHARED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    PREFERENCE_FIELD_NUMBER: _ClassVar[int]
    SLOW_START_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    FETCH_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    POOL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    dp_rank: int
    removed: str
    overlap: _indexer_pb2.BlocksByTier
    trust: IndexTrust
    shared_blocks: int
    load: RankLoad
    cost: RouteCost
    preference: float
    slow_start: float
    score: float
    fetch_blocks: int
    pool_blocks: int
    def __init__(self, worker_id: _Optional[str] = ..., dp_rank: _Optional[int] = ..., removed: _Optional[str] = ..., overlap: _Optional[_Union[_indexer_pb2.BlocksByTier, _Mapping]] = ..., trust: _Optional[_Union[IndexTrust, str]] = ..., shared_blocks: _Optional[int] = ..., load: _Optional[_Union[RankLoad, _Mapping]] = ..., cost: _Optional[_Union[RouteCost, _Mapping]] = ..., preference: _Optional[float] = ..., slow_start: _Optional[float] = ..., score: _Optional[float] = ..., fetch_blocks: _Optional[int] = ..., pool_blocks: _Optional[int] = ...) -> None: ...

class FetchPeer(_message.Message):
    __slots__ = ("worker_id", "dp_rank", "address", "blocks")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    dp_rank: int
    address: str
    blocks: int
    def __init__(self, worker_id: _Optional[str] = ..., dp_rank: _Optional[int] = ..., address: _Optional[str] = ..., blocks: _Optional[int] = ...) -> None: ...

class FetchPlan(_message.Message):
    __slots__ = ("first_block", "blocks", "recompute_blocks", "peers", "expected_us", "compute_us", "block_bytes", "bytes_per_second", "bandwidth_is_measured", "prefill_tokens_per_second", "prefill_rate_is_measured")
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_IS_MEASURED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PREFILL_RATE_IS_MEASURED_FIELD_NUMBER: _ClassVar[int]
    first_block: int
    blocks: int
    recompute_blocks: int
    peers: _containers.RepeatedCompositeFieldContainer[FetchPeer]
    expected_us: int
    compute_us: int
    block_bytes: int
    bytes_per_second: float
    bandwidth_is_measured: bool
    prefill_tokens_per_second: float
    prefill_rate_is_measured: bool
    def __init__(self, first_block: _Optional[int] = ..., blocks: _Optional[int] = ..., recompute_blocks: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[FetchPeer, _Mapping]]] = ..., expected_us: _Optional[int] = ..., compute_us: _Optional[int] = ..., block_bytes: _Optional[int] = ..., bytes_per_second: _Optional[float] = ..., bandwidth_is_measured: bool = ..., prefill_tokens_per_second: _Optional[float] = ..., prefill_rate_is_measured: bool = ...) -> None: ...

class RouteOverhead(_message.Message):
    __slots__ = ("hashing_us", "index_us", "queue_us", "choosing_us")
    HASHING_US_FIELD_NUMBER: _ClassVar[int]
    INDEX_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    CHOOSING_US_FIELD_NUMBER: _ClassVar[int]
    hashing_us: int
    index_us: int
    queue_us: int
    choosing_us: int
    def __init__(self, hashing_us: _Optional[int] = ..., index_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., choosing_us: _Optional[int] = ...) -> None: ...

class PrefillChoice(_message.Message):
    __slots__ = ("worker_id", "dp_rank", "reason", "cost", "index", "fetch", "fetch_outcome")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    FETCH_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    dp_rank: int
    reason: DecisionReason
    cost: RouteCost
    index: IndexOutcome
    fetch: FetchPlan
    fetch_outcome: FetchOutcome
    def __init__(self, worker_id: _Optional[str] = ..., dp_rank: _Optional[int] = ..., reason: _Optional[_Union[DecisionReason, str]] = ..., cost: _Optional[_Union[RouteCost, _Mapping]] = ..., index: _Optional[_Union[IndexOutcome, str]] = ..., fetch: _Optional[_Union[FetchPlan, _Mapping]] = ..., fetch_outcome: _Optional[_Union[FetchOutcome, str]] = ...) -> None: ...

class SelectWorkerResponse(_message.Message):
    __slots__ = ("request_id", "worker_id", "dp_rank", "mode", "reason", "cost", "query_blocks", "index", "index_error", "missing_shards", "distrusted_ranks", "eligible_ranks", "removed", "ejection_ignored", "queued", "queue_position", "overhead", "explanations", "prefill", "prefill_outcome", "fetch", "fetch_outcome")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    QUERY_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INDEX_ERROR_FIELD_NUMBER: _ClassVar[int]
    MISSING_SHARDS_FIELD_NUMBER: _ClassVar[int]
    DISTRUSTED_RANKS_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_RANKS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    EJECTION_IGNORED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_FIELD_NUMBER: _ClassVar[int]
    EXPLANATIONS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    PREFILL_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    FETCH_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    worker_id: str
    dp_rank: int
    mode: RouterMode
    reason: DecisionReason
    cost: RouteCost
    query_blocks: int
    index: IndexOutcome
    index_error: str
    missing_shards: _containers.RepeatedScalarFieldContainer[int]
    distrusted_ranks: int
    eligible_ranks: int
    removed: _containers.RepeatedCompositeFieldContainer[RemovedRanks]
    ejection_ignored: bool
    queued: bool
    queue_position: int
    overhead: RouteOverhead
    explanations: _containers.RepeatedCompositeFieldContainer[RankExplanation]
    prefill: PrefillChoice
    prefill_outcome: PrefillOutcome
    fetch: FetchPlan
    fetch_outcome: FetchOutcome
    def __init__(self, request_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., dp_rank: _Optional[int] = ..., mode: _Optional[_Union[RouterMode, str]] = ..., reason: _Optional[_Union[DecisionReason, str]] = ..., cost: _Optional[_Union[RouteCost, _Mapping]] = ..., query_blocks: _Optional[int] = ..., index: _Optional[_Union[IndexOutcome, str]] = ..., index_error: _Optional[str] = ..., missing_shards: _Optional[_Iterable[int]] = ..., distrusted_ranks: _Optional[int] = ..., eligible_ranks: _Optional[int] = ..., removed: _Optional[_Iterable[_Union[RemovedRanks, _Mapping]]] = ..., ejection_ignored: bool = ..., queued: bool = ..., queue_position: _Optional[int] = ..., overhead: _Optional[_Union[RouteOverhead, _Mapping]] = ..., explanations: _Optional[_Iterable[_Union[RankExplanation, _Mapping]]] = ..., prefill: _Optional[_Union[PrefillChoice, _Mapping]] = ..., prefill_outcome: _Optional[_Union[PrefillOutcome, str]] = ..., fetch: _Optional[_Union[FetchPlan, _Mapping]] = ..., fetch_outcome: _Optional[_Union[FetchOutcome, str]] = ...) -> None: ...

class MarkPrefillCompletedRequest(_message.Message):
    __slots__ = ("model", "tenant", "request_id")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    request_id: str
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class MarkPrefillCompletedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportOutputRequest(_message.Message):
    __slots__ = ("model", "tenant", "request_id", "output_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    request_id: str
    output_tokens: int
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., request_id: _Optional[str] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class ReportOutputResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FreeRequest(_message.Message):
    __slots__ = ("model", "tenant", "request_id", "failed", "cached_tokens", "prefill_failed", "fetched_bytes", "fetch_us")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FAILED_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCH_US_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    request_id: str
    failed: bool
    cached_tokens: int
    prefill_failed: bool
    fetched_bytes: int
    fetch_us: int
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., request_id: _Optional[str] = ..., failed: bool = ..., cached_tokens: _Optional[int] = ..., prefill_failed: bool = ..., fetched_bytes: _Optional[int] = ..., fetch_us: _Optional[int] = ...) -> None: ...

class FreeResponse(_message.Message):
    __slots__ = ("expected_cached_tokens",)
    EXPECTED_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    expected_cached_tokens: int
    def __init__(self, expected_cached_tokens: _Optional[int] = ...) -> None: ...

class GetLoadsRequest(_message.Message):
    __slots__ = ("model", "tenant")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class WatchRouterLoadsRequest(_message.Message):
    __slots__ = ("model", "tenant", "min_interval_ms")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MIN_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    min_interval_ms: int
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., min_interval_ms: _Optional[int] = ...) -> None: ...

class RouterRankLoad(_message.Message):
    __slots__ = ("model", "tenant", "worker_id", "dp_rank", "routed", "reported", "reported_is_stale")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    ROUTED_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    REPORTED_IS_STALE_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    worker_id: str
    dp_rank: int
    routed: RankLoad
    reported: _loads_pb2.WorkerLoad
    reported_is_stale: bool
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., worker_id: _Optional[str] = ..., dp_rank: _Optional[int] = ..., routed: _Optional[_Union[RankLoad, _Mapping]] = ..., reported: _Optional[_Union[_loads_pb2.WorkerLoad, _Mapping]] = ..., reported_is_stale: bool = ...) -> None: ...

class GetLoadsResponse(_message.Message):
    __slots__ = ("ranks", "queued_requests", "queued_tokens")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedCompositeFieldContainer[RouterRankLoad]
    queued_requests: int
    queued_tokens: int
    def __init__(self, ranks: _Optional[_Iterable[_Union[RouterRankLoad, _Mapping]]] = ..., queued_requests: _Optional[int] = ..., queued_tokens: _Optional[int] = ...) -> None: ...

class BusyThresholds(_message.Message):
    __slots__ = ("active_decode_blocks", "active_prefill_tokens", "active_prefill_tokens_fraction")
    ACTIVE_DECODE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_PREFILL_TOKENS_FRACTION_FIELD_NUMBER: _ClassVar[int]
    active_decode_blocks: float
    active_prefill_tokens: int
    active_prefill_tokens_fraction: float
    def __init__(self, active_decode_blocks: _Optional[float] = ..., active_prefill_tokens: _Optional[int] = ..., active_prefill_tokens_fraction: _Optional[float] = ...) -> None: ...

class GetBusyThresholdsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBusyThresholdsResponse(_message.Message):
    __slots__ = ("thresholds",)
    THRESHOLDS_FIELD_NUMBER: _ClassVar[int]
    thresholds: BusyThresholds
    def __init__(self, thresholds: _Optional[_Union[BusyThresholds, _Mapping]] = ...) -> None: ...

class SetBusyThresholdsRequest(_message.Message):
    __slots__ = ("thresholds",)
    THRESHOLDS_FIELD_NUMBER: _ClassVar[int]
    thresholds: BusyThresholds
    def __init__(self, thresholds: _Optional[_Union[BusyThresholds, _Mapping]] = ...) -> None: ...

class SetBusyThresholdsResponse(_message.Message):
    __slots__ = ("thresholds",)
    THRESHOLDS_FIELD_NUMBER: _ClassVar[int]
    thresholds: BusyThresholds
    def __init__(self, thresholds: _Optional[_Union[BusyThresholds, _Mapping]] = ...) -> None: ...

class RouterSync(_message.Message):
    __slots__ = ("model", "tenant", "router_id", "items", "prefill_pool")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_POOL_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    router_id: int
    items: _containers.RepeatedCompositeFieldContainer[RouterSyncItem]
    prefill_pool: bool
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., router_id: _Optional[int] = ..., items: _Optional[_Iterable[_Union[RouterSyncItem, _Mapping]]] = ..., prefill_pool: bool = ...) -> None: ...

class SyncedRequest(_message.Message):
    __slots__ = ("request_id", "worker_id", "dp_rank", "sequence_hashes", "blocks", "overlap_blocks", "input_tokens", "prefill_tokens", "prefill_completed", "expected_output_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_HASHES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    worker_id: str
    dp_rank: int
    sequence_hashes: _containers.RepeatedScalarFieldContainer[int]
    blocks: int
    overlap_blocks: int
    input_tokens: int
    prefill_tokens: int
    prefill_completed: bool
    expected_output_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., dp_rank: _Optional[int] = ..., sequence_hashes: _Optional[_Iterable[int]] = ..., blocks: _Optional[int] = ..., overlap_blocks: _Optional[int] = ..., input_tokens: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., prefill_completed: bool = ..., expected_output_tokens: _Optional[int] = ...) -> None: ...

class SyncDigest(_message.Message):
    __slots__ = ("requests", "sum")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    requests: int
    sum: int
    def __init__(self, requests: _Optional[int] = ..., sum: _Optional[int] = ...) -> None: ...

class SyncList(_message.Message):
    __slots__ = ("after", "until", "request_ids", "digests")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    after: str
    until: str
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    digests: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, after: _Optional[str] = ..., until: _Optional[str] = ..., request_ids: _Optional[_Iterable[str]] = ..., digests: _Optional[_Iterable[int]] = ...) -> None: ...

class SyncAskRequests(_message.Message):
    __slots__ = ("router_id", "request_ids")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    router_id: int
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, router_id: _Optional[int] = ..., request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RouterSyncItem(_message.Message):
    __slots__ = ("added", "prefill_completed", "freed", "digest", "ask_list", "list", "ask_requests")
    ADDED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FREED_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ASK_LIST_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    ASK_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    added: SyncedRequest
    prefill_completed: str
    freed: str
    digest: SyncDigest
    ask_list: int
    list: SyncList
    ask_requests: SyncAskRequests
    def __init__(self, added: _Optional[_Union[SyncedRequest, _Mapping]] = ..., prefill_completed: _Optional[str] = ..., freed: _Optional[str] = ..., digest: _Optional[_Union[SyncDigest, _Mapping]] = ..., ask_list: _Optional[int] = ..., list: _Optional[_Union[SyncList, _Mapping]] = ..., ask_requests: _Optional[_Union[SyncAskRequests, _Mapping]] = ...) -> None: ...
