"""Large blocks, memory that can't be mapped, and an agent that hangs."""

import dataclasses
import random
import signal
import sys
import time

import pytest
from conftest import Agents, Keepers
from test_blocks import identities, opened, prompt

from kvasir import ArenaError, SessionLostError, _rpc
from kvasir._arena import Arena
from kvasir.blocks import BlockManager, CommitBlock


def test_blocks_larger_than_a_message(agents: Agents) -> None:
    """They are written and read in several parts."""
    block_bytes = (9 << 20) + 4_096
    sizes = (f"--blocks-host=bytes={2 * block_bytes}", f"--blocks-geometry=bytes={block_bytes}")
    with opened(agents("worker-0", *sizes).target) as (_, session):
        wholes = [random.Random(seed).randbytes(block_bytes) for seed in range(2)]
        slots = session.allocate(2)
        for slot, whole in zip(slots, wholes):
            session.write(slot, whole)
        blocks = [CommitBlock(*each) for each in zip(slots, identities(prompt(1, 2)))]
        held = [done.block.slot for done in session.commit(blocks) if done.block]
        # In the order that was asked for, not that of the slots.
        for order in (1, -1):
            read = [(block.slot, block.data) for block in session.read(held[::order])]
            assert read == list(zip(held, wholes))[::order]


def test_memory_of_another_layout_is_not_mapped(keepers: Keepers) -> None:
    with opened(keepers().target) as (_, session):
        first = session.opened
        assert first.arena is not None
        others = [
            dataclasses.replace(first, block_bytes=first.block_bytes - 1),
            dataclasses.replace(first, slots=first.slots - 1),
            dataclasses.replace(first, arena=dataclasses.replace(first.arena, path=__file__)),
        ]
        for other in others:
            with pytest.raises(ArenaError):
                Arena(other)


def test_without_numpy_the_arena_says_what_to_install(
    keepers: Keepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(keepers().target) as (_, session):
        monkeypatch.setitem(sys.modules, "numpy", None)
        with pytest.raises(ArenaError, match=r"kvasir\[blocks\]"):
            session.arena()


def test_an_agent_that_hangs_is_noticed(keepers: Keepers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the times that connections have, which are 10 s to ask and 10 s to wait."""
    times = [(name, value // 10) for name, value in _rpc.CHANNEL_OPTIONS if name.endswith("_ms")]
    others = [option for option in _rpc.CHANNEL_OPTIONS if not option[0].endswith("_ms")]
    monkeypatch.setattr(_rpc, "CHANNEL_OPTIONS", others + times)
    agent = keepers()
    with BlockManager(agent.target) as manager, manager.open_session("model") as session:
        began = time.monotonic()
        agent.send(signal.SIGSTOP)
        with pytest.raises(SessionLostError, match="ping timeout"):
            session.allocate(1)
        assert time.monotonic() - began < 10
        agent.send(signal.SIGCONT)
