"""Publishes an engine's events in vLLM's wire format, over ZeroMQ. Needs `kvasir[zmq]`.

For consumers that expect an engine, such as an index that connects to engines, or a consolidator.
The frames contain token ids, as vLLM's own do: keep the sockets on the loopback interface.
"""

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Callable, Optional, Union

import msgspec
import zmq

from kvasir._check import read_hash, read_hashes, read_int, read_name, read_tier, read_tokens
from kvasir.errors import ClosedError, InvalidArgumentError
from kvasir.limits import (
    BLOCK_SIZE_TOKENS_MAX,
    HIGH_WATER_MARK_DEFAULT,
    REPLAY_BATCHES_DEFAULT,
    REPLAY_BYTES_MAX,
    WORKER_RANKS_MAX,
)
from kvasir.types import Tier

_MEDIA = {Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.DISK: "STORAGE"}
_MAIN_GROUP = 0
_MAIN_KIND = "full_attention"
_SEQUENCE_BYTES = 8
_END = (b"", b"\xff" * _SEQUENCE_BYTES, b"")
_LINGER_MS = 1_000
_REPLAY_SEND_TIMEOUT_MS = 5_000
_COUNT_MAX = 1 << 24

_log = logging.getLogger("kvasir")


class _Event(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """A struct with all of vLLM's fields: their number determines msgspec's map header."""


class BlockStored(_Event, kw_only=True):
    """Blocks are stored. The fields of vLLM 0.33, in its order."""

    block_hashes: list[int]
    parent_block_hash: Optional[int]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str]
    extra_keys: Optional[Sequence[Optional[Sequence[object]]]] = None
    group_idx: Optional[int] = None
    kv_cache_spec_kind: Optional[str] = None
    kv_cache_spec_sliding_window: Optional[int] = None
    locality: Optional[str] = None
    ownership: Optional[str] = None
    session_id: Optional[str] = None
    lookahead_token_ids: Optional[list[list[int]]] = None


class BlockRemoved(_Event, kw_only=True):
    """Blocks were evicted."""

    block_hashes: list[int]
    medium: Optional[str]
    group_idx: Optional[int] = None
    locality: Optional[str] = None
    ownership: Optional[str] = None


class AllBlocksCleared(_Event):
    """All blocks were evicted."""


Event = Union[BlockStored, BlockRemoved, AllBlocksCleared]


def frames(
    topic: str, sequence: int, timestamp: float, events: Sequence[Event], dp_rank: int
) -> tuple[bytes, bytes, bytes]:
    """The frames of one batch: topic, number, payload."""
    payload = msgspec.msgpack.encode((timestamp, events, dp_rank))
    return topic.encode(), sequence.to_bytes(_SEQUENCE_BYTES, "big"), payload


class ZmqKvEventPublisher:
    """Publishes the blocks that one rank of an engine holds. Threads may share one.

    Each event is a batch. A publisher numbers its batches from 0. Slow and late subscribers miss
    batches, as with any engine. The last ones are retained and replayed on request.
    """

    def __init__(
        self,
        endpoint: str,
        block_size: int,
        *,
        replay_endpoint: Optional[str] = None,
        topic: str = "",
        dp_rank: int = 0,
        bind: bool = True,
        replay_batches: int = REPLAY_BATCHES_DEFAULT,
        high_water_mark: int = HIGH_WATER_MARK_DEFAULT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens the sockets.

        - `endpoint`: the publisher socket, tcp://host:port; port 0 takes any free one
        - `replay_endpoint`: the replay socket; None for no replays
        - `topic`: topic of all batches, for subscribers that filter by it
        - `bind`: listen on `endpoint`; if False, connect to a subscriber that listens there
        - `replay_batches`: batches that are retained for replay
        - `high_water_mark`: batches queued for one slow subscriber before it loses some
        - `clock`: seconds since 1970, for the batches' timestamps

        Raises `InvalidArgumentError`, also if a socket cannot be opened.
        """
        self._topic = read_name("topic", topic)
        self._block_size = read_int("block_size", block_size, 1, BLOCK_SIZE_TOKENS_MAX)
        self._dp_rank = read_int("dp_rank", dp_rank, 0, WORKER_RANKS_MAX - 1)
        self._replay_batches = read_int("replay_batches", replay_batches, 1, _COUNT_MAX)
        mark = read_int("high_water_mark", high_water_mark, 1, _COUNT_MAX)
        self._clock = clock

        # Guards everything below.
        self._lock = threading.Lock()
        self._sequence = 0
        self._kept: deque[tuple[int, bytes, bytes]] = deque()
        self._kept_bytes = 0
        self._closed = False
        self._context = zmq.Context()
        try:
            self._publisher = self._context.socket(zmq.PUB)
            self._publisher.set_hwm(mark)
            self.endpoint = _attach(self._publisher, "endpoint", endpoint, bind)
            """The publisher socket, with the port that it took."""
            self.replay_endpoint: Optional[str] = None
            """The replay socket, with the port that it took; None for no replays."""
            self._replayer: Optional[_Replayer] = None
            if replay_endpoint is not None:
                self._replayer = _Replayer(self, self._context, replay_endpoint)
                self.replay_endpoint = self._replayer.endpoint
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def __enter__(self) -> "ZmqKvEventPublisher":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.shutdown()

    def publish_stored(
        self,
        token_ids: Sequence[int],
        block_hashes: Sequence[int],
        parent_hash: Optional[int] = None,
        *,
        num_block_tokens: Optional[Sequence[int]] = None,
        tier: Tier = Tier.DEVICE,
        lora_id: Optional[int] = None,
        lora_name: Optional[str] = None,
        extra_keys: Optional[Sequence[Optional[Sequence[object]]]] = None,
    ) -> int:
        """Publishes that blocks are held, each the parent of the next. Returns the batch's number.

        `token_ids` must fill the blocks exactly, or be empty to add a tier to known blocks.
        `parent_hash` is the name of the block before the first, None at the start of a prompt.
        `num_block_tokens`, if given, is checked. `lora_id` 0 is no adapter. `extra_keys` are
        vLLM's: what else determines the content of each block.

        Raises `InvalidArgumentError` or `ClosedError`.
        """
        names = read_hashes("block_hashes", block_hashes)
        parent = None if parent_hash is None else read_hash("parent_hash", parent_hash)
        read_tokens("token_ids", token_ids)
        size = self._block_size if len(token_ids) else 0
        if len(token_ids) not in (0, size * len(names)):
            problem = (
                f"has {len(token_ids)} tokens for {len(names)} block_hashes of {size} tokens: give "
                f"{size * len(names)}, whole blocks only"
            )
            raise InvalidArgumentError("token_ids", problem)
        for index, count in enumerate(num_block_tokens or ()):
            if count != self._block_size:
                problem = f"is {count}, blocks have {self._block_size} tokens: publish whole blocks"
                raise InvalidArgumentError(f"num_block_tokens[{index}]", problem)
        tokens = [int(token) for token in token_ids]
        event = BlockStored(
            block_hashes=names,
            parent_block_hash=parent,
            token_ids=tokens,
            block_size=size,
            lora_id=lora_id or None,
            medium=_MEDIA[read_tier("tier", tier)],
            lora_name=lora_name,
            extra_keys=extra_keys,
            group_idx=_MAIN_GROUP,
            kv_cache_spec_kind=_MAIN_KIND if tokens else None,
        )
        return self._publish(event)

    def publish_removed(self, block_hashes: Sequence[int], *, tier: Tier = Tier.DEVICE) -> int:
        """Publishes that blocks were evicted from a tier. Returns the batch's number."""
        names = read_hashes("block_hashes", block_hashes)
        event = BlockRemoved(
            block_hashes=names, medium=_MEDIA[read_tier("tier", tier)], group_idx=_MAIN_GROUP
        )
        return self._publish(event)

    def publish_all_cleared(self) -> int:
        """Publishes that the rank holds nothing, in any tier. Returns the batch's number."""
        return self._publish(AllBlocksCleared())

    def shutdown(self) -> None:
        """Closes the sockets. Further calls do nothing.

        A subscriber loses the batches that it has not received within a second.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._publisher.close(linger=_LINGER_MS)
        if self._replayer is not None:
            self._replayer.stop()
        self._context.term()

    def _publish(self, event: Event) -> int:
        with self._lock:
            if self._closed:
                raise ClosedError("the publisher was shut down")
            sequence = self._sequence
            batch = frames(self._topic, sequence, self._clock(), [event], self._dp_rank)
            self._sequence += 1
            self._keep(sequence, batch[1], batch[2])
            self._publisher.send_multipart(batch)
            return sequence

    def _keep(self, sequence: int, number: bytes, payload: bytes) -> None:
        self._kept.append((sequence, number, payload))
        self._kept_bytes += len(payload)
        while len(self._kept) > self._replay_batches or self._kept_bytes > REPLAY_BYTES_MAX:
            self._kept_bytes -= len(self._kept.popleft()[2])

    def kept_from(self, start: int) -> list[tuple[bytes, bytes, bytes]]:
        """The frames of the retained batches from number `start` on."""
        with self._lock:
            oldest = self._kept[0][0] if self._kept else self._sequence
            found = itertools.islice(self._kept, max(start - oldest, 0), None)
            topic = self._topic.encode()
            return [(topic, number, payload) for _, number, payload in found]


class _Replayer:
    """Replays the retained batches, on a thread of its own."""

    def __init__(self, publisher: ZmqKvEventPublisher, context: Any, endpoint: str) -> None:
        self._publisher = publisher
        self._router = context.socket(zmq.ROUTER)
        # Room for two full replays with their ends. Sending to a peer that reads none times out.
        self._router.set_hwm(2 * (publisher._replay_batches + 1))
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.SNDTIMEO, _REPLAY_SEND_TIMEOUT_MS)
        self.endpoint = _attach(self._router, "replay_endpoint", endpoint, bind=True)
        address = "inproc://kvasir-stop"
        self._stopping = context.socket(zmq.PAIR)
        self._stopping.bind(address)
        self._stopper = context.socket(zmq.PAIR)
        self._stopper.connect(address)
        self._thread = threading.Thread(target=self._run, name="kvasir-replay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread and closes its sockets."""
        self._stopper.send(b"")
        self._thread.join()
        self._stopper.close(linger=0)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._stopping, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stopping in ready:
                break
            request = self._router.recv_multipart()
            if len(request) == 3 and len(request[2]) == _SEQUENCE_BYTES:
                self._replay(request[0], int.from_bytes(request[2], "big"))
        self._stopping.close(linger=0)
        self._router.close(linger=_LINGER_MS)

    def _replay(self, peer: bytes, start: int) -> None:
        try:
            for batch in self._publisher.kept_from(start):
                self._router.send_multipart((peer, b"", *batch))
            self._router.send_multipart((peer, b"", *_END))
        except zmq.ZMQError as error:
            _log.warning("a replay from %d was cut off: %s", start, error)


def _attach(socket: Any, field: str, endpoint: str, bind: bool) -> str:
    """Binds or connects a socket. Returns its endpoint with the actual port."""
    read_name(field, endpoint, required=True)
    if endpoint.startswith("tcp://") and endpoint.endswith(":0") and bind:
        endpoint = endpoint[:-1] + "*"
    try:
        if bind:
            socket.bind(endpoint)
            return str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        verb = "listened on" if bind else "connected to"
        raise InvalidArgumentError(field, f"{endpoint!r} cannot be {verb}: {error}") from error
    return endpoint
