from kvasir._gen import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    REASON_REFUSED_BLOCKS: _ClassVar[Reason]
    REASON_SHED_BLOCKS: _ClassVar[Reason]
    REASON_BLOCK_SIZE: _ClassVar[Reason]
    REASON_EAGLE_PAIRS: _ClassVar[Reason]
    REASON_UNMATCHABLE: _ClassVar[Reason]
    REASON_UNKNOWN_MEDIUM: _ClassVar[Reason]
    REASON_GROUP_KIND: _ClassVar[Reason]
    REASON_UNNAMED_OBJECT: _ClassVar[Reason]
    REASON_UNKNOWN_CONTENT: _ClassVar[Reason]
    REASON_RENUMBERED_ADAPTER: _ClassVar[Reason]
    REASON_UNCHAINED_NAMES: _ClassVar[Reason]
    REASON_UNREADABLE_EVENT: _ClassVar[Reason]
    REASON_UNKNOWN_EVENT: _ClassVar[Reason]
    REASON_CONTRADICTION: _ClassVar[Reason]
    REASON_PRESUMED_GROUP: _ClassVar[Reason]
    REASON_LOST_EVENTS: _ClassVar[Reason]
    REASON_MISSING_EVENTS: _ClassVar[Reason]
    REASON_CATCHING_UP: _ClassVar[Reason]
    REASON_DISCONNECTED: _ClassVar[Reason]
    REASON_NOTHING_RECEIVED: _ClassVar[Reason]
    REASON_FORGOTTEN_NAMES: _ClassVar[Reason]
    REASON_UNANNOUNCED_GROUPS: _ClassVar[Reason]
    REASON_CONTRADICTED_BY_ENGINE: _ClassVar[Reason]
    REASON_ENGINE_REUSES_MORE: _ClassVar[Reason]

class ImageKeys(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IMAGE_KEYS_UNSPECIFIED: _ClassVar[ImageKeys]
    IMAGE_KEYS_BARE: _ClassVar[ImageKeys]
    IMAGE_KEYS_PAIRS: _ClassVar[ImageKeys]

class HolderKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HOLDER_KIND_UNSPECIFIED: _ClassVar[HolderKind]
    HOLDER_KIND_WORKER: _ClassVar[HolderKind]
    HOLDER_KIND_POOL: _ClassVar[HolderKind]

class WorkerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_ROLE_UNSPECIFIED: _ClassVar[WorkerRole]
    WORKER_ROLE_PREFILL: _ClassVar[WorkerRole]
    WORKER_ROLE_DECODE: _ClassVar[WorkerRole]
    WORKER_ROLE_BOTH: _ClassVar[WorkerRole]

class ModelType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_TYPE_UNSPECIFIED: _ClassVar[ModelType]
    MODEL_TYPE_CHAT: _ClassVar[ModelType]
    MODEL_TYPE_COMPLETIONS: _ClassVar[ModelType]

class ImageTokens(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IMAGE_TOKENS_UNSPECIFIED: _ClassVar[ImageTokens]
    IMAGE_TOKENS_IDENTIFIER: _ClassVar[ImageTokens]
    IMAGE_TOKENS_SGLANG_30_BIT: _ClassVar[ImageTokens]
    IMAGE_TOKENS_SGLANG_62_BIT: _ClassVar[ImageTokens]
REASON_UNSPECIFIED: Reason
REASON_REFUSED_BLOCKS: Reason
REASON_SHED_BLOCKS: Reason
REASON_BLOCK_SIZE: Reason
REASON_EAGLE_PAIRS: Reason
REASON_UNMATCHABLE: Reason
REASON_UNKNOWN_MEDIUM: Reason
REASON_GROUP_KIND: Reason
REASON_UNNAMED_OBJECT: Reason
REASON_UNKNOWN_CONTENT: Reason
REASON_RENUMBERED_ADAPTER: Reason
REASON_UNCHAINED_NAMES: Reason
REASON_UNREADABLE_EVENT: Reason
REASON_UNKNOWN_EVENT: Reason
REASON_CONTRADICTION: Reason
REASON_PRESUMED_GROUP: Reason
REASON_LOST_EVENTS: Reason
REASON_MISSING_EVENTS: Reason
REASON_CATCHING_UP: Reason
REASON_DISCONNECTED: Reason
REASON_NOTHING_RECEIVED: Reason
REASON_FORGOTTEN_NAMES: Reason
REASON_UNANNOUNCED_GROUPS: Reason
REASON_CONTRADICTED_BY_ENGINE: Reason
REASON_ENGINE_REUSES_MORE: Reason
IMAGE_KEYS_UNSPECIFIED: ImageKeys
IMAGE_KEYS_BARE: ImageKeys
IMAGE_KEYS_PAIRS: ImageKeys
HOLDER_KIND_UNSPECIFIED: HolderKind
HOLDER_KIND_WORKER: HolderKind
HOLDER_KIND_POOL: HolderKind
WORKER_ROLE_UNSPECIFIED: WorkerRole
WORKER_ROLE_PREFILL: WorkerRole
WORKER_ROLE_DECODE: WorkerRole
WORKER_ROLE_BOTH: WorkerRole
MODEL_TYPE_UNSPECIFIED: ModelType
MODEL_TYPE_CHAT: ModelType
MODEL_TYPE_COMPLETIONS: ModelType
IMAGE_TOKENS_UNSPECIFIED: ImageTokens
IMAGE_TOKENS_IDENTIFIER: ImageTokens
IMAGE_TOKENS_SGLANG_30_BIT: ImageTokens
IMAGE_TOKENS_SGLANG_62_BIT: ImageTokens

class FindMatchesRequest(_message.Message):
    __slots__ = ("request_id", "model", "tenant", "lora_name", "cache_salt", "block_size", "hash_scheme", "token_ids", "token_ids_le", "local_hashes", "sequence_hashes", "multimodal", "next_tokens_le", "wide_token_ids", "tiers", "worker_ids", "minimum_overlap_blocks", "top_k", "shared", "explain", "prompt_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LORA_NAME_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    HASH_SCHEME_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_LE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_HASHES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_HASHES_FIELD_NUMBER: _ClassVar[int]
    MULTIMODAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKENS_LE_FIELD_NUMBER: _ClassVar[int]
    WIDE_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_OVERLAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    model: str
    tenant: str
    lora_name: str
    cache_salt: str
    block_size: int
    hash_scheme: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    token_ids_le: bytes
    local_hashes: _containers.RepeatedScalarFieldContainer[int]
    sequence_hashes: _containers.RepeatedScalarFieldContainer[int]
    multimodal: _containers.RepeatedCompositeFieldContainer[_types_pb2.MultimodalItem]
    next_tokens_le: bytes
    wide_token_ids: _containers.RepeatedScalarFieldContainer[int]
    tiers: _containers.RepeatedScalarFieldContainer[_types_pb2.Tier]
    worker_ids: _containers.RepeatedScalarFieldContainer[str]
    minimum_overlap_blocks: int
    top_k: int
    shared: bool
    explain: bool
    prompt_tokens: int
    def __init__(self, request_id: _Optional[int] = ..., model: _Optional[str] = ..., tenant: _Optional[str] = ..., lora_name: _Optional[str] = ..., cache_salt: _Optional[str] = ..., block_size: _Optional[int] = ..., hash_scheme: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., token_ids_le: _Optional[bytes] = ..., local_hashes: _Optional[_Iterable[int]] = ..., sequence_hashes: _Optional[_Iterable[int]] = ..., multimodal: _Optional[_Iterable[_Union[_types_pb2.MultimodalItem, _Mapping]]] = ..., next_tokens_le: _Optional[bytes] = ..., wide_token_ids: _Optional[_Iterable[int]] = ..., tiers: _Optional[_Iterable[_Union[_types_pb2.Tier, str]]] = ..., worker_ids: _Optional[_Iterable[str]] = ..., minimum_overlap_blocks: _Optional[int] = ..., top_k: _Optional[int] = ..., shared: bool = ..., explain: bool = ..., prompt_tokens: _Optional[int] = ...) -> None: ...

class StateReason(_message.Message):
    __slots__ = ("reason", "count", "example", "age_ms", "may_be_high")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    MAY_BE_HIGH_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    count: int
    example: str
    age_ms: int
    may_be_high: bool
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., count: _Optional[int] = ..., example: _Optional[str] = ..., age_ms: _Optional[int] = ..., may_be_high: bool = ...) -> None: ...

class BlocksByTier(_message.Message):
    __slots__ = ("device", "host", "disk")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    device: int
    host: int
    disk: int
    def __init__(self, device: _Optional[int] = ..., host: _Optional[int] = ..., disk: _Optional[int] = ...) -> None: ...

class WorkerMatch(_message.Message):
    __slots__ = ("worker_id", "dp_rank", "matched_blocks", "matched_tokens", "blocks_by_tier", "state", "applied", "lag_batches", "verified_age_ms", "speculative_blocks", "shed_blocks", "connected", "blocks_by_best_tier", "pool_blocks", "may_be_high", "reasons", "reusable_tokens", "main_group_blocks")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    MATCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_BY_TIER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    LAG_BATCHES_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_BY_BEST_TIER_FIELD_NUMBER: _ClassVar[int]
    POOL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAY_BE_HIGH_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    REUSABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAIN_GROUP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    dp_rank: int
    matched_blocks: int
    matched_tokens: int
    blocks_by_tier: BlocksByTier
    state: _types_pb2.WorkerState
    applied: _types_pb2.Cursor
    lag_batches: int
    verified_age_ms: int
    speculative_blocks: int
    shed_blocks: int
    connected: bool
    blocks_by_best_tier: BlocksByTier
    pool_blocks: int
    may_be_high: bool
    reasons: _containers.RepeatedCompositeFieldContainer[StateReason]
    reusable_tokens: int
    main_group_blocks: int
    def __init__(self, worker_id: _Optional[str] = ..., dp_rank: _Optional[int] = ..., matched_blocks: _Optional[int] = ..., matched_tokens: _Optional[int] = ..., blocks_by_tier: _Optional[_Union[BlocksByTier, _Mapping]] = ..., state: _Optional[_Union[_types_pb2.WorkerState, str]] = ..., applied: _Optional[_Union[_types_pb2.Cursor, _Mapping]] = ..., lag_batches: _Optional[int] = ..., verified_age_ms: _Optional[int] = ..., speculative_blocks: _Optional[int] = ..., shed_blocks: _Optional[int] = ..., connected: bool = ..., blocks_by_best_tier: _Optional[_Union[BlocksByTier, _Mapping]] = ..., pool_blocks: _Optional[int] = ..., may_be_high: bool = ..., reasons: _Optional[_Iterable[_Union[StateReason, _Mapping]]] = ..., reusable_tokens: _Optional[int] = ..., main_group_blocks: _Optional[int] = ...) -> None: ...

class PoolState(_message.Message):
    __slots__ = ("pool_id", "held_blocks", "state", "connected", "lag_batches", "verified_age_ms")
    POOL_ID_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LAG_BATCHES_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    pool_id: str
    held_blocks: int
    state: _types_pb2.WorkerState
    connected: bool
    lag_batches: int
    verified_age_ms: int
    def __init__(self, pool_id: _Optional[str] = ..., held_blocks: _Optional[int] = ..., state: _Optional[_Union[_types_pb2.WorkerState, str]] = ..., connected: bool = ..., lag_batches: _Optional[int] = ..., verified_age_ms: _Optional[int] = ...) -> None: ...

class FindMatchesResponse(_message.Message):
    __slots__ = ("request_id", "query_blocks", "best_overlap_blocks", "block_size", "matches", "missing_shards", "restoring_worker_ids", "pools", "wants_next_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    QUERY_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BEST_OVERLAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    MISSING_SHARDS_FIELD_NUMBER: _ClassVar[int]
    RESTORING_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    WANTS_NEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    query_blocks: int
    best_overlap_blocks: int
    block_size: int
    matches: _containers.RepeatedCompositeFieldContainer[WorkerMatch]
    missing_shards: _containers.RepeatedScalarFieldContainer[int]
    restoring_worker_ids: _containers.RepeatedScalarFieldContainer[str]
    pools: _containers.RepeatedCompositeFieldContainer[PoolState]
    wants_next_tokens: bool
    def __init__(self, request_id: _Optional[int] = ..., query_blocks: _Optional[int] = ..., best_overlap_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., matches: _Optional[_Iterable[_Union[WorkerMatch, _Mapping]]] = ..., missing_shards: _Optional[_Iterable[int]] = ..., restoring_worker_ids: _Optional[_Iterable[str]] = ..., pools: _Optional[_Iterable[_Union[PoolState, _Mapping]]] = ..., wants_next_tokens: bool = ...) -> None: ...

class StreamError(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class FindMatchesStreamResponse(_message.Message):
    __slots__ = ("request_id", "matches", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    matches: FindMatchesResponse
    error: StreamError
    def __init__(self, request_id: _Optional[int] = ..., matches: _Optional[_Union[FindMatchesResponse, _Mapping]] = ..., error: _Optional[_Union[StreamError, _Mapping]] = ...) -> None: ...

class DumpWorkerRequest(_message.Message):
    __slots__ = ("model", "tenant", "worker_id", "dp_rank", "chunk_records")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    CHUNK_RECORDS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    worker_id: str
    dp_rank: int
    chunk_records: int
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., worker_id: _Optional[str] = ..., dp_rank: _Optional[int] = ..., chunk_records: _Optional[int] = ...) -> None: ...

class BlockRecord(_message.Message):
    __slots__ = ("name", "parent_name", "local_hash", "placed", "source_index", "device_copies", "host_copies", "disk_copies")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_NAME_FIELD_NUMBER: _ClassVar[int]
    LOCAL_HASH_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    SOURCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COPIES_FIELD_NUMBER: _ClassVar[int]
    HOST_COPIES_FIELD_NUMBER: _ClassVar[int]
    DISK_COPIES_FIELD_NUMBER: _ClassVar[int]
    name: int
    parent_name: int
    local_hash: int
    placed: bool
    source_index: int
    device_copies: int
    host_copies: int
    disk_copies: int
    def __init__(self, name: _Optional[int] = ..., parent_name: _Optional[int] = ..., local_hash: _Optional[int] = ..., placed: bool = ..., source_index: _Optional[int] = ..., device_copies: _Optional[int] = ..., host_copies: _Optional[int] = ..., disk_copies: _Optional[int] = ...) -> None: ...

class DumpChunk(_message.Message):
    __slots__ = ("dp_rank", "records")
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    dp_rank: int
    records: _containers.RepeatedCompositeFieldContainer[BlockRecord]
    def __init__(self, dp_rank: _Optional[int] = ..., records: _Optional[_Iterable[_Union[BlockRecord, _Mapping]]] = ...) -> None: ...

class BatchFingerprint(_message.Message):
    __slots__ = ("timestamp_bits", "payload_hash")
    TIMESTAMP_BITS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_HASH_FIELD_NUMBER: _ClassVar[int]
    timestamp_bits: int
    payload_hash: int
    def __init__(self, timestamp_bits: _Optional[int] = ..., payload_hash: _Optional[int] = ...) -> None: ...

class NameMeaning(_message.Message):
    __slots__ = ("name", "adapter_seed", "seed", "matchable", "own_keys", "device_copies", "host_copies", "disk_copies")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_SEED_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MATCHABLE_FIELD_NUMBER: _ClassVar[int]
    OWN_KEYS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COPIES_FIELD_NUMBER: _ClassVar[int]
    HOST_COPIES_FIELD_NUMBER: _ClassVar[int]
    DISK_COPIES_FIELD_NUMBER: _ClassVar[int]
    name: int
    adapter_seed: int
    seed: int
    matchable: bool
    own_keys: bool
    device_copies: int
    host_copies: int
    disk_copies: int
    def __init__(self, name: _Optional[int] = ..., adapter_seed: _Optional[int] = ..., seed: _Optional[int] = ..., matchable: bool = ..., own_keys: bool = ..., device_copies: _Optional[int] = ..., host_copies: _Optional[int] = ..., disk_copies: _Optional[int] = ...) -> None: ...

class DumpMeanings(_message.Message):
    __slots__ = ("source_index", "dp_rank", "names")
    SOURCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    source_index: int
    dp_rank: int
    names: _containers.RepeatedCompositeFieldContainer[NameMeaning]
    def __init__(self, source_index: _Optional[int] = ..., dp_rank: _Optional[int] = ..., names: _Optional[_Iterable[_Union[NameMeaning, _Mapping]]] = ...) -> None: ...

class AdapterNumber(_message.Message):
    __slots__ = ("dp_rank", "adapter_seed", "number")
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_SEED_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    dp_rank: int
    adapter_seed: int
    number: int
    def __init__(self, dp_rank: _Optional[int] = ..., adapter_seed: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class SourceLearned(_message.Message):
    __slots__ = ("states_keys", "looks_ahead", "has_extra_keys", "splits_chunks", "image_keys", "forgot_names", "adapters", "groups")
    STATES_KEYS_FIELD_NUMBER: _ClassVar[int]
    LOOKS_AHEAD_FIELD_NUMBER: _ClassVar[int]
    HAS_EXTRA_KEYS_FIELD_NUMBER: _ClassVar[int]
    SPLITS_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_KEYS_FIELD_NUMBER: _ClassVar[int]
    FORGOT_NAMES_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    states_keys: bool
    looks_ahead: bool
    has_extra_keys: bool
    splits_chunks: bool
    image_keys: ImageKeys
    forgot_names: bool
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterNumber]
    groups: _containers.RepeatedCompositeFieldContainer[LearnedGroup]
    def __init__(self, states_keys: bool = ..., looks_ahead: bool = ..., has_extra_keys: bool = ..., splits_chunks: bool = ..., image_keys: _Optional[_Union[ImageKeys, str]] = ..., forgot_names: bool = ..., adapters: _Optional[_Iterable[_Union[AdapterNumber, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[LearnedGroup, _Mapping]]] = ...) -> None: ...

class LearnedGroup(_message.Message):
    __slots__ = ("number", "kind", "block_size", "unit", "window")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: int
    block_size: int
    unit: int
    window: int
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[int] = ..., block_size: _Optional[int] = ..., unit: _Optional[int] = ..., window: _Optional[int] = ...) -> None: ...

class DumpEnd(_message.Message):
    __slots__ = ("source_index", "source", "watermark", "records", "state", "incomplete", "copy_mode", "fingerprint", "past_incarnations", "dp_ranks", "main_group", "learned", "reasons")
    SOURCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    COPY_MODE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PAST_INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    DP_RANKS_FIELD_NUMBER: _ClassVar[int]
    MAIN_GROUP_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    source_index: int
    source: str
    watermark: _types_pb2.Cursor
    records: int
    state: _types_pb2.WorkerState
    incomplete: bool
    copy_mode: _types_pb2.CopyMode
    fingerprint: BatchFingerprint
    past_incarnations: _containers.RepeatedScalarFieldContainer[bytes]
    dp_ranks: _containers.RepeatedScalarFieldContainer[int]
    main_group: int
    learned: SourceLearned
    reasons: _containers.RepeatedCompositeFieldContainer[StateReason]
    def __init__(self, source_index: _Optional[int] = ..., source: _Optional[str] = ..., watermark: _Optional[_Union[_types_pb2.Cursor, _Mapping]] = ..., records: _Optional[int] = ..., state: _Optional[_Union[_types_pb2.WorkerState, str]] = ..., incomplete: bool = ..., copy_mode: _Optional[_Union[_types_pb2.CopyMode, str]] = ..., fingerprint: _Optional[_Union[BatchFingerprint, _Mapping]] = ..., past_incarnations: _Optional[_Iterable[bytes]] = ..., dp_ranks: _Optional[_Iterable[int]] = ..., main_group: _Optional[int] = ..., learned: _Optional[_Union[SourceLearned, _Mapping]] = ..., reasons: _Optional[_Iterable[_Union[StateReason, _Mapping]]] = ...) -> None: ...

class DumpWorkerResponse(_message.Message):
    __slots__ = ("chunk", "end", "meanings")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MEANINGS_FIELD_NUMBER: _ClassVar[int]
    chunk: DumpChunk
    end: DumpEnd
    meanings: DumpMeanings
    def __init__(self, chunk: _Optional[_Union[DumpChunk, _Mapping]] = ..., end: _Optional[_Union[DumpEnd, _Mapping]] = ..., meanings: _Optional[_Union[DumpMeanings, _Mapping]] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ("model", "tenant", "page_size", "page_token")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    page_size: int
    page_token: str
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class RankInfo(_message.Message):
    __slots__ = ("dp_rank", "placed_blocks", "parked_blocks", "shed_blocks")
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    PLACED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PARKED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    dp_rank: int
    placed_blocks: int
    parked_blocks: int
    shed_blocks: int
    def __init__(self, dp_rank: _Optional[int] = ..., placed_blocks: _Optional[int] = ..., parked_blocks: _Optional[int] = ..., shed_blocks: _Optional[int] = ...) -> None: ...

class SourceInfo(_message.Message):
    __slots__ = ("source", "replay_endpoint", "connected", "state", "applied", "lag_batches", "buffered_batches", "verified_age_ms", "reasons")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    LAG_BATCHES_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    source: str
    replay_endpoint: str
    connected: bool
    state: _types_pb2.WorkerState
    applied: _types_pb2.Cursor
    lag_batches: int
    buffered_batches: int
    verified_age_ms: int
    reasons: _containers.RepeatedCompositeFieldContainer[StateReason]
    def __init__(self, source: _Optional[str] = ..., replay_endpoint: _Optional[str] = ..., connected: bool = ..., state: _Optional[_Union[_types_pb2.WorkerState, str]] = ..., applied: _Optional[_Union[_types_pb2.Cursor, _Mapping]] = ..., lag_batches: _Optional[int] = ..., buffered_batches: _Optional[int] = ..., verified_age_ms: _Optional[int] = ..., reasons: _Optional[_Iterable[_Union[StateReason, _Mapping]]] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("worker_id", "model", "tenant", "block_size", "engine", "ranks", "sources", "registration")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    model: str
    tenant: str
    block_size: int
    engine: _types_pb2.Engine
    ranks: _containers.RepeatedCompositeFieldContainer[RankInfo]
    sources: _containers.RepeatedCompositeFieldContainer[SourceInfo]
    registration: RegisterWorkerRequest
    def __init__(self, worker_id: _Optional[str] = ..., model: _Optional[str] = ..., tenant: _Optional[str] = ..., block_size: _Optional[int] = ..., engine: _Optional[_Union[_types_pb2.Engine, str]] = ..., ranks: _Optional[_Iterable[_Union[RankInfo, _Mapping]]] = ..., sources: _Optional[_Iterable[_Union[SourceInfo, _Mapping]]] = ..., registration: _Optional[_Union[RegisterWorkerRequest, _Mapping]] = ...) -> None: ...

class BucketRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class ShardInfo(_message.Message):
    __slots__ = ("shard", "shards", "map_version", "owned", "taken")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    shard: int
    shards: int
    map_version: int
    owned: _containers.RepeatedCompositeFieldContainer[BucketRange]
    taken: _containers.RepeatedCompositeFieldContainer[BucketRange]
    def __init__(self, shard: _Optional[int] = ..., shards: _Optional[int] = ..., map_version: _Optional[int] = ..., owned: _Optional[_Iterable[_Union[BucketRange, _Mapping]]] = ..., taken: _Optional[_Iterable[_Union[BucketRange, _Mapping]]] = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers", "shard", "next_page_token", "server_id")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    shard: ShardInfo
    next_page_token: str
    server_id: int
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., shard: _Optional[_Union[ShardInfo, _Mapping]] = ..., next_page_token: _Optional[str] = ..., server_id: _Optional[int] = ...) -> None: ...

class EngineEndpoint(_message.Message):
    __slots__ = ("endpoint", "replay_endpoint", "topic", "bind", "dp_rank")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    REPLAY_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BIND_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    replay_endpoint: str
    topic: str
    bind: bool
    dp_rank: int
    def __init__(self, endpoint: _Optional[str] = ..., replay_endpoint: _Optional[str] = ..., topic: _Optional[str] = ..., bind: bool = ..., dp_rank: _Optional[int] = ...) -> None: ...

class LoraName(_message.Message):
    __slots__ = ("id", "name")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class RegisterWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "model", "tenant", "block_size", "engine", "endpoints", "copy_mode", "loss_policy", "lora_names", "local_indexer_endpoint", "lease_ms", "profile", "hash_scheme", "replace", "medium_ttls", "kind", "pool_ids", "connector_chunks", "take_over", "engine_facts")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    COPY_MODE_FIELD_NUMBER: _ClassVar[int]
    LOSS_POLICY_FIELD_NUMBER: _ClassVar[int]
    LORA_NAMES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_INDEXER_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    HASH_SCHEME_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_TTLS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    POOL_IDS_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FACTS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    model: str
    tenant: str
    block_size: int
    engine: _types_pb2.Engine
    endpoints: _containers.RepeatedCompositeFieldContainer[EngineEndpoint]
    copy_mode: _types_pb2.CopyMode
    loss_policy: _types_pb2.LossPolicy
    lora_names: _containers.RepeatedCompositeFieldContainer[LoraName]
    local_indexer_endpoint: str
    lease_ms: int
    profile: WorkerProfile
    hash_scheme: str
    replace: bool
    medium_ttls: _containers.RepeatedCompositeFieldContainer[MediumTtl]
    kind: HolderKind
    pool_ids: _containers.RepeatedScalarFieldContainer[str]
    connector_chunks: _containers.RepeatedCompositeFieldContainer[ConnectorChunk]
    take_over: bool
    engine_facts: EngineFacts
    def __init__(self, worker_id: _Optional[str] = ..., model: _Optional[str] = ..., tenant: _Optional[str] = ..., block_size: _Optional[int] = ..., engine: _Optional[_Union[_types_pb2.Engine, str]] = ..., endpoints: _Optional[_Iterable[_Union[EngineEndpoint, _Mapping]]] = ..., copy_mode: _Optional[_Union[_types_pb2.CopyMode, str]] = ..., loss_policy: _Optional[_Union[_types_pb2.LossPolicy, str]] = ..., lora_names: _Optional[_Iterable[_Union[LoraName, _Mapping]]] = ..., local_indexer_endpoint: _Optional[str] = ..., lease_ms: _Optional[int] = ..., profile: _Optional[_Union[WorkerProfile, _Mapping]] = ..., hash_scheme: _Optional[str] = ..., replace: bool = ..., medium_ttls: _Optional[_Iterable[_Union[MediumTtl, _Mapping]]] = ..., kind: _Optional[_Union[HolderKind, str]] = ..., pool_ids: _Optional[_Iterable[str]] = ..., connector_chunks: _Optional[_Iterable[_Union[ConnectorChunk, _Mapping]]] = ..., take_over: bool = ..., engine_facts: _Optional[_Union[EngineFacts, _Mapping]] = ...) -> None: ...

class EngineFacts(_message.Message):
    __slots__ = ("attention_chunk_tokens", "eagle_drops_block", "replay_tokens", "prefix_match_unit", "unannounced_groups")
    ATTENTION_CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EAGLE_DROPS_BLOCK_FIELD_NUMBER: _ClassVar[int]
    REPLAY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_MATCH_UNIT_FIELD_NUMBER: _ClassVar[int]
    UNANNOUNCED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    attention_chunk_tokens: int
    eagle_drops_block: bool
    replay_tokens: int
    prefix_match_unit: int
    unannounced_groups: bool
    def __init__(self, attention_chunk_tokens: _Optional[int] = ..., eagle_drops_block: bool = ..., replay_tokens: _Optional[int] = ..., prefix_match_unit: _Optional[int] = ..., unannounced_groups: bool = ...) -> None: ...

class MediumTtl(_message.Message):
    __slots__ = ("medium", "ttl_ms")
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    medium: str
    ttl_ms: int
    def __init__(self, medium: _Optional[str] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class ConnectorChunk(_message.Message):
    __slots__ = ("medium", "blocks")
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    medium: str
    blocks: int
    def __init__(self, medium: _Optional[str] = ..., blocks: _Optional[int] = ...) -> None: ...

class Label(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class WorkerProfile(_message.Message):
    __slots__ = ("role", "total_kv_blocks", "max_num_batched_tokens", "labels", "model_types", "image_tokens")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    MODEL_TYPES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    role: WorkerRole
    total_kv_blocks: int
    max_num_batched_tokens: int
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    model_types: _containers.RepeatedScalarFieldContainer[ModelType]
    image_tokens: ImageTokens
    def __init__(self, role: _Optional[_Union[WorkerRole, str]] = ..., total_kv_blocks: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ..., model_types: _Optional[_Iterable[_Union[ModelType, str]]] = ..., image_tokens: _Optional[_Union[ImageTokens, str]] = ...) -> None: ...

class RegisterWorkerResponse(_message.Message):
    __slots__ = ("created",)
    CREATED_FIELD_NUMBER: _ClassVar[int]
    created: bool
    def __init__(self, created: bool = ...) -> None: ...

class RemoveWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "model", "tenant")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    model: str
    tenant: str
    def __init__(self, worker_id: _Optional[str] = ..., model: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class RemoveWorkerResponse(_message.Message):
    __slots__ = ("removed_blocks",)
    REMOVED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    removed_blocks: int
    def __init__(self, removed_blocks: _Optional[int] = ...) -> None: ...

class RecordPlacementRequest(_message.Message):
    __slots__ = ("model", "tenant", "lora_name", "cache_salt", "block_size", "hash_scheme", "token_ids", "token_ids_le", "local_hashes", "multimodal", "wide_token_ids", "worker_id", "dp_rank", "ttl_ms")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LORA_NAME_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    HASH_SCHEME_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_LE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_HASHES_FIELD_NUMBER: _ClassVar[int]
    MULTIMODAL_FIELD_NUMBER: _ClassVar[int]
    WIDE_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    lora_name: str
    cache_salt: str
    block_size: int
    hash_scheme: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    token_ids_le: bytes
    local_hashes: _containers.RepeatedScalarFieldContainer[int]
    multimodal: _containers.RepeatedCompositeFieldContainer[_types_pb2.MultimodalItem]
    wide_token_ids: _containers.RepeatedScalarFieldContainer[int]
    worker_id: str
    dp_rank: int
    ttl_ms: int
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., lora_name: _Optional[str] = ..., cache_salt: _Optional[str] = ..., block_size: _Optional[int] = ..., hash_scheme: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., token_ids_le: _Optional[bytes] = ..., local_hashes: _Optional[_Iterable[int]] = ..., multimodal: _Optional[_Iterable[_Union[_types_pb2.MultimodalItem, _Mapping]]] = ..., wide_token_ids: _Optional[_Iterable[int]] = ..., worker_id: _Optional[str] = ..., dp_rank: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class RecordPlacementResponse(_message.Message):
    __slots__ = ("prompt_blocks", "new_blocks")
    PROMPT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NEW_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    prompt_blocks: int
    new_blocks: int
    def __init__(self, prompt_blocks: _Optional[int] = ..., new_blocks: _Optional[int] = ...) -> None: ...

class ReportReuseRequest(_message.Message):
    __slots__ = ("model", "tenant", "worker_id", "dp_rank", "requests")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    worker_id: str
    dp_rank: int
    requests: _containers.RepeatedCompositeFieldContainer[ReusedTokens]
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., worker_id: _Optional[str] = ..., dp_rank: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[ReusedTokens, _Mapping]]] = ...) -> None: ...

class ReusedTokens(_message.Message):
    __slots__ = ("prompt_tokens", "expected_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    expected_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., expected_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class ReportReuseResponse(_message.Message):
    __slots__ = ("differing_requests",)
    DIFFERING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    differing_requests: int
    def __init__(self, differing_requests: _Optional[int] = ...) -> None: ...

class CreateCheckpointRequest(_message.Message):
    __slots__ = ("compact",)
    COMPACT_FIELD_NUMBER: _ClassVar[int]
    compact: bool
    def __init__(self, compact: bool = ...) -> None: ...

class CreateCheckpointResponse(_message.Message):
    __slots__ = ("workers", "blocks", "disk_bytes", "duration_ms")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    workers: int
    blocks: int
    disk_bytes: int
    duration_ms: int
    def __init__(self, workers: _Optional[int] = ..., blocks: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class CheckpointStats(_message.Message):
    __slots__ = ("written", "failed", "age_ms", "disk_bytes", "error")
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    written: int
    failed: int
    age_ms: int
    disk_bytes: int
    error: str
    def __init__(self, written: _Optional[int] = ..., failed: _Optional[int] = ..., age_ms: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PartitionStats(_message.Message):
    __slots__ = ("model", "tenant", "block_size", "workers", "blocks", "pairs", "parked", "index_bytes", "speculative_blocks", "speculative_bytes", "shed_blocks", "pools", "pool_pairs")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    POOL_PAIRS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    block_size: int
    workers: int
    blocks: int
    pairs: int
    parked: int
    index_bytes: int
    speculative_blocks: int
    speculative_bytes: int
    shed_blocks: int
    pools: int
    pool_pairs: int
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., block_size: _Optional[int] = ..., workers: _Optional[int] = ..., blocks: _Optional[int] = ..., pairs: _Optional[int] = ..., parked: _Optional[int] = ..., index_bytes: _Optional[int] = ..., speculative_blocks: _Optional[int] = ..., speculative_bytes: _Optional[int] = ..., shed_blocks: _Optional[int] = ..., pools: _Optional[int] = ..., pool_pairs: _Optional[int] = ...) -> None: ...

class Counter(_message.Message):
    __slots__ = ("unit", "outcome", "reason", "count")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    unit: str
    outcome: str
    reason: str
    count: int
    def __init__(self, unit: _Optional[str] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("version", "partitions", "counters", "buffered_batches", "queries", "query_blocks", "hit_blocks", "index_bytes", "index_free_bytes", "index_bytes_max", "shed_pairs", "shed_parked", "checkpoints", "shard")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    QUERY_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HIT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    SHED_PAIRS_FIELD_NUMBER: _ClassVar[int]
    SHED_PARKED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    version: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionStats]
    counters: _containers.RepeatedCompositeFieldContainer[Counter]
    buffered_batches: int
    queries: int
    query_blocks: int
    hit_blocks: int
    index_bytes: int
    index_free_bytes: int
    index_bytes_max: int
    shed_pairs: int
    shed_parked: int
    checkpoints: CheckpointStats
    shard: ShardInfo
    def __init__(self, version: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionStats, _Mapping]]] = ..., counters: _Optional[_Iterable[_Union[Counter, _Mapping]]] = ..., buffered_batches: _Optional[int] = ..., queries: _Optional[int] = ..., query_blocks: _Optional[int] = ..., hit_blocks: _Optional[int] = ..., index_bytes: _Optional[int] = ..., index_free_bytes: _Optional[int] = ..., index_bytes_max: _Optional[int] = ..., shed_pairs: _Optional[int] = ..., shed_parked: _Optional[int] = ..., checkpoints: _Optional[_Union[CheckpointStats, _Mapping]] = ..., shard: _Optional[_Union[ShardInfo, _Mapping]] = ...) -> None: ...
