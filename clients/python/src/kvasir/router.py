"""Client of a router."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Optional

import grpc

from kvasir import _aio, _read_route, _rpc, _select
from kvasir._check import read_int, read_name, read_number, read_seconds
from kvasir._gen import router_pb2 as pb
from kvasir._router_link import RouterLink
from kvasir.errors import NotFoundError, RefusedError, RpcError
from kvasir.indexer import TIMEOUT_DEFAULT
from kvasir.limits import (
    BLOCK_SIZE_TOKENS_MAX,
    LOADS_INTERVAL_MS_MAX,
    LOADS_INTERVAL_MS_MIN,
    QUEUE_SECONDS_MAX,
)
from kvasir.reservation import Reservation
from kvasir.route_types import BusyThresholds, RouterLoads, SelectHints

if TYPE_CHECKING:
    from typing_extensions import Unpack

_U64 = (1 << 64) - 1


class Router:
    """Client of a router over gRPC, for one model and tenant. Belongs to one event loop.

    Calls raise `InvalidArgumentError` if an argument is invalid, and an `RpcError` if the router
    refuses, is unreachable or times out.
    """

    def __init__(
        self,
        target: str,
        model: str,
        *,
        tenant: str = "",
        block_size: Optional[int] = None,
        timeout: float = TIMEOUT_DEFAULT,
        credentials: Optional[grpc.ChannelCredentials] = None,
    ) -> None:
        """Connects on the first call.

        `target` is host:port, http://host:port or https://host:port; the last needs `credentials`,
        by `kvasir.tls_credentials`. The router refuses requests if a `block_size` is given that is
        not the workers'. `timeout` is that of each call, in seconds; the wait in the router's queue
        is added to it.
        """
        if block_size is not None:
            read_int("block_size", block_size, 1, BLOCK_SIZE_TOKENS_MAX)
        self._block_size = block_size
        self._link = RouterLink(
            _rpc.read_target(target, credentials),
            read_name("model", model, required=True),
            read_name("tenant", tenant),
            read_seconds("timeout", timeout),
            credentials,
        )

    async def __aenter__(self) -> "Router":
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for reports in progress, then closes the connection, which cancels all calls."""
        await self._link.close()

    async def select(
        self,
        *,
        tokens: Optional[Sequence[int]] = None,
        local_hashes: Optional[Sequence[int]] = None,
        input_tokens: Optional[int] = None,
        next_tokens_le: bytes = b"",
        **hints: "Unpack[SelectHints]",
    ) -> Reservation:
        """Chooses a worker for a prompt. The request counts as its load until it is freed.

        Give the prompt as `tokens`, which are sent to the router, or as the `local_hashes` of its
        whole blocks and the number of its `input_tokens`. For engines whose hashes cover the token
        after each block (vLLM with EAGLE or MTP), hashes need `next_tokens_le`, too, which
        `kvasir.hashing.next_tokens_le` makes. `SelectHints` describes the hints.

        While all workers are busy, the call waits in the router's queue; cancel it to leave. It
        raises `NotFoundError` if the router knows no worker of the model, `RefusedError` if no
        worker may have the request, and `UnavailableError` if all are too busy.
        """
        prompt = _select.Prompt(tokens, local_hashes, input_tokens, next_tokens_le)
        request = _select.select_request(prompt, hints)
        request.model, request.tenant = self._link.model, self._link.tenant
        if self._block_size is not None:
            request.block_size = self._block_size
        if not request.request_id and not request.dry_run:
            # With an id of our own, a request can be freed whose answer did not arrive.
            request.request_id = uuid.uuid4().hex
        queue_timeout = float(QUEUE_SECONDS_MAX)
        if request.HasField("queue_timeout_ms"):
            queue_timeout = request.queue_timeout_ms / 1_000
        timeout = self._link.timeout + queue_timeout
        try:
            answer = await self._link.call(
                "SelectWorker", request, pb.SelectWorkerResponse, timeout
            )
        except BaseException as error:
            if not request.dry_run and _may_count(error):
                free = self._link.free(request.request_id)
                self._link.tasks.start(free, f"end of request {request.request_id}")
            raise
        decision = _read_route.decision(answer)
        return Reservation(self._link, decision, is_counted=not request.dry_run)

    async def loads(self) -> RouterLoads:
        """Returns the loads of all ranks of the model and tenant."""
        request = pb.GetLoadsRequest(model=self._link.model, tenant=self._link.tenant)
        return _read_route.loads(await self._link.call("GetLoads", request, pb.GetLoadsResponse))

    def watch_loads(
        self, *, min_interval_ms: Optional[int] = None
    ) -> AsyncGenerator[RouterLoads, None]:
        """Yields the loads of all ranks of the model and tenant, again whenever they have changed.

        It ends if the router stops, and raises an `RpcError` if the router is unreachable.
        `min_interval_ms` is the shortest interval between two answers, 100 by default. A slow
        reader skips to the latest loads.
        """
        request = pb.WatchRouterLoadsRequest(model=self._link.model, tenant=self._link.tenant)
        if min_interval_ms is not None:
            lowest, highest = LOADS_INTERVAL_MS_MIN, LOADS_INTERVAL_MS_MAX
            interval = read_int("min_interval_ms", min_interval_ms, lowest, highest)
            request.min_interval_ms = interval
        return self._watch(request)

    async def _watch(
        self, request: pb.WatchRouterLoadsRequest
    ) -> AsyncGenerator[RouterLoads, None]:
        path, answer = _rpc.ROUTER + "WatchLoads", pb.GetLoadsResponse
        answers = _aio.stream(self._link.open(), path, request, answer)
        try:
            async for loads in answers:
                yield _read_route.loads(loads)
        finally:
            await answers.aclose()

    async def busy_thresholds(self) -> BusyThresholds:
        """Returns the busy thresholds. They apply to all models."""
        request, answer = pb.GetBusyThresholdsRequest(), pb.GetBusyThresholdsResponse
        got = await self._link.call("GetBusyThresholds", request, answer)
        return _read_route.thresholds(got.thresholds)

    async def set_busy_thresholds(self, thresholds: BusyThresholds) -> BusyThresholds:
        """Replaces the busy thresholds of all models, until the router restarts.

        Returns the new ones. To change only one, use `dataclasses.replace`.
        """
        message = pb.BusyThresholds()
        for name in ("active_decode_blocks", "active_prefill_tokens_fraction"):
            value = getattr(thresholds, name)
            if value is not None:
                setattr(message, name, read_number(name, value, 0))
        tokens = thresholds.active_prefill_tokens
        if tokens is not None:
            message.active_prefill_tokens = read_int("active_prefill_tokens", tokens, 1, _U64)
        request = pb.SetBusyThresholdsRequest(thresholds=message)
        answer = pb.SetBusyThresholdsResponse
        got = await self._link.call("SetBusyThresholds", request, answer)
        return _read_route.thresholds(got.thresholds)


def _may_count(error: BaseException) -> bool:
    """Whether a request may count as load although its call failed with this error."""
    if isinstance(error, RpcError):
        is_refusal = isinstance(error, (NotFoundError, RefusedError))
        return not is_refusal and error.code is not grpc.StatusCode.RESOURCE_EXHAUSTED
    return isinstance(error, asyncio.CancelledError)
