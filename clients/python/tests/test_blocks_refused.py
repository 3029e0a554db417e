"""What engines get wrong: the error names the argument, and nothing was done."""

from typing import Callable

import pytest
from conftest import HOST_BLOCKS, Keepers
from test_blocks import identities, prompt

from kvasir import InvalidArgumentError, NotFoundError, RefusedError
from kvasir.blocks import BlockFault, BlockIdentity, BlockManager, BlockPin, BlockTier, CommitBlock


def test_wrong_arguments_are_named(keepers: Keepers) -> None:
    agent = keepers()
    manager = BlockManager(agent.target)
    refusals: list[tuple[dict[str, object], type[Exception], str]] = [
        ({"model": "other"}, NotFoundError, "is not served here"),
        ({"worker_id": "other"}, NotFoundError, "is not served here"),
        ({"block_bytes": 1}, RefusedError, "block_bytes is 1, and blocks here have 4096 bytes"),
        ({"dtype": "float8"}, RefusedError, 'dtype is "float8"'),
        ({"name": "a\nb"}, RefusedError, "name has a control character"),
        ({"model": ""}, InvalidArgumentError, "model: is empty"),
        ({"block_bytes": 0}, InvalidArgumentError, "block_bytes: is 0"),
    ]
    for refused, error, text in refusals:
        with pytest.raises(error, match=text):
            manager.open_session(**{"model": "model", **refused})  # type: ignore[arg-type]
    with manager.open_session("model") as session:
        (identity,) = identities(prompt(1, 1))
        (slot,) = session.allocate(1)
        unheld = (slot + 1) % HOST_BLOCKS
        calls: list[tuple[Callable[[], object], type[Exception], str]] = [
            (lambda: session.allocate(0), InvalidArgumentError, "count: is 0: give 1 to 4096"),
            (lambda: session.allocate(1, lease_ms=60_001), InvalidArgumentError, "lease_ms"),
            (lambda: session.write(99, b""), InvalidArgumentError, "slot: is 99"),
            (lambda: session.write(slot, b"1" * 4_097), InvalidArgumentError, "data: has 4097"),
            (lambda: session.write(slot, b"1", offset_bytes=4_097), InvalidArgumentError, "offset"),
            (lambda: session.write(slot, "text"), InvalidArgumentError, "data"),  # type: ignore[arg-type]
            (lambda: session.write(unheld, b"1"), RefusedError, "slot: slot "),
            (lambda: session.commit([]), InvalidArgumentError, "blocks: has 0 entries"),
            (
                lambda: session.commit([CommitBlock(slot, identity, priority=256)]),
                InvalidArgumentError,
                r"blocks\[0\].priority: is 256",
            ),
            (
                lambda: session.commit([CommitBlock(slot, BlockIdentity(1, None, 2, 0))]),
                RefusedError,
                r"blocks\[0\].identity.sequence_hash is 1, must be ",
            ),
            (
                lambda: session.commit([CommitBlock(slot, identity)] * 2),
                RefusedError,
                r"blocks\[1\].slot",
            ),
            (lambda: session.release([]), InvalidArgumentError, "slots: has 0 entries"),
            (lambda: session.abort([-1]), InvalidArgumentError, r"slots\[0\]: is -1"),
            (lambda: session.verify([slot]), RefusedError, r"slots\[0\]: slot "),
            (lambda: next(session.read([slot])), RefusedError, r"slots\[0\]: slot "),
            (lambda: session.read([0] * 1_025), InvalidArgumentError, "slots: has 1025"),
            (lambda: session.onboard([1] * 4_097), InvalidArgumentError, "sequence_hashes"),
            (lambda: session.onboard([1], timeout_ms=0), InvalidArgumentError, "timeout_ms"),
            (lambda: session.match_prefix([]), InvalidArgumentError, "sequence_hashes"),
            (
                lambda: session.match_prefix([1], prefill_tokens_per_second=0),
                RefusedError,
                "prefill_tokens_per_second",
            ),
            (lambda: session.pin([1], ttl_ms=3_600_001), InvalidArgumentError, "ttl_ms"),
            (lambda: session.unpin([1]), InvalidArgumentError, r"pins\[0\]"),  # type: ignore[list-item]
            (
                lambda: session.unpin([BlockPin(BlockTier.HOST, -1, 0)]),
                InvalidArgumentError,
                r"pins\[0\].pin_id",
            ),
            (lambda: session.arena().slot(16), InvalidArgumentError, "slot: is 16"),
        ]
        for call, error, text in calls:
            with pytest.raises(error, match=text):
                call()
        assert session.onboard([1]).fault is BlockFault.MISSING
        assert session.abort([slot]) == 1
    manager.close()
