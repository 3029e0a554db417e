"""Converts the block manager's messages to the package's types."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Optional, TypeVar

from google.protobuf.message import Message

from kvasir import block_types as types
from kvasir._gen import block_manager_pb2 as pb
from kvasir._read_route import known

Kind = TypeVar("Kind")


def _same(kind: type[Kind], message: Message, **others: Any) -> Kind:
    """Builds a dataclass from the message's fields of the same names; `others` are given."""
    fields: Iterable[dataclasses.Field[Any]] = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = (field.name for field in fields if field.name not in others)
    return kind(**{name: getattr(message, name) for name in names}, **others)


def fault(number: int) -> Optional[types.BlockFault]:
    """Converts a fault. An unknown value also becomes a fault."""
    return known(types.BlockFault, number) if number else None


def _tier(number: int) -> types.BlockTier:
    return known(types.BlockTier, number)


def opened(message: pb.SessionOpened) -> types.SessionOpened:
    """Converts a session's first message."""
    has = message.HasField
    return _same(
        types.SessionOpened,
        message,
        engine_tier=_tier(message.engine_tier),
        arena=_same(types.BlockArena, message.arena) if has("arena") else None,
        limits=_same(types.BlockSessionLimits, message.limits),
        layout=_same(types.BlockLayoutInfo, message.layout) if has("layout") else None,
    )


def _held(block: pb.HeldBlock) -> types.HeldBlock:
    message = block.identity
    parent = message.parent if message.HasField("parent") else None
    identity = _same(types.BlockIdentity, message, parent=parent)
    return _same(types.HeldBlock, block, identity=identity, found_in=_tier(block.found_in))


def committed(block: pb.CommittedBlock) -> types.CommittedBlock:
    """Converts the commit result of a slot."""
    held = _held(block.block) if block.HasField("block") else None
    outcome = known(types.CommitOutcome, block.outcome)
    return types.CommittedBlock(outcome, held, block.error)


def match(answer: pb.MatchPrefixResponse) -> types.PrefixMatch:
    """Converts an answer of MatchPrefix."""
    prefixes = (types.TierPrefix(_tier(at.tier), at.leading_blocks) for at in answer.tiers)
    return types.PrefixMatch(
        nearest=tuple(_tier(tier) for tier in answer.nearest),
        tiers=tuple(prefixes),
        held=tuple(_held(block) for block in answer.held),
        verdicts=tuple(_verdict(verdict) for verdict in answer.verdicts),
    )


def _verdict(verdict: pb.LoadVerdict) -> types.LoadVerdict:
    names = ("load_us", "bytes_per_second")
    optional = {name: getattr(verdict, name) for name in names if verdict.HasField(name)}
    absent = dict.fromkeys(names)
    tier = _tier(getattr(verdict, "from"))
    return _same(types.LoadVerdict, verdict, from_tier=tier, **{**absent, **optional})


def onboarded(answer: pb.OnboardResponse) -> types.Onboarded:
    """Converts an answer of Onboard."""
    blocks = tuple(_held(block) for block in answer.blocks)
    return types.Onboarded(blocks, fault(answer.fault), _tier(answer.fault_tier))


def fetched(answer: pb.FetchResponse) -> types.Fetched:
    """Converts an answer of Fetch."""
    peers = (_same(types.FetchedFromPeer, at, fault=fault(at.fault)) for at in answer.peers)
    return _same(types.Fetched, answer, fault=fault(answer.fault), peers=tuple(peers))


def pinned(block: pb.PinnedBlock) -> types.PinnedBlock:
    """Converts the pin result of a block."""
    pin = None
    if block.HasField("pin"):
        pin = _same(types.BlockPin, block.pin, tier=_tier(block.pin.tier))
    return types.PinnedBlock(pin, fault(block.fault))


def stats(answer: pb.GetBlockStatsResponse) -> types.BlockStats:
    """Converts an answer of GetStats."""
    pools = (_same(types.BlockPoolStats, pool, tier=_tier(pool.tier)) for pool in answer.pools)
    lanes = (
        _same(
            types.BlockLaneStats,
            lane,
            from_tier=_tier(getattr(lane, "from")),
            to_tier=_tier(lane.to),
        )
        for lane in answer.lanes
    )
    return _same(types.BlockStats, answer, pools=tuple(pools), lanes=tuple(lanes))
