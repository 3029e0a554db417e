"""The example of an engine's side: every block that it loads equals what it saved."""

import pathlib
import socket
import subprocess
import sys

import connector
import pytest
from conftest import BLOCK_BYTES, HOST_BLOCKS, Agents, Keepers, block_flags, wait_until
from test_blocks import host, opened

from kvasir import Indexer, local_hashes
from kvasir.blocks import BlockTier, Session, block_identities

CONNECTOR = pathlib.Path(connector.__file__)


def test_it_is_short() -> None:
    assert len(CONNECTOR.read_text().splitlines()) <= 200


@pytest.mark.parametrize("arena", ["memfd", "private"])
def test_what_is_loaded_is_what_was_saved(
    agents: Agents, indexer: Indexer, tmp_path: pathlib.Path, arena: str
) -> None:
    agent = agents("worker-0", *block_flags(tmp_path, 1_024), "--blocks-host", f"arena={arena}")
    with opened(f"unix:{tmp_path}/socket") as (manager, session):
        engine = connector.Engine(session, 4, 8)
        # 32 conversations of up to 8 blocks: 16 times what host memory has room for.
        prompts = connector.prompts(1, 400, 32, 4)
        for tokens in prompts:
            engine.serve(tokens)
        counts = engine.counts
        assert (counts.requests, counts.wrong) == (400, 0)
        assert counts.loaded > 10 * HOST_BLOCKS
        assert counts.saved > 10 * HOST_BLOCKS
        stats = manager.stats()
        assert stats.blocks > 4 * HOST_BLOCKS
        up = next(lane for lane in stats.lanes if lane.to_tier is BlockTier.HOST)
        assert up.committed > HOST_BLOCKS
        wait_until("release", lambda: host(manager), lambda at: at.active + at.writing == 0)
        check_index(indexer, session, prompts)
    run = [sys.executable, str(CONNECTOR), "--target", agent.target, "--model", "model"]
    done = subprocess.run(
        [*run, "--block-size", "4", "--requests", "50"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "requests=50" in done.stdout
    assert "wrong=0" in done.stdout


def test_a_plan_brings_blocks_from_another_agent(agents: Agents, tmp_path: pathlib.Path) -> None:
    """What a router plans is fetched, and the rest of the prompt computed."""
    flags = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        flags.append(block_flags(tmp_path / name, 64))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        peer = f"127.0.0.1:{free.getsockname()[1]}"
    holder = agents("worker-0", *flags[0], "--blocks-peer", f"listen={peer}")
    fetcher = agents("worker-1", *flags[1])
    tokens = list(range(6 * 4))
    with opened(holder.target) as (_, session):
        blocks = block_identities(local_hashes(tokens, 4))[:5]
        pages = [connector.computed(at.sequence_hash, BLOCK_BYTES) for at in blocks]
        assert connector.Connector(session, 4).save(list(zip(blocks, pages))) == 5
    plan = {"first_block": 1, "blocks": 4, "recompute_blocks": 1, "peers": [f"http://{peer}"]}
    with opened(fetcher.target) as (_, session):
        engine = connector.Engine(session, 4, 8)
        engine.serve(tokens[:4])
        engine.serve(tokens, plan)
        counts = engine.counts
        assert (counts.hits, counts.loaded, counts.computed, counts.wrong) == (1, 4, 2, 0)


def check_index(indexer: Indexer, session: Session, prompts: list[list[int]]) -> None:
    """The index shows for each prompt how much the agent has in each tier."""
    longest = {tokens[0]: tokens for tokens in sorted(prompts, key=len)}
    in_tiers = [0, 0]
    for tokens in longest.values():
        names = [at.sequence_hash for at in block_identities(local_hashes(tokens, 4))]

        def differs(tokens: list[int] = tokens, names: list[int] = names) -> object:
            matches = indexer.find_matches("model", token_ids=tokens, block_size=4).matches
            best = matches[0].blocks_by_tier if matches else None
            shown = [best.host, best.disk] if best else [0, 0]
            tiers = {at.tier: at.leading_blocks for at in session.match_prefix(names).tiers}
            expected = [tiers[BlockTier.HOST], tiers[BlockTier.DISK]]
            if shown == expected:
                in_tiers[0] += shown[0]
                in_tiers[1] += shown[1]
                return None
            return shown, expected

        wait_until("the index's view", differs, lambda found: found is None)
    assert in_tiers[0] > 0
    assert in_tiers[1] > HOST_BLOCKS


@pytest.mark.parametrize("host_blocks", [HOST_BLOCKS, 4_096])
def test_many_pages_go_in_batches(agents: Agents, host_blocks: int) -> None:
    """A prompt evicts more pages than the agent has slots, or than one call may name."""
    host = ("--blocks-host", f"bytes={host_blocks * BLOCK_BYTES}")
    agent = agents("worker-0", *host, "--blocks-geometry", f"bytes={BLOCK_BYTES}")
    with opened(agent.target) as (manager, session):
        pages = 1_500
        engine = connector.Engine(session, 4, pages)
        first, second = range(4 * pages), range(1 << 16, (1 << 16) + 4 * pages)
        for tokens in (first, second, first):
            engine.serve(tokens)
        room = min(pages, host_blocks)
        assert (engine.counts.evicted, engine.counts.wrong) == (2 * pages, 0)
        assert engine.counts.saved >= room
        if host_blocks > pages:
            assert engine.counts.loaded == pages
        (pool,) = manager.stats().pools
        assert (pool.active, pool.writing) == (0, 0)


def test_a_wrong_byte_is_counted(keepers: Keepers) -> None:
    """The comparison can fail: another engine saves other bytes under the same names."""
    tokens = list(range(4))
    with opened(keepers().target) as (_, session):
        (identity,) = block_identities(local_hashes(tokens, 4))
        page = connector.computed(1, BLOCK_BYTES)
        assert connector.Connector(session, 4).save([(identity, page)]) == 1
        engine = connector.Engine(session, 4, 8)
        engine.serve(tokens)
        assert (engine.counts.loaded, engine.counts.wrong) == (1, 1)


@pytest.mark.parametrize("arena", [True, False])
def test_wrong_bytes_are_computed_again(keepers: Keepers, arena: bool) -> None:
    tokens = list(range(12))
    blocks = block_identities(local_hashes(tokens, 4))
    with opened(keepers().target) as (_, session):
        engine = connector.Engine(session, 4, 8)
        pages = [connector.computed(at.sequence_hash, BLOCK_BYTES) for at in blocks]
        assert connector.Connector(session, 4).save(list(zip(blocks, pages))) == 3
        held = session.match_prefix([at.sequence_hash for at in blocks], hold=True).held
        session.arena().slot(held[1].slot, writable=True)[7] ^= 1
        if not arena:
            engine._connector._arena = None
        engine.serve(tokens)
        counts = engine.counts
        assert (counts.loaded, counts.computed, counts.wrong) == (1, 2, 0)


def test_help() -> None:
    done = subprocess.run(
        [sys.executable, str(CONNECTOR), "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "--target" in done.stdout
