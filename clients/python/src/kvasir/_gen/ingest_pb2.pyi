from kvasir._gen import indexer_pb2 as _indexer_pb2
from kvasir._gen import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RefusalReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_REASON_UNSPECIFIED: _ClassVar[RefusalReason]
    REFUSAL_REASON_FENCED: _ClassVar[RefusalReason]
    REFUSAL_REASON_GAP: _ClassVar[RefusalReason]
    REFUSAL_REASON_INVALID: _ClassVar[RefusalReason]
REFUSAL_REASON_UNSPECIFIED: RefusalReason
REFUSAL_REASON_FENCED: RefusalReason
REFUSAL_REASON_GAP: RefusalReason
REFUSAL_REASON_INVALID: RefusalReason

class PublishHello(_message.Message):
    __slots__ = ("model", "tenant", "worker_id", "source", "block_size", "incarnation", "copy_mode", "first_sequence", "head_sequence", "local_indexer_endpoint")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COPY_MODE_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HEAD_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_INDEXER_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    worker_id: str
    source: str
    block_size: int
    incarnation: bytes
    copy_mode: _types_pb2.CopyMode
    first_sequence: int
    head_sequence: int
    local_indexer_endpoint: str
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., worker_id: _Optional[str] = ..., source: _Optional[str] = ..., block_size: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., copy_mode: _Optional[_Union[_types_pb2.CopyMode, str]] = ..., first_sequence: _Optional[int] = ..., head_sequence: _Optional[int] = ..., local_indexer_endpoint: _Optional[str] = ...) -> None: ...

class BlocksStored(_message.Message):
    __slots__ = ("parent_name", "names", "local_hashes", "token_ids_le", "tier", "lora_name", "cache_salt")
    PARENT_NAME_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_HASHES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_LE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    LORA_NAME_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    parent_name: int
    names: _containers.RepeatedScalarFieldContainer[int]
    local_hashes: _containers.RepeatedScalarFieldContainer[int]
    token_ids_le: bytes
    tier: _types_pb2.Tier
    lora_name: str
    cache_salt: str
    def __init__(self, parent_name: _Optional[int] = ..., names: _Optional[_Iterable[int]] = ..., local_hashes: _Optional[_Iterable[int]] = ..., token_ids_le: _Optional[bytes] = ..., tier: _Optional[_Union[_types_pb2.Tier, str]] = ..., lora_name: _Optional[str] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class BlocksRemoved(_message.Message):
    __slots__ = ("names", "tier", "all_copies")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    ALL_COPIES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[int]
    tier: _types_pb2.Tier
    all_copies: bool
    def __init__(self, names: _Optional[_Iterable[int]] = ..., tier: _Optional[_Union[_types_pb2.Tier, str]] = ..., all_copies: bool = ...) -> None: ...

class BlocksCleared(_message.Message):
    __slots__ = ("tier",)
    TIER_FIELD_NUMBER: _ClassVar[int]
    tier: _types_pb2.Tier
    def __init__(self, tier: _Optional[_Union[_types_pb2.Tier, str]] = ...) -> None: ...

class PublishedEvent(_message.Message):
    __slots__ = ("stored", "removed", "cleared")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    stored: BlocksStored
    removed: BlocksRemoved
    cleared: BlocksCleared
    def __init__(self, stored: _Optional[_Union[BlocksStored, _Mapping]] = ..., removed: _Optional[_Union[BlocksRemoved, _Mapping]] = ..., cleared: _Optional[_Union[BlocksCleared, _Mapping]] = ...) -> None: ...

class PublishBatch(_message.Message):
    __slots__ = ("sequence", "dp_rank", "events")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    dp_rank: int
    events: _containers.RepeatedCompositeFieldContainer[PublishedEvent]
    def __init__(self, sequence: _Optional[int] = ..., dp_rank: _Optional[int] = ..., events: _Optional[_Iterable[_Union[PublishedEvent, _Mapping]]] = ...) -> None: ...

class PublishHeartbeat(_message.Message):
    __slots__ = ("head_sequence", "digest", "state", "verified_age_ms", "engine_away", "reasons")
    HEAD_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_AWAY_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    head_sequence: int
    digest: int
    state: _types_pb2.WorkerState
    verified_age_ms: int
    engine_away: bool
    reasons: _containers.RepeatedCompositeFieldContainer[_indexer_pb2.StateReason]
    def __init__(self, head_sequence: _Optional[int] = ..., digest: _Optional[int] = ..., state: _Optional[_Union[_types_pb2.WorkerState, str]] = ..., verified_age_ms: _Optional[int] = ..., engine_away: bool = ..., reasons: _Optional[_Iterable[_Union[_indexer_pb2.StateReason, _Mapping]]] = ...) -> None: ...

class PublishEventsRequest(_message.Message):
    __slots__ = ("hello", "batch", "heartbeat")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    hello: PublishHello
    batch: PublishBatch
    heartbeat: PublishHeartbeat
    def __init__(self, hello: _Optional[_Union[PublishHello, _Mapping]] = ..., batch: _Optional[_Union[PublishBatch, _Mapping]] = ..., heartbeat: _Optional[_Union[PublishHeartbeat, _Mapping]] = ...) -> None: ...

class PublishAccepted(_message.Message):
    __slots__ = ("applied",)
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    applied: _types_pb2.Cursor
    def __init__(self, applied: _Optional[_Union[_types_pb2.Cursor, _Mapping]] = ...) -> None: ...

class PublishAck(_message.Message):
    __slots__ = ("sequence", "duplicate", "applied", "noop", "rejected")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    NOOP_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    duplicate: bool
    applied: int
    noop: int
    rejected: int
    def __init__(self, sequence: _Optional[int] = ..., duplicate: bool = ..., applied: _Optional[int] = ..., noop: _Optional[int] = ..., rejected: _Optional[int] = ...) -> None: ...

class PublishRefusal(_message.Message):
    __slots__ = ("sequence", "reason", "expected_sequence", "message")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    reason: RefusalReason
    expected_sequence: int
    message: str
    def __init__(self, sequence: _Optional[int] = ..., reason: _Optional[_Union[RefusalReason, str]] = ..., expected_sequence: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class PublishEventsResponse(_message.Message):
    __slots__ = ("accepted", "ack", "refusal")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    accepted: PublishAccepted
    ack: PublishAck
    refusal: PublishRefusal
    def __init__(self, accepted: _Optional[_Union[PublishAccepted, _Mapping]] = ..., ack: _Optional[_Union[PublishAck, _Mapping]] = ..., refusal: _Optional[_Union[PublishRefusal, _Mapping]] = ...) -> None: ...
