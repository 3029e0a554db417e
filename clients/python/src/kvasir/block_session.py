"""A session of an engine with an agent's block manager."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Optional, TypeVar, Union

import grpc
from google.protobuf.message import Message

from kvasir import _read_blocks, _rpc
from kvasir._arena import Arena
from kvasir._check import (
    read_hash,
    read_hash_list,
    read_int,
    read_list,
    read_name,
    read_number,
)
from kvasir._gen import block_manager_pb2 as pb
from kvasir._read_route import known
from kvasir._session_stream import SessionStream
from kvasir.block_types import (
    BlockBytes,
    BlockIdentity,
    BlockPin,
    CommitBlock,
    CommittedBlock,
    Fetched,
    OffloadOutcome,
    Onboarded,
    PinnedBlock,
    PrefixMatch,
    VerifiedBlock,
)
from kvasir.errors import (
    ClosedError,
    InvalidArgumentError,
    KvasirError,
    RpcError,
)
from kvasir.limits import (
    BLOCK_CHECKS_MAX,
    BLOCK_PRIORITY_MAX,
    BLOCK_SLOTS_MAX,
    BLOCK_WRITE_BYTES_MAX,
    FETCH_PEERS_MAX,
    ONBOARD_TIMEOUT_MS_DEFAULT,
    ONBOARD_TIMEOUT_MS_MAX,
    QUERY_BLOCKS_MAX,
    SLOT_LEASE_MS_DEFAULT,
)

Answer = TypeVar("Answer", bound=Message)
Bytes = Union[bytes, bytearray, memoryview]

_LOSS_NOTICE_SECONDS = 1.0
"""Seconds to wait, after an unanswered call, for the session's stream to end with the agent."""
_PERHAPS_LOST = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
}
_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1


class Session:
    """A session, which holds blocks until it releases them or ends. Threads may share one.

    The end of the session, a lost connection or the end of the agent releases everything. Calls
    then raise `SessionLostError`. They raise `InvalidArgumentError` if an argument is invalid, and
    an `RpcError` if the agent refuses or times out; `UnavailableError` means: no room, or the
    agent is stopping.
    """

    def __init__(
        self, channel: grpc.Channel, request: pb.OpenSessionRequest, timeout: float
    ) -> None:
        """Use `BlockManager.open_session` to create one."""
        self._channel, self._timeout = channel, timeout
        self._is_closed = False
        self._stream = SessionStream(channel, request)
        self.opened = _read_blocks.opened(self._stream.opened(timeout))
        """Properties of the session that the engine needs."""
        self._id = self.opened.session_id

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the session and releases all blocks. The engine must no longer access any slot."""
        if self._is_closed:
            return
        wait = 0.0
        try:
            self._call("EndSession", pb.EndSessionRequest(), pb.EndSessionResponse)
            wait = _LOSS_NOTICE_SECONDS
        except KvasirError:
            # Closing the stream below ends the session as well.
            pass
        finally:
            self._is_closed = True
            self._stream.close(wait)

    def lose(self) -> None:
        """Ends the session abruptly, like a lost connection."""
        self._stream.close()

    def arena(self) -> Arena:
        """Maps the agent's memory. Raises `ArenaError` if that is not possible here."""
        self._check()
        return Arena(self.opened)

    def allocate(self, count: int, *, lease_ms: Optional[int] = None) -> list[int]:
        """Leases slots for writing: all requested slots, or none.

        A slot that is not committed within `lease_ms`, by default 30,000 or the agent's longest
        lease, is lost to the session. Raises `UnavailableError` if there is no room: release the
        blocks that you no longer read, then retry.
        """
        longest = self.opened.limits.lease_ms_max
        lease = min(SLOT_LEASE_MS_DEFAULT, longest) if lease_ms is None else lease_ms
        request = pb.AllocateRequest(
            count=read_int("count", count, 1, BLOCK_SLOTS_MAX),
            lease_ms=read_int("lease_ms", lease, 1, longest),
        )
        return list(self._call("Allocate", request, pb.AllocateResponse).slots)

    def write(self, slot: int, data: Bytes, *, offset_bytes: int = 0) -> None:
        """Copies bytes into a leased slot, for engines that do not map the arena.

        `data` is bytes or anything else with a contiguous buffer, such as a numpy array.
        """
        block_bytes = self.opened.block_bytes
        number = self._slot("slot", slot)
        at = read_int("offset_bytes", offset_bytes, 0, block_bytes)
        try:
            view = memoryview(data).cast("B")
        except TypeError as error:
            raise InvalidArgumentError("data", f"is not a contiguous buffer: {error}") from None
        if at + len(view) > block_bytes:
            problem = f"has {len(view)} bytes from {at} on, and a block has {block_bytes}"
            raise InvalidArgumentError("data", problem)
        for start in range(0, len(view), BLOCK_WRITE_BYTES_MAX):
            part = bytes(view[start : start + BLOCK_WRITE_BYTES_MAX])
            request = pb.WriteRequest(slot=number, offset_bytes=at + start, data=part)
            self._call("Write", request, pb.WriteResponse)

    def commit(self, blocks: Sequence[CommitBlock]) -> list[CommittedBlock]:
        """Registers full slots as blocks, in order, at most 1,024. Returns one answer for each.

        The session holds each block until it releases it. A refused slot does not stop the next
        slots: check `outcome`, and use `block.slot`.
        """
        _bound("blocks", blocks, BLOCK_CHECKS_MAX)
        request = pb.CommitRequest()
        for index, block in enumerate(blocks):
            field = f"blocks[{index}]"
            if not isinstance(block, CommitBlock):
                raise InvalidArgumentError(field, f"is {block!r}: give a CommitBlock")
            message = request.blocks.add(
                slot=self._slot(f"{field}.slot", block.slot),
                identity=_identity(f"{field}.identity", block.identity),
                priority=_priority(f"{field}.priority", block.priority),
            )
            if block.checksum is not None:
                message.checksum = read_hash(f"{field}.checksum", block.checksum)
        answer = self._call("Commit", request, pb.CommitResponse)
        return [_read_blocks.committed(block) for block in answer.blocks]

    def abort(self, slots: Sequence[int]) -> int:
        """Releases leased slots unused. Returns the number of slots that were leased."""
        request = pb.AbortRequest(slots=self._slots(slots, BLOCK_SLOTS_MAX))
        return self._call("Abort", request, pb.AbortResponse).aborted

    def match_prefix(
        self,
        sequence_hashes: Sequence[int],
        *,
        hold: bool = False,
        prefill_tokens_per_second: Optional[float] = None,
        prefill_wait_ms: int = 0,
    ) -> PrefixMatch:
        """Counts the leading blocks of a prompt in each tier.

        With `hold`, the session also holds the leading blocks that are in the engines' memory
        already. With `prefill_tokens_per_second`, the answer tells for each tier whether to load
        or compute its blocks; `prefill_wait_ms` is how long a prefill waits before it begins.
        """
        request = pb.MatchPrefixRequest(
            sequence_hashes=_hashes(sequence_hashes, QUERY_BLOCKS_MAX),
            hold=hold,
            prefill_wait_ms=read_int("prefill_wait_ms", prefill_wait_ms, 0, _U32),
        )
        if prefill_tokens_per_second is not None:
            rate = read_number("prefill_tokens_per_second", prefill_tokens_per_second, 0)
            request.prefill_tokens_per_second = rate
        return _read_blocks.match(self._call("MatchPrefix", request, pb.MatchPrefixResponse))

    def onboard(
        self,
        sequence_hashes: Sequence[int],
        *,
        priority: int = 0,
        timeout_ms: int = ONBOARD_TIMEOUT_MS_DEFAULT,
    ) -> Onboarded:
        """Brings a prompt's leading blocks into the engines' memory, and holds them.

        It stops at the first unavailable block; `fault` is the reason. Requests of a higher
        `priority`, 0 to 255, are served first. After `timeout_ms` it returns what is there.
        """
        wait = read_int("timeout_ms", timeout_ms, 1, ONBOARD_TIMEOUT_MS_MAX)
        request = pb.OnboardRequest(
            sequence_hashes=_hashes(sequence_hashes, BLOCK_SLOTS_MAX),
            priority=_priority("priority", priority),
            timeout_ms=wait,
        )
        timeout = self._timeout + wait / 1_000
        return _read_blocks.onboarded(self._call("Onboard", request, pb.OnboardResponse, timeout))

    def fetch(
        self,
        peers: Sequence[str],
        sequence_hashes: Sequence[int],
        *,
        timeout_ms: int = ONBOARD_TIMEOUT_MS_DEFAULT,
    ) -> Fetched:
        """Fetches a prompt's missing blocks from other agents. Then load them with `onboard`.

        `peers` are addresses such as `http://10.0.0.7:50053`, 1 to 64 without duplicates,
        asked in turn. Peers of another tensor-parallel size are asked together: name an agent for
        each needed part of the heads. Each block is verified before it counts. After
        `timeout_ms` it returns what is there.
        """
        wait = read_int("timeout_ms", timeout_ms, 1, ONBOARD_TIMEOUT_MS_MAX)
        _bound("peers", peers, FETCH_PEERS_MAX)
        request = pb.FetchRequest(
            peers=[read_name(f"peers[{at}]", peer) for at, peer in enumerate(peers)],
            sequence_hashes=_hashes(sequence_hashes, BLOCK_SLOTS_MAX),
            timeout_ms=wait,
        )
        timeout = self._timeout + wait / 1_000
        return _read_blocks.fetched(self._call("Fetch", request, pb.FetchResponse, timeout))

    def read(self, slots: Sequence[int]) -> Iterator[BlockBytes]:
        """Yields the bytes of held blocks, in this order, verified by the agent.

        The manager's `timeout` covers all blocks, including the caller's work between them: copy a
        block and ask for the next one, or read fewer at a time.
        """
        numbers = self._slots(slots, BLOCK_CHECKS_MAX)
        self._check()
        request = pb.ReadRequest(session_id=self._id, slots=numbers)
        return self._read(numbers, request)

    def _read(self, slots: list[int], request: pb.ReadRequest) -> Generator[BlockBytes, None, None]:
        path = _rpc.BLOCK_MANAGER + "Read"
        parts = _rpc.stream(self._channel, path, request, pb.ReadResponse, self._timeout)
        with self._loss(), closing(parts):
            for slot in slots:
                yield self._block(slot, parts)

    def _block(self, slot: int, parts: Iterator[pb.ReadResponse]) -> BlockBytes:
        data = bytearray()
        for part in parts:
            if part.slot != slot or part.offset_bytes != len(data):
                break
            if part.fault:
                return BlockBytes(slot, None, 0, _read_blocks.fault(part.fault))
            data += part.data
            if len(data) == self.opened.block_bytes:
                return BlockBytes(slot, bytes(data), part.checksum, None)
        raise RpcError(grpc.StatusCode.DATA_LOSS, f"a part of slot {slot} is missing")

    def verify(self, slots: Sequence[int]) -> list[VerifiedBlock]:
        """Verifies held blocks in place. Call it before you read the blocks in the arena."""
        request = pb.VerifyRequest(slots=self._slots(slots, BLOCK_CHECKS_MAX))
        answer = self._call("Verify", request, pb.VerifyResponse)
        read_fault = _read_blocks.fault
        return [VerifiedBlock(at.checksum, read_fault(at.fault)) for at in answer.blocks]

    def release(self, slots: Sequence[int]) -> int:
        """Releases held blocks, once per occurrence in the list. Returns how many were held."""
        request = pb.ReleaseRequest(slots=self._slots(slots, BLOCK_SLOTS_MAX))
        return self._call("Release", request, pb.ReleaseResponse).released

    def offload(self, sequence_hashes: Sequence[int], *, priority: int = 0) -> list[OffloadOutcome]:
        """Offers blocks to the tier below. By default, the agent does this itself."""
        request = pb.OffloadRequest(
            sequence_hashes=_hashes(sequence_hashes, BLOCK_SLOTS_MAX),
            priority=_priority("priority", priority),
        )
        answer = self._call("Offload", request, pb.OffloadResponse)
        return [known(OffloadOutcome, outcome) for outcome in answer.outcomes]

    def pin(self, sequence_hashes: Sequence[int], *, ttl_ms: int) -> list[PinnedBlock]:
        """Keeps blocks in the nearest tier that has them, for a time. Pins outlive the session."""
        request = pb.PinRequest(
            sequence_hashes=_hashes(sequence_hashes, BLOCK_SLOTS_MAX),
            ttl_ms=read_int("ttl_ms", ttl_ms, 1, self.opened.limits.pin_ttl_ms_max),
        )
        answer = self._call("Pin", request, pb.PinResponse)
        return [_read_blocks.pinned(block) for block in answer.blocks]

    def unpin(self, pins: Sequence[BlockPin]) -> int:
        """Ends pins early. Returns the number of pins that had not yet expired."""
        _bound("pins", pins, BLOCK_SLOTS_MAX)
        request = pb.UnpinRequest()
        for index, pin in enumerate(pins):
            field = f"pins[{index}]"
            if not isinstance(pin, BlockPin):
                raise InvalidArgumentError(field, f"is {pin!r}: give a BlockPin")
            request.pins.add(
                tier=f"BLOCK_TIER_{pin.tier.name}",
                pin_id=read_int(f"{field}.pin_id", pin.pin_id, 0, _U64),
                deadline_ns=read_int(f"{field}.deadline_ns", pin.deadline_ns, 0, _U64),
            )
        return self._call("Unpin", request, pb.UnpinResponse).unpinned

    def _slot(self, field: str, slot: int) -> int:
        return read_int(field, slot, 0, self.opened.slots - 1)

    def _slots(self, slots: Sequence[int], most: int) -> list[int]:
        _bound("slots", slots, most)
        return [self._slot(f"slots[{index}]", slot) for index, slot in enumerate(slots)]

    def _call(
        self, name: str, request: Message, answer: type[Answer], timeout: Optional[float] = None
    ) -> Answer:
        self._check()
        request.session_id = self._id  # type: ignore[attr-defined]
        path, limit = _rpc.BLOCK_MANAGER + name, self._timeout if timeout is None else timeout
        with self._loss():
            return _rpc.call(self._channel, path, request, answer, limit)

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError("the session was closed: open another one")
        self._stream.check()

    @contextmanager
    def _loss(self) -> Iterator[None]:
        """Raises `SessionLostError` for a failed call if the session was lost."""
        try:
            yield
        except RpcError as error:
            if error.code in _PERHAPS_LOST:
                self._stream.check(_LOSS_NOTICE_SECONDS)
            raise


def _bound(field: str, values: Sequence[object], most: int) -> None:
    read_list(field, values)
    if not 1 <= len(values) <= most:
        raise InvalidArgumentError(field, f"has {len(values)} entries: give 1 to {most}")


def _hashes(values: Sequence[int], most: int) -> list[int]:
    _bound("sequence_hashes", values, most)
    return read_hash_list("sequence_hashes", values)


def _priority(field: str, value: int) -> int:
    return read_int(field, value, 0, BLOCK_PRIORITY_MAX)


def _identity(field: str, identity: BlockIdentity) -> pb.BlockIdentity:
    if not isinstance(identity, BlockIdentity):
        raise InvalidArgumentError(field, f"is {identity!r}: give a BlockIdentity")
    message = pb.BlockIdentity(
        sequence_hash=read_hash(f"{field}.sequence_hash", identity.sequence_hash),
        local_hash=read_hash(f"{field}.local_hash", identity.local_hash),
        position=read_int(f"{field}.position", identity.position, 0, QUERY_BLOCKS_MAX - 1),
    )
    if identity.parent is not None:
        message.parent = read_hash(f"{field}.parent", identity.parent)
    return message
