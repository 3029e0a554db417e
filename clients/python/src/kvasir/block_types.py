"""The types of the block manager's arguments and answers."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from kvasir.hashing import sequence_hashes


class BlockTier(enum.Enum):
    """Memory or storage tier of a block."""

    UNSPECIFIED = 0
    """In no tier, or in a tier of a newer agent that this package does not know."""
    DEVICE = 1
    """G1: the accelerator's own memory."""
    HOST = 2
    """G2: memory of the host."""
    DISK = 3
    """G3: local disk."""
    VOLUME = 4
    """G4: a volume of objects, shared by machines."""


class BlockFault(enum.Enum):
    """Why a block is unavailable. Answers without a fault have None."""

    UNSPECIFIED = 0
    """A fault of a newer agent that this package does not know."""
    MISSING = 1
    """The block is in no tier."""
    CORRUPT = 2
    """The block's bytes were wrong, and it was withdrawn. Compute it again."""
    UNREADABLE = 3
    """The block's storage could not be read. Compute the block, or retry later."""
    TIMED_OUT = 4
    """The request timed out."""
    BUSY = 5
    """Too many transfers are queued. Retry later."""
    LIMIT = 6
    """The session reached its limit of held blocks, or the tier its limit of pins."""
    STOPPING = 7
    """The agent is stopping."""
    PEER = 8
    """The peer is unreachable, refuses, or was lost or restarted."""


class CommitOutcome(enum.Enum):
    """Result of committing a slot."""

    UNSPECIFIED = 0
    """An outcome of a newer agent that this package does not know."""
    NEW = 1
    """Registered: the first block with this content."""
    DUPLICATE = 2
    """Registered: another block has the same content, and both are kept."""
    EXISTING = 3
    """Another block has the same content: `block` is that one, and the slot was released."""
    CHECKSUM_MISMATCH = 4
    """The bytes do not match the given checksum. The slot stays leased: write them again."""
    LEASE_OVER = 5
    """The session has no lease of the slot, or the lease has expired. Allocate again."""
    REFUSED = 6
    """The identity contradicts another block, or the slot can't be read. It stays leased."""
    LIMIT = 7
    """The session reached its limit of held blocks. The slot stays leased."""


class OffloadOutcome(enum.Enum):
    """Result of an offer to the tier below."""

    UNSPECIFIED = 0
    """An outcome of a newer agent that this package does not know."""
    QUEUED = 1
    """The block is queued for its copy."""
    PRESENT = 2
    """The tier below has the block."""
    PENDING = 3
    """The block is already queued or being copied."""
    INFREQUENT = 4
    """The block has not been requested often enough yet."""
    QUEUE_FULL = 5
    """The queue is full of blocks of the same or higher importance."""
    NOWHERE = 6
    """The block is in no tier, or there is no tier below."""


@dataclass(frozen=True)
class BlockIdentity:
    """Identity of a block by hashes. The agent never receives tokens."""

    sequence_hash: int
    """Hash of the block and all blocks before it, see `kvasir.sequence_hashes`: its key."""
    parent: Optional[int]
    """Sequence hash of the previous block; None for the first block of a prompt."""
    local_hash: int
    """Hash of the block's own tokens, see `kvasir.local_hashes`."""
    position: int
    """Number of blocks before this one, 0 to 65,535."""


def block_identities(local_hashes: Sequence[int]) -> list[BlockIdentity]:
    """The identities of a prompt's blocks, from their local hashes in order."""
    names = sequence_hashes(local_hashes)
    parents = [None, *names]
    chained = zip(names, parents, local_hashes)
    return [BlockIdentity(*each, position) for position, each in enumerate(chained)]


@dataclass(frozen=True)
class HeldBlock:
    """A block held by a session. The slot does not change until the block is released."""

    slot: int
    """Slot of the block in the engines' memory."""
    identity: BlockIdentity
    """Identity of the block."""
    checksum: int
    """CRC-64/NVME of the block's bytes, their number and the block's sequence hash."""
    found_in: BlockTier
    """Tier in which the block was found."""


@dataclass(frozen=True)
class BlockLayoutInfo:
    """Layout of the blocks."""

    layers: int
    """Layers of the model."""
    outer_dim: int
    """2 if keys and values are separate in each layer, else 1."""
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
    """Offset of the first slot in the file, in bytes."""
    stride_bytes: int
    """Distance between two slots, in bytes."""


@dataclass(frozen=True)
class BlockSessionLimits:
    """Limits of a session."""

    leased_slots_max: int
    """Maximum number of slots leased at a time."""
    held_blocks_max: int
    """Maximum number of distinct blocks held at a time."""
    lease_ms_max: int
    """Longest lease in milliseconds."""
    lease_grace_ms: int
    """Time between the end of a lease and the reuse of its slot, in milliseconds."""
    pin_ttl_ms_max: int
    """Longest pin in milliseconds."""


@dataclass(frozen=True)
class SessionOpened:
    """Properties of a session that its engine needs."""

    session_id: bytes = field(repr=False)
    """Id of the session. Keep it secret: it gives access to the session."""
    block_bytes: int
    """Bytes of a block."""
    slots: int
    """Slots of the engines' memory, numbered from 0."""
    engine_tier: BlockTier
    """The tier that engines read and write."""
    arena: Optional[BlockArena]
    """Memory to map; None if engines use `read` and `write` only."""
    limits: BlockSessionLimits
    """Limits of the session."""
    layout: Optional[BlockLayoutInfo]
    """Layout of the blocks; None if only the size in bytes was configured."""
    dtype: str
    """The dtype configured at the agent."""


@dataclass(frozen=True)
class CommitBlock:
    """A full slot to commit."""

    slot: int
    """The slot, leased by the session."""
    identity: BlockIdentity
    """Identity of the block in the slot."""
    checksum: Optional[int] = None
    """Checksum by the engine. With it, the agent detects a wrong copy."""
    priority: int = 0
    """Retention priority, 0 to 255; higher is kept longer."""


@dataclass(frozen=True)
class CommittedBlock:
    """Commit result of one slot."""

    outcome: CommitOutcome
    """Result of the commit."""
    block: Optional[HeldBlock]
    """The resulting block, held by the session; None if there is none."""
    error: str
    """Why there is no block, as text for people; else ""."""


@dataclass(frozen=True)
class LoadVerdict:
    """Whether to load or compute the blocks of a tier, with the inputs of this decision."""

    from_tier: BlockTier
    """The nearest tier of these blocks."""
    blocks: int
    """Number of leading blocks of the prompt in this tier."""
    is_load: bool
    """True: load the blocks, also without a measurement. False: compute them."""
    load_us: Optional[int]
    """Expected time to load in microseconds; None if the bandwidth is unknown."""
    compute_us: int
    """Expected time to compute in microseconds."""
    bytes_per_second: Optional[int]
    """Measured bandwidth to the tier above; None without a recent measurement."""
    load_bytes: int
    """Bytes to load."""
    queued_bytes: int
    """Bytes already queued or in transfer between these tiers."""
    tokens: int
    """Tokens to compute if the blocks are not loaded."""


@dataclass(frozen=True)
class TierPrefix:
    """Number of a prompt's leading blocks in a tier."""

    tier: BlockTier
    """The tier."""
    leading_blocks: int
    """Number of leading blocks of the prompt that this tier has without gaps."""


@dataclass(frozen=True)
class PrefixMatch:
    """Locations of a prompt's blocks."""

    nearest: tuple[BlockTier, ...]
    """The nearest tier of each leading block that is in any tier."""
    tiers: tuple[TierPrefix, ...]
    """For each configured tier, how many leading blocks it has without the other tiers."""
    held: tuple[HeldBlock, ...]
    """The leading blocks that the session holds from now on; with `hold` only."""
    verdicts: tuple[LoadVerdict, ...]
    """One for each tier below the engines' that is the nearest of some leading block."""


@dataclass(frozen=True)
class Onboarded:
    """Result of an onboard request: blocks now in the engines' memory."""

    blocks: tuple[HeldBlock, ...]
    """The leading blocks, verified during the copy and held until the session releases them."""
    fault: Optional[BlockFault]
    """Why the block after these is unavailable; None if all blocks are there."""
    fault_tier: BlockTier
    """Tier whose copy was corrupt or unreadable."""


@dataclass(frozen=True)
class FetchedFromPeer:
    """Result of a fetch from one peer."""

    peer: str
    """Address of the peer."""
    blocks: int
    """Number of blocks, or parts of blocks, received from the peer."""
    fault: Optional[BlockFault]
    """Why the next block is missing; None if all arrived, or none is needed from the peer."""
    error: str
    """The reason, as text for people."""


@dataclass(frozen=True)
class Fetched:
    """Result of a fetch: blocks now in a tier of the agent, not held. `onboard` holds them."""

    leading_blocks: int
    """Number of the prompt's leading blocks in some tier."""
    fetched_blocks: int
    """Number of these leading blocks that came from peers."""
    bytes: int
    """Bytes fetched from peers."""
    micros: int
    """Duration of the fetch, in microseconds."""
    fault: Optional[BlockFault]
    """Why the block after these is unavailable; None if all blocks are there."""
    peers: tuple[FetchedFromPeer, ...]
    """One result for each peer that was asked."""


@dataclass(frozen=True)
class BlockBytes:
    """The bytes of a block, or a fault."""

    slot: int
    """The slot."""
    data: Optional[bytes] = field(repr=False)
    """The block's bytes, verified by the agent; None with a fault."""
    checksum: int
    """Checksum of the bytes; 0 with a fault."""
    fault: Optional[BlockFault]
    """Why there are no bytes."""


@dataclass(frozen=True)
class VerifiedBlock:
    """Checksum of a block's bytes."""

    checksum: int
    """Checksum of the block; 0 with a fault."""
    fault: Optional[BlockFault]
    """Why the block's bytes must not be used; None if they are correct."""


@dataclass(frozen=True)
class BlockPin:
    """A pin, which keeps a block in its tier. Pass it back unchanged to end it."""

    tier: BlockTier
    """The tier in which the block stays."""
    pin_id: int
    """The pin's number within the tier."""
    deadline_ns: int
    """End of the pin, on the agent's own clock."""


@dataclass(frozen=True)
class PinnedBlock:
    """Result of pinning a block."""

    pin: Optional[BlockPin]
    """Pin of the block; None with a fault."""
    fault: Optional[BlockFault]
    """Why the block is not pinned."""


@dataclass(frozen=True)
class BlockPoolStats:
    """Slots and blocks of a tier."""

    tier: BlockTier
    """The tier."""
    blocks_max: int
    """Number of blocks that fit into the tier."""
    free: int
    """Slots without a block."""
    writing: int
    """Slots being written, or unused until late writes have ended."""
    active: int
    """Blocks in use, which cannot be evicted."""
    inactive: int
    """Blocks not in use, which stay until their slot is needed."""
    pins: int
    """Pins."""
    registered: int
    """Blocks registered since the agent's start."""
    evicted: int
    """Registered blocks that were evicted to make room."""
    withdrawn: int
    """Registered blocks that were dropped: their bytes were wrong or unreadable."""
    corrupt: int
    """Times that wrong bytes were found."""


@dataclass(frozen=True)
class BlockLaneStats:
    """Statistics of transfers from one tier to another."""

    from_tier: BlockTier
    """Source tier."""
    to_tier: BlockTier
    """Destination tier."""
    queued: int
    """Blocks queued for a transfer."""
    in_flight: int
    """Transfers that have not ended."""
    committed: int
    """Copies registered since the agent's start."""
    committed_bytes: int
    """Bytes of the registered copies."""
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
    """One for each route between two tiers."""
    sessions: int
    """Sessions that are open."""
    sessions_lost: int
    """Sessions that ended without being closed, since the agent's start."""
    blocks: int
    """Different blocks that are registered in any tier."""
    events_queued: int
    """Events queued for the agent's feed."""
    event_overflows: int
    """How often this queue overflowed and the feed received an image of all blocks instead."""
