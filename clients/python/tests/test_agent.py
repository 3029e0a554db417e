"""Publishers against a real agent, which publishes to a real index."""

import dataclasses
import itertools

import pytest
from conftest import WAIT_SECONDS, Agents, Publishers, Server, wait_until
from test_publisher import NAMES, TOKENS, find, held

from kvasir import (
    Indexer,
    InvalidArgumentError,
    NotFoundError,
    PublisherState,
    RefusedError,
    Tier,
    UnavailableError,
    UnconfirmedError,
    WorkerLoad,
    WorkerLoads,
    WorkerState,
    WrongShardError,
    local_hashes,
)

Scores = dict[tuple[str, int], int]


def scores(indexer: Indexer, tokens: list[int]) -> Scores:
    """Matched blocks by worker and rank; empty while the index does not know the model."""
    if indexer.list_workers(model="model") == []:
        return {}
    matches = find(indexer, tokens).matches
    return {(match.worker_id, match.dp_rank): match.matched_blocks for match in matches}


def wait_for_scores(indexer: Indexer, tokens: list[int], expected: Scores) -> None:
    wait_until("scores", lambda: scores(indexer, tokens), lambda found: found == expected)


def wait_for_names(indexer: Indexer, names: set[int]) -> None:
    def known() -> set[int]:
        if not any(worker.sources for worker in indexer.list_workers(model="model")):
            return set()
        return set(held(indexer))

    wait_until("names", known, lambda found: found == names)


def test_ranks_and_workers_publish_through_agents(
    server: Server, indexer: Indexer, agents: Agents, publishers: Publishers
) -> None:
    first, second = agents("worker-0"), agents("worker-1")
    ranks = [publishers(target=first.target, register=False, dp_rank=rank) for rank in (0, 1)]
    other = publishers("worker-1", target=second.target, register=False)
    direct = publishers("worker-2", target=server.target)
    ranks[0].publish_stored(TOKENS, NAMES)
    ranks[1].publish_stored(TOKENS[:8], NAMES[:2])
    other.publish_stored(None, NAMES[:3], local_hashes=local_hashes(TOKENS[:12], 4))
    direct.publish_stored(TOKENS[:4], NAMES[:1])
    for publisher in (*ranks, other, direct):
        publisher.flush(WAIT_SECONDS)
    expected = {("worker-0", 0): 4, ("worker-0", 1): 2, ("worker-1", 0): 3, ("worker-2", 0): 1}
    wait_for_scores(indexer, TOKENS, expected)
    # An agent has one stream to the index, however many publishers it has.
    sources = {worker.worker_id: len(worker.sources) for worker in indexer.list_workers()}
    assert sources == {"worker-0": 1, "worker-1": 1, "worker-2": 1}
    states = {match.state for match in find(indexer, TOKENS).matches}
    assert states == {WorkerState.EXACT}

    ranks[0].publish_stored(None, NAMES[3:], tier=Tier.HOST)
    ranks[0].publish_removed(NAMES[3:])
    ranks[1].publish_all_cleared()
    other.publish_removed(NAMES[2:3])
    for publisher in (*ranks, other):
        publisher.flush(WAIT_SECONDS)
    wait_for_scores(indexer, TOKENS, {("worker-0", 0): 4, ("worker-1", 0): 2, ("worker-2", 0): 1})
    [match] = find(indexer, TOKENS, worker_ids=["worker-0"]).matches
    assert (match.blocks_by_tier.device, match.blocks_by_tier.host) == (3, 1)


def test_shutdown_clears_the_rank(indexer: Indexer, agents: Agents, publishers: Publishers) -> None:
    agent = agents()
    ranks = [publishers(target=agent.target, register=False, dp_rank=rank) for rank in range(3)]
    for publisher in ranks:
        publisher.publish_stored(TOKENS, NAMES)
        publisher.flush(WAIT_SECONDS)
    wait_for_scores(indexer, TOKENS, {("worker-0", rank): 4 for rank in range(3)})
    with ranks[0] as ending:
        # Events that were not sent yet are cleared, too.
        ending.publish_stored(TOKENS, [21, 22, 23, 24])
    assert ending.status().state is PublisherState.CLOSED
    wait_for_scores(indexer, TOKENS, {("worker-0", 1): 4, ("worker-0", 2): 4})
    # With clear=False the blocks stay. A publisher to an agent never removes the worker.
    ranks[1].shutdown(WAIT_SECONDS, clear=False)
    ranks[2].shutdown(WAIT_SECONDS)
    wait_for_scores(indexer, TOKENS, {("worker-0", 1): 4})
    assert [worker.worker_id for worker in indexer.list_workers()] == ["worker-0"]
    # A clear that is not acknowledged is reported.
    lost = publishers(target=agent.target, register=False, dp_rank=3)
    lost.publish_stored(TOKENS, NAMES)
    lost.flush(WAIT_SECONDS)
    agent.kill()
    with pytest.raises(UnconfirmedError, match="1 events wait"):
        lost.shutdown(0.5)


def test_loads_are_reported_and_watched(agents: Agents) -> None:
    agent = agents()
    with WorkerLoads(agent.target, "worker-0", "model") as loads:
        first = WorkerLoad(num_requests_waiting=3, gpu_cache_usage_perc=0.5)
        loads.report(first)
        loads.report(WorkerLoad(dp_rank=1, kv_active_blocks=7, kv_total_blocks=10))
        answers = loads.watch(min_interval_ms=10)
        known = next(answers)
        assert [(load.dp_rank, load.num_requests_waiting) for load in known] == [(0, 3), (1, None)]
        assert known[0] == dataclasses.replace(first, age_ms=known[0].age_ms)
        assert (known[1].kv_active_blocks, known[1].kv_total_blocks) == (7, 10)
        # A report replaces the previous one completely.
        loads.report(WorkerLoad(num_requests_waiting=0))
        changed = next(
            load for answer in answers for load in answer if load.num_requests_waiting == 0
        )
        assert (changed.dp_rank, changed.gpu_cache_usage_perc) == (0, None)
        with pytest.raises(RefusedError, match="kv_active_blocks"):
            loads.report(WorkerLoad(kv_active_blocks=11, kv_total_blocks=10))
        for load, field in [
            (WorkerLoad(dp_rank=1_024), "dp_rank"),
            (WorkerLoad(num_requests_waiting=-1), "num_requests_waiting"),
            (WorkerLoad(gpu_cache_usage_perc=float("nan")), "gpu_cache_usage_perc"),
        ]:
            with pytest.raises(InvalidArgumentError) as error:
                loads.report(load)
            assert error.value.field == field
        with pytest.raises(InvalidArgumentError, match="min_interval_ms"):
            loads.watch(min_interval_ms=1)
        agent.kill()
        with pytest.raises(UnavailableError):
            list(answers)


def test_loads_of_another_worker_are_not_found(agents: Agents) -> None:
    with WorkerLoads(agents().target, "worker-1", "model") as other:
        with pytest.raises(NotFoundError, match=r"worker-0 \(model model\) is"):
            other.report(WorkerLoad(num_requests_waiting=1))
        with pytest.raises(NotFoundError, match=r"worker-0 \(model model\) is"):
            next(other.watch())


def test_sources_of_one_rank_are_consolidated(
    indexer: Indexer, agents: Agents, publishers: Publishers
) -> None:
    agent = agents("worker-0", "--consolidate")
    engine = publishers(target=agent.target, register=False, source="engine")
    manager = publishers(target=agent.target, register=False, source="manager")
    engine.publish_stored(TOKENS, NAMES)
    # The manager has its own names for the same content.
    manager.publish_stored(TOKENS[:12], [21, 22, 23])
    for publisher in (engine, manager):
        publisher.flush(WAIT_SECONDS)
    wait_for_scores(indexer, TOKENS, {("worker-0", 0): 4})
    engine.publish_all_cleared()
    engine.flush(WAIT_SECONDS)
    wait_for_scores(indexer, TOKENS, {("worker-0", 0): 3})
    manager.publish_removed([22, 23])
    manager.flush(WAIT_SECONDS)
    wait_for_scores(indexer, TOKENS, {("worker-0", 0): 1})


@pytest.mark.parametrize("kept_events", [16_384, 8])
def test_a_killed_agent_recovers(
    indexer: Indexer, agents: Agents, publishers: Publishers, kept_events: int
) -> None:
    agent = agents()
    publisher = publishers(
        target=agent.target,
        register=False,
        queued_events=8,
        kept_events=kept_events,
        queue_timeout=WAIT_SECONDS,
    )
    names: set[int] = set()
    counter = itertools.count(1)

    def publish(count: int) -> None:
        for name in itertools.islice(counter, count):
            publisher.publish_stored([name] * 4, [name])
            names.add(name)
        evicted = min(names)
        publisher.publish_removed([evicted])
        names.remove(evicted)

    publish(40)
    publisher.flush(WAIT_SECONDS)
    wait_for_names(indexer, names)
    for _ in range(2):
        agent.kill()
        # Meanwhile the engine continues.
        publish(5)
        agent.start()
        publisher.flush(WAIT_SECONDS)
        wait_for_names(indexer, names)
    status = publisher.status()
    assert (status.state, status.held_blocks) == (PublisherState.CONNECTED, len(names))
    assert status.streams >= 3
    # If too few events are retained, an image is sent; otherwise all events are sent again.
    assert (status.images > 0) == (kept_events == 8)


def test_a_killed_index_recovers_from_the_agent(
    server: Server, indexer: Indexer, agents: Agents, publishers: Publishers
) -> None:
    publisher = publishers(target=agents().target, register=False)
    publisher.publish_stored(TOKENS, NAMES)
    publisher.flush(WAIT_SECONDS)
    wait_for_scores(indexer, TOKENS, {("worker-0", 0): 4})
    server.kill()
    publisher.publish_removed(NAMES[3:])
    publisher.flush(WAIT_SECONDS)
    server.start()
    wait_for_scores(indexer, TOKENS, {("worker-0", 0): 3})
    assert publisher.status().streams == 1


def test_an_agent_refuses_mismatched_publishers(agents: Agents, publishers: Publishers) -> None:
    agent = agents()
    mismatched = publishers(block_size=8, target=agent.target, register=False)
    with pytest.raises(RefusedError, match=r"block_size is 8.*is 4"):
        mismatched.wait_connected(WAIT_SECONDS)
    with pytest.raises(RefusedError, match=r"block_size is 8.*is 4"):
        mismatched.publish_removed(NAMES)
    assert mismatched.status().state is PublisherState.FAILED
    registering = publishers(target=agent.target)
    with pytest.raises(RefusedError, match="register=False"):
        registering.wait_connected(WAIT_SECONDS)

    stranger = publishers("worker-1", target=agent.target, register=False)
    with pytest.raises(
        RefusedError, match=r"worker-1 \(model model\) is not served here, worker-0"
    ):
        stranger.wait_connected(WAIT_SECONDS)

    # Events of a source that does not own the rank are rejected and counted.
    owner = publishers(target=agent.target, register=False)
    owner.publish_stored(TOKENS, NAMES)
    owner.flush(WAIT_SECONDS)
    other = publishers(target=agent.target, register=False, source="other")
    other.publish_stored(TOKENS, NAMES)
    other.flush(WAIT_SECONDS)
    assert (owner.status().rejected_blocks, other.status().rejected_blocks) == (0, 4)


@pytest.mark.parametrize("register", [True, False])
def test_a_wrong_shard_is_not_retried(publishers: Publishers, register: bool) -> None:
    shards = [Server("--shard", f"{number}/2") for number in (0, 1)]
    try:
        worker_id, owner = misplaced(shards[0])
        publisher = publishers(worker_id, target=shards[0].target, register=register)
        for call in (
            lambda: publisher.wait_connected(WAIT_SECONDS),
            publisher.publish_all_cleared,
            lambda: publisher.flush(WAIT_SECONDS),
        ):
            with pytest.raises(WrongShardError) as error:
                call()
            assert error.value.owner_shard == owner == "1"
        assert publisher.status().state is PublisherState.FAILED
        # The shard that the error names accepts the worker.
        redirected = publishers(worker_id, target=shards[int(owner)].target)
        redirected.publish_stored(TOKENS, NAMES)
        redirected.flush(WAIT_SECONDS)
        with Indexer(shards[1].target) as indexer:
            assert find(indexer, TOKENS).matches[0].worker_id == worker_id
    finally:
        for shard in shards:
            shard.kill()


def misplaced(shard: Server) -> tuple[str, str]:
    """A worker that the shard refuses, and the number of the shard that owns it."""
    with Indexer(shard.target) as indexer:
        for number in range(64):
            try:
                indexer.register_worker("model", f"worker-{number}", 4)
            except WrongShardError as error:
                return f"worker-{number}", error.owner_shard
    raise AssertionError("the shard accepts every worker")
