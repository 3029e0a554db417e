"""One stream of events to the index, from its hello to its end."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Callable, Optional

import grpc

from kvasir import _rpc
from kvasir._feed import Feed, Kept
from kvasir._gen import ingest_pb2 as pb
from kvasir.errors import DeadlineError, KvasirError, RefusedError, RpcError, UnavailableError
from kvasir.limits import UNANSWERED_BYTES_MAX, UNANSWERED_EVENTS_MAX

ACCEPT_TIMEOUT = 30.0
"""Seconds until the index has to accept a hello."""

ANSWER_TIMEOUT = 120.0
"""Seconds until it has to answer the oldest event; one that fetches what it missed answers late."""


class LifeOverError(KvasirError):
    """The stream cannot go on in this incarnation."""


class FencedError(KvasirError):
    """Another stream took the source over, or the worker was removed."""


class Stream:
    """Sends what a feed has, takes the answers. Ends by an exception, or once `is_over`."""

    def __init__(
        self,
        feed: Feed,
        hello: pb.PublishHello,
        changed: threading.Condition,
        heartbeat_interval: float,
        is_over: Callable[[], bool],
    ) -> None:
        """`changed` guards the feed and is notified of changes; `is_over` is asked under it."""
        self._feed = feed
        self._hello = pb.PublishEventsRequest(hello=hello).SerializeToString()
        self._changed = changed
        self._heartbeat_interval = heartbeat_interval
        self._is_over = is_over
        self._call: Optional[_rpc.PublishCall] = None
        self._ended = False
        self._is_silent = False
        # Number of the next event to send; none before the hello was accepted.
        self._position: Optional[int] = None
        self._unanswered: deque[Kept] = deque()
        self._unanswered_bytes = 0
        self._heartbeat_at = 0.0
        self._answer_until = time.monotonic() + ACCEPT_TIMEOUT

    def run(self, channel: grpc.Channel, accepted: Callable[[], None]) -> None:
        """Serves the stream to its end; `accepted` is called under `changed` when it is open.

        Raises an `RpcError`, `LifeOverError` or `FencedError`.
        """
        call = _rpc.PublishCall(channel, self._requests())
        with self._changed:
            self._call = call
        try:
            for answer in call.answers():
                with self._changed:
                    self._take(answer, accepted)
                    self._changed.notify_all()
        except RpcError as error:
            if self._is_silent:
                details = "the index did not answer in time"
                raise DeadlineError(grpc.StatusCode.DEADLINE_EXCEEDED, details) from error
            raise
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            call.cancel()
        if not self._is_over():
            raise UnavailableError(grpc.StatusCode.UNAVAILABLE, "the index ended the stream")

    def cancel(self) -> None:
        """Ends the stream at once."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            if self._call is not None:
                self._call.cancel()

    # What is sent: asked for by a thread of gRPC's.

    def _requests(self) -> Iterator[bytes]:
        yield self._hello
        while True:
            with self._changed:
                message = self._wait_next()
            if message is None:
                return
            yield message

    def _wait_next(self) -> Optional[bytes]:
        while not self._ended:
            kept = self._next_event()
            if kept is not None:
                return kept.message
            now = time.monotonic()
            until = self._answer_until
            if self._position is not None:
                if self._is_over():
                    return None
                if now >= self._heartbeat_at:
                    self._heartbeat_at = now + self._heartbeat_interval
                    return self._heartbeat()
                until = self._heartbeat_at
                if self._unanswered:
                    until = min(until, self._answer_until)
            if self._is_late(now):
                self._is_silent = True
                if self._call is not None:
                    self._call.cancel()
                return None
            self._changed.wait(until - now)
        return None

    def _is_late(self, now: float) -> bool:
        return (self._position is None or bool(self._unanswered)) and now >= self._answer_until

    def _next_event(self) -> Optional[Kept]:
        full = (
            len(self._unanswered) >= UNANSWERED_EVENTS_MAX
            or self._unanswered_bytes >= UNANSWERED_BYTES_MAX
        )
        if self._position is None or full:
            return None
        kept = self._feed.after(self._position)
        if kept is not None:
            if not self._unanswered:
                self._answer_until = time.monotonic() + ANSWER_TIMEOUT
            self._position += 1
            self._unanswered.append(kept)
            self._unanswered_bytes += len(kept.message)
        return kept

    def _heartbeat(self) -> bytes:
        heartbeat = pb.PublishHeartbeat()
        if self._feed.head is not None:
            heartbeat.head_sequence = self._feed.head
        return pb.PublishEventsRequest(heartbeat=heartbeat).SerializeToString()

    # What comes back.

    def _take(self, answer: pb.PublishEventsResponse, accepted: Callable[[], None]) -> None:
        self._answer_until = time.monotonic() + ANSWER_TIMEOUT
        if answer.HasField("accepted"):
            self._accept(answer.accepted)
            accepted()
        elif answer.HasField("ack"):
            self._acknowledge(answer.ack)
        elif answer.HasField("refusal"):
            self._refuse(answer.refusal)

    def _accept(self, answer: pb.PublishAccepted) -> None:
        applied = None
        if answer.HasField("applied") and answer.applied.incarnation == self._feed.incarnation:
            applied = answer.applied.sequence
        if not self._feed.resume(applied):
            raise LifeOverError(f"the index stands at {applied}, which is not kept any more")
        self._position = self._feed.next_sequence - self._feed.waiting

    def _acknowledge(self, ack: pb.PublishAck) -> None:
        if not self._unanswered or self._unanswered[0].sequence != ack.sequence:
            raise UnavailableError(grpc.StatusCode.INTERNAL, "malformed answer: ack out of order")
        kept = self._unanswered.popleft()
        self._unanswered_bytes -= len(kept.message)
        self._feed.confirm(kept, ack.rejected)

    def _refuse(self, refusal: pb.PublishRefusal) -> None:
        if refusal.reason == pb.REFUSAL_REASON_FENCED:
            raise FencedError(refusal.message)
        if refusal.reason == pb.REFUSAL_REASON_INVALID:
            message = f"event {refusal.sequence}: {refusal.message}"
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, message)
        # A gap: the next stream begins where the index stands.
        raise UnavailableError(grpc.StatusCode.ABORTED, refusal.message)
