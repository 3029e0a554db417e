"""The client that sends prompts where the router says, against a router in this process."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Optional

import pytest
from fake_router import TOKENS, FakeRouter, client

from kvasir import InvalidArgumentError, NotFoundError, RefusedError, RoutedClient, Router
from kvasir._gen import router_pb2 as pb
from kvasir.limits import REPORT_ITEMS


class Workers:
    """Workers that answer with their name and numbers, and fail as they are told."""

    def __init__(self, items: int = 3) -> None:
        self.items = items
        self.failures: dict[str, int] = {}
        """Workers that fail, and the items that they yield before."""
        self.sent: list[tuple[str, int]] = []
        self.closed = 0
        self.stalls_at: Optional[int] = None
        self.stalled = asyncio.Event()

    async def send(
        self, worker_id: str, dp_rank: int, tokens: Sequence[int]
    ) -> AsyncGenerator[str, None]:
        assert tokens == TOKENS
        self.sent.append((worker_id, dp_rank))
        try:
            for item in range(self.items):
                if self.failures.get(worker_id) == item:
                    raise ConnectionResetError(worker_id)
                if self.stalls_at == item:
                    self.stalled.set()
                    await asyncio.Event().wait()
                yield f"{worker_id} {item}"
        finally:
            self.closed += 1


class Routed:
    """A router, its client and workers."""

    def __init__(self, items: int = 3, **options: Any) -> None:
        self.fake = FakeRouter()
        self.router = client(self.fake)
        self.workers = Workers(items)
        self.client = RoutedClient(self.router, self.workers.send, **options)

    async def __aenter__(self) -> "Routed":
        await self.fake.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.router.close()
        await self.fake.__aexit__(*error)
        # No request to a worker is left open.
        assert self.workers.closed == len(self.workers.sent)

    @property
    def modes(self) -> list[str]:
        return [pb.RouterMode.Name(request.mode) for request in self.fake.requests]

    @property
    def failed(self) -> list[Optional[bool]]:
        frees = self.fake.frees
        return [free.failed if free.HasField("failed") else None for free in frees]


async def collect(items: AsyncGenerator[str, None]) -> list[str]:
    return [item async for item in items]


async def test_each_call_has_its_mode() -> None:
    async with Routed() as routed:
        client = routed.client
        calls = [
            client.generate(TOKENS),
            client.random(TOKENS),
            client.round_robin(TOKENS),
            client.direct(TOKENS, "worker-0", 1),
            client.direct(TOKENS, "worker-1"),
            client.generate(TOKENS, session_id="session", allowed=["worker-1"]),
        ]
        for number, call in enumerate(calls):
            items = await collect(call)
            worker_id, _ = routed.workers.sent[number]
            assert items == [f"{worker_id} {item}" for item in range(3)]
        assert routed.modes == [
            "ROUTER_MODE_UNSPECIFIED",
            "ROUTER_MODE_RANDOM",
            "ROUTER_MODE_ROUND_ROBIN",
            "ROUTER_MODE_DIRECT",
            "ROUTER_MODE_DIRECT",
            "ROUTER_MODE_UNSPECIFIED",
        ]
        assert routed.workers.sent[3:] == [("worker-0", 1), ("worker-1", 0), ("worker-1", 0)]
        assert routed.fake.requests[5].session_id == "session"
        assert routed.failed == [False] * 6


async def test_progress_is_reported() -> None:
    async with Routed(items=3 * REPORT_ITEMS + 1) as routed:
        async for _ in routed.client.generate(TOKENS):
            # Reports wait for none but the report before.
            await routed.router._link.tasks.join()
            assert len(routed.fake.prefilled) == 1
        assert routed.fake.outputs == [REPORT_ITEMS, 2 * REPORT_ITEMS, 3 * REPORT_ITEMS]


async def test_reports_never_hold_up_the_output() -> None:
    async with Routed(items=5 * REPORT_ITEMS) as routed:
        # The router leaves the report of the first token unanswered.
        routed.fake.reports.clear()
        assert len(await collect(routed.client.generate(TOKENS))) == 5 * REPORT_ITEMS
        assert routed.fake.outputs == []
        assert routed.fake.active == {}
        routed.fake.reports.set()


async def test_a_failed_worker_is_excluded() -> None:
    async with Routed() as routed:
        routed.workers.failures = {"worker-0": 0}
        # Workers take turns, so both are the first one of a call at some time.
        for _ in range(4):
            assert (await collect(routed.client.generate(TOKENS)))[0] == "worker-1 0"
        assert "worker-0" in [worker_id for worker_id, _ in routed.workers.sent]
        retried = [bool(request.excluded_worker_ids) for request in routed.fake.requests]
        assert [failed for failed in routed.failed if failed] == [True] * sum(retried)
        for request in routed.fake.requests:
            assert list(request.excluded_worker_ids) in ([], ["worker-0"])


async def test_the_last_failure_is_raised() -> None:
    async with Routed() as routed:
        routed.workers.failures = {"worker-0": 0, "worker-1": 0}
        with pytest.raises(ConnectionResetError) as error:
            await collect(routed.client.round_robin(TOKENS))
        first, second = routed.workers.sent
        assert {first[0], second[0]} == {"worker-0", "worker-1"}
        assert str(error.value) == second[0]
        assert routed.failed == [True, True]
        assert routed.modes == ["ROUTER_MODE_ROUND_ROBIN"] * 2


async def test_attempts_are_limited_by_the_argument_and_the_workers() -> None:
    async with Routed(attempts=1) as routed:
        routed.workers.failures = {"worker-0": 0, "worker-1": 0}
        with pytest.raises(ConnectionResetError):
            await collect(routed.client.generate(TOKENS))
        assert routed.failed == [True]
    async with Routed(attempts=9) as routed:
        routed.workers.failures = {"worker-0": 0, "worker-1": 0}
        with pytest.raises(ConnectionResetError) as error:
            await collect(routed.client.generate(TOKENS))
        # The router has no third worker. That is not what the caller wants to know.
        assert str(error.value) == routed.workers.sent[1][0]
        assert error.value.__cause__ is None
        assert len(routed.fake.requests) == 3
        assert routed.failed == [True, True]
    with pytest.raises(InvalidArgumentError, match="attempts"):
        Routed(attempts=0)


async def test_callers_may_exclude_workers_themselves() -> None:
    async with Routed() as routed:
        routed.workers.failures = {"worker-0": 0}
        with pytest.raises(ConnectionResetError):
            await collect(routed.client.generate(TOKENS, excluded=["worker-1"]))
        excluded = [list(request.excluded_worker_ids) for request in routed.fake.requests]
        assert excluded == [["worker-1"], ["worker-1", "worker-0"]]
        with pytest.raises(RefusedError):
            await collect(routed.client.generate(TOKENS, excluded=["worker-0", "worker-1"]))


async def test_a_prefill_worker_is_not_for_this_client() -> None:
    async with Routed() as routed:
        with pytest.raises(InvalidArgumentError, match="disaggregate"):
            routed.client.generate(TOKENS, disaggregate=True)
        await collect(routed.client.generate(TOKENS, disaggregate=False))


async def test_a_named_worker_is_tried_once() -> None:
    async with Routed() as routed:
        routed.workers.failures = {"worker-0": 0}
        with pytest.raises(ConnectionResetError):
            await collect(routed.client.direct(TOKENS, "worker-0"))
        with pytest.raises(ConnectionResetError):
            await collect(routed.client.generate(TOKENS, worker_id="worker-0"))
        assert len(routed.fake.requests) == 2
        with pytest.raises(RefusedError):
            await collect(routed.client.direct(TOKENS, "worker-9"))


async def test_a_failure_after_the_first_item_is_raised() -> None:
    async with Routed() as routed:
        routed.workers.failures = {"worker-0": 1, "worker-1": 1}
        output = routed.client.generate(TOKENS)
        assert await output.__anext__() == f"{routed.workers.sent[0][0]} 0"
        with pytest.raises(ConnectionResetError):
            await output.__anext__()
        assert len(routed.workers.sent) == 1
        assert routed.failed == [True]


async def test_an_empty_output_is_no_failure() -> None:
    async with Routed(items=0) as routed:
        assert await collect(routed.client.generate(TOKENS)) == []
        assert routed.failed == [False]
        assert routed.fake.prefilled == []


async def test_a_caller_that_leaves_frees_the_worker() -> None:
    async with Routed() as routed:
        output = routed.client.generate(TOKENS)
        await output.__anext__()
        await output.aclose()
        assert routed.fake.active == {}
        assert routed.workers.closed == 1
        assert routed.failed == [None]


@pytest.mark.parametrize("stalls_at", [0, 1])
async def test_a_cancelled_caller_frees_the_worker(stalls_at: int) -> None:
    async with Routed() as routed:
        routed.workers.stalls_at = stalls_at
        task = asyncio.create_task(collect(routed.client.generate(TOKENS)))
        await routed.workers.stalled.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert routed.fake.active == {}
        assert len(routed.workers.sent) == 1
        assert routed.failed == [None]


async def test_a_send_that_raises_at_once_is_a_failure() -> None:
    async with Routed() as routed:

        def refuse(worker_id: str, dp_rank: int, tokens: Sequence[int]) -> Any:
            raise ConnectionRefusedError(worker_id)

        client = RoutedClient(routed.router, refuse)
        with pytest.raises(ConnectionRefusedError):
            await collect(client.generate(TOKENS))
        assert routed.failed == [True, True]


async def test_the_routers_refusal_is_raised() -> None:
    async with Routed() as routed:
        other = Router(routed.fake.target, "other")
        with pytest.raises(NotFoundError):
            await collect(RoutedClient(other, routed.workers.send).random(TOKENS))
        await other.close()
