"""What can go wrong. Every error of this package is a `KvasirError`."""

import grpc


class KvasirError(Exception):
    """Any error of this package."""


class InvalidArgumentError(KvasirError, ValueError):
    """An argument cannot be used. Nothing was done."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        """Name of the argument, with an index where it is a part of one."""


class ClosedError(KvasirError):
    """The publisher was shut down."""


class QueueFullError(KvasirError):
    """The event was not taken: too many wait for the index to confirm them. Publish it again."""


class UnconfirmedError(KvasirError):
    """The index did not confirm all events in time."""


class RpcError(KvasirError):
    """A call failed at the server or on the way there."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{details} ({code.name})")
        self.code = code
        """The status of gRPC."""
        self.details = details
        """What the server says: it names the field and the fix."""


class RefusedError(RpcError):
    """The server refuses what was asked, and will again: the request has to change."""

    def again(self) -> "RefusedError":
        """The same, new: an error that is raised again grows tracebacks."""
        return RefusedError(self.code, self.details)


class NotFoundError(RpcError):
    """The server does not know that model, tenant or worker."""


class WrongShardError(RefusedError):
    """The worker belongs to another shard of the index: publish to a server of that."""

    def __init__(self, code: grpc.StatusCode, details: str, owner_shard: str) -> None:
        super().__init__(code, details)
        self.owner_shard = owner_shard
        """Number of the shard that has it."""

    def again(self) -> "WrongShardError":
        """The same, new."""
        return WrongShardError(self.code, self.details, self.owner_shard)


class UnavailableError(RpcError):
    """The server cannot be reached, is busy or is stopping: try again."""


class DeadlineError(RpcError):
    """The server did not answer in time."""


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
    """The error of this package that stands for one of gRPC's."""
    code, details = grpc.StatusCode.UNKNOWN, str(error)
    if isinstance(error, grpc.Call):
        code, details = error.code(), error.details() or ""
        for key, value in error.trailing_metadata() or ():
            if key == _OWNER_SHARD:
                return WrongShardError(code, details, str(value))
    return _KINDS.get(code, RpcError)(code, details)
