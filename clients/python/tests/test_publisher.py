"""Publishers against a real index."""

import functools
import itertools
import signal
import socket
import threading
from typing import Optional

import pytest
from conftest import WAIT_SECONDS, Publishers, Server, wait_until

from kvasir import (
    ClosedError,
    DumpEnd,
    DumpRecord,
    FindMatchesResult,
    Indexer,
    InvalidArgumentError,
    KvEventPublisher,
    MultimodalItem,
    NotFoundError,
    Placement,
    PublisherState,
    QueueFullError,
    RefusedError,
    ReusedTokens,
    Tier,
    UnavailableError,
    UnconfirmedError,
    WorkerState,
    local_hashes,
)

TOKENS = list(range(100, 116))
NAMES = [11, 12, 13, 14]


def find(indexer: Indexer, tokens: list[int], **options: object) -> FindMatchesResult:
    return indexer.find_matches(
        "model",
        token_ids=tokens,
        block_size=4,
        **options,  # type: ignore[arg-type]
    )


def held(indexer: Indexer, worker_id: str = "worker-0") -> dict[int, tuple[Optional[int], int]]:
    """Parents and local hashes of the names in device memory."""
    records: dict[int, tuple[Optional[int], int]] = {}
    ends = 0
    for part in indexer.dump_worker("model", worker_id):
        if isinstance(part, DumpEnd):
            ends += 1
        elif part.device_copies:
            assert part.local_hash is not None
            records[part.name] = (part.parent_name, part.local_hash)
        else:
            records.pop(part.name, None)
    assert ends > 0
    return records


def test_published_blocks_are_found(indexer: Indexer, publishers: Publishers) -> None:
    publisher = publishers(dp_rank=3)
    assert publisher.publish_stored(TOKENS[:8], NAMES[:2]) == 0
    last = publisher.publish_stored(
        TOKENS[8:], NAMES[2:], parent_hash=NAMES[1], num_block_tokens=[4, 4]
    )
    assert last == 1
    publisher.flush(WAIT_SECONDS)
    found = find(indexer, [*TOKENS, 1, 2])
    assert (found.query_blocks, found.best_overlap_blocks, found.block_size) == (4, 4, 4)
    assert (found.missing_shards, found.restoring_worker_ids) == ((), ())
    [match] = found.matches
    assert (match.worker_id, match.dp_rank) == ("worker-0", 3)
    assert (match.matched_blocks, match.matched_tokens) == (4, 16)
    assert match.state is WorkerState.EXACT
    assert match.applied is not None
    status = publisher.status()
    assert match.applied.incarnation == status.incarnation
    assert match.applied.sequence == status.confirmed == 1
    assert (match.blocks_by_tier.device, match.blocks_by_tier.host) == (4, 0)
    assert status.state is PublisherState.CONNECTED
    assert (status.waiting, status.held_blocks, status.images) == (0, 4, 0)

    by_name = indexer.find_matches("model", sequence_hashes=NAMES)
    assert by_name.best_overlap_blocks == 4
    by_hash = indexer.find_matches("model", local_hashes=local_hashes(TOKENS, 4))
    assert by_hash.matches[0].matched_blocks == 4

    # A block in host memory stays there after its eviction from the device.
    publisher.publish_stored(None, [NAMES[3]], tier=Tier.HOST)
    publisher.publish_removed([NAMES[3]])
    publisher.flush(WAIT_SECONDS)
    [match] = find(indexer, TOKENS).matches
    assert match.matched_blocks == 4
    assert (match.blocks_by_tier.device, match.blocks_by_tier.host) == (3, 1)
    assert find(indexer, TOKENS, tiers=[Tier.DEVICE]).best_overlap_blocks == 3

    publisher.publish_removed([NAMES[1]])
    publisher.flush(WAIT_SECONDS)
    assert find(indexer, TOKENS).best_overlap_blocks == 1
    publisher.publish_all_cleared()
    publisher.flush(WAIT_SECONDS)
    assert find(indexer, TOKENS).matches == ()
    assert publisher.status().held_blocks == 0


def test_namespaces_and_signed_hashes(indexer: Indexer, publishers: Publishers) -> None:
    publisher = publishers()
    image = MultimodalItem("image", 2, 4)
    publisher.publish_stored(TOKENS[:8], [-1, 2], lora_name="a")
    publisher.publish_stored(TOKENS[:8], [3, 4], cache_salt="s")
    publisher.publish_stored(TOKENS[:8], [5, 6], multimodal=[image])
    publisher.publish_stored(None, [7, 8], local_hashes=local_hashes(TOKENS, 4)[:2])
    publisher.publish_stored(TOKENS[8:12], [9], parent_hash=8)
    publisher.flush(WAIT_SECONDS)
    tokens = TOKENS[:8]
    assert find(indexer, tokens, lora_name="a").best_overlap_blocks == 2
    assert find(indexer, tokens, cache_salt="s").best_overlap_blocks == 2
    assert find(indexer, tokens, multimodal=[image]).best_overlap_blocks == 2
    assert find(indexer, TOKENS).best_overlap_blocks == 3
    assert find(indexer, tokens, lora_name="b").best_overlap_blocks == 0
    by_name = indexer.find_matches("model", sequence_hashes=[(1 << 64) - 1, 2])
    assert by_name.best_overlap_blocks == 2


def test_placements_are_speculative(indexer: Indexer, publishers: Publishers) -> None:
    publishers().wait_connected(WAIT_SECONDS)
    place = functools.partial(indexer.record_placement, "model", "worker-0", dp_rank=1)
    assert place(token_ids=TOKENS[:8], block_size=4) == Placement(2, 2)
    assert place(local_hashes=local_hashes(TOKENS, 4), ttl_ms=60_000) == Placement(4, 2)
    [match] = find(indexer, TOKENS).matches
    assert (match.dp_rank, match.matched_blocks, match.speculative_blocks) == (1, 0, 4)
    # The prompt of an adapter has blocks of its own. One without blocks is not sent.
    assert place(token_ids=TOKENS, block_size=4, lora_name="a") == Placement(4, 4)
    assert place(token_ids=TOKENS[:3], block_size=4) == Placement(0, 0)
    with pytest.raises(NotFoundError):
        indexer.record_placement("model", "worker-9", token_ids=TOKENS, block_size=4)
    for field, arguments in [
        ("token_ids", {}),
        ("token_ids", {"token_ids": TOKENS, "local_hashes": [1]}),
        ("block_size", {"token_ids": TOKENS}),
        ("lora_name, cache_salt, multimodal", {"local_hashes": [1], "lora_name": "a"}),
        ("dp_rank", {"local_hashes": [1], "dp_rank": 1_024}),
        ("ttl_ms", {"local_hashes": [1], "ttl_ms": 3_600_001}),
    ]:
        with pytest.raises(InvalidArgumentError) as error:
            place(**arguments)  # type: ignore[arg-type]
        assert error.value.field == field


def test_engines_that_reuse_less_cost_a_rank_its_exactness(
    indexer: Indexer, publishers: Publishers
) -> None:
    publisher = publishers(dp_rank=1)
    publisher.publish_stored(TOKENS[:8], NAMES[:2])
    publisher.flush(WAIT_SECONDS)
    [match] = find(indexer, TOKENS).matches
    assert (match.reusable_tokens, match.may_be_high) == (8, False)
    report = functools.partial(indexer.report_reuse, "model", "worker-0", dp_rank=1)
    assert report([ReusedTokens(16, 8, 8)] * 4) == 0
    assert report([ReusedTokens(16, 8, 4)] * 16) == 16
    [match] = find(indexer, TOKENS).matches
    assert (match.state, match.may_be_high) == (WorkerState.PARTIAL, True)
    for field, requests in [
        ("the number of requests", []),
        ("requests[0].cached_tokens", [ReusedTokens(16, 8, 17)]),
    ]:
        with pytest.raises(InvalidArgumentError) as error:
            report(requests)
        assert error.value.field == field


def test_the_other_queries(indexer: Indexer, publishers: Publishers) -> None:
    publisher = publishers(source="engine")
    publisher.publish_stored(TOKENS, NAMES)
    publisher.flush(WAIT_SECONDS)
    [worker] = indexer.list_workers(model="model")
    assert (worker.worker_id, worker.block_size) == ("worker-0", 4)
    assert [(rank.dp_rank, rank.placed_blocks) for rank in worker.ranks] == [(0, 4)]
    [source] = worker.sources
    assert (source.source, source.connected, source.state) == ("engine", True, WorkerState.EXACT)
    assert indexer.list_workers(model="other") == []
    [match] = find(indexer, TOKENS).matches
    assert match.connected

    parts = list(indexer.dump_worker("model", "worker-0"))
    records = [part for part in parts if isinstance(part, DumpRecord)]
    assert [record.name for record in records] == NAMES
    assert [record.parent_name for record in records] == [None, *NAMES[:3]]
    assert [record.local_hash for record in records] == local_hashes(TOKENS, 4)
    assert all(record.placed and record.device_copies == 1 for record in records)
    end = parts[-1]
    assert isinstance(end, DumpEnd)
    assert (end.source, end.records, end.incomplete) == ("engine", 4, False)
    assert end.watermark is not None
    assert end.watermark.sequence == 0

    stats = indexer.get_stats()
    assert [(at.model, at.workers, at.pairs) for at in stats.partitions] == [("model", 1, 4)]
    assert sum(at.count for at in stats.counters if (at.unit, at.outcome) == ("block", "applied"))

    with pytest.raises(NotFoundError, match="nobody"):
        list(indexer.dump_worker("model", "nobody"))
    with pytest.raises(RefusedError, match="block_size"):
        indexer.find_matches("model", token_ids=TOKENS, block_size=8)
    with pytest.raises(InvalidArgumentError, match="block_size: is missing"):
        indexer.find_matches("model", token_ids=TOKENS)
    with pytest.raises(InvalidArgumentError, match="worker_ids: is str"):
        find(indexer, TOKENS, worker_ids="worker-0")
    with pytest.raises(InvalidArgumentError, match="exactly one"):
        indexer.find_matches("model")


def test_a_prompt_shorter_than_a_block_has_an_empty_answer() -> None:
    # Nothing listens on this port: a call fails.
    with Indexer("127.0.0.1:1") as client:
        for answer in (
            client.find_matches("model", token_ids=TOKENS[:3], block_size=4),
            client.find_matches("model", token_ids=[], block_size=4, minimum_overlap_blocks=0),
            client.find_matches("model", local_hashes=local_hashes(TOKENS[:3], 4), block_size=4),
        ):
            assert (answer.query_blocks, answer.best_overlap_blocks) == (0, 0)
            assert (answer.block_size, answer.matches) == (4, ())
        with pytest.raises(UnavailableError):
            client.find_matches("model", token_ids=TOKENS[:4], block_size=4)


def test_a_wrong_block_size_is_refused(indexer: Indexer, publishers: Publishers) -> None:
    first = publishers(worker_id="first", block_size=4)
    first.publish_stored(TOKENS, NAMES)
    first.flush(WAIT_SECONDS)
    second = publishers(worker_id="second", block_size=8)
    with pytest.raises(RefusedError, match=r"block_size.*4") as error:
        second.wait_connected(WAIT_SECONDS)
    assert "8" in str(error.value)
    with pytest.raises(RefusedError, match="block_size"):
        second.publish_stored(TOKENS, NAMES[:2])
    with pytest.raises(RefusedError, match="block_size"):
        second.flush(WAIT_SECONDS)
    assert second.status().state is PublisherState.FAILED
    second.shutdown()
    # The shutdown did not remove a worker that it never registered.
    assert [worker.worker_id for worker in indexer.list_workers()] == ["first"]


@pytest.mark.parametrize(
    ("arguments", "options", "field"),
    [
        ((TOKENS[:7], NAMES[:2]), {}, "token_ids"),
        ((TOKENS, []), {}, "block_hashes"),
        ((TOKENS, [1, 2, 1 << 64, 4]), {}, "block_hashes[2]"),
        ((TOKENS, NAMES), {"parent_hash": "one"}, "parent_hash"),
        ((TOKENS, NAMES), {"num_block_tokens": [4, 4, 4, 3]}, "num_block_tokens[3]"),
        ((TOKENS, NAMES), {"local_hashes": NAMES}, "local_hashes"),
        ((None, NAMES), {"local_hashes": [1]}, "local_hashes"),
        ((None, NAMES), {"parent_hash": 1}, "parent_hash"),
        ((None, NAMES), {"cache_salt": "s"}, "lora_name, cache_salt, multimodal"),
        ((TOKENS, NAMES), {"lora_name": "x" * 257}, "lora_name"),
        ((TOKENS, None), {}, "block_hashes"),
        ((7, NAMES), {}, "token_ids"),
        ((TOKENS, NAMES), {"tier": "device"}, "tier"),
        ((None, list(range(65_537))), {}, "block_hashes"),
    ],
)
def test_bad_events_are_named_and_not_accepted(
    arguments: tuple[list[int], list[int]], options: dict[str, int], field: str
) -> None:
    publisher = KvEventPublisher("127.0.0.1:9", "worker", "model", 4)
    with publisher, pytest.raises(InvalidArgumentError) as error:
        publisher.publish_stored(*arguments, **options)  # type: ignore[arg-type]
    assert error.value.field == field
    assert publisher.status().waiting == 0
    assert publisher.status().held_blocks == 0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"target": ""}, "target"),
        ({"target": "ftp://host:1"}, "target"),
        ({"target": "https://host:1"}, "target"),
        ({"target": "host"}, "target"),
        ({"target": "http://host"}, "target"),
        ({"target": ":50051"}, "target"),
        ({"target": "host:0"}, "target"),
        ({"target": "host:65536"}, "target"),
        ({"target": "host:grpc"}, "target"),
        ({"target": "http://host:1/path"}, "target"),
        ({"target": "http://user@host:1"}, "target"),
        ({"target": "::1:50051"}, "target"),
        ({"target": "[host]:1"}, "target"),
        ({"worker_id": ""}, "worker_id"),
        ({"model": "m" * 257}, "model"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": "16"}, "block_size"),
        ({"dp_rank": 1024}, "dp_rank"),
        ({"lease_ms": 999}, "lease_ms"),
        ({"queued_events": 0}, "queued_events"),
        ({"queue_timeout": -1}, "queue_timeout"),
        ({"kept_events": 1}, "kept_events"),
        ({"held_blocks": 0}, "held_blocks"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], field: str) -> None:
    given: dict[str, object] = {
        "target": "127.0.0.1:9",
        "worker_id": "worker",
        "model": "model",
        "block_size": 4,
        **options,
    }
    with pytest.raises(InvalidArgumentError) as error:
        KvEventPublisher(**given)  # type: ignore[arg-type]
    assert error.value.field == field


def test_a_killed_index_recovers(server: Server, indexer: Indexer, publishers: Publishers) -> None:
    publisher = publishers()
    publisher.publish_stored(TOKENS[:8], NAMES[:2])
    publisher.publish_stored(TOKENS[8:], NAMES[2:], parent_hash=NAMES[1])
    publisher.publish_removed(NAMES[3:])
    publisher.flush(WAIT_SECONDS)
    before, incarnation = held(indexer), publisher.status().incarnation
    server.kill()
    # Meanwhile the engine continues.
    publisher.publish_removed(NAMES[2:3])
    publisher.publish_stored(TOKENS[8:12], [15], parent_hash=NAMES[1])
    server.start()
    publisher.flush(WAIT_SECONDS)
    hashes = local_hashes(TOKENS, 4)
    expected = {11: (None, hashes[0]), 12: (11, hashes[1])}
    assert before == {**expected, 13: (12, hashes[2])}
    assert held(indexer) == {**expected, 15: (12, hashes[2])}
    status = publisher.status()
    assert (status.streams, status.images) == (2, 0)
    assert status.incarnation == incarnation
    assert find(indexer, TOKENS).matches[0].state is WorkerState.EXACT


def test_an_index_that_lacks_more_than_is_retained_gets_an_image(
    server: Server, indexer: Indexer, publishers: Publishers
) -> None:
    publisher = publishers(queued_events=8, kept_events=8, queue_timeout=WAIT_SECONDS)
    expected = {}
    for name in range(1, 101):
        tokens = list(range(name, name + 4))
        publisher.publish_stored(tokens, [name])
        expected[name] = (None, local_hashes(tokens, 4)[0])
    publisher.publish_removed(range(1, 51))
    for name in range(1, 51):
        del expected[name]
    publisher.flush(WAIT_SECONDS)
    incarnation = publisher.status().incarnation
    server.kill()
    publisher.publish_removed([51])
    del expected[51]
    server.start()
    publisher.flush(WAIT_SECONDS)
    assert held(indexer) == expected
    status = publisher.status()
    assert (status.images, status.held_blocks) == (1, 49)
    assert status.incarnation != incarnation
    # The new incarnation continues.
    publisher.publish_removed([52])
    publisher.flush(WAIT_SECONDS)
    del expected[52]
    assert held(indexer) == expected
    assert indexer.list_workers()[0].sources[0].state is WorkerState.EXACT


def test_a_removed_worker_is_registered_again(indexer: Indexer, publishers: Publishers) -> None:
    publisher = publishers()
    publisher.publish_stored(TOKENS, NAMES)
    publisher.flush(WAIT_SECONDS)
    assert indexer.remove_worker("model", "worker-0") == 4
    wait_until(
        "the worker is back",
        lambda: [rank.placed_blocks for at in indexer.list_workers() for rank in at.ranks],
        lambda blocks: blocks == [4],
    )
    publisher.publish_removed(NAMES[3:])
    publisher.flush(WAIT_SECONDS)
    assert find(indexer, TOKENS).best_overlap_blocks == 3


def test_threads_share_a_publisher(indexer: Indexer, publishers: Publishers) -> None:
    publisher = publishers(queued_events=16, queue_timeout=WAIT_SECONDS)
    thread_count, events = 2, 200
    numbers: list[list[int]] = [[] for _ in range(thread_count)]

    def publish(thread: int) -> None:
        for event in range(events):
            name = 1 + thread * events + event
            numbers[thread].append(publisher.publish_stored([name] * 4, [name]))
            if event % 4 == 3:
                numbers[thread].append(publisher.publish_removed([name]))

    threads = [threading.Thread(target=publish, args=(at,)) for at in range(thread_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    publisher.flush(WAIT_SECONDS)
    assert all(at == sorted(at) for at in numbers)
    assert sorted(itertools.chain(*numbers)) == list(range(thread_count * events * 5 // 4))
    expected = {name for name in range(1, thread_count * events + 1) if name % 4 != 0}
    assert set(held(indexer)) == expected


def test_a_full_queue_raises_and_loses_nothing(
    server: Server, indexer: Indexer, publishers: Publishers
) -> None:
    publisher = publishers(queued_events=3, queue_timeout=0.0)
    publisher.wait_connected(WAIT_SECONDS)
    server.kill()
    for name in (1, 2, 3):
        publisher.publish_stored([name] * 4, [name])
    with pytest.raises(QueueFullError, match="queued_events"):
        publisher.publish_stored([4] * 4, [4])
    with pytest.raises(UnconfirmedError, match="3 events wait"):
        publisher.flush(0.0)
    assert publisher.status().waiting == 3
    assert publisher.status().held_blocks == 3
    server.start()
    publisher.flush(WAIT_SECONDS)
    publisher.publish_stored([4] * 4, [4])
    publisher.flush(WAIT_SECONDS)
    assert set(held(indexer)) == {1, 2, 3, 4}


def test_an_event_waits_for_room(server: Server, indexer: Indexer, publishers: Publishers) -> None:
    publisher = publishers(queued_events=1, queue_timeout=WAIT_SECONDS)
    publisher.wait_connected(WAIT_SECONDS)
    server.send(signal.SIGSTOP)
    publisher.publish_stored([1] * 4, [1])
    thread = threading.Thread(target=publisher.publish_stored, args=([2] * 4, [2]))
    thread.start()
    assert publisher.status().waiting == 1
    server.send(signal.SIGCONT)
    thread.join()
    publisher.flush(WAIT_SECONDS)
    assert set(held(indexer)) == {1, 2}


def test_blocks_above_the_limit_are_refused(publishers: Publishers) -> None:
    publisher = publishers(held_blocks=2)
    publisher.publish_stored(TOKENS[:8], NAMES[:2])
    with pytest.raises(InvalidArgumentError, match="held_blocks"):
        publisher.publish_stored(TOKENS[8:12], NAMES[2:3], parent_hash=NAMES[1])
    publisher.publish_removed(NAMES[:1])
    publisher.publish_stored(TOKENS[8:12], NAMES[2:3], parent_hash=NAMES[1])
    publisher.flush(WAIT_SECONDS)


def test_shutdown(server: Server, indexer: Indexer, publishers: Publishers) -> None:
    with publishers() as publisher:
        publisher.publish_stored(TOKENS, NAMES)
        publisher.flush(WAIT_SECONDS)
    # The engine's cache is gone: the worker is removed.
    assert indexer.list_workers() == []
    assert publisher.status().state is PublisherState.CLOSED
    with pytest.raises(ClosedError):
        publisher.publish_all_cleared()
    publisher.shutdown()

    # If another client registered the worker, shutdown only clears the rank.
    indexer.register_worker("model", "other", 4)
    with publishers(worker_id="other", register=False) as publisher:
        publisher.publish_stored(TOKENS, NAMES)
        publisher.flush(WAIT_SECONDS)
        assert find(indexer, TOKENS).matches[0].worker_id == "other"
    assert [worker.worker_id for worker in indexer.list_workers()] == ["other"]
    assert find(indexer, TOKENS).matches == ()
    # With clear=False all events are sent, and the blocks stay held.
    continued = publishers(worker_id="other", register=False)
    continued.publish_stored(TOKENS, NAMES)
    continued.shutdown(WAIT_SECONDS, clear=False)
    assert find(indexer, TOKENS).best_overlap_blocks == 4
    # If the index does not know the worker, there is nothing to clear.
    unknown = publishers(worker_id="unknown", register=False)
    unknown.publish_stored(TOKENS, NAMES)
    unknown.shutdown(WAIT_SECONDS)
    assert isinstance(unknown.status().error, NotFoundError)

    # Events that cannot be delivered are reported.
    lost = publishers(worker_id="other", register=False)
    lost.flush(WAIT_SECONDS)
    lost.wait_connected(WAIT_SECONDS)
    server.kill()
    lost.publish_removed(NAMES)
    with pytest.raises(UnconfirmedError, match="1 events wait"):
        lost.shutdown(0.5)


def test_a_silent_index_does_not_delay_shutdown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        publisher = KvEventPublisher(target, "worker", "model", 4, register=False)
        publisher.publish_stored(TOKENS, NAMES)
        with pytest.raises(UnconfirmedError, match="2 events wait"):
            publisher.shutdown(0.5)
        assert publisher.status().state is PublisherState.CLOSED


def test_a_lease_ends_without_heartbeats(indexer: Indexer, publishers: Publishers) -> None:
    publisher = publishers(lease_ms=1_000)
    publisher.publish_stored(TOKENS, NAMES)
    publisher.flush(WAIT_SECONDS)
    # Four heartbeats per lease keep the worker registered; each resets its verified age.
    ages: list[int] = [0]

    def heartbeats() -> int:
        [match] = find(indexer, TOKENS).matches
        assert match.verified_age_ms is not None
        ages.append(match.verified_age_ms)
        return sum(later < earlier for earlier, later in zip(ages, ages[1:]))

    wait_until("heartbeats", heartbeats, lambda count: count >= 8)
    assert publisher.status().streams == 1
    assert find(indexer, TOKENS).best_overlap_blocks == 4
    publisher.shutdown(clear=False)
    wait_until("the worker is gone", indexer.list_workers, lambda workers: workers == [])
