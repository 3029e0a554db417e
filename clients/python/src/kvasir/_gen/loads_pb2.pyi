from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerLoad(_message.Message):
    __slots__ = ("model", "tenant", "worker_id", "dp_rank", "num_requests_waiting", "gpu_cache_usage_perc", "gpu_prefix_cache_hit_rate", "request_active_slots", "request_total_slots", "kv_active_blocks", "kv_total_blocks", "age_ms")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    GPU_CACHE_USAGE_PERC_FIELD_NUMBER: _ClassVar[int]
    GPU_PREFIX_CACHE_HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ACTIVE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TOTAL_SLOTS_FIELD_NUMBER: _ClassVar[int]
    KV_ACTIVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    worker_id: str
    dp_rank: int
    num_requests_waiting: int
    gpu_cache_usage_perc: float
    gpu_prefix_cache_hit_rate: float
    request_active_slots: int
    request_total_slots: int
    kv_active_blocks: int
    kv_total_blocks: int
    age_ms: int
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., worker_id: _Optional[str] = ..., dp_rank: _Optional[int] = ..., num_requests_waiting: _Optional[int] = ..., gpu_cache_usage_perc: _Optional[float] = ..., gpu_prefix_cache_hit_rate: _Optional[float] = ..., request_active_slots: _Optional[int] = ..., request_total_slots: _Optional[int] = ..., kv_active_blocks: _Optional[int] = ..., kv_total_blocks: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...

class ReportLoadRequest(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: WorkerLoad
    def __init__(self, load: _Optional[_Union[WorkerLoad, _Mapping]] = ...) -> None: ...

class ReportLoadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchLoadsRequest(_message.Message):
    __slots__ = ("model", "tenant", "worker_id", "min_interval_ms")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tenant: str
    worker_id: str
    min_interval_ms: int
    def __init__(self, model: _Optional[str] = ..., tenant: _Optional[str] = ..., worker_id: _Optional[str] = ..., min_interval_ms: _Optional[int] = ...) -> None: ...

class WatchLoadsResponse(_message.Message):
    __slots__ = ("loads",)
    LOADS_FIELD_NUMBER: _ClassVar[int]
    loads: _containers.RepeatedCompositeFieldContainer[WorkerLoad]
    def __init__(self, loads: _Optional[_Iterable[_Union[WorkerLoad, _Mapping]]] = ...) -> None: ...
