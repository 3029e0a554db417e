"""Events of an engine, published to the index or to an agent beside the engine."""

import enum
import logging
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Callable, Optional

import grpc

from kvasir import _rpc
from kvasir._check import read_hash, read_hashes, read_int, read_name, read_seconds, read_tier
from kvasir._feed import Feed
from kvasir._gen import indexer_pb2, types_pb2
from kvasir._gen import ingest_pb2 as pb
from kvasir._inventory import Inventory, cleared_event, removed_event, stored_event
from kvasir._stream import FencedError, LifeOverError, Stream
from kvasir.errors import (
    ClosedError,
    InvalidArgumentError,
    KvasirError,
    NotFoundError,
    QueueFullError,
    RefusedError,
    RpcError,
    UnconfirmedError,
)
from kvasir.hashing import event_hashes
from kvasir.indexer import registration
from kvasir.limits import (
    HELD_BLOCKS_DEFAULT,
    KEPT_EVENTS_DEFAULT,
    QUEUED_EVENTS_DEFAULT,
    WORKER_RANKS_MAX,
)
from kvasir.types import Engine, MultimodalItem, Tier

LEASE_MS_DEFAULT = 60_000
"""A worker of which nothing was heard for so long is removed, where the publisher is not told."""

HEARTBEAT_INTERVAL_MAX = 10.0
"""Seconds between two signs of life; there are four in a lease, too."""

QUEUE_TIMEOUT_DEFAULT = 5.0
"""Seconds that an event waits for room in the queue, where the publisher is not told."""

_CALL_TIMEOUT = 5.0
_PAUSE_MIN, _PAUSE_MAX = 0.1, 5.0
_COUNT_MAX = 1 << 24

_log = logging.getLogger("kvasir")


class PublisherState(enum.Enum):
    """How a publisher stands with the index."""

    CONNECTING = "connecting"
    """There is no stream; it is tried again. Events wait."""
    CONNECTED = "connected"
    """A stream is open."""
    FAILED = "failed"
    """The index refuses for good: every call raises why."""
    CLOSED = "closed"
    """It was shut down."""


@dataclass(frozen=True)
class PublisherStatus:
    """What became of a publisher's events."""

    state: PublisherState
    incarnation: bytes
    """The life of the cache that is spoken of: another one after each image."""
    confirmed: Optional[int]
    """The last event that is in the index, with all before it."""
    waiting: int
    """Events that the index has not confirmed."""
    held_blocks: int
    """Blocks that the events say are held."""
    streams: int
    """Streams that were opened."""
    images: int
    """How often the index had lost more than was kept, and was told all that is held instead."""
    rejected_blocks: int
    """Block operations that the index did not take, for a limit: it credits less."""
    error: Optional[KvasirError]
    """Why the last stream ended or could not be opened; none while one is open."""


class KvEventPublisher:
    """Tells the index what one rank of an engine holds. Threads may share one.

    Events are numbered, sent by a thread of its own, and kept until the index has confirmed them.
    Where the index has lost some, they are sent again from where it stands; where it lacks more
    than is kept, it is told all that is held instead.

    An event of too many waiting ones waits for room; then `QueueFullError` says that it was not
    taken. None is dropped in silence. Where the index refuses for good, for a block size that
    is not the model's say, every call raises its `RefusedError`; where the worker is another
    shard's, `WrongShardError`, which is one.

    Token ids are hashed here and never sent.
    """

    def __init__(
        self,
        target: str,
        worker_id: str,
        model: str,
        block_size: int,
        *,
        tenant: str = "",
        dp_rank: int = 0,
        source: Optional[str] = None,
        register: bool = True,
        lease_ms: int = LEASE_MS_DEFAULT,
        queued_events: int = QUEUED_EVENTS_DEFAULT,
        queue_timeout: float = QUEUE_TIMEOUT_DEFAULT,
        kept_events: int = KEPT_EVENTS_DEFAULT,
        held_blocks: int = HELD_BLOCKS_DEFAULT,
        credentials: Optional[grpc.ChannelCredentials] = None,
    ) -> None:
        """Starts to connect, and returns at once.

        - `target`: host:port or http://host:port of the index, or of the agent beside the engine
        - `worker_id`, `model`, `tenant`, `block_size`: the worker and the index's partition
        - `dp_rank`: the rank that holds the blocks; an engine with several has a publisher for each
        - `source`: name of this publisher, unique within the worker; by default named by the rank
        - `register`: register the worker, and remove it at shutdown; with False somebody else does,
          as an agent, and shutdown clears the rank
        - `lease_ms`: registered so; the index removes the worker when it is not heard for so long
        - `queued_events`: events that may wait for the index
        - `queue_timeout`: seconds that one more waits for room, 0 for none
        - `kept_events`: events that are kept for an index that lost some, those waiting included
        - `held_blocks`: most blocks that the engine holds, in all tiers
        - `credentials`: for TLS, which is not used without them
        """
        self._target = _rpc.read_target(target)
        self._registration = registration(
            model, tenant, worker_id, block_size, Engine.CUSTOM, lease_ms
        )
        self._block_size = self._registration.block_size
        rank = read_int("dp_rank", dp_rank, 0, WORKER_RANKS_MAX - 1)
        name = f"rank-{rank}" if source is None else source
        self._source = read_name("source", name, required=True)
        self._queue_timeout = read_seconds("queue_timeout", queue_timeout)
        queued = read_int("queued_events", queued_events, 1, _COUNT_MAX)
        kept = read_int("kept_events", kept_events, queued, _COUNT_MAX)
        inventory = Inventory(read_int("held_blocks", held_blocks, 1, 1 << 32))
        self._register = register
        self._is_registered = not register
        self._credentials = credentials
        self._heartbeat_interval = HEARTBEAT_INTERVAL_MAX
        if lease_ms != 0:
            self._heartbeat_interval = min(HEARTBEAT_INTERVAL_MAX, lease_ms / 4_000)

        # Guards all that follows.
        self._changed = threading.Condition()
        self._feed = Feed(rank, inventory, queued, kept)
        self._state = PublisherState.CONNECTING
        self._error: Optional[KvasirError] = None
        self._streams = 0
        self._stream: Optional[Stream] = None
        # No more events are taken; and the streams are to end.
        self._closing = False
        self._ending = False
        self._thread = threading.Thread(
            target=self._run, name=f"kvasir-publisher-{rank}", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> "KvEventPublisher":
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
        token_ids: Optional[Sequence[int]],
        block_hashes: Sequence[int],
        parent_hash: Optional[int] = None,
        *,
        local_hashes: Optional[Sequence[int]] = None,
        num_block_tokens: Optional[Sequence[int]] = None,
        tier: Tier = Tier.DEVICE,
        lora_name: str = "",
        cache_salt: str = "",
        multimodal: Sequence[MultimodalItem] = (),
    ) -> int:
        """Blocks are now held, each the parent of the next. Returns the number of the event.

        `block_hashes` are the engine's names of the blocks, signed or not; `parent_hash` is that of
        the block before the first, none at the start of a prompt. `token_ids` are those of whole
        blocks, as many as names; `lora_name`, `cache_salt` and `multimodal` belong to them.
        `num_block_tokens`, if given, is checked. Instead of tokens `local_hashes` may be given, or
        neither for blocks that are known and now lie in one more tier.

        Raises `InvalidArgumentError`, `QueueFullError`, `ClosedError` or `RefusedError`; then the
        event was not taken.
        """
        names = read_hashes("block_hashes", block_hashes)
        parent = None if parent_hash is None else read_hash("parent_hash", parent_hash)
        for index, count in enumerate(num_block_tokens or ()):
            if count != self._block_size:
                problem = f"is {count}, blocks have {self._block_size} tokens: publish whole blocks"
                raise InvalidArgumentError(f"num_block_tokens[{index}]", problem)
        locals_ = None
        if token_ids is not None:
            if local_hashes is not None:
                problem = "is given with token_ids: give one of them"
                raise InvalidArgumentError("local_hashes", problem)
            locals_ = event_hashes(
                token_ids,
                self._block_size,
                len(names),
                lora_name=lora_name,
                cache_salt=cache_salt,
                multimodal=multimodal,
            )
        elif lora_name or cache_salt or multimodal:
            problem = "go with token_ids only: hashes contain them"
            raise InvalidArgumentError("lora_name, cache_salt, multimodal", problem)
        elif local_hashes is not None:
            locals_ = read_hashes("local_hashes", local_hashes)
            if len(locals_) != len(names):
                problem = f"has {len(locals_)} entries: give {len(names)}, as many as block_hashes"
                raise InvalidArgumentError("local_hashes", problem)
        elif parent is not None:
            problem = "is given without token_ids or local_hashes: give one of them"
            raise InvalidArgumentError("parent_hash", problem)
        event = stored_event(names, locals_, parent, read_tier("tier", tier))

        def note(inventory: Inventory) -> None:
            inventory.check_room(names)
            inventory.store(names, locals_, parent, tier)

        return self._publish(event, note)

    def publish_removed(self, block_hashes: Sequence[int], *, tier: Tier = Tier.DEVICE) -> int:
        """Blocks are no longer held in a tier. Returns the number of the event.

        Raises as `publish_stored`.
        """
        names = read_hashes("block_hashes", block_hashes)
        return self._publish(
            removed_event(names, read_tier("tier", tier)),
            lambda inventory: inventory.remove(names, tier),
        )

    def publish_all_cleared(self) -> int:
        """The rank holds nothing any more, in no tier. Returns the number of the event.

        Raises as `publish_stored`.
        """
        return self._publish(cleared_event(), Inventory.clear)

    def wait_connected(self, timeout: float) -> None:
        """Waits until a stream is open.

        Raises `RefusedError` if the index refuses, `ClosedError`, or `UnconfirmedError` after
        `timeout` seconds.
        """
        self._wait(lambda: self._state is PublisherState.CONNECTED, timeout)

    def flush(self, timeout: float) -> None:
        """Waits until the index, or the agent, has all events that were published before.

        An agent passes them on by itself, at once if it is not told to batch (`--batch-interval`).
        Raises `RefusedError` if the index refuses, or `UnconfirmedError` after `timeout` seconds.
        """
        with self._changed:
            last = self._feed.next_sequence - 1
            self._wait(lambda: self._feed.is_confirmed(last), timeout)

    def status(self) -> PublisherStatus:
        """What became of the events."""
        with self._changed:
            feed = self._feed
            return PublisherStatus(
                state=self._state,
                incarnation=feed.incarnation,
                confirmed=feed.confirmed,
                waiting=feed.waiting,
                held_blocks=len(feed.inventory),
                streams=self._streams,
                images=feed.images,
                rejected_blocks=feed.rejected_blocks,
                error=self._error,
            )

    def shutdown(self, timeout: float = 10.0, *, clear: bool = True) -> None:
        """Ends the publisher with its engine, whose cache is gone; again does nothing.

        Where the publisher registered the worker, the index removes it, at the latest when its
        lease is over. Where somebody else did, an agent say, the rank is cleared: after all events
        that wait, and waited for. `UnconfirmedError` says if that was not possible within `timeout`
        seconds; a refusal raises `RefusedError`.

        With `clear=False` the engine lives on, for another publisher to speak of: all events are
        sent, and what is held stays. A worker that is not heard of goes with its lease, a source of
        an agent after `--worker-timeout`.
        """
        limit = read_seconds("timeout", timeout)
        deadline = time.monotonic() + limit
        removes = clear and self._register
        with self._changed:
            if self._closing:
                return
            self._closing = True
            feed = self._feed
            if clear and not removes and len(feed.inventory) > 0:
                feed.inventory.clear()
                feed.append(cleared_event())
                self._changed.notify_all()
            last = feed.next_sequence - 1

        def is_done() -> bool:
            # An index that does not know the worker holds nothing of it.
            is_unknown = clear and isinstance(self._error, NotFoundError)
            return is_unknown or feed.is_confirmed(last)

        try:
            if not removes:
                self._wait(is_done, limit)
        finally:
            self._end(deadline)
        if removes and self._is_registered:
            self._remove_worker(max(deadline - time.monotonic(), 0.5))

    # === what callers share ===

    def _publish(self, event: pb.PublishedEvent, note: Callable[[Inventory], None]) -> int:
        with self._changed:
            deadline = time.monotonic() + self._queue_timeout
            while True:
                self._check_open()
                if self._feed.has_room():
                    break
                left = deadline - time.monotonic()
                if left <= 0:
                    raise QueueFullError(self._full())
                self._changed.wait(left)
            note(self._feed.inventory)
            sequence = self._feed.append(event)
            self._changed.notify_all()
            return sequence

    def _full(self) -> str:
        reason = "the index is slow" if self._error is None else f"no stream: {self._error}"
        return (
            f"{self._feed.waiting} events wait for the index ({reason}): publish it again, or give "
            "a larger queued_events or queue_timeout"
        )

    def _check_open(self) -> None:
        if self._closing:
            raise ClosedError("the publisher was shut down")
        self._check_failed()

    def _check_failed(self) -> None:
        if isinstance(self._error, RefusedError) and self._state is PublisherState.FAILED:
            raise self._error.again()

    def _wait(self, is_there: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + read_seconds("timeout", timeout)
        with self._changed:
            while True:
                self._check_failed()
                if is_there():
                    return
                if self._state is PublisherState.CLOSED:
                    raise ClosedError("the publisher was shut down")
                left = deadline - time.monotonic()
                if left <= 0:
                    reason = "" if self._error is None else f"; no stream: {self._error}"
                    waiting = self._feed.waiting
                    problem = f"{waiting} events wait for the index after {timeout} s{reason}"
                    raise UnconfirmedError(problem) from self._error
                self._changed.wait(left)

    def _end(self, deadline: float) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join(max(deadline - time.monotonic(), 0.5))
        if self._thread.is_alive():
            # The index does not end the stream: then we do.
            with self._changed:
                stream = self._stream
            if stream is not None:
                stream.cancel()
            self._thread.join()
        with self._changed:
            if self._state is not PublisherState.FAILED:
                self._state = PublisherState.CLOSED
            self._changed.notify_all()

    def _remove_worker(self, timeout: float) -> None:
        asked = self._registration
        request = indexer_pb2.RemoveWorkerRequest(
            worker_id=asked.worker_id, model=asked.model, tenant=asked.tenant
        )
        channel = _rpc.open_channel(self._target, self._credentials)
        try:
            answer = indexer_pb2.RemoveWorkerResponse
            path = _rpc.INDEXER + "RemoveWorker"
            _rpc.call(channel, path, request, answer, min(timeout, _CALL_TIMEOUT))
        except NotFoundError:
            _log.debug("worker %s was not registered", asked.worker_id)
        except RpcError as error:
            _log.warning("worker %s stays until its lease is over: %s", asked.worker_id, error)
        finally:
            channel.close()

    # === the thread ===

    def _run(self) -> None:
        pause = _PAUSE_MIN
        while not self._ending:
            before = self._position()
            try:
                self._serve()
            except LifeOverError as error:
                self._begin_life(error)
                continue
            except FencedError as error:
                # The index may have forgotten us, or hear another of the same name.
                self._begin_life(error)
                pause = _PAUSE_MAX
            except RefusedError as error:
                self._fail(error)
                return
            except KvasirError as error:
                self._note(error)
            if self._position() > before:
                # The stream was of use.
                pause = _PAUSE_MIN
            with self._changed:
                # A fleet does not return in step.
                self._changed.wait_for(lambda: self._ending, pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _PAUSE_MAX)

    def _position(self) -> int:
        with self._changed:
            return self._feed.next_sequence - self._feed.waiting

    def _serve(self) -> None:
        """One stream, from the connection to its end."""
        channel = _rpc.open_channel(self._target, self._credentials)
        try:
            if not self._is_registered:
                self._register_worker(channel)
            with self._changed:
                if self._ending:
                    return
                hello = self._hello()
                interval = self._heartbeat_interval
                over = self._is_over
                stream = Stream(self._feed, hello, self._changed, interval, over)
                self._stream = stream
            stream.run(channel, self._accepted)
        except NotFoundError:
            # The index has lost the worker, or has removed it.
            self._is_registered = not self._register
            raise
        finally:
            with self._changed:
                self._stream = None
            channel.close()

    def _register_worker(self, channel: grpc.Channel) -> None:
        answer, path = indexer_pb2.RegisterWorkerResponse, _rpc.INDEXER + "RegisterWorker"
        try:
            _rpc.call(channel, path, self._registration, answer, _CALL_TIMEOUT)
        except RefusedError as error:
            if error.code is grpc.StatusCode.UNIMPLEMENTED:
                details = "target does not register workers: give register=False"
                raise RefusedError(error.code, details) from error
            raise
        self._is_registered = True

    def _hello(self) -> pb.PublishHello:
        asked, feed = self._registration, self._feed
        hello = pb.PublishHello(
            model=asked.model,
            tenant=asked.tenant,
            worker_id=asked.worker_id,
            source=self._source,
            block_size=self._block_size,
            incarnation=feed.incarnation,
            copy_mode=types_pb2.COPY_MODE_SET,
            first_sequence=feed.first_sequence,
        )
        if feed.head is not None:
            hello.head_sequence = feed.head
        return hello

    def _is_over(self) -> bool:
        return self._ending

    def _accepted(self) -> None:
        self._state, self._error = PublisherState.CONNECTED, None
        self._streams += 1

    def _note(self, error: KvasirError) -> None:
        _log.warning("source %s: the stream to %s is down: %s", self._source, self._target, error)
        with self._changed:
            self._state, self._error = PublisherState.CONNECTING, error
            self._changed.notify_all()

    def _begin_life(self, error: KvasirError) -> None:
        self._note(error)
        with self._changed:
            self._feed.begin_life()

    def _fail(self, error: RefusedError) -> None:
        _log.error("source %s: %s refuses: %s", self._source, self._target, error)
        with self._changed:
            self._state, self._error = PublisherState.FAILED, error
            self._changed.notify_all()
