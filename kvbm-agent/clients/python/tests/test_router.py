"""The router's client against a router in this process."""

import asyncio
import dataclasses
import logging
from typing import Any

import grpc
import pytest
from fake_router import EXPECTED_CACHED_TOKENS, MODEL, TENANT, FakeRouter

from kvasir import (
    BlocksByTier,
    BusyThresholds,
    ClosedError,
    DeadlineError,
    Decision,
    DecisionReason,
    IndexOutcome,
    IndexTrust,
    InvalidArgumentError,
    MultimodalItem,
    NotFoundError,
    RankExplanation,
    RankLoad,
    RefusedError,
    RemovedRanks,
    RouteCost,
    RouteOverhead,
    Router,
    RouterLoads,
    RouterMode,
    RouterRankLoad,
    RpcError,
    SelectHints,
    UnavailableError,
    WorkerLoad,
    WorkerRole,
    _read_route,
    local_hashes,
)
from kvasir._gen import indexer_pb2, loads_pb2, types_pb2
from kvasir._gen import router_pb2 as pb

TOKENS = [7, 1 << 31, 0, 5]


def client(fake: FakeRouter, **options: Any) -> Router:
    return Router(fake.target, MODEL, tenant=TENANT, **options)


async def test_a_request_is_reported_from_its_start_to_its_end() -> None:
    async with FakeRouter() as fake, client(fake) as router:
        async with await router.select(tokens=TOKENS) as reservation:
            [request] = fake.requests
            assert request.token_ids_le == b"\7\0\0\0\0\0\0\x80\0\0\0\0\5\0\0\0"
            assert not request.HasField("block_size")
            assert reservation.request_id == request.request_id != ""
            place = (reservation.worker_id, reservation.dp_rank)
            assert fake.active == {reservation.request_id: place}
            assert reservation.response.worker_id == reservation.worker_id
            assert await reservation.first_token()
            assert fake.prefilled == [reservation.request_id]
            assert await reservation.output_tokens(3)
            assert fake.outputs == [3]
        assert fake.active == {}
        [free] = fake.frees
        assert (free.request_id, free.model, free.tenant) == (request.request_id, MODEL, TENANT)
        assert free.HasField("failed")
        assert not free.failed
        assert not free.HasField("cached_tokens")
        # It has ended: nothing more is reported.
        assert await reservation.free(failed=True) == EXPECTED_CACHED_TOKENS
        assert not await reservation.first_token()
        assert not await reservation.output_tokens(4)
        reservation.report_soon(5)


async def test_many_requests_have_ids_of_their_own() -> None:
    async with FakeRouter() as fake, client(fake) as router:

        async def serve() -> str:
            async with await router.select(tokens=TOKENS) as reservation:
                await reservation.first_token()
                return reservation.request_id

        ids = await asyncio.gather(*(serve() for _ in range(200)))
        assert len(set(ids)) == len(fake.frees) == 200


async def test_the_end_is_reported_once() -> None:
    async with FakeRouter() as fake, client(fake) as router:
        async with await router.select(tokens=TOKENS, request_id="mine") as reservation:
            assert reservation.request_id == "mine"
            ends = (reservation.free(cached_tokens=32, failed=False) for _ in range(3))
            assert await asyncio.gather(*ends) == [EXPECTED_CACHED_TOKENS] * 3
        [free] = fake.frees
        assert (free.request_id, free.cached_tokens) == ("mine", 32)


async def test_an_exception_tells_that_the_worker_failed() -> None:
    async with FakeRouter() as fake, client(fake) as router:
        with pytest.raises(ConnectionResetError):
            async with await router.select(tokens=TOKENS):
                raise ConnectionResetError
        # Our own errors are not the worker's.
        with pytest.raises(InvalidArgumentError, match="count"):
            async with await router.select(tokens=TOKENS) as reservation:
                await reservation.output_tokens(-1)
        first, second = fake.frees
        assert first.failed
        assert not second.HasField("failed")


async def hang(router: Router, inside: asyncio.Event) -> None:
    async with await router.select(tokens=TOKENS):
        inside.set()
        await asyncio.Event().wait()


async def test_a_cancelled_request_is_freed_at_once() -> None:
    async with FakeRouter() as fake, client(fake) as router:
        inside = asyncio.Event()
        task = asyncio.create_task(hang(router, inside))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert fake.active == {}
        [free] = fake.frees
        assert not free.HasField("failed")


@pytest.mark.parametrize("turns", range(1, 6))
async def test_an_end_is_sent_although_it_is_cancelled_again(turns: int) -> None:
    async with FakeRouter() as fake, client(fake) as router:
        fake.confirms.clear()
        inside = asyncio.Event()
        task = asyncio.create_task(hang(router, inside))
        await inside.wait()
        # The second one comes before the end is sent, or while it is.
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fake.confirms.set()
        await fake.until(lambda: fake.active == {})
        assert len(fake.frees) == 1


async def test_an_end_that_is_cancelled_is_not_swallowed() -> None:
    async with FakeRouter() as fake, client(fake) as router:
        fake.confirms.clear()

        async def serve() -> None:
            async with await router.select(tokens=TOKENS):
                pass

        task = asyncio.create_task(serve())
        await fake.until(lambda: len(fake.frees) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fake.confirms.set()


async def test_closing_waits_for_the_ends() -> None:
    async with FakeRouter() as fake:
        async with client(fake) as router:
            reservation = await router.select(tokens=TOKENS)
            end = asyncio.create_task(reservation.free())
            await asyncio.sleep(0)
            end.cancel()
        assert [free.request_id for free in fake.frees] == [reservation.request_id]
        with pytest.raises(ClosedError):
            await router.select(tokens=TOKENS)
        late = client(fake)
        reservation = await late.select(tokens=TOKENS)
        fake.forget()
        await late.close()
        # Too late, which is not the request's fault.
        assert not await reservation.first_token()
        assert await reservation.free() is None


async def test_a_cancelled_select_leaves_the_queue() -> None:
    async with FakeRouter() as fake, client(fake) as router:
        fake.has_room.clear()
        task = asyncio.create_task(router.select(tokens=TOKENS))
        await fake.until(lambda: len(fake.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fake.has_room.set()
        await fake.until(lambda: len(fake.frees) == 1)
        assert fake.active == {}


async def test_a_request_whose_answer_is_lost_is_freed() -> None:
    async with FakeRouter() as fake, client(fake, timeout=0.1) as router:
        # The request is counted, but the client does not learn it.
        fake.answers.clear()
        task = asyncio.create_task(router.select(tokens=TOKENS))
        await fake.until(lambda: len(fake.active) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fake.until(lambda: fake.active == {})
        with pytest.raises(DeadlineError):
            await router.select(tokens=TOKENS, queue_timeout=0)
        await fake.until(lambda: len(fake.frees) == 2)
        assert fake.active == {}


async def test_a_router_that_forgets_or_leaves_fails_no_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "kvasir")
    async with FakeRouter() as fake, client(fake, timeout=1.0) as router:
        async with await router.select(tokens=TOKENS) as reservation:
            fake.forget()
            assert not await reservation.first_token()
            assert not await reservation.output_tokens(1)
            assert await reservation.free(failed=True) is None
        assert caplog.text == ""
        async with await router.select(tokens=TOKENS) as reservation:
            await fake.stop()
            assert not await reservation.first_token()
        fake.forget()
        assert f"Free of request {reservation.request_id}: " in caplog.text
        with pytest.raises(UnavailableError):
            await router.select(tokens=TOKENS)


async def test_a_dry_run_is_not_counted() -> None:
    async with FakeRouter() as fake, client(fake) as router:
        async with await router.select(tokens=TOKENS, dry_run=True) as reservation:
            assert reservation.worker_id != ""
            assert reservation.request_id == ""
            assert not await reservation.first_token()
            assert not await reservation.output_tokens(1)
            reservation.report_soon(2)
        fake.answers.clear()
        task = asyncio.create_task(router.select(tokens=TOKENS, dry_run=True))
        await fake.until(lambda: len(fake.requests) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert fake.frees == []


@pytest.mark.parametrize(
    ("code", "kind", "is_freed"),
    [
        (grpc.StatusCode.NOT_FOUND, NotFoundError, False),
        (grpc.StatusCode.FAILED_PRECONDITION, RefusedError, False),
        (grpc.StatusCode.INVALID_ARGUMENT, RefusedError, False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, UnavailableError, False),
        (grpc.StatusCode.UNAVAILABLE, UnavailableError, True),
        (grpc.StatusCode.INTERNAL, RpcError, True),
    ],
)
async def test_refusals_are_errors(
    code: grpc.StatusCode, kind: type[RpcError], is_freed: bool
) -> None:
    async with FakeRouter() as fake, client(fake) as router:
        fake.error = code, "because"
        # A request that is refused was never counted. After other failures, that is not sure.
        with pytest.raises(kind, match="because") as error:
            await router.select(tokens=TOKENS, request_id="mine")
        assert error.value.code is code
        fake.requests.append(pb.SelectWorkerRequest(request_id="mine"))
        await router.close()
        assert [free.request_id for free in fake.frees] == ["mine"] * is_freed


async def test_hints_are_sent() -> None:
    hints: SelectHints = {
        "request_id": "mine",
        "lora_name": "adapter",
        "cache_salt": "salt",
        "multimodal": [MultimodalItem("image", 1, 2)],
        "mode": RouterMode.POWER_OF_TWO,
        "overlap_score_weight": 0,
        "temperature": 0.5,
        "expected_output_tokens": 100,
        "latency_sensitivity": 2.5,
        "session_id": "session",
        "worker_id": "worker-0",
        "dp_rank": 1,
        "allowed": {"worker-0"},
        "excluded": ["worker-1"],
        "roles": [WorkerRole.BOTH, WorkerRole.UNSPECIFIED],
        "required_labels": {"zone": "a"},
        "preferred_labels": {("disk", "fast"): 2.0, ("spot", "yes"): -1.0},
        "queue_timeout": 1.5,
        "explain": True,
        "dry_run": True,
    }
    assert hints.keys() == SelectHints.__annotations__.keys()
    expected = pb.SelectWorkerRequest(
        model=MODEL,
        tenant=TENANT,
        request_id="mine",
        lora_name="adapter",
        cache_salt="salt",
        block_size=16,
        token_ids_le=b"\7\0\0\0\0\0\0\x80\0\0\0\0\5\0\0\0",
        multimodal=[types_pb2.MultimodalItem(identifier="image", token_offset=1, token_count=2)],
        mode="ROUTER_MODE_POWER_OF_TWO",
        overlap_score_weight=0.0,
        temperature=0.5,
        expected_output_tokens=100,
        latency_sensitivity=2.5,
        session_id="session",
        queue_timeout_ms=1_500,
        pinned=pb.PinnedWorker(worker_id="worker-0", dp_rank=1),
        allowed_worker_ids=["worker-0"],
        excluded_worker_ids=["worker-1"],
        roles=["WORKER_ROLE_BOTH", "WORKER_ROLE_UNSPECIFIED"],
        required_labels=[indexer_pb2.Label(key="zone", value="a")],
        preferred_labels=[
            pb.PreferredLabel(key="disk", value="fast", weight=2.0),
            pb.PreferredLabel(key="spot", value="yes", weight=-1.0),
        ],
        explain=True,
        dry_run=True,
    )
    # Every field but the other forms of the prompt.
    sent = {field.name for field, _ in expected.ListFields()}
    known = {field.name for field in pb.SelectWorkerRequest.DESCRIPTOR.fields}
    assert known - sent == {"token_ids", "local_hashes", "input_tokens"}
    async with FakeRouter() as fake, client(fake, block_size=16) as router:
        await router.select(tokens=TOKENS, **hints)
        assert fake.requests.pop() == expected
        hashes = local_hashes(range(40), 16)
        async with await router.select(local_hashes=hashes, input_tokens=40):
            [request] = fake.requests
            assert (list(request.local_hashes), request.input_tokens) == (hashes, 40)
            assert not request.HasField("queue_timeout_ms")
            assert not request.HasField("pinned")
            assert not request.HasField("overlap_score_weight")
        async with await router.select(tokens=TOKENS, queue_timeout=1e9, worker_id="worker-1"):
            assert fake.requests[-1].queue_timeout_ms == 25_000
            assert not fake.requests[-1].pinned.HasField("dp_rank")


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("tokens", {}),
        ("tokens", {"tokens": []}),
        ("tokens", {"tokens": TOKENS, "local_hashes": [1]}),
        ("tokens[1]", {"tokens": [1, -1]}),
        ("tokens", {"tokens": b"1234"}),
        ("local_hashes", {"local_hashes": []}),
        ("local_hashes[0]", {"local_hashes": [1 << 64]}),
        ("input_tokens", {"tokens": TOKENS, "input_tokens": 4}),
        ("input_tokens", {"local_hashes": [1], "input_tokens": -1}),
        ("cache_salt", {"local_hashes": [1], "cache_salt": "salt"}),
        ("multimodal", {"local_hashes": [1], "multimodal": [MultimodalItem("image", 0, 1)]}),
        ("multimodal[0].token_count", {"multimodal": [MultimodalItem("image", 3, 2)]}),
        ("request_id", {"request_id": "a" * 257}),
        ("mode", {"mode": "kv"}),
        ("worker_id", {"mode": RouterMode.DIRECT}),
        ("worker_id", {"worker_id": ""}),
        ("dp_rank", {"dp_rank": 1}),
        ("dp_rank", {"worker_id": "worker-0", "dp_rank": 1_024}),
        ("allowed", {"allowed": []}),
        ("allowed", {"allowed": "worker-0"}),
        ("excluded[1]", {"excluded": ["worker-0", ""]}),
        ("roles", {"roles": ["both"]}),
        ("required_labels", {"required_labels": {"": "a"}}),
        ("preferred_labels", {"preferred_labels": {("zone", "a"): float("inf")}}),
        ("overlap_score_weight", {"overlap_score_weight": -1}),
        ("temperature", {"temperature": float("nan")}),
        ("latency_sensitivity", {"latency_sensitivity": 3_601}),
        ("expected_output_tokens", {"expected_output_tokens": 1.5}),
        ("queue_timeout", {"queue_timeout": -1}),
    ],
)
async def test_invalid_arguments_are_named(field: str, arguments: dict[str, Any]) -> None:
    async with Router("127.0.0.1:1", MODEL) as router:
        if "local_hashes" not in arguments and field != "tokens":
            arguments = {"tokens": TOKENS, **arguments}
        with pytest.raises(InvalidArgumentError) as error:
            await router.select(**arguments)
        assert error.value.field == field


async def test_other_invalid_arguments() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("target", {"target": "host"}),
        ("model", {"model": ""}),
        ("tenant", {"tenant": "a" * 257}),
        ("block_size", {"block_size": 0}),
        ("timeout", {"timeout": -1}),
    ]
    for field, arguments in cases:
        valid: dict[str, Any] = {"target": "127.0.0.1:1", "model": MODEL}
        with pytest.raises(InvalidArgumentError) as error:
            Router(**{**valid, **arguments})
        assert error.value.field == field
    async with Router("127.0.0.1:1", MODEL) as router:
        unknown: dict[str, Any] = {"weight": 1}
        with pytest.raises(TypeError, match="weight"):
            await router.select(tokens=TOKENS, **unknown)
        with pytest.raises(InvalidArgumentError, match="min_interval_ms"):
            router.watch_loads(min_interval_ms=1)
        for thresholds in [
            BusyThresholds(active_decode_blocks=-0.5),
            BusyThresholds(active_prefill_tokens=0),
            BusyThresholds(active_prefill_tokens_fraction=float("nan")),
        ]:
            with pytest.raises(InvalidArgumentError, match="active_"):
                await router.set_busy_thresholds(thresholds)


async def test_loads_are_read_and_watched() -> None:
    load = pb.RankLoad(requests=3, prefilling_requests=1, prefill_tokens=40, active_blocks=2.5)
    reported = loads_pb2.WorkerLoad(dp_rank=1, num_requests_waiting=4, age_ms=20)
    ranks = [
        pb.RouterRankLoad(
            model=MODEL,
            tenant=TENANT,
            worker_id="worker-0",
            dp_rank=1,
            routed=load,
            reported=reported,
            reported_is_stale=True,
        ),
        pb.RouterRankLoad(model=MODEL, tenant=TENANT, worker_id="worker-1"),
    ]
    answer = pb.GetLoadsResponse(ranks=ranks, queued_requests=5, queued_tokens=600)
    expected = RouterLoads(
        ranks=(
            RouterRankLoad(
                model=MODEL,
                tenant=TENANT,
                worker_id="worker-0",
                dp_rank=1,
                routed=RankLoad(3, 1, 40, 2.5),
                reported=WorkerLoad(dp_rank=1, num_requests_waiting=4, age_ms=20),
                reported_is_stale=True,
            ),
            RouterRankLoad(MODEL, TENANT, "worker-1", 0, RankLoad(0, 0, 0, 0.0), None, False),
        ),
        queued_requests=5,
        queued_tokens=600,
    )
    async with FakeRouter() as fake, client(fake) as router:
        for loads in (answer, answer, pb.GetLoadsResponse()):
            fake.loads.put_nowait(loads)
        assert await router.loads() == expected
        watched = router.watch_loads(min_interval_ms=20)
        assert await watched.__anext__() == expected
        assert await watched.__anext__() == RouterLoads((), 0, 0)
        # A reader that leaves ends the call.
        await watched.aclose()
        await fake.until(lambda: fake.watchers == 0)
        # So does a router that stops.
        fake.loads.put_nowait(answer)
        fake.loads.put_nowait(None)
        assert [loads async for loads in router.watch_loads()] == [expected]
        watched = router.watch_loads()
        fake.loads.put_nowait(answer)
        await watched.__anext__()
        await fake.stop()
        with pytest.raises(RpcError):
            await watched.__anext__()


async def test_busy_thresholds_are_replaced() -> None:
    async with FakeRouter() as fake, client(fake) as router:
        before = await router.busy_thresholds()
        assert before == BusyThresholds(active_decode_blocks=0.5)
        after = dataclasses.replace(before, active_prefill_tokens=1_000)
        assert await router.set_busy_thresholds(after) == after
        assert fake.thresholds.active_prefill_tokens == 1_000
        fraction = BusyThresholds(active_prefill_tokens_fraction=1.5)
        assert await router.set_busy_thresholds(fraction) == fraction
        assert await router.set_busy_thresholds(BusyThresholds()) == BusyThresholds()
        assert fake.thresholds == pb.BusyThresholds()


def test_decisions_are_read_completely() -> None:
    cost = pb.RouteCost(
        credited_blocks=1.5, new_prefill_tokens=2.5, prefill_blocks=3.5, decode_blocks=4.5, total=8
    )
    answer = pb.SelectWorkerResponse(
        request_id="mine",
        worker_id="worker-0",
        dp_rank=1,
        mode="ROUTER_MODE_KV",
        reason="DECISION_REASON_LOWEST_SCORE",
        cost=cost,
        query_blocks=6,
        index="INDEX_OUTCOME_PARTIAL",
        index_error="late",
        missing_shards=[2],
        distrusted_ranks=3,
        eligible_ranks=4,
        removed=[pb.RemovedRanks(reason="busy", ranks=5)],
        ejection_ignored=True,
        queued=True,
        queue_position=7,
        overhead=pb.RouteOverhead(hashing_us=1, index_us=2, queue_us=3, choosing_us=4),
        explanations=[
            pb.RankExplanation(
                worker_id="worker-1",
                dp_rank=2,
                removed="busy",
                overlap=indexer_pb2.BlocksByTier(device=1, host=2, disk=3),
                trust="INDEX_TRUST_STALE",
                shared_blocks=4,
                load=pb.RankLoad(requests=1, active_blocks=0.5),
                cost=cost,
                preference=0.5,
                slow_start=1.5,
                score=9.5,
            )
        ],
    )
    expected_cost = RouteCost(1.5, 2.5, 3.5, 4.5, 8)
    expected = Decision(
        request_id="mine",
        worker_id="worker-0",
        dp_rank=1,
        mode=RouterMode.KV,
        reason=DecisionReason.LOWEST_SCORE,
        cost=expected_cost,
        query_blocks=6,
        index=IndexOutcome.PARTIAL,
        index_error="late",
        missing_shards=(2,),
        distrusted_ranks=3,
        eligible_ranks=4,
        removed=(RemovedRanks("busy", 5),),
        ejection_ignored=True,
        queued=True,
        queue_position=7,
        overhead=RouteOverhead(1, 2, 3, 4),
        explanations=(
            RankExplanation(
                worker_id="worker-1",
                dp_rank=2,
                removed="busy",
                overlap=BlocksByTier(1, 2, 3),
                trust=IndexTrust.STALE,
                shared_blocks=4,
                load=RankLoad(1, 0, 0, 0.5),
                cost=expected_cost,
                preference=0.5,
                slow_start=1.5,
                score=9.5,
            ),
        ),
    )
    assert _read_route.decision(answer) == expected
    # A newer router may send what this package does not know.
    answer.ClearField("mode")
    newer = pb.SelectWorkerResponse.FromString(answer.SerializeToString() + b"\x20\x63\x28\x63")
    decision = _read_route.decision(newer)
    assert decision.mode is RouterMode.UNSPECIFIED
    assert decision.reason is DecisionReason.UNSPECIFIED
