from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BlockTier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOCK_TIER_UNSPECIFIED: _ClassVar[BlockTier]
    BLOCK_TIER_DEVICE: _ClassVar[BlockTier]
    BLOCK_TIER_HOST: _ClassVar[BlockTier]
    BLOCK_TIER_DISK: _ClassVar[BlockTier]
    BLOCK_TIER_VOLUME: _ClassVar[BlockTier]

class BlockFault(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOCK_FAULT_UNSPECIFIED: _ClassVar[BlockFault]
    BLOCK_FAULT_MISSING: _ClassVar[BlockFault]
    BLOCK_FAULT_CORRUPT: _ClassVar[BlockFault]
    BLOCK_FAULT_UNREADABLE: _ClassVar[BlockFault]
    BLOCK_FAULT_TIMED_OUT: _ClassVar[BlockFault]
    BLOCK_FAULT_BUSY: _ClassVar[BlockFault]
    BLOCK_FAULT_LIMIT: _ClassVar[BlockFault]
    BLOCK_FAULT_STOPPING: _ClassVar[BlockFault]
    BLOCK_FAULT_PEER: _ClassVar[BlockFault]

class CommitOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMMIT_OUTCOME_UNSPECIFIED: _ClassVar[CommitOutcome]
    COMMIT_OUTCOME_NEW: _ClassVar[CommitOutcome]
    COMMIT_OUTCOME_DUPLICATE: _ClassVar[CommitOutcome]
    COMMIT_OUTCOME_EXISTING: _ClassVar[CommitOutcome]
    COMMIT_OUTCOME_CHECKSUM_MISMATCH: _ClassVar[CommitOutcome]
    COMMIT_OUTCOME_LEASE_OVER: _ClassVar[CommitOutcome]
    COMMIT_OUTCOME_REFUSED: _ClassVar[CommitOutcome]
    COMMIT_OUTCOME_LIMIT: _ClassVar[CommitOutcome]

class OffloadOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OFFLOAD_OUTCOME_UNSPECIFIED: _ClassVar[OffloadOutcome]
    OFFLOAD_OUTCOME_QUEUED: _ClassVar[OffloadOutcome]
    OFFLOAD_OUTCOME_PRESENT: _ClassVar[OffloadOutcome]
    OFFLOAD_OUTCOME_PENDING: _ClassVar[OffloadOutcome]
    OFFLOAD_OUTCOME_INFREQUENT: _ClassVar[OffloadOutcome]
    OFFLOAD_OUTCOME_QUEUE_FULL: _ClassVar[OffloadOutcome]
    OFFLOAD_OUTCOME_NOWHERE: _ClassVar[OffloadOutcome]
BLOCK_TIER_UNSPECIFIED: BlockTier
BLOCK_TIER_DEVICE: BlockTier
BLOCK_TIER_HOST: BlockTier
BLOCK_TIER_DISK: BlockTier
BLOCK_TIER_VOLUME: BlockTier
BLOCK_FAULT_UNSPECIFIED: BlockFault
BLOCK_FAULT_MISSING: BlockFault
BLOCK_FAULT_CORRUPT: BlockFault
BLOCK_FAULT_UNREADABLE: BlockFault
BLOCK_FAULT_TIMED_OUT: BlockFault
BLOCK_FAULT_BUSY: BlockFault
BLOCK_FAULT_LIMIT: BlockFault
BLOCK_FAULT_STOPPING: BlockFault
BLOCK_FAULT_PEER: BlockFault
COMMIT_OUTCOME_UNSPECIFIED: CommitOutcome
COMMIT_OUTCOME_NEW: CommitOutcome
COMMIT_OUTCOME_DUPLICATE: CommitOutcome
COMMIT_OUTCOME_EXISTING: CommitOutcome
COMMIT_OUTCOME_CHECKSUM_MISMATCH: CommitOutcome
COMMIT_OUTCOME_LEASE_OVER: CommitOutcome
COMMIT_OUTCOME_REFUSED: CommitOutcome
COMMIT_OUTCOME_LIMIT: CommitOutcome
OFFLOAD_OUTCOME_UNSPECIFIED: OffloadOutcome
OFFLOAD_OUTCOME_QUEUED: OffloadOutcome
OFFLOAD_OUTCOME_PRESENT: OffloadOutcome
OFFLOAD_OUTCOME_PENDING: OffloadOutcome
OFFLOAD_OUTCOME_INFREQUENT: OffloadOutcome
OFFLOAD_OUTCOME_QUEUE_FULL: OffloadOutcome
OFFLOAD_OUTCOME_NOWHERE: OffloadOutcome

class BlockIdentity(_message.Message):
    __slots__ = ("sequence_hash", "parent", "local_hash", "position")
    SEQUENCE_HASH_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    LOCAL_HASH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    sequence_hash: int
    parent: int
    local_hash: int
    position: int
    def __init__(self, sequence_hash: _Optional[int] = ..., parent: _Optional[int] = ..., local_hash: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class HeldBlock(_message.Message):
    __slots__ = ("slot", "identity", "checksum", "found_in")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    FOUND_IN_FIELD_NUMBER: _ClassVar[int]
    slot: int
    identity: BlockIdentity
    checksum: int
    found_in: BlockTier
    def __init__(self, slot: _Optional[int] = ..., identity: _Optional[_Union[BlockIdentity, _Mapping]] = ..., checksum: _Optional[int] = ..., found_in: _Optional[_Union[BlockTier, str]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("model", "tenant", "worker_id", "name", "block_bytes", "dtype")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    worker_id: str
    name: str
    block_bytes: int
    dtype: str
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., worker_id: _Optional[str] = ..., name: _Optional[str] = ..., block_bytes: _Optional[int] = ..., dtype: _Optional[str] = ...) -> None: ...

class BlockLayoutInfo(_message.Message):
    __slots__ = ("layers", "outer_dim", "page_size", "inner_dim", "dtype_width_bytes")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    OUTER_DIM_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    INNER_DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_WIDTH_BYTES_FIELD_NUMBER: _ClassVar[int]
    layers: int
    outer_dim: int
    page_size: int
    inner_dim: int
    dtype_width_bytes: int
    def __init__(self, layers: _Optional[int] = ..., outer_dim: _Optional[int] = ..., page_size: _Optional[int] = ..., inner_dim: _Optional[int] = ..., dtype_width_bytes: _Optional[int] = ...) -> None: ...

class BlockArena(_message.Message):
    __slots__ = ("path", "start_bytes", "stride_bytes")
    PATH_FIELD_NUMBER: _ClassVar[int]
    START_BYTES_FIELD_NUMBER: _ClassVar[int]
    STRIDE_BYTES_FIELD_NUMBER: _ClassVar[int]
    path: str
    start_bytes: int
    stride_bytes: int
    def __init__(self, path: _Optional[str] = ..., start_bytes: _Optional[int] = ..., stride_bytes: _Optional[int] = ...) -> None: ...

class BlockSessionLimits(_message.Message):
    __slots__ = ("leased_slots_max", "held_blocks_max", "lease_ms_max", "lease_grace_ms", "pin_ttl_ms_max")
    LEASED_SLOTS_MAX_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCKS_MAX_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_MAX_FIELD_NUMBER: _ClassVar[int]
    LEASE_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    PIN_TTL_MS_MAX_FIELD_NUMBER: _ClassVar[int]
    leased_slots_max: int
    held_blocks_max: int
    lease_ms_max: int
    lease_grace_ms: int
    pin_ttl_ms_max: int
    def __init__(self, leased_slots_max: _Optional[int] = ..., held_blocks_max: _Optional[int] = ..., lease_ms_max: _Optional[int] = ..., lease_grace_ms: _Optional[int] = ..., pin_ttl_ms_max: _Optional[int] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("session_id", "block_bytes", "slots", "engine_tier", "arena", "limits", "layout", "dtype")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_TIER_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    block_bytes: int
    slots: int
    engine_tier: BlockTier
    arena: BlockArena
    limits: BlockSessionLimits
    layout: BlockLayoutInfo
    dtype: str
    def __init__(self, session_id: _Optional[bytes] = ..., block_bytes: _Optional[int] = ..., slots: _Optional[int] = ..., engine_tier: _Optional[_Union[BlockTier, str]] = ..., arena: _Optional[_Union[BlockArena, _Mapping]] = ..., limits: _Optional[_Union[BlockSessionLimits, _Mapping]] = ..., layout: _Optional[_Union[BlockLayoutInfo, _Mapping]] = ..., dtype: _Optional[str] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("opened",)
    OPENED_FIELD_NUMBER: _ClassVar[int]
    opened: SessionOpened
    def __init__(self, opened: _Optional[_Union[SessionOpened, _Mapping]] = ...) -> None: ...

class EndSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ...) -> None: ...

class EndSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AllocateRequest(_message.Message):
    __slots__ = ("session_id", "count", "lease_ms")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    count: int
    lease_ms: int
    def __init__(self, session_id: _Optional[bytes] = ..., count: _Optional[int] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class AllocateResponse(_message.Message):
    __slots__ = ("slots",)
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, slots: _Optional[_Iterable[int]] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("session_id", "slot", "offset_bytes", "data")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    slot: int
    offset_bytes: int
    data: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., slot: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitBlock(_message.Message):
    __slots__ = ("slot", "identity", "checksum", "priority")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    slot: int
    identity: BlockIdentity
    checksum: int
    priority: int
    def __init__(self, slot: _Optional[int] = ..., identity: _Optional[_Union[BlockIdentity, _Mapping]] = ..., checksum: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("session_id", "blocks")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    blocks: _containers.RepeatedCompositeFieldContainer[CommitBlock]
    def __init__(self, session_id: _Optional[bytes] = ..., blocks: _Optional[_Iterable[_Union[CommitBlock, _Mapping]]] = ...) -> None: ...

class CommittedBlock(_message.Message):
    __slots__ = ("outcome", "block", "error")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    outcome: CommitOutcome
    block: HeldBlock
    error: str
    def __init__(self, outcome: _Optional[_Union[CommitOutcome, str]] = ..., block: _Optional[_Union[HeldBlock, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[CommittedBlock]
    def __init__(self, blocks: _Optional[_Iterable[_Union[CommittedBlock, _Mapping]]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("session_id", "slots")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[bytes] = ..., slots: _Optional[_Iterable[int]] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("aborted",)
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    aborted: int
    def __init__(self, aborted: _Optional[int] = ...) -> None: ...

class MatchPrefixRequest(_message.Message):
    __slots__ = ("session_id", "sequence_hashes", "hold", "prefill_tokens_per_second", "prefill_wait_ms")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_HASHES_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PREFILL_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    sequence_hashes: _containers.RepeatedScalarFieldContainer[int]
    hold: bool
    prefill_tokens_per_second: float
    prefill_wait_ms: int
    def __init__(self, session_id: _Optional[bytes] = ..., sequence_hashes: _Optional[_Iterable[int]] = ..., hold: bool = ..., prefill_tokens_per_second: _Optional[float] = ..., prefill_wait_ms: _Optional[int] = ...) -> None: ...

class LoadVerdict(_message.Message):
    __slots__ = ("blocks", "is_load", "load_us", "compute_us", "bytes_per_second", "load_bytes", "queued_bytes", "tokens")
    FROM_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    IS_LOAD_FIELD_NUMBER: _ClassVar[int]
    LOAD_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    is_load: bool
    load_us: int
    compute_us: int
    bytes_per_second: int
    load_bytes: int
    queued_bytes: int
    tokens: int
    def __init__(self, blocks: _Optional[int] = ..., is_load: bool = ..., load_us: _Optional[int] = ..., compute_us: _Optional[int] = ..., bytes_per_second: _Optional[int] = ..., load_bytes: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., tokens: _Optional[int] = ..., **kwargs) -> None: ...

class TierPrefix(_message.Message):
    __slots__ = ("tier", "leading_blocks")
    TIER_FIELD_NUMBER: _ClassVar[int]
    LEADING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    tier: BlockTier
    leading_blocks: int
    def __init__(self, tier: _Optional[_Union[BlockTier, str]] = ..., leading_blocks: _Optional[int] = ...) -> None: ...

class MatchPrefixResponse(_message.Message):
    __slots__ = ("nearest", "tiers", "held", "verdicts")
    NEAREST_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    nearest: _containers.RepeatedScalarFieldContainer[BlockTier]
    tiers: _containers.RepeatedCompositeFieldContainer[TierPrefix]
    held: _containers.RepeatedCompositeFieldContainer[HeldBlock]
    verdicts: _containers.RepeatedCompositeFieldContainer[LoadVerdict]
    def __init__(self, nearest: _Optional[_Iterable[_Union[BlockTier, str]]] = ..., tiers: _Optional[_Iterable[_Union[TierPrefix, _Mapping]]] = ..., held: _Optional[_Iterable[_Union[HeldBlock, _Mapping]]] = ..., verdicts: _Optional[_Iterable[_Union[LoadVerdict, _Mapping]]] = ...) -> None: ...

class OnboardRequest(_message.Message):
    __slots__ = ("session_id", "sequence_hashes", "priority", "timeout_ms")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_HASHES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    sequence_hashes: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    timeout_ms: int
    def __init__(self, session_id: _Optional[bytes] = ..., sequence_hashes: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class OnboardResponse(_message.Message):
    __slots__ = ("blocks", "fault", "fault_tier")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    FAULT_TIER_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[HeldBlock]
    fault: BlockFault
    fault_tier: BlockTier
    def __init__(self, blocks: _Optional[_Iterable[_Union[HeldBlock, _Mapping]]] = ..., fault: _Optional[_Union[BlockFault, str]] = ..., fault_tier: _Optional[_Union[BlockTier, str]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("session_id", "peers", "sequence_hashes", "timeout_ms")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_HASHES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    peers: _containers.RepeatedScalarFieldContainer[str]
    sequence_hashes: _containers.RepeatedScalarFieldContainer[int]
    timeout_ms: int
    def __init__(self, session_id: _Optional[bytes] = ..., peers: _Optional[_Iterable[str]] = ..., sequence_hashes: _Optional[_Iterable[int]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class FetchedFromPeer(_message.Message):
    __slots__ = ("peer", "blocks", "fault", "error")
    PEER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    peer: str
    blocks: int
    fault: BlockFault
    error: str
    def __init__(self, peer: _Optional[str] = ..., blocks: _Optional[int] = ..., fault: _Optional[_Union[BlockFault, str]] = ..., error: _Optional[str] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("leading_blocks", "fetched_blocks", "bytes", "micros", "fault", "peers")
    LEADING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MICROS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    leading_blocks: int
    fetched_blocks: int
    bytes: int
    micros: int
    fault: BlockFault
    peers: _containers.RepeatedCompositeFieldContainer[FetchedFromPeer]
    def __init__(self, leading_blocks: _Optional[int] = ..., fetched_blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., micros: _Optional[int] = ..., fault: _Optional[_Union[BlockFault, str]] = ..., peers: _Optional[_Iterable[_Union[FetchedFromPeer, _Mapping]]] = ...) -> None: ...

class OffloadRequest(_message.Message):
    __slots__ = ("session_id", "sequence_hashes", "priority")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_HASHES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    sequence_hashes: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    def __init__(self, session_id: _Optional[bytes] = ..., sequence_hashes: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ...) -> None: ...

class OffloadResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[OffloadOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[OffloadOutcome, str]]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("session_id", "slots")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[bytes] = ..., slots: _Optional[_Iterable[int]] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("slot", "offset_bytes", "data", "checksum", "fault")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    slot: int
    offset_bytes: int
    data: bytes
    checksum: int
    fault: BlockFault
    def __init__(self, slot: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., data: _Optional[bytes] = ..., checksum: _Optional[int] = ..., fault: _Optional[_Union[BlockFault, str]] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("session_id", "slots")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[bytes] = ..., slots: _Optional[_Iterable[int]] = ...) -> None: ...

class VerifiedBlock(_message.Message):
    __slots__ = ("checksum", "fault")
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    checksum: int
    fault: BlockFault
    def __init__(self, checksum: _Optional[int] = ..., fault: _Optional[_Union[BlockFault, str]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[VerifiedBlock]
    def __init__(self, blocks: _Optional[_Iterable[_Union[VerifiedBlock, _Mapping]]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("session_id", "slots")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[bytes] = ..., slots: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: int
    def __init__(self, released: _Optional[int] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("session_id", "sequence_hashes", "ttl_ms")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_HASHES_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    sequence_hashes: _containers.RepeatedScalarFieldContainer[int]
    ttl_ms: int
    def __init__(self, session_id: _Optional[bytes] = ..., sequence_hashes: _Optional[_Iterable[int]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class BlockPin(_message.Message):
    __slots__ = ("tier", "pin_id", "deadline_ns")
    TIER_FIELD_NUMBER: _ClassVar[int]
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_NS_FIELD_NUMBER: _ClassVar[int]
    tier: BlockTier
    pin_id: int
    deadline_ns: int
    def __init__(self, tier: _Optional[_Union[BlockTier, str]] = ..., pin_id: _Optional[int] = ..., deadline_ns: _Optional[int] = ...) -> None: ...

class PinnedBlock(_message.Message):
    __slots__ = ("pin", "fault")
    PIN_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    pin: BlockPin
    fault: BlockFault
    def __init__(self, pin: _Optional[_Union[BlockPin, _Mapping]] = ..., fault: _Optional[_Union[BlockFault, str]] = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[PinnedBlock]
    def __init__(self, blocks: _Optional[_Iterable[_Union[PinnedBlock, _Mapping]]] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("session_id", "pins")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    pins: _containers.RepeatedCompositeFieldContainer[BlockPin]
    def __init__(self, session_id: _Optional[bytes] = ..., pins: _Optional[_Iterable[_Union[BlockPin, _Mapping]]] = ...) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ("unpinned",)
    UNPINNED_FIELD_NUMBER: _ClassVar[int]
    unpinned: int
    def __init__(self, unpinned: _Optional[int] = ...) -> None: ...

class GetBlockStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BlockPoolStats(_message.Message):
    __slots__ = ("tier", "blocks_max", "free", "writing", "active", "inactive", "pins", "registered", "evicted", "withdrawn", "corrupt")
    TIER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_MAX_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    WRITING_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    INACTIVE_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    tier: BlockTier
    blocks_max: int
    free: int
    writing: int
    active: int
    inactive: int
    pins: int
    registered: int
    evicted: int
    withdrawn: int
    corrupt: int
    def __init__(self, tier: _Optional[_Union[BlockTier, str]] = ..., blocks_max: _Optional[int] = ..., free: _Optional[int] = ..., writing: _Optional[int] = ..., active: _Optional[int] = ..., inactive: _Optional[int] = ..., pins: _Optional[int] = ..., registered: _Optional[int] = ..., evicted: _Optional[int] = ..., withdrawn: _Optional[int] = ..., corrupt: _Optional[int] = ...) -> None: ...

class BlockLaneStats(_message.Message):
    __slots__ = ("to", "queued", "in_flight", "committed", "committed_bytes", "failed", "corrupt", "bytes_per_second")
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    to: BlockTier
    queued: int
    in_flight: int
    committed: int
    committed_bytes: int
    failed: int
    corrupt: int
    bytes_per_second: int
    def __init__(self, to: _Optional[_Union[BlockTier, str]] = ..., queued: _Optional[int] = ..., in_flight: _Optional[int] = ..., committed: _Optional[int] = ..., committed_bytes: _Optional[int] = ..., failed: _Optional[int] = ..., corrupt: _Optional[int] = ..., bytes_per_second: _Optional[int] = ..., **kwargs) -> None: ...

class GetBlockStatsResponse(_message.Message):
    __slots__ = ("block_bytes", "pools", "lanes", "sessions", "sessions_lost", "blocks", "events_queued", "event_overflows")
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_LOST_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_QUEUED_FIELD_NUMBER: _ClassVar[int]
    EVENT_OVERFLOWS_FIELD_NUMBER: _ClassVar[int]
    block_bytes: int
    pools: _containers.RepeatedCompositeFieldContainer[BlockPoolStats]
    lanes: _containers.RepeatedCompositeFieldContainer[BlockLaneStats]
    sessions: int
    sessions_lost: int
    blocks: int
    events_queued: int
    event_overflows: int
    def __init__(self, block_bytes: _Optional[int] = ..., pools: _Optional[_Iterable[_Union[BlockPoolStats, _Mapping]]] = ..., lanes: _Optional[_Iterable[_Union[BlockLaneStats, _Mapping]]] = ..., sessions: _Optional[int] = ..., sessions_lost: _Optional[int] = ..., blocks: _Optional[int] = ..., events_queued: _Optional[int] = ..., event_overflows: _Optional[int] = ...) -> None: ...
