"""The client of the block manager against a real agent, which publishes to a real index."""

import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Optional

import numpy
import pytest
from conftest import BLOCK_BYTES, HOST_BLOCKS, Agents, Keepers, block_flags, wait_until

from kvasir import (
    ArenaError,
    ClosedError,
    Indexer,
    RefusedError,
    SessionLostError,
    UnavailableError,
    local_hashes,
)
from kvasir.blocks import (
    BlockFault,
    BlockIdentity,
    BlockManager,
    BlockPoolStats,
    BlockTier,
    CommitBlock,
    CommitOutcome,
    HeldBlock,
    OffloadOutcome,
    Session,
    block_identities,
)


@contextlib.contextmanager
def opened(target: str, **options: object) -> Iterator[tuple[BlockManager, Session]]:
    """A session over a connection of its own."""
    with BlockManager(target, timeout=20) as manager:
        session = manager.open_session("model", **options)  # type: ignore[arg-type]
        with session:
            yield manager, session


def prompt(number: int, blocks: int) -> list[int]:
    """Tokens that have nothing in common with those of other numbers."""
    first = number << 16
    return list(range(first, first + 4 * blocks))


def identities(tokens: list[int]) -> list[BlockIdentity]:
    return block_identities(local_hashes(tokens, 4))


def names(tokens: list[int]) -> list[int]:
    return [identity.sequence_hash for identity in identities(tokens)]


def bytes_of(sequence_hash: int) -> bytes:
    return random.Random(sequence_hash).randbytes(BLOCK_BYTES)


def save(session: Session, tokens: list[int], *, mapped: bool = False) -> list[HeldBlock]:
    """Saves the blocks of a prompt, which the session holds from then on."""
    blocks = identities(tokens)
    slots = session.allocate(len(blocks))
    arena = session.arena() if mapped else None
    for slot, identity in zip(slots, blocks):
        data = bytes_of(identity.sequence_hash)
        if arena is None:
            session.write(slot, data[:1_000])
            session.write(slot, data[1_000:], offset_bytes=1_000)
        else:
            arena.slot(slot, writable=True)[:] = numpy.frombuffer(data, numpy.uint8)
    committed = session.commit([CommitBlock(*pair) for pair in zip(slots, blocks)])
    assert [(at.outcome, at.error) for at in committed] == [(CommitOutcome.NEW, "")] * len(blocks)
    held = [at.block for at in committed if at.block]
    assert [block.identity for block in held] == blocks
    return held


def slots_of(held: "list[HeldBlock] | tuple[HeldBlock, ...]") -> list[int]:
    return [block.slot for block in held]


def save_released(session: Session, tokens: list[int]) -> None:
    held = save(session, tokens)
    assert session.release(slots_of(held)) == len(held)


def load(session: Session, tokens: list[int]) -> None:
    """Gets all blocks of a prompt and compares their bytes, over gRPC and in the mapped memory."""
    got = session.onboard(names(tokens))
    assert (got.fault, len(got.blocks)) == (None, len(tokens) // 4)
    slots, arena = slots_of(got.blocks), session.arena()
    for block, read in zip(got.blocks, session.read(slots)):
        right = bytes_of(block.identity.sequence_hash)
        assert (read.data, read.checksum, read.fault) == (right, block.checksum, None)
    for block, verified in zip(got.blocks, session.verify(slots)):
        assert (verified.checksum, verified.fault) == (block.checksum, None)
        assert arena.slot(block.slot).tobytes() == bytes_of(block.identity.sequence_hash)
    assert session.release(slots) == len(slots)


def host(manager: BlockManager) -> BlockPoolStats:
    return next(pool for pool in manager.stats().pools if pool.tier is BlockTier.HOST)


def leading(session: Session, tokens: list[int]) -> dict[BlockTier, int]:
    found = session.match_prefix(names(tokens)).tiers
    return {at.tier: at.leading_blocks for at in found}


def wait_for_disk(session: Session, tokens: list[int]) -> None:
    blocks = len(tokens) // 4
    wait_until("copies", lambda: leading(session, tokens), lambda at: at[BlockTier.DISK] == blocks)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("over", ["tcp", "socket"])
def test_blocks_are_saved_and_loaded(
    keepers: Keepers, indexer: Indexer, tmp_path: pathlib.Path, mapped: bool, over: str
) -> None:
    agent = keepers()
    target = agent.target if over == "tcp" else f"unix:{tmp_path}/socket"
    with opened(target, name="test", block_bytes=BLOCK_BYTES, dtype="float16") as (
        manager,
        session,
    ):
        first = session.opened
        assert (first.block_bytes, first.slots, first.dtype) == (BLOCK_BYTES, 16, "float16")
        assert (first.engine_tier, first.layout) == (BlockTier.HOST, None)
        assert repr(first.session_id) not in repr(first)
        tokens = prompt(1, 6)
        held = save(session, tokens, mapped=mapped)
        assert host(manager).active == 6
        match = session.match_prefix(names(tokens), hold=True, prefill_tokens_per_second=1e3)
        assert match.nearest == (BlockTier.HOST,) * 6
        assert match.held == tuple(held)
        # The blocks were given twice.
        assert session.release(slots_of(held)) == session.release(slots_of(held)) == 6
        assert session.release(slots_of(held)) == 0
        # Copies to the disk hold them, too.
        wait_until("release", lambda: host(manager), lambda at: at.active == 0)
        load(session, tokens)
        wait_for_disk(session, tokens)
        # Others take their place in host memory, which has 16 blocks.
        for number in (2, 3):
            save_released(session, prompt(number, 8))
        assert leading(session, tokens)[BlockTier.HOST] < 6
        verdicts = session.match_prefix(names(tokens), prefill_tokens_per_second=1e-3).verdicts
        assert [(at.from_tier, at.is_load) for at in verdicts] == [(BlockTier.DISK, True)]
        assert verdicts[0].load_bytes == verdicts[0].blocks * BLOCK_BYTES

        wait_for_disk(session, prompt(3, 8))

        def found() -> tuple[int, int]:
            tiers = indexer.find_matches("model", token_ids=tokens + prompt(9, 1), block_size=4)
            best = tiers.matches[0].blocks_by_tier
            return best.host, best.disk

        in_host = leading(session, tokens)[BlockTier.HOST]
        wait_until("the index's view", found, lambda at: at == (in_host, 6))
        load(session, tokens)
        wait_until("the index's view", found, lambda at: at == (6, 6))
        lanes = {(lane.from_tier, lane.to_tier): lane for lane in manager.stats().lanes}
        assert lanes[BlockTier.DISK, BlockTier.HOST].committed >= 6 - in_host
        assert manager.stats().sessions == 1
    with BlockManager(target) as manager:
        stats = manager.stats()
        assert (stats.sessions, stats.sessions_lost) == (0, 0)


def test_content_that_is_there_is_not_kept_twice(keepers: Keepers) -> None:
    with opened(keepers().target) as (_, session):
        (held,) = save(session, prompt(1, 1))
        (slot,) = session.allocate(1, lease_ms=5_000)
        session.write(slot, bytes_of(held.identity.sequence_hash))
        wrong = CommitBlock(slot, held.identity, checksum=held.checksum ^ 1)
        (answer,) = session.commit([wrong])
        assert (answer.outcome, answer.block) == (CommitOutcome.CHECKSUM_MISMATCH, None)
        assert answer.error
        right = CommitBlock(slot, held.identity, checksum=held.checksum, priority=255)
        (answer,) = session.commit([right])
        assert answer.outcome in (CommitOutcome.EXISTING, CommitOutcome.DUPLICATE)
        assert answer.block is not None
        assert answer.block.identity == held.identity
        (answer,) = session.commit([right])
        assert (answer.outcome, answer.block) == (CommitOutcome.LEASE_OVER, None)
        leased = session.allocate(3)
        assert session.abort([*leased, held.slot]) == 3
        with pytest.raises(UnavailableError, match="ask again"):
            session.allocate(HOST_BLOCKS + 1)


def test_pins_and_offers(keepers: Keepers) -> None:
    with opened(keepers("--blocks-offload=false").target) as (manager, session):
        tokens = prompt(1, 2)
        save_released(session, tokens)
        assert session.offload(names(tokens)) == [OffloadOutcome.QUEUED] * 2
        wait_for_disk(session, tokens)
        outcomes = session.offload([*names(tokens), 7], priority=9)
        assert outcomes == [OffloadOutcome.PRESENT] * 2 + [OffloadOutcome.NOWHERE]
        *pinned, missing = session.pin([*names(tokens), 7], ttl_ms=60_000)
        assert (missing.pin, missing.fault) == (None, BlockFault.MISSING)
        pins = [at.pin for at in pinned if at.pin]
        assert [pin.tier for pin in pins] == [BlockTier.HOST] * 2
        assert host(manager).pins == 2
        assert (session.unpin(pins), session.unpin(pins)) == (2, 0)
        assert host(manager).pins == 0


@pytest.mark.parametrize("end", ["close", "connection", "process"])
def test_the_end_of_a_session_releases_its_blocks(keepers: Keepers, end: str) -> None:
    agent = keepers()
    with opened(agent.target) as (watcher, _):
        manager = BlockManager(agent.target)
        if end == "process":
            leave_by_sigkill(agent.target, watcher)
        else:
            session = manager.open_session("model")
            held = save(session, prompt(1, 4))
            session.allocate(3, lease_ms=1_000)
            assert (host(watcher).active, host(watcher).writing) == (4, 3)
            if end == "close":
                session.close()
                session.close()
                with pytest.raises(ClosedError, match="open another one"):
                    session.release(slots_of(held))
            else:
                manager.close()
                with pytest.raises(SessionLostError, match="open another one"):
                    session.release(slots_of(held))
                session.close()
        manager.close()
        wait_until("release", watcher.stats, lambda at: at.sessions == 1)
        wait_until("release", lambda: host(watcher), lambda at: at.active + at.writing == 0)
        assert watcher.stats().sessions_lost == (end != "close")


LEAVER = """
import signal, sys
from kvasir.blocks import BlockManager
session = BlockManager(sys.argv[1]).open_session("model")
session.allocate(3, lease_ms=1_000)
print("open", flush=True)
signal.pause()
"""


def leave_by_sigkill(target: str, watcher: BlockManager) -> None:
    """An engine that is killed while it has leases."""
    command = [sys.executable, "-c", LEAVER, target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == "open\n"
        assert host(watcher).writing == 3
        engine.send_signal(signal.SIGKILL)


def test_a_killed_agent_is_noticed_and_its_disk_is_read_again(keepers: Keepers) -> None:
    agent = keepers()
    tokens = prompt(1, 8)
    with opened(agent.target) as (manager, session):
        save_released(session, tokens)
        wait_for_disk(session, tokens)
        arena = session.arena()
        agent.kill()
        with pytest.raises(SessionLostError, match="open another one"):
            session.allocate(1)
        # Until they are dropped, views of the memory stay valid.
        view = arena.slot(0)
        assert (view.nbytes, view.sum() > 0) == (BLOCK_BYTES, True)
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
        for call in (
            lambda: session.onboard(names(tokens)),
            lambda: list(session.read([0])),
            session.arena,
        ):
            with pytest.raises(SessionLostError):
                call()
        with pytest.raises(UnavailableError):
            BlockManager(agent.target).open_session("model")
        agent.start()
        with pytest.raises(SessionLostError):
            session.verify([0])
        wait_until("reconnection", lambda: stats_or_none(manager), lambda at: at is not None)
        with manager.open_session("model") as another:
            assert leading(another, tokens) == {BlockTier.HOST: 0, BlockTier.DISK: 8}
            load(another, tokens)


def stats_or_none(manager: BlockManager) -> Optional[object]:
    try:
        return manager.stats()
    except UnavailableError:
        return None


def test_a_call_in_progress_notices_the_loss(keepers: Keepers) -> None:
    agent = keepers()
    with opened(agent.target) as (_, session):
        held = save(session, prompt(1, 4))
        reading = session.read(slots_of(held) * 256)
        assert next(reading).fault is None
        agent.kill()
        with pytest.raises(SessionLostError):
            list(reading)


def test_a_stopping_agent_ends_its_sessions(keepers: Keepers) -> None:
    agent = keepers()
    with opened(agent.target) as (_, session):
        agent.send(signal.SIGTERM)

        def is_lost() -> bool:
            try:
                session.match_prefix([1])
            except SessionLostError:
                return True
            return False

        wait_until("the end", is_lost, bool)


def test_wrong_bytes_are_a_fault(keepers: Keepers, tmp_path: pathlib.Path) -> None:
    agent = keepers()
    tokens = prompt(1, 4)
    with opened(agent.target) as (_, session):
        save_released(session, tokens)
        wait_for_disk(session, tokens)
    agent.kill()
    disk = tmp_path / "disk"
    at = disk.read_bytes().index(bytes_of(names(tokens)[2]))
    flip(disk, at + 1_234)
    agent.start()
    with opened(agent.target) as (manager, session):
        got = session.onboard(names(tokens))
        assert (got.fault, got.fault_tier) == (BlockFault.CORRUPT, BlockTier.DISK)
        assert len(got.blocks) == 2
        first, second = session.read(slots_of(got.blocks))
        assert [first.data, second.data] == [bytes_of(name) for name in names(tokens)[:2]]
        # It was withdrawn.
        assert session.onboard(names(tokens)).fault is BlockFault.MISSING
        (disk_pool,) = (pool for pool in manager.stats().pools if pool.tier is BlockTier.DISK)
        assert (disk_pool.corrupt, disk_pool.withdrawn) == (1, 1)
        # An engine that writes where it may not is noticed, too.
        stray = session.arena().slot(second.slot, writable=True)
        stray[7] ^= 1
        read, again = session.read([second.slot, first.slot])
        assert (read.data, read.fault) == (None, BlockFault.CORRUPT)
        assert (again.data, again.fault) == (first.data, None)
        (verified,) = session.verify([second.slot])
        assert (verified.checksum, verified.fault) == (0, BlockFault.CORRUPT)


def flip(path: pathlib.Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
        file.flush()
        os.fsync(file.fileno())


def test_private_memory_is_not_mapped(keepers: Keepers) -> None:
    with opened(keepers("--blocks-host", "arena=private").target) as (_, session):
        with pytest.raises(ArenaError, match=r"use Session\.read"):
            session.arena()
        tokens = prompt(1, 3)
        held = save(session, tokens)
        read = [block.data for block in session.read(slots_of(held))]
        assert read == [bytes_of(name) for name in names(tokens)]


def test_threads_share_a_session(keepers: Keepers) -> None:
    with opened(keepers().target) as (manager, session):
        failed: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for turn in range(10):
                    tokens = prompt(number * 100 + turn, 2)
                    save_released(session, tokens)
                    load(session, tokens)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        wait_until("release", lambda: host(manager), lambda at: at.active == 0)


def test_an_agent_without_blocks_says_so(agents: Agents) -> None:
    with BlockManager(agents().target) as manager, pytest.raises(RefusedError):
        manager.open_session("model")


def test_blocks_come_from_another_agent(
    agents: Agents, indexer: Indexer, tmp_path: pathlib.Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as port:
        peer = f"127.0.0.1:{port.getsockname()[1]}"
    folders = [tmp_path / name for name in ("owner", "other")]
    for folder in folders:
        folder.mkdir()
    listen = ("--blocks-peer", f"listen={peer}")
    owner = agents("worker-0", *block_flags(folders[0]), *listen)
    other = agents("worker-1", *block_flags(folders[1]))
    tokens = prompt(1, 5)
    with opened(owner.target) as (_, session):
        save_released(session, tokens)
    with opened(other.target) as (_, session):
        fetched = session.fetch([f"http://{peer}"], names(tokens))
        assert (fetched.leading_blocks, fetched.fetched_blocks, fetched.fault) == (5, 5, None)
        assert fetched.bytes == 5 * BLOCK_BYTES
        assert [(at.blocks, at.fault, at.error) for at in fetched.peers] == [(5, None, "")]
        load(session, tokens)
        missing = session.fetch([f"http://{peer}"], names(prompt(2, 1)), timeout_ms=5_000)
        assert (missing.leading_blocks, missing.fault) == (0, BlockFault.MISSING)
        owner.kill()
        lost = session.fetch([f"http://{peer}"], names(prompt(2, 1)))
        assert (lost.leading_blocks, lost.fault) == (0, BlockFault.PEER)
        assert lost.peers[0].error
