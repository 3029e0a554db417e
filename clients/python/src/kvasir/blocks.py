"""Client of an agent's block manager, where an engine saves and loads KV blocks."""

import weakref
from types import TracebackType
from typing import Optional

import grpc

from kvasir import _read_blocks, _rpc
from kvasir._arena import Arena
from kvasir._check import read_int, read_name, read_seconds
from kvasir._gen import block_manager_pb2 as pb
from kvasir.block_session import Session
from kvasir.block_types import (
    BlockArena,
    BlockBytes,
    BlockFault,
    BlockIdentity,
    BlockLaneStats,
    BlockLayoutInfo,
    BlockPin,
    BlockPoolStats,
    BlockSessionLimits,
    BlockStats,
    BlockTier,
    CommitBlock,
    CommitOutcome,
    CommittedBlock,
    Fetched,
    FetchedFromPeer,
    HeldBlock,
    LoadVerdict,
    OffloadOutcome,
    Onboarded,
    PinnedBlock,
    PrefixMatch,
    SessionOpened,
    TierPrefix,
    VerifiedBlock,
    block_identities,
)

__all__ = [
    "BLOCKS_TIMEOUT_DEFAULT",
    "Arena",
    "BlockArena",
    "BlockBytes",
    "BlockFault",
    "BlockIdentity",
    "BlockLaneStats",
    "BlockLayoutInfo",
    "BlockManager",
    "BlockPin",
    "BlockPoolStats",
    "BlockSessionLimits",
    "BlockStats",
    "BlockTier",
    "CommitBlock",
    "CommitOutcome",
    "CommittedBlock",
    "Fetched",
    "FetchedFromPeer",
    "HeldBlock",
    "LoadVerdict",
    "OffloadOutcome",
    "Onboarded",
    "PinnedBlock",
    "PrefixMatch",
    "Session",
    "SessionOpened",
    "TierPrefix",
    "VerifiedBlock",
    "block_identities",
]

BLOCKS_TIMEOUT_DEFAULT = 30.0
"""Default timeout of a call, in seconds. Some calls read or checksum many bytes."""
_U64 = (1 << 64) - 1


class BlockManager:
    """Client of the block manager of an agent over gRPC. Threads may share one.

    Calls raise `InvalidArgumentError` if an argument is invalid, and an `RpcError` if the agent
    refuses, is unreachable or times out.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout: float = BLOCKS_TIMEOUT_DEFAULT,
        credentials: Optional[grpc.ChannelCredentials] = None,
    ) -> None:
        """Connects on the first call.

        `target` is the agent's host:port, http://host:port, https://host:port, or unix:/path for
        its `--blocks-socket`; https:// needs `credentials`, by `kvasir.tls_credentials`. `timeout`
        is that of each call, in seconds; the time of `Session.onboard` is added to it.
        """
        self._timeout = read_seconds("timeout", timeout)
        self._channel = _rpc.open_channel(_rpc.read_target(target, credentials), credentials)
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()

    def __enter__(self) -> "BlockManager":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Calls in progress fail, and sessions that are open are lost."""
        for session in list(self._sessions):
            session.lose()
        self._channel.close()

    def open_session(
        self,
        model: str,
        *,
        tenant: str = "",
        worker_id: str = "",
        name: str = "",
        block_bytes: Optional[int] = None,
        dtype: Optional[str] = None,
    ) -> Session:
        """Opens a session, which lasts until it is closed or the connection is lost.

        `model`, `tenant` and `worker_id` must match the agent's worker; "" matches any worker.
        `name` identifies the session in the agent's logs. The agent refuses the session if a given
        `block_bytes` or `dtype` differs from its own.
        """
        request = pb.OpenSessionRequest(
            model=read_name("model", model, required=True),
            tenant=read_name("tenant", tenant),
            worker_id=read_name("worker_id", worker_id),
            name=read_name("name", name),
        )
        if block_bytes is not None:
            request.block_bytes = read_int("block_bytes", block_bytes, 1, _U64)
        if dtype is not None:
            request.dtype = read_name("dtype", dtype)
        session = Session(self._channel, request, self._timeout)
        self._sessions.add(session)
        return session

    def stats(self) -> BlockStats:
        """Returns sizes and counters."""
        path = _rpc.BLOCK_MANAGER + "GetStats"
        request, answer = pb.GetBlockStatsRequest(), pb.GetBlockStatsResponse
        return _read_blocks.stats(_rpc.call(self._channel, path, request, answer, self._timeout))
