"""The router's client against a router in this process."""

import asyncio
import dataclasses
import logging

import grpc
import pytest
from fake_router import (
    EXPECTED_CACHED_TOKENS,
    MODEL,
    PREFILL_WORKER,
    TENANT,
    TOKENS,
    FakeRouter,
    client,
)

from kvasir import (
    BusyThresholds,
    ClosedError,
    DeadlineError,
    InvalidArgumentError,
    NotFoundError,
    PrefillOutcome,
    RankLoad,
    RefusedError,
    Reservation,
    Router,
    RouterLoads,
    RouterRankLoad,
    RpcError,
    UnavailableError,
    WorkerLoad,
)
from kvasir._gen import loads_pb2
from kvasir._gen import router_pb2 as pb


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
        assert not free.HasField("prefill_failed")
        # It has ended: nothing more is reported.
        assert await reservation.free(failed=True) == EXPECTED_CACHED_TOKENS
        assert not await reservation.first_token()
        assert not await reservation.output_tokens(4)
        reservation.report_soon(5)
    assert fake.late == []


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


async def test_a_prefill_worker_that_failed_is_reported() -> None:
    async with FakeRouter() as fake, client(fake) as router:
        async with await router.select(tokens=TOKENS, disaggregate=True) as reservation:
            decision = reservation.response
            assert decision.prefill is not None
            assert decision.prefill.worker_id == PREFILL_WORKER
            assert decision.prefill_outcome is PrefillOutcome.CHOSEN
            await reservation.free(prefill_failed=True)
        async with await router.select(tokens=TOKENS) as reservation:
            assert reservation.response.prefill is None
            assert reservation.response.prefill_outcome is PrefillOutcome.UNSPECIFIED
            await reservation.free(failed=True, prefill_failed=False)
        first, second = fake.frees
        assert first.prefill_failed
        assert not first.HasField("failed")
        assert second.failed
        assert second.HasField("prefill_failed")
        assert not second.prefill_failed


async def test_an_exception_before_the_first_token_may_be_the_prefill_workers() -> None:
    async with FakeRouter() as fake, client(fake) as router:

        async def fail(reservation: Reservation) -> None:
            async with reservation:
                raise ConnectionResetError

        for report in (None, "first_token", "output_tokens", "report_soon"):
            reservation = await router.select(tokens=TOKENS, disaggregate=True)
            if report == "first_token":
                await reservation.first_token()
            elif report == "output_tokens":
                await reservation.output_tokens(1)
            elif report == "report_soon":
                reservation.report_soon(1)
            with pytest.raises(ConnectionResetError):
                await fail(reservation)
            free = fake.frees[-1]
            assert free.HasField("failed") is free.failed is (report is not None)
            assert not free.HasField("prefill_failed")


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
