"""The stream that keeps a session open."""

import threading
from typing import Any, Callable, Optional

import grpc

from kvasir import _rpc
from kvasir._gen import block_manager_pb2 as pb
from kvasir.errors import DeadlineError, RpcError, SessionLostError, from_grpc


class SessionStream:
    """An open `BlockManager.OpenSession` stream, read by its own thread."""

    def __init__(self, channel: grpc.Channel, request: pb.OpenSessionRequest) -> None:
        """Opens the stream."""
        invoke: Callable[..., Any] = channel.unary_stream(
            _rpc.BLOCK_MANAGER + "OpenSession",
            request_serializer=pb.OpenSessionRequest.SerializeToString,
            response_deserializer=pb.OpenSessionResponse.FromString,
        )
        self._call = invoke(request)
        self._opened: Optional[pb.SessionOpened] = None
        self._error: Optional[RpcError] = None
        self._has_answer, self._has_ended = threading.Event(), threading.Event()
        self._reader = threading.Thread(target=self._read, name="kvasir-session", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for answer in self._call:
                self._opened = answer.opened
                self._has_answer.set()
        except grpc.RpcError as error:
            self._error = from_grpc(error)
        finally:
            self._has_ended.set()
            self._has_answer.set()

    def opened(self, timeout: float) -> pb.SessionOpened:
        """The first message. Raises an `RpcError` if there is none."""
        is_in_time = self._has_answer.wait(timeout)
        if self._opened is not None:
            return self._opened
        self.close()
        if not is_in_time:
            problem = f"no session was opened within {timeout:g} s"
            raise DeadlineError(grpc.StatusCode.DEADLINE_EXCEEDED, problem)
        unknown = RpcError(grpc.StatusCode.UNKNOWN, "the stream ended without a session")
        raise self._error or unknown

    def check(self, wait_seconds: float = 0) -> None:
        """Raises `SessionLostError` if the stream has ended, or ends within the timeout."""
        if self._has_ended.wait(wait_seconds):
            raise SessionLostError(str(self._error or "the agent ended it"))

    def close(self, wait_seconds: float = 0) -> None:
        """Waits until the stream ends, at most for the timeout, then cancels it."""
        self._has_ended.wait(wait_seconds)
        self._call.cancel()
        self._reader.join()
