from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_DEVICE: _ClassVar[Tier]
    TIER_HOST: _ClassVar[Tier]
    TIER_DISK: _ClassVar[Tier]

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_EXACT: _ClassVar[WorkerState]
    WORKER_STATE_CATCHING_UP: _ClassVar[WorkerState]
    WORKER_STATE_GAP: _ClassVar[WorkerState]
    WORKER_STATE_DEGRADED: _ClassVar[WorkerState]
    WORKER_STATE_PARTIAL: _ClassVar[WorkerState]
    WORKER_STATE_COLD: _ClassVar[WorkerState]

class CopyMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COPY_MODE_UNSPECIFIED: _ClassVar[CopyMode]
    COPY_MODE_COUNTED: _ClassVar[CopyMode]
    COPY_MODE_SET: _ClassVar[CopyMode]

class LossPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOSS_POLICY_UNSPECIFIED: _ClassVar[LossPolicy]
    LOSS_POLICY_KEEP: _ClassVar[LossPolicy]
    LOSS_POLICY_CLEAR: _ClassVar[LossPolicy]

class Engine(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_UNSPECIFIED: _ClassVar[Engine]
    ENGINE_VLLM: _ClassVar[Engine]
    ENGINE_SGLANG: _ClassVar[Engine]
    ENGINE_TRTLLM: _ClassVar[Engine]
    ENGINE_CUSTOM: _ClassVar[Engine]
TIER_UNSPECIFIED: Tier
TIER_DEVICE: Tier
TIER_HOST: Tier
TIER_DISK: Tier
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_EXACT: WorkerState
WORKER_STATE_CATCHING_UP: WorkerState
WORKER_STATE_GAP: WorkerState
WORKER_STATE_DEGRADED: WorkerState
WORKER_STATE_PARTIAL: WorkerState
WORKER_STATE_COLD: WorkerState
COPY_MODE_UNSPECIFIED: CopyMode
COPY_MODE_COUNTED: CopyMode
COPY_MODE_SET: CopyMode
LOSS_POLICY_UNSPECIFIED: LossPolicy
LOSS_POLICY_KEEP: LossPolicy
LOSS_POLICY_CLEAR: LossPolicy
ENGINE_UNSPECIFIED: Engine
ENGINE_VLLM: Engine
ENGINE_SGLANG: Engine
ENGINE_TRTLLM: Engine
ENGINE_CUSTOM: Engine

class Cursor(_message.Message):
    __slots__ = ("incarnation", "sequence")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    sequence: int
    def __init__(self, incarnation: _Optional[bytes] = ..., sequence: _Optional[int] = ...) -> None: ...

class MultimodalItem(_message.Message):
    __slots__ = ("identifier", "token_offset", "token_count")
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    identifier: str
    token_offset: int
    token_count: int
    def __init__(self, identifier: _Optional[str] = ..., token_offset: _Optional[int] = ..., token_count: _Optional[int] = ...) -> None: ...
