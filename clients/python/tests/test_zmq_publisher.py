"""Events in vLLM's wire format, compared with vLLM's own and read by a real index."""

import json
import threading
from collections.abc import Iterator
from typing import Any, Optional

import msgspec
import pytest
import zmq
from conftest import REPOSITORY, WAIT_SECONDS, wait_until

from kvasir import (
    ClosedError,
    Engine,
    EngineEndpoint,
    FindMatchesResult,
    Indexer,
    InvalidArgumentError,
    Tier,
    WorkerState,
)
from kvasir.zmq_publisher import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    ZmqKvEventPublisher,
    frames,
)

GOLDEN = REPOSITORY / "engine/tests/data/golden-frames"
VERSION = "0.33.0"
TOKENS = list(range(100, 116))
NAMES = [11, 12, 13, (1 << 64) - 14]
END = b"\xff" * 8


def golden(name: str) -> Iterator[dict[str, Any]]:
    for line in (GOLDEN / name).read_text().splitlines():
        row = json.loads(line)
        if row["version"] == VERSION:
            yield row


KINDS = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}


def test_frames_equal_vllms_byte_for_byte() -> None:
    cases = set()
    for row in golden("vllm.jsonl"):
        if row["hash_mode"] != "int":
            continue
        timestamp, events, rank = row["decoded"]
        built: list[Event] = []
        for event in events:
            kind = KINDS[event.pop("type")]
            built.append(kind(**event))
        topic = bytes.fromhex(row["topic_hex"]).decode()
        batch = frames(topic, row["seq"], timestamp, built, rank)
        expected = (row["topic_hex"], row["seq"].to_bytes(8, "big").hex(), row["payload_hex"])
        assert tuple(frame.hex() for frame in batch) == expected, row["case"]
        cases.add((row["case"], rank))
    assert len(cases) == 44


class Consumer:
    """Plain sockets, as vLLM's own consumers use them."""

    def __init__(self, publisher: ZmqKvEventPublisher) -> None:
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.setsockopt(zmq.SUBSCRIBE, b"")
        self.live.setsockopt(zmq.RCVTIMEO, int(WAIT_SECONDS * 1000))
        self.live.connect(publisher.endpoint)
        self.dealer = self.context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.RCVTIMEO, int(WAIT_SECONDS * 1000))
        assert publisher.replay_endpoint is not None
        self.dealer.connect(publisher.replay_endpoint)

    def replay(self, start: int) -> list[list[bytes]]:
        self.dealer.send_multipart([b"", start.to_bytes(8, "big")])
        replies = []
        while True:
            reply = self.dealer.recv_multipart()
            replies.append(reply)
            if reply[-2] == END:
                return replies

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def publisher() -> Iterator[ZmqKvEventPublisher]:
    clock = iter(float(tick) for tick in range(1_000_000))
    with ZmqKvEventPublisher(
        "tcp://127.0.0.1:0",
        4,
        replay_endpoint="tcp://127.0.0.1:0",
        topic="kv-events",
        replay_batches=10,
        clock=lambda: next(clock),
    ) as opened:
        yield opened


@pytest.fixture
def consumer(publisher: ZmqKvEventPublisher) -> Iterator[Consumer]:
    connected = Consumer(publisher)
    yield connected
    connected.close()


def test_replays_have_vllms_form(publisher: ZmqKvEventPublisher, consumer: Consumer) -> None:
    publisher.publish_stored(TOKENS, NAMES)
    publisher.publish_all_cleared()
    exchanges = [row for row in golden("vllm-replay.jsonl") if row["hash_mode"] == "int"]
    assert exchanges
    for row in exchanges:
        assert row["request_hex"][0] == ""
        assert row["reply_frame_count"] == [4]
        start = int(row["request_hex"][1], 16)
        replies = consumer.replay(start)
        assert [frame.hex() for frame in replies[-1]] == row["end_reply_hex"]
        assert [len(reply) for reply in replies] == [4] * (max(2 - start, 0) + 1)
        assert replies[0][0].hex() == row["first_reply_hex"][0] == ""
    first = consumer.replay(0)[0]
    event = BlockStored(
        block_hashes=NAMES,
        parent_block_hash=None,
        token_ids=TOKENS,
        block_size=4,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    assert first == [b"", *frames("kv-events", 0, 0.0, [event], 0)]


def test_lora_id_0_is_no_adapter(publisher: ZmqKvEventPublisher, consumer: Consumer) -> None:
    publisher.publish_stored(TOKENS, NAMES, lora_id=0)
    publisher.publish_stored(TOKENS, NAMES, lora_id=7)
    replies = consumer.replay(0)[:-1]
    stored = [msgspec.msgpack.decode(reply[-1])[1][0] for reply in replies]
    assert [event["lora_id"] for event in stored] == [None, 7]


def test_the_last_batches_are_retained(publisher: ZmqKvEventPublisher, consumer: Consumer) -> None:
    for name in range(25):
        assert publisher.publish_removed([name]) == name
    replies = consumer.replay(0)
    numbers = [int.from_bytes(reply[-2], "big") for reply in replies[:-1]]
    assert numbers == list(range(15, 25))
    assert len(consumer.replay(23)) == 3
    assert len(consumer.replay(25)) == 1
    # Malformed requests are ignored.
    consumer.dealer.send_multipart([b"", b"short"])
    consumer.dealer.send_multipart([b"one", b"two", b"three"])
    assert len(consumer.replay(24)) == 2


def test_threads_share_a_publisher(publisher: ZmqKvEventPublisher, consumer: Consumer) -> None:
    # The subscription is active once a batch arrives.
    wait_until(
        "the subscription",
        lambda: publisher.publish_all_cleared() and consumer.live.poll(20),
        bool,
    )

    def publish(thread: int) -> None:
        for event in range(100):
            publisher.publish_removed([thread * 100 + event])

    threads = [threading.Thread(target=publish, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names: list[int] = []
    last = None
    while len(names) < 200:
        topic, number, payload = consumer.live.recv_multipart()
        assert topic == b"kv-events"
        sequence = int.from_bytes(number, "big")
        assert last is None or sequence == last + 1
        last = sequence
        for event in msgspec.msgpack.decode(payload)[1]:
            names += event.get("block_hashes", [])
    assert sorted(names) == list(range(200))


def find(indexer: Indexer) -> Optional[FindMatchesResult]:
    result = indexer.find_matches("model", token_ids=TOKENS, block_size=4)
    return result if result.matches else None


def test_an_index_reads_events_and_requests_missed_ones(
    indexer: Indexer, publisher: ZmqKvEventPublisher
) -> None:
    # Nobody receives the first batches: the index notices the gap and requests a replay.
    publisher.publish_stored(TOKENS[:8], NAMES[:2])
    publisher.publish_stored(TOKENS[8:], NAMES[2:], parent_hash=NAMES[1])
    publisher.publish_stored([], NAMES[3:], tier=Tier.HOST)
    endpoint = EngineEndpoint(publisher.endpoint, publisher.replay_endpoint or "")
    assert indexer.register_worker("model", "w", 4, engine=Engine.VLLM, endpoints=[endpoint])
    assert not indexer.register_worker("model", "w", 4, engine=Engine.VLLM, endpoints=[endpoint])
    result = wait_until(
        "all batches are in the index",
        lambda: find(indexer),
        lambda found: found is not None and found.matches[0].state is WorkerState.EXACT,
    )
    assert result is not None
    [match] = result.matches
    assert (match.worker_id, match.matched_blocks) == ("w", 4)
    assert (match.blocks_by_tier.device, match.blocks_by_tier.host) == (4, 1)
    assert match.applied is not None
    assert match.applied.sequence == 2
    # Then the index receives what is published.
    publisher.publish_removed(NAMES[3:])
    publisher.publish_removed(NAMES[3:], tier=Tier.HOST)
    wait_until(
        "the last block is gone",
        lambda: find(indexer),
        lambda found: found is not None and found.best_overlap_blocks == 3,
    )
    by_name = indexer.find_matches("model", sequence_hashes=NAMES)
    assert by_name.best_overlap_blocks == 3
    publisher.publish_all_cleared()
    wait_until("all is cleared", lambda: find(indexer), lambda found: found is None)


def test_bad_arguments_are_named(publisher: ZmqKvEventPublisher) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        publisher.publish_stored(TOKENS[:7], NAMES[:2])
    assert error.value.field == "token_ids"
    with pytest.raises(InvalidArgumentError) as error:
        publisher.publish_stored(TOKENS[:8], NAMES[:2], num_block_tokens=[4, 2])
    assert error.value.field == "num_block_tokens[1]"
    with pytest.raises(InvalidArgumentError) as error:
        ZmqKvEventPublisher(publisher.endpoint, 4)
    assert error.value.field == "endpoint"
    with pytest.raises(InvalidArgumentError) as error:
        ZmqKvEventPublisher("tcp://127.0.0.1:0", 4, replay_endpoint="nowhere")
    assert error.value.field == "replay_endpoint"
    with pytest.raises(InvalidArgumentError) as error:
        ZmqKvEventPublisher("tcp://127.0.0.1:0", 4, replay_batches=0)
    assert error.value.field == "replay_batches"
    # No failed call used a number.
    assert publisher.publish_all_cleared() == 0


def test_a_publisher_connects_to_a_subscriber() -> None:
    context = zmq.Context()
    listening = context.socket(zmq.SUB)
    listening.setsockopt(zmq.SUBSCRIBE, b"")
    port = listening.bind_to_random_port("tcp://127.0.0.1")
    with ZmqKvEventPublisher(f"tcp://127.0.0.1:{port}", 4, bind=False) as connecting:
        assert connecting.replay_endpoint is None
        wait_until(
            "the subscription",
            lambda: connecting.publish_all_cleared() and listening.poll(20),
            bool,
        )
    context.destroy(linger=0)
    connecting.shutdown()
    with pytest.raises(ClosedError):
        connecting.publish_all_cleared()
