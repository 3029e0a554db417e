"""Numbering, retention and images, without a server."""

import random
from typing import Callable, Optional

import pytest

from kvasir import InvalidArgumentError, Tier
from kvasir._feed import Feed
from kvasir._gen import ingest_pb2 as pb
from kvasir._inventory import Inventory, cleared_event, removed_event, stored_event

SEEDS = 200

Known = dict[int, tuple[Optional[int], Optional[int], frozenset[Tier]]]


class Index:
    """An index of one source. It applies events in order; the test makes it lose some."""

    def __init__(self) -> None:
        self.incarnation: Optional[bytes] = None
        self.expected = 0
        self.known: Known = {}

    def hello(self, incarnation: bytes, first: int) -> Optional[int]:
        if incarnation != self.incarnation:
            self.incarnation, self.expected, self.known = incarnation, first, {}
            return None
        return self.expected - 1 if self.expected > first else None

    def take(self, message: bytes) -> None:
        batch = pb.PublishEventsRequest.FromString(message).batch
        assert batch.sequence == self.expected
        self.expected += 1
        for event in batch.events:
            self.apply(event)

    def apply(self, event: pb.PublishedEvent) -> None:
        if event.HasField("cleared"):
            self.known = {}
        elif event.HasField("removed"):
            for name in event.removed.names:
                parent, local, tiers = self.known.pop(name, (None, None, frozenset()))
                left = tiers - {Tier(event.removed.tier)}
                if left:
                    self.known[name] = (parent, local, left)
        else:
            self.store(event.stored)

    def store(self, stored: pb.BlocksStored) -> None:
        tier = Tier(stored.tier)
        parent = stored.parent_name if stored.HasField("parent_name") else None
        for index, name in enumerate(stored.names):
            previous = self.known.get(name, (None, None, frozenset()))
            tiers = previous[2]
            if not stored.local_hashes:
                self.known[name] = (previous[0], previous[1], tiers | {tier})
                continue
            local = stored.local_hashes[index]
            if previous[1] is not None and previous[:2] != (parent, local):
                tiers = frozenset()
            self.known[name] = (parent, local, tiers | {tier})
            parent = name


def connect(feed: Feed, index: Index) -> int:
    """Opens a stream as the publisher does; returns the number of the next event."""
    applied = index.hello(feed.incarnation, feed.first_sequence)
    if not feed.resume(applied):
        feed.start_incarnation()
        assert feed.resume(index.hello(feed.incarnation, feed.first_sequence))
    return feed.next_sequence - feed.waiting


def incarnations(rng: random.Random) -> Callable[[], bytes]:
    return lambda: rng.randbytes(16)


def random_event(rng: random.Random, inventory: Inventory) -> pb.PublishedEvent:
    tier = rng.choice(list(Tier))
    names = [rng.randrange(12) for _ in range(rng.randint(1, 5))]
    kind = rng.randrange(10)
    if kind == 0:
        inventory.clear()
        return cleared_event()
    if kind < 4:
        inventory.remove(names, tier)
        return removed_event(names, tier)
    parent = rng.choice([None, rng.randrange(12)])
    locals_: Optional[list[int]] = [rng.randrange(3) for _ in names]
    if kind == 4:
        parent = locals_ = None
    inventory.store(names, locals_, parent, tier)
    return stored_event(names, locals_, parent, tier)


def test_an_index_that_loses_events_recovers() -> None:
    images = resent = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        feed = Feed(0, Inventory(100), 5, rng.choice([5, 20]), incarnations(rng))
        index, truth, saved = Index(), Index(), Index()
        position = connect(feed, index)
        for _ in range(300):
            action = rng.randrange(12)
            if action < 5 and feed.has_room():
                event = random_event(rng, feed.inventory)
                truth.apply(event)
                feed.append(event)
            elif action < 10:
                following = feed.event_at(position)
                if following is not None:
                    index.take(following.message)
                    feed.confirm(following, 0)
                    position += 1
            elif action == 10:
                # The index restarts, from a checkpoint or empty.
                before = position
                restored = saved if rng.randrange(2) else Index()
                index.incarnation, index.expected = restored.incarnation, restored.expected
                index.known = dict(restored.known)
                position = connect(feed, index)
                resent += position < before
            else:
                saved.incarnation, saved.expected = index.incarnation, index.expected
                saved.known = dict(index.known)
            assert feed.kept <= 20 + feed.waiting, f"seed {seed}"
        position = connect(feed, index)
        while (following := feed.event_at(position)) is not None:
            index.take(following.message)
            feed.confirm(following, 0)
            position += 1
        assert feed.waiting == 0, f"seed {seed}"
        assert feed.is_confirmed(feed.next_sequence - 1), f"seed {seed}"
        assert index.known == truth.known, f"seed {seed}"
        images += feed.images
    # Both ways to recover were used.
    assert images > SEEDS
    assert resent > SEEDS


def test_an_image_groups_chains() -> None:
    inventory = Inventory(10_000)
    inventory.store(range(1, 101), range(100), None, Tier.DEVICE)
    inventory.store(range(1, 101), range(100), None, Tier.HOST)
    inventory.store([201, 202], [1, 2], 100, Tier.DEVICE)
    events = list(inventory.image())
    assert [len(event.stored.names) for event in events] == [100, 100, 2]
    assert [Tier(event.stored.tier) for event in events] == [Tier.DEVICE, Tier.HOST, Tier.DEVICE]


def test_blocks_above_the_limit_are_refused() -> None:
    inventory = Inventory(3)
    inventory.store([1, 2], [1, 2], None, Tier.DEVICE)
    inventory.check_room([1, 2, 3])
    with pytest.raises(InvalidArgumentError, match="held_blocks") as error:
        inventory.check_room([2, 3, 4])
    assert error.value.field == "block_hashes"
    assert len(inventory) == 2


def test_a_flush_waits_for_the_whole_image() -> None:
    feed = Feed(0, Inventory(10), 5, 5)
    for name in range(3):
        feed.inventory.store([name], [name], None, Tier.DEVICE)
        feed.append(stored_event([name], [name], None, Tier.DEVICE))
    # Event 1 was never sent. Its blocks may be anywhere in the image.
    feed.start_incarnation()
    first = feed.first_sequence
    assert first == 3
    for position in range(first, feed.next_sequence):
        assert not feed.is_confirmed(1)
        assert feed.confirmed is None
        event = feed.event_at(position)
        assert event is not None
        feed.confirm(event, 0)
    assert feed.is_confirmed(1)
    assert feed.confirmed == 5


def test_a_flush_waits_for_an_empty_image() -> None:
    feed = Feed(0, Inventory(10), 5, 5)
    feed.append(cleared_event())
    feed.start_incarnation()
    # An index that knows the previous incarnation may still hold its blocks.
    assert not feed.is_confirmed(0)
    event = feed.event_at(feed.first_sequence)
    assert event is not None
    feed.confirm(event, 0)
    assert feed.is_confirmed(0)
