"""Publishes an engine's events to the index, or to an agent beside the engine."""

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
from kvasir._stream import CannotResumeError, FencedError, Stream
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
"""Default of `lease_ms`."""

HEARTBEAT_INTERVAL_MAX = 10.0
"""Maximum seconds between two heartbeats. A lease has at least four."""

QUEUE_TIMEOUT_DEFAULT = 5.0
"""Default of `queue_timeout`, in seconds."""

_CALL_TIMEOUT = 5.0
_PAUSE_MIN, _PAUSE_MAX = 0.1, 5.0
_COUNT_MAX = 1 << 24

_log = logging.getLogger("kvasir")


class PublisherState(enum.Enum):
    """The state of a publisher's connection."""

    CONNECTING = "connecting"
    """No stream is open. Events wait while the publisher connects."""
    CONNECTED = "connected"
    """A stream is open."""
    FAILED = "failed"
    """The index refused the publisher permanently. Every call raises the error."""
    CLOSED = "closed"
    """The publisher was shut down."""


@dataclass(frozen=True)
class PublisherStatus:
    """The state of a publisher and its events."""

    state: PublisherState
    incarnation: bytes
    """The current incarnation. Each image starts a new one."""
    confirmed: Optional[int]
    """Number up to which the index has all events; None if it has none."""
    waiting: int
    """Number of events that the index has not acknowledged."""
    held_blocks: int
    """Number of blocks that are held, according to the events."""
    streams: int
    """Number of streams that the index accepted."""
    images: int
    """How often all held blocks were sent again, under a new incarnation."""
    rejected_blocks: int
    """Block operations that the index rejected. Answers of the index then credit too little."""
    error: Optional[KvasirError]
    """Why the last stream ended or could not be opened; None while one is open."""


class KvEventPublisher:
    """Publishes the blocks that one rank of an engine holds. Threads may share one.

    A background thread sends the events. The last ones are retained: if the index lost some, the
    publisher resumes at the index's cursor. If the index lacks events that are no longer retained,
    the publisher sends all held blocks under a new incarnation.

    If the queue is full, a call waits for room, then raises `QueueFullError`; its event was not
    accepted. No accepted event is dropped silently. If the index refuses permanently, for
    example a wrong block size, every call raises `RefusedError`; if the worker belongs to another
    shard, `WrongShardError`, a subclass.

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
        """Starts to connect and returns immediately.

        - `target`: host:port, http://host:port or https://host:port of the index, or of the agent
          beside the engine
        - `worker_id`, `model`, `tenant`, `block_size`: the worker and its partition
        - `dp_rank`: the rank that holds the blocks; give each rank a publisher of its own
        - `source`: name of this publisher, unique within the worker; default `rank-N`
        - `register`: register the worker, and remove it at shutdown. If False, an agent or another
          client must register it, and shutdown clears the rank
        - `lease_ms`: the index removes the worker after this much silence; 0 for no lease
        - `queued_events`: maximum number of events that wait for the index's ack
        - `queue_timeout`: seconds that a call waits for room in the queue
        - `kept_events`: events that are retained to be sent again, including those that wait
        - `held_blocks`: maximum number of blocks that the rank holds
        - `credentials`: for https://, by `kvasir.tls_credentials`; None for no TLS
        """
        self._target = _rpc.read_target(target, credentials)
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

        # Guards everything below.
        self._changed = threading.Condition()
        self._feed = Feed(rank, inventory, queued, kept)
        self._state = PublisherState.CONNECTING
        self._error: Optional[KvasirError] = None
        self._streams = 0
        self._stream: Optional[Stream] = None
        # `_closing`: accept no more events. `_ending`: end the stream.
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
        """Publishes that blocks are held, each the parent of the next. Returns the event's number.

        `block_hashes` are the engine's names of the blocks, signed or unsigned. `parent_hash` is
        the name of the block before the first, None at the start of a prompt. `token_ids` must fill
        the blocks exactly; `lora_name`, `cache_salt` and `multimodal` go with them only.
        `num_block_tokens`, if given, is checked. Give `local_hashes` instead of tokens, or neither
        to add a tier to known blocks.

        Raises `InvalidArgumentError`, `QueueFullError`, `ClosedError` or `RefusedError`; then
        the event was not accepted.
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
            problem = "go with token_ids only: hashes already contain them"
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

        def update(inventory: Inventory) -> None:
            inventory.check_room(names)
            inventory.store(names, locals_, parent, tier)

        return self._publish(event, update)

    def publish_removed(self, block_hashes: Sequence[int], *, tier: Tier = Tier.DEVICE) -> int:
        """Publishes that blocks were evicted from a tier. Returns the event's number.

        Raises as `publish_stored`.
        """
        names = read_hashes("block_hashes", block_hashes)
        return self._publish(
            removed_event(names, read_tier("tier", tier)),
            lambda inventory: inventory.remove(names, tier),
        )

    def publish_all_cleared(self) -> int:
        """Publishes that the rank holds nothing, in any tier. Returns the event's number.

        Raises as `publish_stored`.
        """
        return self._publish(cleared_event(), Inventory.clear)

    def wait_connected(self, timeout: float) -> None:
        """Waits until a stream is open.

        Raises `UnconfirmedError` after `timeout` seconds, `RefusedError` or `ClosedError`.
        """
        self._wait(lambda: self._state is PublisherState.CONNECTED, timeout)

    def flush(self, timeout: float) -> None:
        """Waits until the index or agent acknowledges all events that were published before.

        An agent forwards them to the index by itself, after `--batch-interval` if it batches.
        Raises as `wait_connected`.
        """
        with self._changed:
            last = self._feed.next_sequence - 1
            self._wait(lambda: self._feed.is_confirmed(last), timeout)

    def status(self) -> PublisherStatus:
        """Returns the state of the publisher and its events."""
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
        """Ends the publisher; the engine's cache counts as gone. Further calls do nothing.

        If the publisher registered the worker, it asks the index to remove it; if that fails, the
        worker stays until its lease ends. Otherwise the publisher sends all waiting events, clears
        the rank and waits for the acks.
        Raises `UnconfirmedError` after `timeout` seconds, or `RefusedError`.

        With `clear=False` another publisher continues for the engine: all events are sent, and the
        blocks stay held. Without one, the index removes the worker when its lease ends, and an
        agent drops the blocks after `--worker-timeout`.
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
            # An index that does not know the worker holds none of its blocks.
            is_unknown = clear and isinstance(self._error, NotFoundError)
            return is_unknown or feed.is_confirmed(last)

        try:
            if not removes:
                self._wait(is_done, limit)
        finally:
            self._end(deadline)
        if removes and self._is_registered:
            self._remove_worker(max(deadline - time.monotonic(), 0.5))

    # === callers' threads ===

    def _publish(self, event: pb.PublishedEvent, update: Callable[[Inventory], None]) -> int:
        with self._changed:
            deadline = time.monotonic() + self._queue_timeout
            while True:
                self._check_open()
                if self._feed.has_room():
                    break
                left = deadline - time.monotonic()
                if left <= 0:
                    raise QueueFullError(self._queue_full())
                self._changed.wait(left)
            update(self._feed.inventory)
            sequence = self._feed.append(event)
            self._changed.notify_all()
            return sequence

    def _queue_full(self) -> str:
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

    def _wait(self, is_done: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + read_seconds("timeout", timeout)
        with self._changed:
            while True:
                self._check_failed()
                if is_done():
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
            # The index did not end the stream in time.
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
        worker = self._registration
        request = indexer_pb2.RemoveWorkerRequest(
            worker_id=worker.worker_id, model=worker.model, tenant=worker.tenant
        )
        channel = _rpc.open_channel(self._target, self._credentials)
        try:
            answer = indexer_pb2.RemoveWorkerResponse
            path = _rpc.INDEXER + "RemoveWorker"
            _rpc.call(channel, path, request, answer, min(timeout, _CALL_TIMEOUT))
        except NotFoundError:
            _log.debug("worker %s was not registered", worker.worker_id)
        except RpcError as error:
            _log.warning("worker %s stays until its lease ends: %s", worker.worker_id, error)
        finally:
            channel.close()

    # === sender thread ===

    def _run(self) -> None:
        pause = _PAUSE_MIN
        while not self._ending:
            before: Optional[int] = self._position()
            try:
                self._serve()
            except CannotResumeError as error:
                self._start_incarnation(error)
                continue
            except FencedError as error:
                # The worker was removed, or another publisher uses the same source name.
                self._start_incarnation(error)
                pause, before = _PAUSE_MAX, None
            except RefusedError as error:
                self._fail(error)
                return
            except KvasirError as error:
                self._disconnected(error)
            if before is not None and self._position() > before:
                # The stream made progress.
                pause = _PAUSE_MIN
            with self._changed:
                # Jitter, so that a fleet does not reconnect simultaneously.
                self._changed.wait_for(lambda: self._ending, pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _PAUSE_MAX)

    def _position(self) -> int:
        with self._changed:
            return self._feed.next_sequence - self._feed.waiting

    def _serve(self) -> None:
        """Runs one stream, from connecting to its end."""
        channel = _rpc.open_channel(self._target, self._credentials)
        try:
            if not self._is_registered:
                self._register_worker(channel)
            with self._changed:
                if self._ending:
                    return
                hello = self._hello()
                interval = self._heartbeat_interval
                is_ending = self._is_ending
                stream = Stream(self._feed, hello, self._changed, interval, is_ending)
                self._stream = stream
            stream.run(channel, self._accepted)
        except NotFoundError:
            # The index has lost or removed the worker: register it again.
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
        worker, feed = self._registration, self._feed
        hello = pb.PublishHello(
            model=worker.model,
            tenant=worker.tenant,
            worker_id=worker.worker_id,
            source=self._source,
            block_size=self._block_size,
            incarnation=feed.incarnation,
            copy_mode=types_pb2.COPY_MODE_SET,
            first_sequence=feed.first_sequence,
        )
        if feed.head is not None:
            hello.head_sequence = feed.head
        return hello

    def _is_ending(self) -> bool:
        return self._ending

    def _accepted(self) -> None:
        self._state, self._error = PublisherState.CONNECTED, None
        self._streams += 1

    def _disconnected(self, error: KvasirError) -> None:
        _log.warning("source %s: the stream to %s is down: %s", self._source, self._target, error)
        with self._changed:
            self._state, self._error = PublisherState.CONNECTING, error
            self._changed.notify_all()

    def _start_incarnation(self, error: KvasirError) -> None:
        self._disconnected(error)
        with self._changed:
            self._feed.start_incarnation()

    def _fail(self, error: RefusedError) -> None:
        _log.error("source %s: %s refuses: %s", self._source, self._target, error)
        with self._changed:
            self._state, self._error = PublisherState.FAILED, error
            self._changed.notify_all()
