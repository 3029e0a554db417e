"""The router's client against a real router, which asks a real index."""

import asyncio
import functools
import operator
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import grpc
import pytest
from conftest import WAIT_SECONDS, Publishers, Routers, Server, is_ready, wait_until
from test_publisher import NAMES, TOKENS

from kvasir import (
    BlocksByTier,
    BusyThresholds,
    DecisionReason,
    Indexer,
    IndexOutcome,
    IndexTrust,
    ModelType,
    NotFoundError,
    PrefillOutcome,
    RefusedError,
    RoutedClient,
    Router,
    RouterLoads,
    RouterMode,
    UnavailableError,
    WorkerRole,
    WorkerState,
    _rpc,
    local_hashes,
)
from kvasir._gen import indexer_pb2

STEP_TOKENS = 16


def register(server: Server, worker_id: str, role: str, zone: str, *model_types: str) -> None:
    """Registers a worker with what routers want to know of it."""
    profile = indexer_pb2.WorkerProfile(
        role=f"WORKER_ROLE_{role}",
        total_kv_blocks=100,
        max_num_batched_tokens=STEP_TOKENS,
        labels=[indexer_pb2.Label(key="zone", value=zone)],
        model_types=[f"MODEL_TYPE_{kind}" for kind in model_types],
    )
    request = indexer_pb2.RegisterWorkerRequest(
        worker_id=worker_id, model="model", block_size=4, profile=profile
    )
    with grpc.insecure_channel(server.target) as channel:
        path = _rpc.INDEXER + "RegisterWorker"
        _rpc.call(channel, path, request, indexer_pb2.RegisterWorkerResponse, WAIT_SECONDS)


def publish(publishers: Publishers) -> None:
    """Registers worker-0, which holds the prompt, and worker-1, which holds half of it."""
    for worker_id, blocks in (("worker-0", 4), ("worker-1", 2)):
        publisher = publishers(worker_id)
        publisher.publish_stored(TOKENS[: 4 * blocks], NAMES[:blocks])
        publisher.flush(WAIT_SECONDS)


def by_worker(loads: RouterLoads) -> dict[str, tuple[int, int, int]]:
    """Requests, those without a first token, and the tokens to compute."""
    return {
        rank.worker_id: (
            rank.routed.requests,
            rank.routed.prefilling_requests,
            rank.routed.prefill_tokens,
        )
        for rank in loads.ranks
    }


async def connected(router: Router) -> None:
    """Waits until a router that was restarted is reached."""
    while True:
        try:
            await router.busy_thresholds()
        except UnavailableError:
            await asyncio.sleep(0.02)
        else:
            return


async def test_a_prompt_goes_where_it_is_cached(publishers: Publishers, routers: Routers) -> None:
    publish(publishers)
    prompt = [*TOKENS, 1, 2]
    async with Router(routers().target, "model", block_size=4) as router:
        assert by_worker(await router.loads()) == {"worker-0": (0, 0, 0), "worker-1": (0, 0, 0)}
        async with await router.select(tokens=prompt, explain=True) as reservation:
            assert (reservation.worker_id, reservation.dp_rank) == ("worker-0", 0)
            decision = reservation.response
            assert (decision.mode, decision.index) == (RouterMode.KV, IndexOutcome.ANSWERED)
            assert decision.reason is DecisionReason.LOWEST_SCORE
            assert (decision.query_blocks, decision.eligible_ranks) == (4, 2)
            assert (decision.cost.credited_blocks, decision.cost.new_prefill_tokens) == (4, 2)
            assert not decision.queued
            ranks = {rank.worker_id: rank for rank in decision.explanations}
            assert ranks["worker-0"].overlap == BlocksByTier(4, 0, 0)
            assert ranks["worker-1"].overlap == BlocksByTier(2, 0, 0)
            assert {rank.trust for rank in ranks.values()} == {IndexTrust.FULL}
            assert ranks["worker-0"].cost == decision.cost
            assert by_worker(await router.loads())["worker-0"] == (1, 1, 2)
            assert await reservation.first_token()
            assert by_worker(await router.loads())["worker-0"] == (1, 0, 0)
            assert await reservation.output_tokens(20)
            assert await reservation.free(failed=False, cached_tokens=16) == 16
            assert not await reservation.first_token()
        async with await router.select(
            local_hashes=local_hashes(prompt, 4), input_tokens=18
        ) as reservation:
            assert reservation.worker_id == "worker-0"
            assert by_worker(await router.loads())["worker-0"] == (1, 1, 2)
        look = await router.select(tokens=prompt, dry_run=True)
        assert (look.worker_id, look.request_id) == ("worker-0", "")
        assert by_worker(await router.loads())["worker-0"] == (0, 0, 0)


async def test_hints_decide(server: Server, routers: Routers) -> None:
    register(server, "worker-0", "DECODE", "a")
    register(server, "worker-1", "BOTH", "b", "CHAT")
    register(server, "worker-2", "BOTH", "b", "CHAT", "COMPLETIONS")
    register(server, "worker-3", "PREFILL", "b")
    async with Router(routers().target, "model") as router:

        async def chosen(**hints: Any) -> set[str]:
            workers = set()
            for _ in range(12):
                async with await router.select(tokens=TOKENS, **hints) as reservation:
                    workers.add(reservation.worker_id)
            return workers

        # Workers that only prefill are left out unless the request is for them.
        workers = {"worker-0", "worker-1", "worker-2"}
        assert await chosen(mode=RouterMode.ROUND_ROBIN) == workers
        assert await chosen(mode=RouterMode.RANDOM) <= workers
        assert await chosen(mode=RouterMode.LEAST_LOADED) <= workers
        assert await chosen(mode=RouterMode.DIRECT, worker_id="worker-1") == {"worker-1"}
        assert await chosen(worker_id="worker-2", dp_rank=0) == {"worker-2"}
        assert await chosen(allowed=["worker-1"]) == {"worker-1"}
        assert await chosen(excluded=["worker-0", "worker-1"]) == {"worker-2"}
        assert await chosen(required_labels={"zone": "a"}) == {"worker-0"}
        assert await chosen(roles=[WorkerRole.DECODE]) == {"worker-0"}
        assert await chosen(roles=[WorkerRole.PREFILL]) == {"worker-3"}
        # A worker that states no kind of requests serves all.
        completions = await chosen(mode=RouterMode.ROUND_ROBIN, model_type=ModelType.COMPLETIONS)
        assert completions == {"worker-0", "worker-2"}
        chat = await chosen(mode=RouterMode.ROUND_ROBIN, model_type=ModelType.CHAT)
        assert chat == workers
        assert len(await chosen(session_id="session", temperature=0.0)) == 1
        preferred = {("zone", "a"): 8.0, ("zone", "b"): -8.0}
        assert await chosen(preferred_labels=preferred) == {"worker-0"}
        loads = by_worker(await router.loads())
        assert set(loads.values()) == {(0, 0, 0)}


async def test_a_prompt_is_computed_by_a_prefill_worker(server: Server, routers: Routers) -> None:
    register(server, "worker-0", "DECODE", "a")
    register(server, "worker-1", "PREFILL", "a")
    flags = [
        "--remote-prefill-tokens-min",
        str(len(TOKENS)),
        "--worker-health",
        "ejection-failures=1",
    ]
    async with Router(routers(*flags).target, "model") as router:
        async with await router.select(tokens=TOKENS, disaggregate=True) as reservation:
            decision = reservation.response
            assert reservation.worker_id == "worker-0"
            assert decision.prefill is not None
            assert (decision.prefill.worker_id, decision.prefill.dp_rank) == ("worker-1", 0)
            assert decision.prefill.reason is DecisionReason.ONLY_ONE
            assert decision.prefill.index is IndexOutcome.ANSWERED
            assert decision.prefill.cost.new_prefill_tokens == len(TOKENS)
            assert decision.prefill_outcome is PrefillOutcome.CHOSEN
            loads = by_worker(await router.loads())
            assert (loads["worker-0"][0], loads["worker-1"][0]) == (1, 1)
            assert await reservation.first_token()
            loads = by_worker(await router.loads())
            assert (loads["worker-0"][0], loads["worker-1"][0]) == (1, 0)
        # A request does without if it does not ask, or if so little is left to compute.
        async with await router.select(tokens=TOKENS) as reservation:
            assert reservation.response.prefill is None
            assert reservation.response.prefill_outcome is PrefillOutcome.UNSPECIFIED
        async with await router.select(tokens=TOKENS[:-1], disaggregate=True) as reservation:
            assert reservation.response.prefill is None
            assert reservation.response.prefill_outcome is PrefillOutcome.MOSTLY_CACHED
        excluded = ["worker-1"]
        async with await router.select(
            tokens=TOKENS, disaggregate=True, excluded=excluded
        ) as reservation:
            assert reservation.response.prefill_outcome is PrefillOutcome.NO_WORKER
        assert set(by_worker(await router.loads()).values()) == {(0, 0, 0)}


async def test_a_prefill_worker_that_failed_is_avoided(server: Server, routers: Routers) -> None:
    register(server, "worker-0", "DECODE", "a")
    register(server, "worker-1", "PREFILL", "a")
    register(server, "worker-2", "PREFILL", "a")
    flags = [
        "--remote-prefill-tokens-min",
        str(len(TOKENS)),
        "--worker-health",
        "ejection-failures=1",
    ]
    async with Router(routers(*flags).target, "model") as router:

        async def chosen(*, prefill_failed: bool) -> str:
            async with await router.select(tokens=TOKENS, disaggregate=True) as reservation:
                prefill = reservation.response.prefill
                assert (reservation.worker_id, prefill is None) == ("worker-0", False)
                assert prefill is not None
                await reservation.free(prefill_failed=prefill_failed)
                return prefill.worker_id

        failed = await chosen(prefill_failed=True)
        others = {await chosen(prefill_failed=False) for _ in range(6)}
        assert others == {"worker-1", "worker-2"} - {failed}
        assert set(by_worker(await router.loads()).values()) == {(0, 0, 0)}


async def test_refusals(publishers: Publishers, routers: Routers) -> None:
    publish(publishers)
    target = routers().target
    async with Router(target, "other") as other, Router(target, "model", tenant="other") as tenant:
        for stranger in (other, tenant):
            with pytest.raises(NotFoundError, match="no worker of"):
                await stranger.select(tokens=TOKENS)
    async with Router(target, "model", block_size=8) as mismatched:
        with pytest.raises(RefusedError, match="block_size is 8, must be 4"):
            await mismatched.select(tokens=TOKENS)
    async with Router(target, "model") as router:
        with pytest.raises(RefusedError):
            await router.select(tokens=TOKENS, excluded=["worker-0", "worker-1"])
        with pytest.raises(NotFoundError):
            await router.select(tokens=TOKENS, mode=RouterMode.DIRECT, worker_id="worker-9")
        async with await router.select(tokens=TOKENS, request_id="mine"):
            with pytest.raises(RefusedError):
                await router.select(tokens=TOKENS, request_id="mine")
            assert by_worker(await router.loads())["worker-0"][0] == 1


async def test_busy_workers_get_no_request(publishers: Publishers, routers: Routers) -> None:
    publish(publishers)
    async with Router(routers().target, "model") as router:
        assert await router.busy_thresholds() == BusyThresholds()
        thresholds = BusyThresholds(active_prefill_tokens=1)
        assert await router.set_busy_thresholds(thresholds) == thresholds
        assert await router.busy_thresholds() == thresholds
        prompt = list(range(1_000, 1_064))
        async with await router.select(tokens=prompt), await router.select(tokens=prompt):
            with pytest.raises(UnavailableError) as error:
                await router.select(tokens=prompt)
            assert error.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await router.set_busy_thresholds(BusyThresholds()) == BusyThresholds()


async def test_a_cancelled_request_leaves_queue_and_worker(
    server: Server, routers: Routers
) -> None:
    register(server, "worker-0", "BOTH", "a")
    async with Router(routers("--queue", "threshold=1").target, "model") as router:
        prompt = list(range(4 * STEP_TOKENS))

        async def hang() -> None:
            async with await router.select(tokens=prompt):
                await asyncio.Event().wait()

        watched = router.watch_loads(min_interval_ms=10)

        async def until(requests: int, queued: int) -> None:
            async for loads in watched:
                if (by_worker(loads)["worker-0"][0], loads.queued_requests) == (requests, queued):
                    return

        first = asyncio.create_task(hang())
        await until(1, 0)
        second = asyncio.create_task(hang())
        await until(1, 1)
        second.cancel()
        await until(1, 0)
        first.cancel()
        await until(0, 0)
        await watched.aclose()
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        # A request that waits longer than it may is refused.
        async with await router.select(tokens=prompt):
            with pytest.raises(UnavailableError):
                await router.select(tokens=prompt, queue_timeout=0.01)


async def test_a_failed_worker_is_replaced(publishers: Publishers, routers: Routers) -> None:
    publish(publishers)

    async def send(
        worker_id: str, dp_rank: int, tokens: Sequence[int]
    ) -> AsyncGenerator[str, None]:
        if worker_id == "worker-0":
            raise ConnectionRefusedError(worker_id)
        for _ in range(100):
            yield worker_id

    async with Router(routers().target, "model") as router:
        client = RoutedClient(router, send)
        # The prompt is cached at the worker that fails.
        assert {item async for item in client.generate(TOKENS)} == {"worker-1"}
        assert {item async for item in client.direct(TOKENS, "worker-1", 0)} == {"worker-1"}
        with pytest.raises(ConnectionRefusedError):
            await client.direct(TOKENS, "worker-0").__anext__()
        for _ in range(3):
            assert len([item async for item in client.round_robin(TOKENS)]) == 100
        output = client.random(TOKENS)
        assert await output.__anext__() == "worker-1"
        assert by_worker(await router.loads())["worker-1"][0] == 1
        await output.aclose()
        loads = by_worker(await router.loads())
        assert set(loads.values()) == {(0, 0, 0)}


async def test_a_router_that_is_killed_fails_no_request(
    publishers: Publishers, routers: Routers
) -> None:
    publish(publishers)
    process = routers()
    async with Router(process.target, "model", timeout=2.0) as router:
        async with await router.select(tokens=TOKENS) as reservation:
            process.kill()
            assert not await reservation.first_token()
            with pytest.raises(UnavailableError):
                await router.select(tokens=TOKENS)
            process.start()
            wait_until("readiness", lambda: is_ready(process), bool)
            await connected(router)
            # The router no longer knows the request, which goes on.
            assert not await reservation.output_tokens(1)
            async with await router.select(tokens=TOKENS) as other:
                assert other.worker_id == "worker-0"
            assert await reservation.free() is None
        assert by_worker(await router.loads())["worker-0"] == (0, 0, 0)


async def test_cached_tokens_that_differ_from_the_index_cost_a_worker_its_exactness(
    indexer: Indexer, publishers: Publishers, routers: Routers
) -> None:
    publisher = publishers()
    publisher.publish_stored(TOKENS[:8], NAMES[:2])
    publisher.flush(WAIT_SECONDS)
    prompt = TOKENS[:11]

    def trust() -> tuple[WorkerState, bool]:
        [match] = indexer.find_matches("model", token_ids=prompt, block_size=4).matches
        assert match.reusable_tokens == 8
        return match.state, match.may_be_high

    async with Router(routers().target, "model") as router:
        # More requests than count, because a report that is late is dropped.
        for cached_tokens, requests, expected in [
            (0, 32, (WorkerState.PARTIAL, True)),
            (8, 128, (WorkerState.EXACT, False)),
        ]:
            for _ in range(requests):
                reservation = await router.select(tokens=prompt)
                await reservation.free(cached_tokens=cached_tokens)
            # The router reports in the background.
            wait_until("the reports", trust, functools.partial(operator.eq, expected))
