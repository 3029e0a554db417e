"""Client of an agent's loads: how busy its worker is."""

from collections.abc import Iterator
from types import TracebackType
from typing import Optional

import grpc

from kvasir import _rpc
from kvasir._check import read_fraction, read_int, read_name, read_seconds
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
_FRACTIONS = ("gpu_cache_usage_perc", "gpu_prefix_cache_hit_rate")
_U64 = (1 << 64) - 1


class WorkerLoads:
    """Reports and watches a worker's loads at its agent. Threads may share one.

    Calls raise `InvalidArgumentError` if an argument is invalid, `NotFoundError` if the agent
    serves another worker, and `RpcError` if it refuses, is unreachable or times out.
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
        """Connects on the first call.

        `target` is the agent's host:port, http://host:port or https://host:port; the last needs
        `credentials`, by `kvasir.tls_credentials`. `timeout` is that of `report`, in seconds.
        """
        self._worker_id = read_name("worker_id", worker_id, required=True)
        self._model = read_name("model", model, required=True)
        self._tenant = read_name("tenant", tenant)
        self._timeout = read_seconds("timeout", timeout)
        self._channel = _rpc.open_channel(_rpc.read_target(target, credentials), credentials)

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
        """Closes the connection. Calls in progress fail."""
        self._channel.close()

    def report(self, load: WorkerLoad) -> None:
        """Reports the load of a rank. It replaces the rank's previous report."""
        message = pb.WorkerLoad(
            model=self._model,
            tenant=self._tenant,
            worker_id=self._worker_id,
            dp_rank=read_int("dp_rank", load.dp_rank, 0, WORKER_RANKS_MAX - 1),
            age_ms=read_int("age_ms", load.age_ms, 0, _U64),
        )
        for name in _COUNTS:
            value = getattr(load, name)
            if value is not None:
                setattr(message, name, read_int(name, value, 0, _U64))
        for name in _FRACTIONS:
            value = getattr(load, name)
            if value is not None:
                setattr(message, name, read_fraction(name, value))
        request, path = pb.ReportLoadRequest(load=message), _rpc.WORKER_LOADS + "ReportLoad"
        _rpc.call(self._channel, path, request, pb.ReportLoadResponse, self._timeout)

    def watch(self, *, min_interval_ms: Optional[int] = None) -> Iterator[list[WorkerLoad]]:
        """Yields the loads of all known ranks, then changes.

        From time to time it yields all loads again, with their ages. It continues until you close
        the iterator. It raises an `RpcError` if the agent stops or is unreachable.
        `min_interval_ms` is the shortest interval between two answers, 100 by default. A slow
        reader skips to the latest loads.
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
        yield [read_load(load) for load in answer.loads]


def read_load(load: pb.WorkerLoad) -> WorkerLoad:
    """Converts a load. Unknown values are None."""
    known = {name: getattr(load, name) for name in _COUNTS + _FRACTIONS if load.HasField(name)}
    return WorkerLoad(dp_rank=load.dp_rank, age_ms=load.age_ms, **known)
