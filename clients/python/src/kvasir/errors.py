"""The errors of this package. All are `KvasirError`s."""

from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio


class KvasirError(Exception):
    """Any error of this package."""


class InvalidArgumentError(KvasirError, ValueError):
    """An argument is invalid. The call had no effect."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        """Name of the argument or of a part of it, such as `block_hashes[2]`."""


class ClosedError(KvasirError):
    """The publisher was shut down, or the router's client or the session was closed."""


class SessionLostError(KvasirError):
    """The session has ended, and its blocks were released. Open another one."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the session is lost: {reason}; open another one")


class ArenaError(KvasirError):
    """The agent's memory can't be mapped here. Use `Session.read` and `Session.write`."""


class QueueFullError(KvasirError):
    """The event was not accepted: the queue of unacknowledged events is full. Publish it again."""


class UnconfirmedError(KvasirError):
    """The index did not accept a stream, or acknowledge all events, in time."""


class RpcError(KvasirError):
    """A call failed, at the server or on the way to it."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{details} ({code.name})")
        self.code = code
        """The gRPC status."""
        self.details = details
        """The server's message. It names the field and the fix."""


class RefusedError(RpcError):
    """The server refused the request and would refuse it again. Change the request."""

    def again(self) -> "RefusedError":
        """A new copy: the traceback of one instance grows with every raise."""
        return RefusedError(self.code, self.details)


class NotFoundError(RpcError):
    """The server does not know the model, tenant or worker."""


class WrongShardError(RefusedError):
    """The worker belongs to another shard. Publish to a server of that shard."""

    def __init__(self, code: grpc.StatusCode, details: str, owner_shard: str) -> None:
        super().__init__(code, details)
        self.owner_shard = owner_shard
        """Number of the shard that owns the worker."""

    def again(self) -> "WrongShardError":
        """A new copy."""
        return WrongShardError(self.code, self.details, self.owner_shard)


class UnavailableError(RpcError):
    """The server is unreachable, busy or stopping. Try again."""


class DeadlineError(RpcError):
    """The call timed out."""


_KINDS: dict[grpc.StatusCode, type[RpcError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: RefusedError,
    grpc.StatusCode.FAILED_PRECONDITION: RefusedError,
    grpc.StatusCode.UNIMPLEMENTED: RefusedError,
    grpc.StatusCode.UNAUTHENTICATED: RefusedError,
    grpc.StatusCode.PERMISSION_DENIED: RefusedError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
}

_OWNER_SHARD = "kvasir-owner-shard"


def from_grpc(error: grpc.RpcError) -> RpcError:
    """Converts a gRPC error to an error of this package."""
    code, details = grpc.StatusCode.UNKNOWN, str(error)
    if isinstance(error, (grpc.Call, grpc.aio.AioRpcError)):
        code, details = error.code(), error.details() or ""
        trailers: Iterable[Any] = error.trailing_metadata() or ()
        for key, value in trailers:
            if key == _OWNER_SHARD:
                return WrongShardError(code, details, str(value))
    return _KINDS.get(code, RpcError)(code, details)
