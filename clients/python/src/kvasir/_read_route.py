"""Converts the router's messages to the package's types."""

import enum
from typing import TypeVar

from kvasir._gen import router_pb2 as pb
from kvasir.loads import read_load
from kvasir.route_types import (
    BusyThresholds,
    Decision,
    DecisionReason,
    FetchOutcome,
    FetchPeer,
    FetchPlan,
    IndexOutcome,
    IndexTrust,
    PrefillChoice,
    PrefillOutcome,
    RankExplanation,
    RankLoad,
    RemovedRanks,
    RouteCost,
    RouteOverhead,
    RouterLoads,
    RouterMode,
    RouterRankLoad,
)
from kvasir.types import BlocksByTier

Member = TypeVar("Member", bound=enum.Enum)


def known(kind: type[Member], number: int) -> Member:
    """The value with this number; UNSPECIFIED if a newer router sent it."""
    return next((member for member in kind if member.value == number), kind(0))


def decision(answer: pb.SelectWorkerResponse) -> Decision:
    """Converts an answer of SelectWorker."""
    overhead = answer.overhead
    return Decision(
        request_id=answer.request_id,
        worker_id=answer.worker_id,
        dp_rank=answer.dp_rank,
        mode=known(RouterMode, answer.mode),
        reason=known(DecisionReason, answer.reason),
        cost=_cost(answer.cost),
        query_blocks=answer.query_blocks,
        index=known(IndexOutcome, answer.index),
        index_error=answer.index_error,
        missing_shards=tuple(answer.missing_shards),
        distrusted_ranks=answer.distrusted_ranks,
        eligible_ranks=answer.eligible_ranks,
        removed=tuple(RemovedRanks(removed.reason, removed.ranks) for removed in answer.removed),
        ejection_ignored=answer.ejection_ignored,
        queued=answer.queued,
        queue_position=answer.queue_position,
        overhead=RouteOverhead(
            hashing_us=overhead.hashing_us,
            index_us=overhead.index_us,
            queue_us=overhead.queue_us,
            choosing_us=overhead.choosing_us,
        ),
        explanations=tuple(_explanation(rank) for rank in answer.explanations),
        prefill=_prefill(answer.prefill) if answer.HasField("prefill") else None,
        prefill_outcome=known(PrefillOutcome, answer.prefill_outcome),
        fetch=_fetch(answer.fetch) if answer.HasField("fetch") else None,
        fetch_outcome=known(FetchOutcome, answer.fetch_outcome),
    )


def _fetch(plan: pb.FetchPlan) -> FetchPlan:
    peers = (FetchPeer(at.worker_id, at.dp_rank, at.address, at.blocks) for at in plan.peers)
    return FetchPlan(
        first_block=plan.first_block,
        blocks=plan.blocks,
        recompute_blocks=plan.recompute_blocks,
        peers=tuple(peers),
        expected_us=plan.expected_us,
        compute_us=plan.compute_us,
        block_bytes=plan.block_bytes,
        bytes_per_second=plan.bytes_per_second,
        bandwidth_is_measured=plan.bandwidth_is_measured,
        prefill_tokens_per_second=plan.prefill_tokens_per_second,
        prefill_rate_is_measured=plan.prefill_rate_is_measured,
    )


def _prefill(choice: pb.PrefillChoice) -> PrefillChoice:
    return PrefillChoice(
        worker_id=choice.worker_id,
        dp_rank=choice.dp_rank,
        reason=known(DecisionReason, choice.reason),
        cost=_cost(choice.cost),
        index=known(IndexOutcome, choice.index),
        fetch=_fetch(choice.fetch) if choice.HasField("fetch") else None,
        fetch_outcome=known(FetchOutcome, choice.fetch_outcome),
    )


def _cost(cost: pb.RouteCost) -> RouteCost:
    return RouteCost(
        credited_blocks=cost.credited_blocks,
        new_prefill_tokens=cost.new_prefill_tokens,
        prefill_blocks=cost.prefill_blocks,
        decode_blocks=cost.decode_blocks,
        decode_cost=cost.decode_cost,
        fetch_tokens=cost.fetch_tokens,
        total=cost.total,
    )


def _explanation(rank: pb.RankExplanation) -> RankExplanation:
    return RankExplanation(
        worker_id=rank.worker_id,
        dp_rank=rank.dp_rank,
        removed=rank.removed,
        overlap=BlocksByTier(rank.overlap.device, rank.overlap.host, rank.overlap.disk),
        trust=known(IndexTrust, rank.trust),
        shared_blocks=rank.shared_blocks,
        load=_load(rank.load),
        cost=_cost(rank.cost),
        preference=rank.preference,
        slow_start=rank.slow_start,
        score=rank.score,
        fetch_blocks=rank.fetch_blocks,
        pool_blocks=rank.pool_blocks,
    )


def _load(load: pb.RankLoad) -> RankLoad:
    return RankLoad(
        requests=load.requests,
        prefilling_requests=load.prefilling_requests,
        prefill_tokens=load.prefill_tokens,
        active_blocks=load.active_blocks,
    )


def loads(answer: pb.GetLoadsResponse) -> RouterLoads:
    """Converts an answer of GetLoads or WatchLoads."""
    ranks = (
        RouterRankLoad(
            model=rank.model,
            tenant=rank.tenant,
            worker_id=rank.worker_id,
            dp_rank=rank.dp_rank,
            routed=_load(rank.routed),
            reported=read_load(rank.reported) if rank.HasField("reported") else None,
            reported_is_stale=rank.reported_is_stale,
        )
        for rank in answer.ranks
    )
    return RouterLoads(tuple(ranks), answer.queued_requests, answer.queued_tokens)


def thresholds(message: pb.BusyThresholds) -> BusyThresholds:
    """Converts busy thresholds."""
    known = {field.name: value for field, value in message.ListFields()}
    return BusyThresholds(**known)
