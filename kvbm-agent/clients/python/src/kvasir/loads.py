"""How busy workers are, as their agents say it."""

from collections.abc import Iterator
from types import TracebackType
from typing import Optional

import grpc

from kvasir import _rpc
from kvasir._check import read_int, read_name, read_part, read_seconds
from kvasir._gen import loads_pb2 as pb
from kvasir.indexer import TIMEOUT_DEFAULT
from kvasir.limits import LOADS_INTERVAL_MS_MAX, LOADS_INTERVAL_MS_MIN, WORKER_RANKS_MAX
from kvasir.types import WorkerLoad

_COUNTS = (
    "num_requests_waiting",
    "request_active_slots",
    "request_total_slots",
    "kv_active_blocks",
    "kv_total_blocks",
)
_PARTS = ("gpu_cache_usage_perc", "gpu_prefix_cache_hit_rate")
_U64 = (1 << 64) - 1


class WorkerLoads:
    """A worker's agent, which knows how busy the worker's ranks are. Threads may share one.

    Calls raise `InvalidArgumentError` where an argument cannot be used, and an `RpcError` where the
    agent refuses, cannot be reached or is late; `NotFoundError` where it is another worker's.
    """

    def __init__(
        self,
        target: str,
        worker_id: str,
        model: str,
        *,
        tenant: str = "",
        timeout: float = TIMEOUT_DEFAULT,
        credentials: Optional[grpc.ChannelCredentials] = None,
    ) -> None:
        """Connects when it is first asked.

        `target` is host:port or http://host:port of the agent; `timeout` the seconds until
        a report is given up; `credentials` are for TLS, which is not used without them.
        """
        self._worker_id = read_name("worker_id", worker_id, required=True)
        self._model = read_name("model", model, required=True)
        self._tenant = read_name("tenant", tenant)
        self._timeout = read_seconds("timeout", timeout)
        self._channel = _rpc.open_channel(_rpc.read_target(target), credentials)

    def __enter__(self) -> "WorkerLoads":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; calls under way fail."""
        self._channel.close()

    def report(self, load: WorkerLoad) -> None:
        """Says how busy a rank is, in place of all that was said of it before."""
        said = pb.WorkerLoad(
            model=self._model,
            tenant=self._tenant,
            worker_id=self._worker_id,
            dp_rank=read_int("dp_rank", load.dp_rank, 0, WORKER_RANKS_MAX - 1),
            age_ms=read_int("age_ms", load.age_ms, 0, _U64),
        )
        for name in _COUNTS:
            value = getattr(load, name)
            if value is not None:
                setattr(said, name, read_int(name, value, 0, _U64))
        for name in _PARTS:
            value = getattr(load, name)
            if value is not None:
                setattr(said, name, read_part(name, value))
        request, path = pb.ReportLoadRequest(load=said), _rpc.WORKER_LOADS + "ReportLoad"
        _rpc.call(self._channel, path, request, pb.ReportLoadResponse, self._timeout)

    def watch(self, *, min_interval_ms: Optional[int] = None) -> Iterator[list[WorkerLoad]]:
        """How busy the ranks are: at first all of which anything is known, then those that change.

        From time to time all are said again, with their ages. Goes on until the iterator is closed,
        or the agent ends or cannot be reached, which raises an `RpcError`. `min_interval_ms` is the
        least time between two answers, 100 by default; a slow reader gets the latest.
        """
        request = pb.WatchLoadsRequest(
            model=self._model, tenant=self._tenant, worker_id=self._worker_id
        )
        if min_interval_ms is not None:
            lowest, highest = LOADS_INTERVAL_MS_MIN, LOADS_INTERVAL_MS_MAX
            interval = read_int("min_interval_ms", min_interval_ms, lowest, highest)
            request.min_interval_ms = interval
        path, answer = _rpc.WORKER_LOADS + "WatchLoads", pb.WatchLoadsResponse
        answers = _rpc.stream(self._channel, path, request, answer, None)
        return _read(answers)


def _read(answers: Iterator[pb.WatchLoadsResponse]) -> Iterator[list[WorkerLoad]]:
    for answer in answers:
        yield [_load(load) for load in answer.loads]


def _load(load: pb.WorkerLoad) -> WorkerLoad:
    known = {name: getattr(load, name) for name in _COUNTS + _PARTS if load.HasField(name)}
    return WorkerLoad(dp_rank=load.dp_rank, age_ms=load.age_ms, **known)
