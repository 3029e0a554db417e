"""A router in this process that holds its clients to the contract."""

import asyncio
from types import TracebackType
from typing import Any, Callable, Optional

import grpc
import grpc.aio

from kvasir import Router
from kvasir._gen import router_pb2 as pb

MODEL = "model"
TENANT = "tenant"
TOKENS = [7, 1 << 31, 0, 5]
EXPECTED_CACHED_TOKENS = 48
PREFILL_WORKER = "prefill-0"
WORKERS = [("worker-0", 0), ("worker-0", 1), ("worker-1", 0)]

Context = Any


class FakeRouter:
    """Serves one model and tenant. Workers take turns.

    When it stops, it fails on what no correct client does: two requests with one id, a request that
    is freed twice or never, a report about a request that never was.
    """

    def __init__(self) -> None:
        self.requests: list[pb.SelectWorkerRequest] = []
        self.active: dict[str, tuple[str, int]] = {}
        self.prefilled: list[str] = []
        self.outputs: list[int] = []
        self.frees: list[pb.FreeRequest] = []
        self.late: list[str] = []
        """Reports about requests that have ended."""
        self.error: Optional[tuple[grpc.StatusCode, str]] = None
        """What the next call is refused with."""
        self.thresholds = pb.BusyThresholds(active_decode_blocks=0.5)
        self.loads: asyncio.Queue[Optional[pb.GetLoadsResponse]] = asyncio.Queue()
        self.watchers = 0
        # While one of these is not set, calls of that kind wait: for a worker, with an answer
        # although the request is counted, with reports, with the answer to an end.
        self.has_room = _event()
        self.answers = _event()
        self.reports = _event()
        self.confirms = _event()
        self._changed = asyncio.Condition()
        self._ended: set[str] = set()
        self._problems: list[str] = []
        self._turn = 0
        self._server = grpc.aio.server()
        handlers = grpc.method_handlers_generic_handler("kvasir.v1.Router", self._handlers())
        self._server.add_generic_rpc_handlers([handlers])
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    async def __aenter__(self) -> "FakeRouter":
        await self._server.start()
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.stop()
        if error is None:
            assert self._problems == []
            assert self.active == {}, "never freed"

    async def stop(self) -> None:
        await self._server.stop(None)

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Waits until something holds."""
        async with self._changed:
            await self._changed.wait_for(is_true)

    def forget(self) -> None:
        """Ends all requests, as when leases end."""
        self._ended.update(self.active)
        self.active.clear()

    def _handlers(self) -> dict[str, Any]:
        calls: dict[str, Callable[..., Any]] = {
            "SelectWorker": self._select,
            "MarkPrefillCompleted": self._first_token,
            "ReportOutput": self._output,
            "Free": self._free,
            "GetLoads": self._get_loads,
            "GetBusyThresholds": self._get_thresholds,
            "SetBusyThresholds": self._set_thresholds,
        }
        handlers = {name: self._handler(name, call) for name, call in calls.items()}
        handlers["WatchLoads"] = grpc.unary_stream_rpc_method_handler(
            self._watch,
            request_deserializer=pb.WatchRouterLoadsRequest.FromString,
            response_serializer=pb.GetLoadsResponse.SerializeToString,
        )
        return handlers

    def _handler(self, name: str, call: Callable[..., Any]) -> Any:
        async def handle(request: Any, context: Context) -> Any:
            if self.error is not None:
                (code, details), self.error = self.error, None
                await context.abort(code, details)
            try:
                return await call(request, context)
            finally:
                async with self._changed:
                    self._changed.notify_all()

        return grpc.unary_unary_rpc_method_handler(
            handle,
            request_deserializer=getattr(pb, f"{name}Request").FromString,
            response_serializer=getattr(pb, f"{name}Response").SerializeToString,
        )

    async def _select(self, request: pb.SelectWorkerRequest, context: Context) -> Any:
        self.requests.append(request)
        async with self._changed:
            self._changed.notify_all()
        narrow = [request.token_ids, request.token_ids_le]
        prompts = [*narrow, request.wide_token_ids, request.local_hashes]
        if sum(map(bool, prompts)) != 1 or len(request.token_ids_le) % 4 != 0:
            self._problems.append("one prompt is required")
        if (request.model, request.tenant) != (MODEL, TENANT):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no worker of that model")
        await self.has_room.wait()
        if request.request_id in self.active:
            self._problems.append(f"{request.request_id} is not unique")
        eligible = [rank for rank in WORKERS if _is_eligible(rank, request)]
        if not eligible:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no worker may have it")
        self._turn += 1
        worker_id, dp_rank = eligible[self._turn % len(eligible)]
        answer = pb.SelectWorkerResponse(worker_id=worker_id, dp_rank=dp_rank, mode=request.mode)
        if not request.dry_run:
            answer.request_id = request.request_id or f"made-{self._turn}"
            self.active[answer.request_id] = worker_id, dp_rank
        if request.disaggregate:
            answer.prefill.worker_id = PREFILL_WORKER
            answer.prefill_outcome = pb.PREFILL_OUTCOME_CHOSEN
        await self.answers.wait()
        return answer

    async def _find(self, request_id: str, context: Context) -> None:
        if request_id not in self.active:
            if request_id in self._ended:
                self.late.append(request_id)
            elif not self._was_asked(request_id):
                self._problems.append(f"{request_id} never was")
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such request is under way")

    def _was_asked(self, request_id: str) -> bool:
        return any(request.request_id == request_id != "" for request in self.requests)

    async def _first_token(
        self, request: pb.MarkPrefillCompletedRequest, context: Context
    ) -> pb.MarkPrefillCompletedResponse:
        await self._find(request.request_id, context)
        await self.reports.wait()
        if request.request_id in self.prefilled:
            self._problems.append(f"{request.request_id} has two first tokens")
        self.prefilled.append(request.request_id)
        return pb.MarkPrefillCompletedResponse()

    async def _output(
        self, request: pb.ReportOutputRequest, context: Context
    ) -> pb.ReportOutputResponse:
        await self._find(request.request_id, context)
        self.outputs.append(request.output_tokens)
        return pb.ReportOutputResponse()

    async def _free(self, request: pb.FreeRequest, context: Context) -> pb.FreeResponse:
        if any(free.request_id == request.request_id for free in self.frees):
            self._problems.append(f"{request.request_id} is freed twice")
        self.frees.append(request)
        async with self._changed:
            self._changed.notify_all()
        await self._find(request.request_id, context)
        del self.active[request.request_id]
        self._ended.add(request.request_id)
        await self.confirms.wait()
        return pb.FreeResponse(expected_cached_tokens=EXPECTED_CACHED_TOKENS)

    async def _get_loads(self, request: pb.GetLoadsRequest, context: Context) -> Any:
        assert (request.model, request.tenant) == (MODEL, TENANT)
        return await self.loads.get()

    async def _watch(self, request: pb.WatchRouterLoadsRequest, context: Context) -> Any:
        assert (request.model, request.tenant) == (MODEL, TENANT)
        assert request.min_interval_ms in (0, 20)
        self.watchers += 1
        try:
            while True:
                loads = await self.loads.get()
                if loads is None:
                    return
                yield loads
        finally:
            self.watchers -= 1
            async with self._changed:
                self._changed.notify_all()

    async def _get_thresholds(
        self, request: pb.GetBusyThresholdsRequest, context: Context
    ) -> pb.GetBusyThresholdsResponse:
        return pb.GetBusyThresholdsResponse(thresholds=self.thresholds)

    async def _set_thresholds(
        self, request: pb.SetBusyThresholdsRequest, context: Context
    ) -> pb.SetBusyThresholdsResponse:
        assert request.HasField("thresholds")
        self.thresholds = request.thresholds
        return pb.SetBusyThresholdsResponse(thresholds=self.thresholds)


def client(fake: FakeRouter, **options: Any) -> Router:
    return Router(fake.target, MODEL, tenant=TENANT, **options)


def _event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def _is_eligible(rank: tuple[str, int], request: pb.SelectWorkerRequest) -> bool:
    if request.HasField("pinned"):
        pinned = request.pinned
        is_rank = not pinned.HasField("dp_rank") or pinned.dp_rank == rank[1]
        if pinned.worker_id != rank[0] or not is_rank:
            return False
    if request.allowed_worker_ids and rank[0] not in request.allowed_worker_ids:
        return False
    return rank[0] not in request.excluded_worker_ids
