"""Numbers a publisher's events and retains them. No I/O, no clock, no locks."""

import os
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Callable, Optional

from kvasir._gen import ingest_pb2 as pb
from kvasir._inventory import Inventory, cleared_event
from kvasir.limits import KEPT_BYTES_MAX, QUEUED_BYTES_MAX

_INCARNATION_BYTES = 16


@dataclass(frozen=True)
class NumberedEvent:
    """One event that can be sent, and sent again."""

    sequence: int
    message: bytes
    """The encoded request."""


class Feed:
    """One source's events: those that wait for the index, and the last ones that it acknowledged.

    Numbers increase across incarnations. If the index lacks events that are no longer retained, a
    new incarnation starts with an image of all held blocks.
    """

    def __init__(
        self,
        dp_rank: int,
        inventory: Inventory,
        queued_events_max: int,
        kept_events_max: int,
        new_incarnation: Callable[[], bytes] = lambda: os.urandom(_INCARNATION_BYTES),
    ) -> None:
        self.inventory = inventory
        self._dp_rank = dp_rank
        self._queued_events_max = queued_events_max
        self._kept_events_max = max(kept_events_max, queued_events_max)
        self._new_incarnation = new_incarnation
        self.incarnation = new_incarnation()
        self.first_sequence = 0
        self.next_sequence = 0
        self._kept: deque[NumberedEvent] = deque()
        self._kept_bytes = 0
        self._waiting_bytes = 0
        # Number of the last event that the index has.
        self._confirmed = -1
        # Last number of the newest image. Earlier events are confirmed only with the whole image.
        self._image_end = -1
        self.images = 0
        self.rejected_blocks = 0

    @property
    def waiting(self) -> int:
        """Number of events that the index has not acknowledged."""
        return self.next_sequence - 1 - self._confirmed

    @property
    def head(self) -> Optional[int]:
        """Number of the newest event of this incarnation; None before its first."""
        return self.next_sequence - 1 if self.next_sequence > self.first_sequence else None

    @property
    def kept(self) -> int:
        """Number of events that are retained."""
        return len(self._kept)

    def has_room(self) -> bool:
        """Whether the queue has room for one more event."""
        return self.waiting < self._queued_events_max and self._waiting_bytes < QUEUED_BYTES_MAX

    def append(self, event: pb.PublishedEvent) -> int:
        """Numbers an event and retains it. Returns the number."""
        sequence = self.next_sequence
        batch = pb.PublishBatch(sequence=sequence, dp_rank=self._dp_rank, events=[event])
        message = pb.PublishEventsRequest(batch=batch).SerializeToString()
        size = len(message)
        self._kept.append(NumberedEvent(sequence, message))
        self.next_sequence += 1
        self._kept_bytes += size
        self._waiting_bytes += size
        self._trim()
        return sequence

    def is_confirmed(self, sequence: int) -> bool:
        """Whether the index has all events up to that number."""
        return self._confirmed >= max(sequence, self._image_end)

    @property
    def confirmed(self) -> Optional[int]:
        """Number up to which the index has all events; None if it has none, or a partial image."""
        return self._confirmed if self._confirmed >= max(0, self._image_end) else None

    def confirm(self, event: NumberedEvent, rejected: int) -> None:
        """Records the ack of the next event. `rejected` is its number of rejected operations."""
        self.rejected_blocks += rejected
        self._confirmed = event.sequence
        self._waiting_bytes -= len(event.message)
        self._trim()

    def resume(self, applied: Optional[int]) -> bool:
        """Resumes after `applied`, the last event of this incarnation that the index has, or None.

        Returns False if it cannot. Then call `start_incarnation` and send another hello.
        """
        wanted = self.first_sequence if applied is None else applied + 1
        oldest = self._kept[0].sequence if self._kept else self.next_sequence
        if not oldest <= wanted <= self.next_sequence:
            return False
        self._confirmed = wanted - 1
        self._waiting_bytes = sum(
            len(event.message) for event in islice(self._kept, wanted - oldest, None)
        )
        return True

    def start_incarnation(self) -> None:
        """Starts a new incarnation, whose first events are an image of all held blocks."""
        self.incarnation = self._new_incarnation()
        self.first_sequence = self.next_sequence
        self._confirmed = self.next_sequence - 1
        self._kept.clear()
        self._kept_bytes = self._waiting_bytes = 0
        self.images += 1
        for event in self.inventory.image():
            self.append(event)
        if self.head is None:
            # An empty image needs an event, too, for the index to acknowledge.
            self.append(cleared_event())
        self._image_end = self.next_sequence - 1

    def event_at(self, sequence: int) -> Optional[NumberedEvent]:
        """The event with that number; None if it was not published yet."""
        if sequence >= self.next_sequence:
            return None
        return self._kept[sequence - self._kept[0].sequence]

    def _trim(self) -> None:
        """Drops the oldest acknowledged events above the limits."""
        kept = self._kept
        while (
            kept
            and kept[0].sequence <= self._confirmed
            and (len(kept) > self._kept_events_max or self._kept_bytes > KEPT_BYTES_MAX)
        ):
            self._kept_bytes -= len(kept.popleft().message)
