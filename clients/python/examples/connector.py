#!/usr/bin/env python3
"""An engine's side of the block manager, in the style of vLLM's KV connector.

    connector.py --target 127.0.0.1:50052 --model model --block-size 4

A small engine with a paged KV cache of numpy arrays serves random prompts that share beginnings.
It saves pages when its cache evicts them, and loads them when a prompt needs them again. It
compares every byte that it loads. The agent needs --blocks-host and --blocks-geometry.
"""

import argparse
import random
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from kvasir import UnavailableError, local_hashes
from kvasir.blocks import BlockIdentity, BlockManager, CommitBlock, Session, block_identities
from kvasir.limits import BLOCK_CHECKS_MAX

Pages = NDArray[np.uint8]


def computed(sequence_hash: int, block_bytes: int) -> Pages:
    """What the model computes for a block: here, bytes that follow from its hash."""
    return np.random.default_rng(sequence_hash).integers(0, 256, block_bytes, np.uint8)


class Connector:
    """Moves pages between the engine's cache and the agent, in three calls."""

    def __init__(self, session: Session, block_size: int) -> None:
        self._session, self._block_size = session, block_size
        self.batch = min(BLOCK_CHECKS_MAX, session.opened.slots)
        # An agent on another machine, or with private memory, is read and written over gRPC.
        self._arena = session.arena() if session.opened.arena else None

    def matched_tokens(self, sequence_hashes: Sequence[int]) -> int:
        """Tokens at the beginning of these blocks that need not be computed."""
        found = self._session.match_prefix(sequence_hashes).nearest if sequence_hashes else ()
        return len(found) * self._block_size

    def fetch(self, plan: Mapping[str, Any], prompt: Sequence[BlockIdentity]) -> None:
        """Has the agent fetch the blocks of a router's plan: `kvasir_fetch` in the parameters."""
        wanted = prompt[plan["first_block"] : plan["first_block"] + plan["blocks"]]
        self._session.fetch(plan["peers"], [block.sequence_hash for block in wanted])

    def save(self, evicted: Sequence[tuple[BlockIdentity, Pages]]) -> int:
        """Saves at most `batch` pages that the cache is about to lose. Returns how many."""
        try:
            slots = self._session.allocate(len(evicted))
        except UnavailableError:
            return 0  # no room: the pages are computed again when they are needed
        blocks = [CommitBlock(slot, identity) for slot, (identity, _) in zip(slots, evicted)]
        for slot, (_, page) in zip(slots, evicted):
            if self._arena is None:
                self._session.write(slot, page.data)
            else:
                self._arena.slot(slot, writable=True)[:] = page
        committed = self._session.commit(blocks)
        held = [answer.block.slot for answer in committed if answer.block]
        refused = [at.slot for at, answer in zip(blocks, committed) if answer.block is None]
        if refused:
            self._session.abort(refused)
        if held:
            self._session.release(held)
        return len(held)

    def load(self, sequence_hashes: Sequence[int], pages: Sequence[Pages]) -> int:
        """Fills pages with the available leading blocks. Returns the number of blocks."""
        loaded = 0
        for start in range(0, len(sequence_hashes), self.batch):
            wanted = sequence_hashes[start : start + self.batch]
            slots = [block.slot for block in self._session.onboard(wanted).blocks]
            if slots:
                for page, data in zip(pages[start:], self._verified(slots)):
                    page[:] = data
                    loaded += 1
                self._session.release(slots)
            if loaded < start + len(wanted):
                break
        return loaded

    def _verified(self, slots: Sequence[int]) -> Iterator[Pages]:
        if self._arena is None:
            for block in self._session.read(slots):
                if block.data is None:
                    return
                yield np.frombuffer(block.data, np.uint8)
        else:
            for slot, verified in zip(slots, self._session.verify(slots)):
                if verified.fault is not None:
                    return
                yield self._arena.slot(slot)


@dataclass
class Counts:
    """Counters of an engine, in blocks."""

    requests: int = 0
    hits: int = 0
    loaded: int = 0
    computed: int = 0
    evicted: int = 0
    saved: int = 0
    wrong: int = 0


class Engine:
    """Serves prompts from a paged cache, which the least recently used page leaves first."""

    def __init__(self, session: Session, block_size: int, pages: int) -> None:
        self._connector, self._block_size = Connector(session, block_size), block_size
        self._memory = np.zeros((pages, session.opened.block_bytes), np.uint8)
        self._free = list(range(pages))
        self._cached: OrderedDict[int, tuple[int, BlockIdentity]] = OrderedDict()
        self.counts = Counts()

    def serve(self, tokens: Sequence[int], plan: Optional[Mapping[str, Any]] = None) -> None:
        """Gets the KV blocks of a prompt: from the cache, from the agent, or by computing them."""
        prompt = block_identities(local_hashes(tokens, self._block_size))
        if len(prompt) > len(self._memory):
            raise ValueError(f"a prompt of {len(prompt)} blocks needs as many pages")
        self.counts.requests += 1
        if plan is not None:
            self._connector.fetch(plan, prompt)
        own = list(takewhile(lambda block: block.sequence_hash in self._cached, prompt))
        self.counts.hits += len(own)
        self._touch(own)
        missing = prompt[len(own) :]
        places = self._take(len(missing))
        names = [identity.sequence_hash for identity in missing]
        matched = self._connector.matched_tokens(names) // self._block_size
        pages = [self._memory[place] for place in places]
        loaded = self._connector.load(names[:matched], pages)
        for index, (identity, page) in enumerate(zip(missing, pages)):
            right = computed(names[index], page.size)
            if index >= loaded:
                page[:] = right
            elif not np.array_equal(page, right):
                self.counts.wrong += 1
            self._cached[names[index]] = (places[index], identity)
        self._touch(prompt)
        self.counts.loaded += loaded
        self.counts.computed += len(missing) - loaded

    def _touch(self, blocks: Sequence[BlockIdentity]) -> None:
        """Marks blocks as used: the last ones of a prompt go first, so that beginnings stay."""
        for identity in reversed(blocks):
            self._cached.move_to_end(identity.sequence_hash)

    def _take(self, count: int) -> list[int]:
        """Pages to fill: free ones, else those of the blocks that were used least recently."""
        oldest = [self._cached.popitem(last=False)[1] for _ in range(count - len(self._free))]
        evicted = [(identity, self._memory[place]) for place, identity in oldest]
        self._free.extend(place for place, _ in oldest)
        self.counts.evicted += len(evicted)
        for start in range(0, len(evicted), self._connector.batch):
            batch = evicted[start : start + self._connector.batch]
            self.counts.saved += self._connector.save(batch)
        return [self._free.pop() for _ in range(count)]


def prompts(seed: int, requests: int, conversations: int, block_size: int) -> list[list[int]]:
    """Prompts of a few conversations in random order: each begins as the one before it."""
    draw = random.Random(seed)
    drawn = ((draw.randrange(conversations) << 16, draw.randint(1, 8)) for _ in range(requests))
    return [list(range(first, first + blocks * block_size)) for first, blocks in drawn]


def main() -> None:
    """Serves prompts and prints what was loaded, saved and computed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True, help="the agent: host:port or unix:/path")
    parser.add_argument("--model", required=True, help="model of the agent's worker")
    parser.add_argument("--block-size", type=int, required=True, help="its tokens per block")
    parser.add_argument("--pages", type=int, default=16, help="pages of the cache (default 16)")
    parser.add_argument("--requests", type=int, default=300, help="prompts (default 300)")
    parser.add_argument("--conversations", type=int, default=16, help="their kinds (default 16)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the prompts (default 1)")
    args = parser.parse_args()
    with BlockManager(args.target) as manager, manager.open_session(args.model) as session:
        engine = Engine(session, args.block_size, args.pages)
        for tokens in prompts(args.seed, args.requests, args.conversations, args.block_size):
            engine.serve(tokens)
    print(engine.counts)
    if engine.counts.wrong:
        raise SystemExit(f"{engine.counts.wrong} blocks were loaded with wrong bytes")


if __name__ == "__main__":
    main()
