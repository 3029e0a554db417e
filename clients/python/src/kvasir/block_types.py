"""The types of the block manager's arguments and answers."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from kvasir.hashing import sequence_hashes


class BlockTier(enum.Enum):
    """Where a block is."""

    UNSPECIFIED = 0
    """Nowhere, or in a tier of a newer agent that this package does not know."""
    DEVICE = 1
    """G1: the accelerator's own memory."""
    HOST = 2
    """G2: memory of the host."""
    DISK = 3
    """G3: local disk."""
    VOLUME = 4
    """G4: a volume of objects, shared by machines."""


class BlockFault(enum.Enum):
    """Why a block can't be had. Where there is no fault, answers have None."""

    UNSPECIFIED = 0
    """A fault of a newer agent that this package does not know."""
    MISSING = 1
    """It is in no tier."""
    CORRUPT = 2
    """Its bytes were wrong. It was withdrawn: compute it again."""
    UNREADABLE = 3
    """Its storage could not be read. Compute it, or ask again later."""
    TIMED_OUT = 4
    """The time of the request was over."""
    BUSY = 5
    """Too many transfers wait. Ask again later."""
    LIMIT = 6
    """The session holds as many blocks as it may, or its tier has as many pins as it may."""
    STOPPING = 7
    """The agent stops."""
    PEER = 8
    """The peer can't be reached, refuses, or was lost or restarted."""


class CommitOutcome(enum.Enum):
    """What became of a slot that was committed."""

    UNSPECIFIED = 0
    """An outcome of a newer agent that this package does not know."""
    NEW = 1
    """It is the first block of its content."""
    DUPLICATE = 2
    """There is another block of its content; both are kept."""
    EXISTING = 3
    """There is another block of its content: the slot was given back, `block` is the other one."""
    CHECKSUM_MISMATCH = 4
    """The bytes do not add up to the stated checksum. The slot stays leased: write them again."""
    LEASE_OVER = 5
    """The session has no lease of the slot, or none any more: allocate again."""
    REFUSED = 6
    """The identity contradicts another block, or the slot can't be read. It stays leased."""
    LIMIT = 7
    """The session holds as many blocks as it may. The slot stays leased."""


class OffloadOutcome(enum.Enum):
    """What became of an offer to the tier below."""

    UNSPECIFIED = 0
    """An outcome of a newer agent that this package does not know."""
    QUEUED = 1
    """It waits for its copy."""
    PRESENT = 2
    """The tier below has it."""
    PENDING = 3
    """It waits, or is on its way, already."""
    INFREQUENT = 4
    """It was not asked for often enough yet."""
    QUEUE_FULL = 5
    """The queue is full of blocks that are as important."""
    NOWHERE = 6
    """The block is in no tier, or there is no tier below."""


@dataclass(frozen=True)
class BlockIdentity:
    """What a block is. The agent never sees its tokens."""

    sequence_hash: int
    """Hash of the block and all blocks before it, see `kvasir.sequence_hashes`: its key."""
    parent: Optional[int]
    """Sequence hash of the block before it; None for the first block of a prompt."""
    local_hash: int
    """Hash of the block's own tokens, see `kvasir.local_hashes`."""
    position: int
    """Blocks before it, 0 to 65,535."""


def block_identities(local_hashes: Sequence[int]) -> list[BlockIdentity]:
    """The identities of a prompt's blocks, from their local hashes in order."""
    names = sequence_hashes(local_hashes)
    parents = [None, *names]
    chained = zip(names, parents, local_hashes)
    return [BlockIdentity(*each, position) for position, each in enumerate(chained)]


@dataclass(frozen=True)
class HeldBlock:
    """A block that a session holds: its slot stays as it is until it is released."""

    slot: int
    """Its slot in the engines' memory."""
    identity: BlockIdentity
    """What it is."""
    checksum: int
    """CRC-64/NVME of its bytes, their number and its sequence hash."""
    found_in: BlockTier
    """Tier in which it was found."""


@dataclass(frozen=True)
class BlockLayoutInfo:
    """What blocks consist of."""

    layers: int
    """Layers of the model."""
    outer_dim: int
    """2 if keys and values are apart in each layer, else 1."""
    page_size: int
    """Tokens per block."""
    inner_dim: int
    """Elements per token, layer and outer index, of the agent's tensor-parallel rank."""
    dtype_width_bytes: int
    """Bytes of an element."""


@dataclass(frozen=True)
class BlockArena:
    """Memory that engines of the same machine map, see `Session.arena`."""

    path: str
    """File to map."""
    start_bytes: int
    """Where the first slot begins."""
    stride_bytes: int
    """Distance between two slots."""


@dataclass(frozen=True)
class BlockSessionLimits:
    """What a session may do."""

    leased_slots_max: int
    """Slots that it may have leased at a time."""
    held_blocks_max: int
    """Different blocks that it may hold at a time."""
    lease_ms_max: int
    """Longest lease in milliseconds."""
    lease_grace_ms: int
    """Time between the end of a lease and the reuse of its slot, in milliseconds."""
    pin_ttl_ms_max: int
    """Longest pin in milliseconds."""


@dataclass(frozen=True)
class SessionOpened:
    """What an engine needs to know of its session."""

    session_id: bytes = field(repr=False)
    """Its id. Whoever has it can use the session."""
    block_bytes: int
    """Bytes of a block."""
    slots: int
    """Slots of the engines' memory, numbered from 0."""
    engine_tier: BlockTier
    """The tier that engines read and write."""
    arena: Optional[BlockArena]
    """Memory to map; None if engines use `read` and `write` only."""
    limits: BlockSessionLimits
    """What may be asked for."""
    layout: Optional[BlockLayoutInfo]
    """What blocks consist of; None if only their bytes were configured."""
    dtype: str
    """The dtype that the agent was given."""


@dataclass(frozen=True)
class CommitBlock:
    """A slot that is full."""

    slot: int
    """The slot, leased by the session."""
    identity: BlockIdentity
    """What it holds."""
    checksum: Optional[int] = None
    """What the engine says that the bytes add up to: a wrong copy is noticed then."""
    priority: int = 0
    """How much it is worth keeping, 0 to 255; higher is kept longer."""


@dataclass(frozen=True)
class CommittedBlock:
    """What became of one slot."""

    outcome: CommitOutcome
    """What."""
    block: Optional[HeldBlock]
    """The block that counts, held by the session; None if there is none."""
    error: str
    """Why there is none, for people; else ""."""


@dataclass(frozen=True)
class LoadVerdict:
    """Whether to load the blocks of a tier, and what that rests on."""

    from_tier: BlockTier
    """The tier, nearest one of these blocks."""
    blocks: int
    """How many leading blocks of the prompt are there."""
    is_load: bool
    """Load them if True, else compute them. What was not measured yet is to be loaded."""
    load_us: Optional[int]
    """Expected time to load in microseconds; None if the bandwidth is unknown."""
    compute_us: int
    """Expected time to compute in microseconds."""
    bytes_per_second: Optional[int]
    """Measured bandwidth to the tier above; None if it was not measured of late."""
    load_bytes: int
    """Bytes to load."""
    queued_bytes: int
    """Bytes that are loaded, or wait, on that way already."""
    tokens: int
    """Tokens to compute instead."""


@dataclass(frozen=True)
class TierPrefix:
    """How many leading blocks a tier has."""

    tier: BlockTier
    """The tier."""
    leading_blocks: int
    """Leading blocks of the prompt that it has, all of them."""


@dataclass(frozen=True)
class PrefixMatch:
    """What is known of a prompt's blocks."""

    nearest: tuple[BlockTier, ...]
    """The nearest tier of each leading block that is in any tier."""
    tiers: tuple[TierPrefix, ...]
    """For each configured tier, how many leading blocks it has alone."""
    held: tuple[HeldBlock, ...]
    """The leading blocks that the session holds from now on; with `hold` only."""
    verdicts: tuple[LoadVerdict, ...]
    """One for each tier below the engines' that is the nearest of some leading block."""


@dataclass(frozen=True)
class Onboarded:
    """What is in the engines' memory now."""

    blocks: tuple[HeldBlock, ...]
    """The leading blocks, verified on their way, held by the session until it releases them."""
    fault: Optional[BlockFault]
    """Why the block after these can't be had; None if all are there."""
    fault_tier: BlockTier
    """Tier whose copy was corrupt or unreadable."""


@dataclass(frozen=True)
class FetchedFromPeer:
    """What one peer gave."""

    peer: str
    """Its address."""
    blocks: int
    """Blocks that came from it, or parts of blocks."""
    fault: Optional[BlockFault]
    """Why the next one did not; None if all came, or none is needed from it."""
    error: str
    """The reason for people."""


@dataclass(frozen=True)
class Fetched:
    """What is in some tier of the agent now. The session does not hold it: `onboard` does."""

    leading_blocks: int
    """Leading blocks that are there."""
    fetched_blocks: int
    """Of these, blocks that came from peers."""
    bytes: int
    """Their bytes."""
    micros: int
    """Time that it took, in microseconds."""
    fault: Optional[BlockFault]
    """Why the block after these can't be had; None if all are there."""
    peers: tuple[FetchedFromPeer, ...]
    """One for each peer that was asked."""


@dataclass(frozen=True)
class BlockBytes:
    """The bytes of a block, or why it has none."""

    slot: int
    """The slot."""
    data: Optional[bytes] = field(repr=False)
    """Its bytes, verified by the agent; None with a fault."""
    checksum: int
    """What they add up to; 0 with a fault."""
    fault: Optional[BlockFault]
    """Why there are no bytes."""


@dataclass(frozen=True)
class VerifiedBlock:
    """What a block's bytes add up to."""

    checksum: int
    """Its checksum; 0 with a fault."""
    fault: Optional[BlockFault]
    """Why its bytes must not be used; None if they are right."""


@dataclass(frozen=True)
class BlockPin:
    """A pin. Give it back as it came."""

    tier: BlockTier
    """The tier in which the block stays."""
    pin_id: int
    """The pin's number within the tier,"""
    deadline_ns: int
    """and when it ends, on a clock of the agent's."""


@dataclass(frozen=True)
class PinnedBlock:
    """What became of a block to pin."""

    pin: Optional[BlockPin]
    """Its pin; None with a fault."""
    fault: Optional[BlockFault]
    """Why it is not pinned."""


@dataclass(frozen=True)
class BlockPoolStats:
    """A tier's blocks."""

    tier: BlockTier
    """The tier."""
    blocks_max: int
    """Blocks that fit."""
    free: int
    """Slots without a block."""
    writing: int
    """Slots that are written, or wait until nothing touches them any more."""
    active: int
    """Blocks that somebody holds."""
    inactive: int
    """Blocks that nobody holds: they stay until their slot is needed."""
    pins: int
    """Pins."""
    registered: int
    """Blocks ever registered."""
    evicted: int
    """Of these, blocks that gave way to others."""
    withdrawn: int
    """Of these, blocks whose bytes were wrong or unreadable."""
    corrupt: int
    """Times that wrong bytes were found."""


@dataclass(frozen=True)
class BlockLaneStats:
    """Transfers from one tier into another."""

    from_tier: BlockTier
    """From."""
    to_tier: BlockTier
    """Into."""
    queued: int
    """Blocks that wait."""
    in_flight: int
    """Transfers that have not ended."""
    committed: int
    """Copies ever registered."""
    committed_bytes: int
    """Bytes of these."""
    failed: int
    """Transfers that failed, ended short, came late, or were refused."""
    corrupt: int
    """Transfers with wrong bytes."""
    bytes_per_second: int
    """Measured bandwidth; 0 before the first transfer."""


@dataclass(frozen=True)
class BlockStats:
    """Sizes and counters of the block manager."""

    block_bytes: int
    """Bytes of a block."""
    pools: tuple[BlockPoolStats, ...]
    """One for each configured tier, nearest first."""
    lanes: tuple[BlockLaneStats, ...]
    """One for each way between two tiers."""
    sessions: int
    """Sessions that are open."""
    sessions_lost: int
    """Sessions that ended without being closed, since the agent's start."""
    blocks: int
    """Different blocks that are registered in any tier."""
    events_queued: int
    """Events that the agent's feed has not taken yet."""
    event_overflows: int
    """Times that the feed was too slow, and got an image of everything instead."""
