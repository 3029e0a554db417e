"""An engine rank's blocks, with enough data to republish them to an index that lost them."""

from collections.abc import Iterator, Sequence
from typing import Optional

from kvasir._gen import ingest_pb2 as pb
from kvasir.errors import InvalidArgumentError
from kvasir.types import Tier

IMAGE_EVENT_BLOCKS_MAX = 4_096
"""Maximum number of blocks in one event of an image."""

_TIERS = {tier: f"TIER_{tier.name}" for tier in Tier}


class _Held:
    """One block. `local` is None if it was published without tokens."""

    __slots__ = ("local", "parent", "tiers")

    def __init__(self, parent: Optional[int], local: Optional[int]) -> None:
        self.parent = parent
        self.local = local
        self.tiers = 0


class Inventory:
    """Held blocks by the engine's names, in the order of their arrival."""

    def __init__(self, held_blocks_max: int) -> None:
        self._held_blocks_max = held_blocks_max
        self._held: dict[int, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def check_room(self, names: Sequence[int]) -> None:
        """Refuses an event that would exceed the limit of held blocks."""
        held = self._held
        if len(held) + len(names) <= self._held_blocks_max:
            return
        blocks = len(held) + sum(name not in held for name in set(names))
        if blocks > self._held_blocks_max:
            problem = (
                f"{blocks} blocks would be held, the limit is {self._held_blocks_max}: publish "
                "removals, or give a larger held_blocks"
            )
            raise InvalidArgumentError("block_hashes", problem)

    def store(
        self,
        names: Sequence[int],
        locals_: Optional[Sequence[int]],
        parent: Optional[int],
        tier: Tier,
    ) -> None:
        """Adds blocks to a tier, each the parent of the next."""
        bit = 1 << tier.value
        if locals_ is None:
            for name in names:
                self._held.setdefault(name, _Held(None, None)).tiers |= bit
            return
        for name, local in zip(names, locals_):
            held = self._held.get(name)
            if held is None:
                held = self._held[name] = _Held(parent, local)
            elif (held.parent, held.local) != (parent, local):
                if held.local is not None:
                    # The name now stands for other content: the old block is gone.
                    held.tiers = 0
                held.parent, held.local = parent, local
            held.tiers |= bit
            parent = name

    def remove(self, names: Sequence[int], tier: Tier) -> None:
        """Removes blocks from a tier."""
        bit = 1 << tier.value
        for name in names:
            held = self._held.get(name)
            if held is not None:
                held.tiers &= ~bit
                if held.tiers == 0:
                    del self._held[name]

    def clear(self) -> None:
        """Removes all blocks."""
        self._held.clear()

    def image(self) -> Iterator[pb.PublishedEvent]:
        """Events that store all held blocks in an empty index."""
        run = _Run()
        for name, held in self._held.items():
            if not run.continues(held):
                yield from run.events()
                run = _Run()
            run.add(name, held)
        yield from run.events()


class _Run:
    """Blocks that fit into one event: a chain, or names without tokens."""

    def __init__(self) -> None:
        self._names: list[int] = []
        self._locals: list[int] = []
        self._parent: Optional[int] = None
        self._tiers = 0

    def continues(self, held: _Held) -> bool:
        if not self._names:
            return True
        if held.tiers != self._tiers or len(self._names) >= IMAGE_EVENT_BLOCKS_MAX:
            return False
        if held.local is None or not self._locals:
            return held.local is None and not self._locals
        return held.parent == self._names[-1]

    def add(self, name: int, held: _Held) -> None:
        if not self._names:
            self._parent, self._tiers = held.parent, held.tiers
        self._names.append(name)
        if held.local is not None:
            self._locals.append(held.local)

    def events(self) -> Iterator[pb.PublishedEvent]:
        if not self._names:
            return
        for tier in Tier:
            if self._tiers & 1 << tier.value:
                locals_ = self._locals or None
                yield stored_event(self._names, locals_, self._parent, tier)


def stored_event(
    names: Sequence[int], locals_: Optional[Sequence[int]], parent: Optional[int], tier: Tier
) -> pb.PublishedEvent:
    """An event that stores blocks."""
    stored = pb.BlocksStored(names=names, tier=_TIERS[tier], local_hashes=locals_ or ())
    if parent is not None:
        stored.parent_name = parent
    return pb.PublishedEvent(stored=stored)


def removed_event(names: Sequence[int], tier: Tier) -> pb.PublishedEvent:
    """An event that removes blocks."""
    return pb.PublishedEvent(removed=pb.BlocksRemoved(names=names, tier=_TIERS[tier]))


def cleared_event() -> pb.PublishedEvent:
    """An event that removes all blocks."""
    return pb.PublishedEvent(cleared=pb.BlocksCleared())
