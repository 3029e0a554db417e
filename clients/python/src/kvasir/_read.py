"""Converts the server's messages to the package's types."""

from collections.abc import Iterable, Iterator
from typing import Optional

from kvasir._gen import indexer_pb2 as pb
from kvasir._gen import types_pb2
from kvasir.types import (
    BlocksByTier,
    Counter,
    Cursor,
    DumpEnd,
    DumpPart,
    DumpRecord,
    Engine,
    FindMatchesResult,
    PartitionStats,
    RankInfo,
    SourceInfo,
    Stats,
    WorkerInfo,
    WorkerMatch,
    WorkerState,
)

_STATES = {state.value: state for state in WorkerState}
_ENGINES = {engine.value: engine for engine in Engine}


def _state(number: int) -> WorkerState:
    return _STATES.get(number, WorkerState.UNSPECIFIED)


def _cursor(has: bool, cursor: types_pb2.Cursor) -> Optional[Cursor]:
    return Cursor(cursor.incarnation, cursor.sequence) if has else None


def matches(answer: pb.FindMatchesResponse) -> FindMatchesResult:
    """Converts an answer of FindMatches."""
    return FindMatchesResult(
        query_blocks=answer.query_blocks,
        best_overlap_blocks=answer.best_overlap_blocks,
        block_size=answer.block_size,
        matches=tuple(_match(match) for match in answer.matches),
        missing_shards=tuple(answer.missing_shards),
        restoring_worker_ids=tuple(answer.restoring_worker_ids),
    )


def _match(match: pb.WorkerMatch) -> WorkerMatch:
    tiers = match.blocks_by_tier
    age = match.verified_age_ms if match.HasField("verified_age_ms") else None
    return WorkerMatch(
        worker_id=match.worker_id,
        dp_rank=match.dp_rank,
        matched_blocks=match.matched_blocks,
        matched_tokens=match.matched_tokens,
        blocks_by_tier=BlocksByTier(tiers.device, tiers.host, tiers.disk),
        state=_state(match.state),
        applied=_cursor(match.HasField("applied"), match.applied),
        lag_batches=match.lag_batches,
        verified_age_ms=age,
        speculative_blocks=match.speculative_blocks,
        shed_blocks=match.shed_blocks,
        connected=match.connected,
        may_be_high=match.may_be_high,
        reusable_tokens=match.reusable_tokens,
        main_group_blocks=match.main_group_blocks,
    )


def dump(answers: Iterable[pb.DumpWorkerResponse]) -> Iterator[DumpPart]:
    """Converts a dump to its parts."""
    for answer in answers:
        for record in answer.chunk.records:
            yield _record(answer.chunk.dp_rank, record)
        if answer.HasField("end"):
            end = answer.end
            yield DumpEnd(
                source_index=end.source_index,
                source=end.source,
                watermark=_cursor(end.HasField("watermark"), end.watermark),
                records=end.records,
                state=_state(end.state),
                incomplete=end.incomplete,
            )


def _record(dp_rank: int, record: pb.BlockRecord) -> DumpRecord:
    return DumpRecord(
        dp_rank=dp_rank,
        name=record.name,
        parent_name=record.parent_name if record.HasField("parent_name") else None,
        local_hash=record.local_hash if record.HasField("local_hash") else None,
        placed=record.placed,
        source_index=record.source_index,
        device_copies=record.device_copies,
        host_copies=record.host_copies,
        disk_copies=record.disk_copies,
    )


def worker(info: pb.WorkerInfo) -> WorkerInfo:
    """Converts one worker of ListWorkers."""
    ranks = (
        RankInfo(rank.dp_rank, rank.placed_blocks, rank.parked_blocks, rank.shed_blocks)
        for rank in info.ranks
    )
    return WorkerInfo(
        worker_id=info.worker_id,
        model=info.model,
        tenant=info.tenant,
        block_size=info.block_size,
        engine=_ENGINES.get(info.engine, Engine.CUSTOM),
        ranks=tuple(ranks),
        sources=tuple(_source(source) for source in info.sources),
    )


def _source(source: pb.SourceInfo) -> SourceInfo:
    age = source.verified_age_ms if source.HasField("verified_age_ms") else None
    return SourceInfo(
        source=source.source,
        replay_endpoint=source.replay_endpoint,
        connected=source.connected,
        state=_state(source.state),
        applied=_cursor(source.HasField("applied"), source.applied),
        lag_batches=source.lag_batches,
        buffered_batches=source.buffered_batches,
        verified_age_ms=age,
    )


def stats(answer: pb.GetStatsResponse) -> Stats:
    """Converts an answer of GetStats."""
    partitions = (
        PartitionStats(
            model=partition.model,
            tenant=partition.tenant,
            block_size=partition.block_size,
            workers=partition.workers,
            blocks=partition.blocks,
            pairs=partition.pairs,
            parked=partition.parked,
            index_bytes=partition.index_bytes,
        )
        for partition in answer.partitions
    )
    counters = (
        Counter(counter.unit, counter.outcome, counter.reason, counter.count)
        for counter in answer.counters
    )
    return Stats(
        version=answer.version,
        partitions=tuple(partitions),
        counters=tuple(counters),
        queries=answer.queries,
        index_bytes=answer.index_bytes,
        index_bytes_max=answer.index_bytes_max if answer.HasField("index_bytes_max") else None,
    )
