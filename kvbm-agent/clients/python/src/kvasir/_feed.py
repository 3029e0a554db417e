"""The numbers of a publisher's events, and which of them are kept. No I/O, no clock, no locks."""

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
class Kept:
    """One numbered event that may be sent again."""

    sequence: int
    message: bytes
    """As it goes over the wire."""


class Feed:
    """Events of one source from their first to the last that the index confirmed, and some before.

    Numbers go on for the life of the feed. Where the index lacks what is not kept any more, a new
    incarnation begins with an image of all that is held.
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
        self._kept: deque[Kept] = deque()
        self._kept_bytes = 0
        self._waiting_bytes = 0
        # Last number that the index has.
        self._confirmed = -1
        # Last number of an image: what came before it is confirmed with it only.
        self._image_end = -1
        self.images = 0
        self.rejected_blocks = 0

    @property
    def waiting(self) -> int:
        """Events that the index has not confirmed."""
        return self.next_sequence - 1 - self._confirmed

    @property
    def head(self) -> Optional[int]:
        """Number of the newest event of this incarnation; none before its first."""
        return self.next_sequence - 1 if self.next_sequence > self.first_sequence else None

    @property
    def kept(self) -> int:
        """Events that could be sent again."""
        return len(self._kept)

    def has_room(self) -> bool:
        """Whether one more event may wait."""
        return self.waiting < self._queued_events_max and self._waiting_bytes < QUEUED_BYTES_MAX

    def append(self, event: pb.PublishedEvent) -> int:
        """Gives an event its number and keeps it."""
        sequence = self.next_sequence
        batch = pb.PublishBatch(sequence=sequence, dp_rank=self._dp_rank, events=[event])
        message = pb.PublishEventsRequest(batch=batch).SerializeToString()
        size = len(message)
        self._kept.append(Kept(sequence, message))
        self.next_sequence += 1
        self._kept_bytes += size
        self._waiting_bytes += size
        self._trim()
        return sequence

    def is_confirmed(self, sequence: int) -> bool:
        """Whether the index has all up to that number."""
        return self._confirmed >= max(sequence, self._image_end)

    @property
    def confirmed(self) -> Optional[int]:
        """The last event that the index has, with all before it; none before the first."""
        return self._confirmed if self._confirmed >= max(0, self._image_end) else None

    def confirm(self, kept: Kept, rejected: int) -> None:
        """The index has the next event; it rejected so many of its blocks."""
        self.rejected_blocks += rejected
        self._confirmed = kept.sequence
        self._waiting_bytes -= len(kept.message)
        self._trim()

    def resume(self, applied: Optional[int]) -> bool:
        """Goes on where the index stands in this incarnation; none if it knows nothing of it.

        False if that cannot be: then `begin_life` and say hello again.
        """
        wanted = self.first_sequence if applied is None else applied + 1
        oldest = self._kept[0].sequence if self._kept else self.next_sequence
        if not oldest <= wanted <= self.next_sequence:
            return False
        self._confirmed = wanted - 1
        self._waiting_bytes = sum(
            len(kept.message) for kept in islice(self._kept, wanted - oldest, None)
        )
        return True

    def begin_life(self) -> None:
        """A new incarnation, whose first events say all that is held."""
        self.incarnation = self._new_incarnation()
        self.first_sequence = self.next_sequence
        self._confirmed = self.next_sequence - 1
        self._kept.clear()
        self._kept_bytes = self._waiting_bytes = 0
        self.images += 1
        for event in self.inventory.image():
            self.append(event)
        if self.head is None:
            # That nothing is held is confirmed as any image is.
            self.append(cleared_event())
        self._image_end = self.next_sequence - 1

    def after(self, position: int) -> Optional[Kept]:
        """The event with that number; none if it was not published yet."""
        if position >= self.next_sequence:
            return None
        return self._kept[position - self._kept[0].sequence]

    def _trim(self) -> None:
        """Forgets confirmed events that are too many."""
        kept = self._kept
        while (
            kept
            and kept[0].sequence <= self._confirmed
            and (len(kept) > self._kept_events_max or self._kept_bytes > KEPT_BYTES_MAX)
        ):
            self._kept_bytes -= len(kept.popleft().message)
