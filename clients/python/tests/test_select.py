"""Requests for a worker, and decisions, against a router in this process."""

from typing import Any

import pytest
from fake_router import MODEL, TENANT, TOKENS, FakeRouter, client

from kvasir import (
    BlocksByTier,
    BusyThresholds,
    Decision,
    DecisionReason,
    FetchOutcome,
    FetchPeer,
    FetchPlan,
    IndexOutcome,
    IndexTrust,
    InvalidArgumentError,
    ModelType,
    MultimodalItem,
    PrefillChoice,
    PrefillOutcome,
    RankExplanation,
    RankLoad,
    RemovedRanks,
    RouteCost,
    RouteOverhead,
    Router,
    RouterMode,
    SelectHints,
    WorkerRole,
    _read_route,
    local_hashes,
)
from kvasir._gen import indexer_pb2, types_pb2
from kvasir._gen import router_pb2 as pb
from kvasir.hashing import next_tokens_le


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
        "model_type": ModelType.COMPLETIONS,
        "required_labels": {"zone": "a"},
        "preferred_labels": {("disk", "fast"): 2.0, ("spot", "yes"): -1.0},
        "queue_timeout": 1.5,
        "explain": True,
        "dry_run": True,
    }
    # This one does not go with all others.
    assert hints.keys() | {"disaggregate"} == SelectHints.__annotations__.keys()
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
        model_type="MODEL_TYPE_COMPLETIONS",
        required_labels=[indexer_pb2.Label(key="zone", value="a")],
        preferred_labels=[
            pb.PreferredLabel(key="disk", value="fast", weight=2.0),
            pb.PreferredLabel(key="spot", value="yes", weight=-1.0),
        ],
        explain=True,
        dry_run=True,
    )
    # Every field but that one and the other forms of the prompt.
    sent = {field.name for field, _ in expected.ListFields()}
    known = {field.name for field in pb.SelectWorkerRequest.DESCRIPTOR.fields}
    hashes_only = {"local_hashes", "input_tokens", "next_tokens_le"}
    assert known - sent == {"token_ids", "wide_token_ids", "disaggregate"} | hashes_only
    async with FakeRouter() as fake, client(fake, block_size=16) as router:
        await router.select(tokens=TOKENS, **hints)
        assert fake.requests.pop() == expected
        hashes = local_hashes(range(40), 16)
        next_tokens = next_tokens_le(range(40), 16)
        selected = router.select(local_hashes=hashes, input_tokens=40, next_tokens_le=next_tokens)
        async with await selected:
            [request] = fake.requests
            assert request.next_tokens_le == next_tokens
            assert (list(request.local_hashes), request.input_tokens) == (hashes, 40)
            assert not request.HasField("queue_timeout_ms")
            assert not request.HasField("pinned")
            assert not request.HasField("overlap_score_weight")
            assert request.model_type == indexer_pb2.MODEL_TYPE_UNSPECIFIED
            assert not request.disaggregate
        async with await router.select(tokens=TOKENS, disaggregate=True, roles=[]):
            assert fake.requests[-1].disaggregate
        async with await router.select(tokens=[7, 1 << 40]):
            assert list(fake.requests[-1].wide_token_ids) == [7, 1 << 40]
            assert not fake.requests[-1].token_ids_le
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
        ("next_tokens_le", {"tokens": TOKENS, "next_tokens_le": b"1234"}),
        ("cache_salt", {"local_hashes": [1], "cache_salt": "salt"}),
        ("multimodal", {"local_hashes": [1], "multimodal": [MultimodalItem("image", 0, 1)]}),
        ("multimodal[0].token_count", {"multimodal": [MultimodalItem("image", 3, 2)]}),
        ("cache_salt", {"cache_salt": "a" * 513}),
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
        ("model_type", {"model_type": "chat"}),
        ("disaggregate", {"disaggregate": True, "roles": [WorkerRole.DECODE]}),
        ("disaggregate", {"disaggregate": True, "dry_run": True}),
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


def test_decisions_are_read_completely() -> None:
    cost = pb.RouteCost(
        credited_blocks=1.5,
        new_prefill_tokens=2.5,
        prefill_blocks=3.5,
        decode_blocks=4.5,
        decode_cost=4.25,
        total=8,
        fetch_tokens=5.5,
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
                fetch_blocks=6,
                pool_blocks=7,
            )
        ],
        prefill=pb.PrefillChoice(
            worker_id="worker-2",
            dp_rank=3,
            reason="DECISION_REASON_ONLY_ONE",
            cost=cost,
            index="INDEX_OUTCOME_ANSWERED",
            fetch_outcome="FETCH_OUTCOME_NO_HOLDER",
        ),
        prefill_outcome="PREFILL_OUTCOME_CHOSEN",
        fetch=pb.FetchPlan(
            first_block=1,
            blocks=2,
            recompute_blocks=3,
            peers=[pb.FetchPeer(worker_id="w", dp_rank=4, address="http://a:1", blocks=2)],
            expected_us=5,
            compute_us=6,
            block_bytes=7,
            bytes_per_second=8.5,
            bandwidth_is_measured=True,
            prefill_tokens_per_second=9.5,
            prefill_rate_is_measured=False,
        ),
        fetch_outcome="FETCH_OUTCOME_PLANNED",
    )
    expected_cost = RouteCost(1.5, 2.5, 3.5, 4.5, 8, 4.25, 5.5)
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
                fetch_blocks=6,
                pool_blocks=7,
            ),
        ),
        prefill=PrefillChoice(
            worker_id="worker-2",
            dp_rank=3,
            reason=DecisionReason.ONLY_ONE,
            cost=expected_cost,
            index=IndexOutcome.ANSWERED,
            fetch=None,
            fetch_outcome=FetchOutcome.NO_HOLDER,
        ),
        prefill_outcome=PrefillOutcome.CHOSEN,
        fetch=FetchPlan(
            1, 2, 3, (FetchPeer("w", 4, "http://a:1", 2),), 5, 6, 7, 8.5, True, 9.5, False
        ),
        fetch_outcome=FetchOutcome.PLANNED,
    )
    assert _read_route.decision(answer) == expected
    # A newer router may send what this package does not know.
    answer.ClearField("mode")
    answer.ClearField("prefill")
    answer.ClearField("fetch")
    unknown = b"\x20\x63\x28\x63\xa0\x01\x63"
    newer = pb.SelectWorkerResponse.FromString(answer.SerializeToString() + unknown)
    decision = _read_route.decision(newer)
    assert decision.mode is RouterMode.UNSPECIFIED
    assert decision.reason is DecisionReason.UNSPECIFIED
    assert decision.prefill is None
    assert decision.fetch is None
    assert decision.prefill_outcome is PrefillOutcome.UNSPECIFIED
