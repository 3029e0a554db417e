"""One stream of events to the index, from hello to end."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Callable, Optional

import grpc

from kvasir import _rpc
from kvasir._feed import Feed, NumberedEvent
from kvasir._gen import ingest_pb2 as pb
from kvasir.errors import DeadlineError, KvasirError, RefusedError, RpcError, UnavailableError
from kvasir.limits import UNANSWERED_BYTES_MAX, UNANSWERED_EVENTS_MAX

ACCEPT_TIMEOUT = 30.0
"""Seconds within which the index must accept a hello."""

ANSWER_TIMEOUT = 120.0
"""Seconds within which the index must ack the oldest event, even while fetching missing ones."""


class CannotResumeError(KvasirError):
    """The stream cannot resume in this incarnation."""


class FencedError(KvasirError):
    """Another stream replaced this one, or the worker was removed."""


class Stream:
    """Sends a feed's events and handles the answers, until an exception or until `is_ending`."""

    def __init__(
        self,
        feed: Feed,
        hello: pb.PublishHello,
        changed: threading.Condition,
        heartbeat_interval: float,
        is_ending: Callable[[], bool],
    ) -> None:
        """`changed` guards the feed and is notified when it changes."""
        self._feed = feed
        self._hello = pb.PublishEventsRequest(hello=hello).SerializeToString()
        self._changed = changed
        self._heartbeat_interval = heartbeat_interval
        self._is_ending = is_ending
        self._call: Optional[_rpc.PublishCall] = None
        self._ended = False
        self._timed_out = False
        # Number of the next event to send; None until the index accepts the hello.
        self._position: Optional[int] = None
        self._unanswered: deque[NumberedEvent] = deque()
        self._unanswered_bytes = 0
        self._heartbeat_at = 0.0
        self._answer_deadline = time.monotonic() + ACCEPT_TIMEOUT

    def run(self, channel: grpc.Channel, on_accepted: Callable[[], None]) -> None:
        """Runs the stream to its end. Calls `on_accepted` under `changed` once it is open.

        Raises an `RpcError`, `CannotResumeError` or `FencedError`.
        """
        call = _rpc.PublishCall(channel, self._requests())
        with self._changed:
            self._call = call
        try:
            for answer in call.answers():
                with self._changed:
                    self._handle(answer, on_accepted)
                    self._changed.notify_all()
        except RpcError as error:
            if self._timed_out:
                details = "the index did not answer in time"
                raise DeadlineError(grpc.StatusCode.DEADLINE_EXCEEDED, details) from error
            raise
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            call.cancel()
        if not self._is_ending():
            raise UnavailableError(grpc.StatusCode.UNAVAILABLE, "the index ended the stream")

    def cancel(self) -> None:
        """Ends the stream immediately."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            if self._call is not None:
                self._call.cancel()

    # Requests. A gRPC thread iterates over them.

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
            event = self._next_event()
            if event is not None:
                return event.message
            now = time.monotonic()
            wake_at = self._answer_deadline
            if self._position is not None:
                if self._is_ending():
                    return None
                if now >= self._heartbeat_at:
                    self._heartbeat_at = now + self._heartbeat_interval
                    return self._heartbeat()
                wake_at = self._heartbeat_at
                if self._unanswered:
                    wake_at = min(wake_at, self._answer_deadline)
            if self._is_late(now):
                self._timed_out = True
                if self._call is not None:
                    self._call.cancel()
                return None
            self._changed.wait(wake_at - now)
        return None

    def _is_late(self, now: float) -> bool:
        return (self._position is None or bool(self._unanswered)) and now >= self._answer_deadline

    def _next_event(self) -> Optional[NumberedEvent]:
        full = (
            len(self._unanswered) >= UNANSWERED_EVENTS_MAX
            or self._unanswered_bytes >= UNANSWERED_BYTES_MAX
        )
        if self._position is None or full:
            return None
        event = self._feed.event_at(self._position)
        if event is not None:
            if not self._unanswered:
                self._answer_deadline = time.monotonic() + ANSWER_TIMEOUT
            self._position += 1
            self._unanswered.append(event)
            self._unanswered_bytes += len(event.message)
        return event

    def _heartbeat(self) -> bytes:
        heartbeat = pb.PublishHeartbeat()
        if self._feed.head is not None:
            heartbeat.head_sequence = self._feed.head
        return pb.PublishEventsRequest(heartbeat=heartbeat).SerializeToString()

    # Answers.

    def _handle(self, answer: pb.PublishEventsResponse, on_accepted: Callable[[], None]) -> None:
        self._answer_deadline = time.monotonic() + ANSWER_TIMEOUT
        if answer.HasField("accepted"):
            self._accept(answer.accepted)
            on_accepted()
        elif answer.HasField("ack"):
            self._acknowledge(answer.ack)
        elif answer.HasField("refusal"):
            self._refuse(answer.refusal)

    def _accept(self, answer: pb.PublishAccepted) -> None:
        applied = None
        if answer.HasField("applied") and answer.applied.incarnation == self._feed.incarnation:
            applied = answer.applied.sequence
        if not self._feed.resume(applied):
            problem = f"the index's cursor is {applied}: the next event is not retained"
            raise CannotResumeError(problem)
        self._position = self._feed.next_sequence - self._feed.waiting

    def _acknowledge(self, ack: pb.PublishAck) -> None:
        if not self._unanswered or self._unanswered[0].sequence != ack.sequence:
            raise UnavailableError(grpc.StatusCode.INTERNAL, "malformed answer: ack out of order")
        event = self._unanswered.popleft()
        self._unanswered_bytes -= len(event.message)
        self._feed.confirm(event, ack.rejected)

    def _refuse(self, refusal: pb.PublishRefusal) -> None:
        if refusal.reason == pb.REFUSAL_REASON_FENCED:
            raise FencedError(refusal.message)
        if refusal.reason == pb.REFUSAL_REASON_INVALID:
            message = f"event {refusal.sequence}: {refusal.message}"
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, message)
        # A gap: the next stream resumes at the index's cursor.
        raise UnavailableError(grpc.StatusCode.ABORTED, refusal.message)
