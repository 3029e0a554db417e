"""Channels to a server, and calls on them."""

import ipaddress
import re
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Callable, Optional, TypeVar, cast

import grpc
from google.protobuf.message import Message

from kvasir._check import read_name
from kvasir._gen import ingest_pb2 as ingest
from kvasir.errors import InvalidArgumentError, from_grpc
from kvasir.limits import GRPC_MESSAGE_BYTES_MAX

INDEXER = "/kvasir.v1.Indexer/"
WORKER_LOADS = "/kvasir.v1.WorkerLoads/"
ROUTER = "/kvasir.v1.Router/"
BLOCK_MANAGER = "/kvasir.v1.BlockManager/"
PUBLISH_EVENTS = "/kvasir.v1.EventIngest/PublishEvents"

CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    # Detect a dead server, even on an idle connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # The longer of both timeouts counts. This one is a minute by default.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Channels do not share a reconnect backoff.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
]

Answer = TypeVar("Answer", bound=Message)


def read_target(target: str, credentials: Optional[grpc.ChannelCredentials]) -> str:
    """Validates the server's address and returns it without its scheme, as gRPC expects it.

    The rules are those of `read_target` in proto/src/target.rs. In addition, unix:/path and
    unix:///path are accepted, which gRPC for Python supports. `https://` needs `credentials`,
    `http://` has none.
    """
    address = read_name("target", target, required=True)
    if address.startswith("unix:/"):
        if credentials is not None:
            problem = f"is {target!r}, and a socket file has no TLS: leave out the credentials"
            raise InvalidArgumentError("target", problem)
        return address
    scheme, _, rest = address.rpartition("://")
    if scheme in ("http", "https"):
        address = rest.removesuffix("/")
        if (scheme == "https") != (credentials is not None):
            problem = "needs credentials, see kvasir.tls_credentials"
            if credentials is not None:
                problem = "has no TLS: write https://, or leave out the credentials"
            raise InvalidArgumentError("target", f"is {target!r}, which {problem}")
    host, _, port = address.rpartition(":")
    if not _is_host(host) or not _PORT.fullmatch(port) or not 0 < int(port) < 1 << 16:
        problem = (
            f"is {target!r}: give host:port, http://host:port or https://host:port, "
            "such as 10.0.0.2:50051, or unix:/path"
        )
        raise InvalidArgumentError("target", problem)
    return address


_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PORT = re.compile(r"[0-9]{1,9}")
_IN_BRACKETS = re.compile(r"\[([0-9A-Fa-f:.]+)\]")


def _is_host(host: str) -> bool:
    found = _IN_BRACKETS.fullmatch(host)
    if found is None:
        return _NAME.fullmatch(host) is not None
    try:
        ipaddress.IPv6Address(found.group(1))
    except ValueError:
        return False
    return True


def open_channel(target: str, credentials: Optional[grpc.ChannelCredentials]) -> grpc.Channel:
    """Opens a channel, which connects on its first call."""
    options: list[tuple[str, Any]] = [*CHANNEL_OPTIONS]
    if target.startswith("unix:"):
        # By default it is the encoded path, which is no host: HTTP/2 servers in Rust refuse it.
        options.append(("grpc.default_authority", "localhost"))
    if credentials is None:
        return grpc.insecure_channel(target, options=options)
    return grpc.secure_channel(target, credentials, options=options)


def call(
    channel: grpc.Channel,
    path: str,
    request: Message,
    answer: type[Answer],
    timeout: float,
) -> Answer:
    """Makes a call that has one answer. Raises an `RpcError` of this package."""
    invoke: Callable[..., Any] = channel.unary_unary(
        path,
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    try:
        return cast(Answer, invoke(request, timeout=timeout))
    except grpc.RpcError as error:
        raise from_grpc(error) from error


def stream(
    channel: grpc.Channel,
    path: str,
    request: Message,
    answer: type[Answer],
    timeout: Optional[float],
) -> Generator[Answer, None, None]:
    """Makes a call that has many answers. Closing the iterator cancels it. Raises as `call`."""
    invoke: Callable[..., Any] = channel.unary_stream(
        path,
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    answers = invoke(request, timeout=timeout)
    try:
        yield from answers
    except grpc.RpcError as error:
        raise from_grpc(error) from error
    finally:
        answers.cancel()


class PublishCall:
    """An open `EventIngest.PublishEvents` stream."""

    def __init__(self, channel: grpc.Channel, requests: Iterable[bytes]) -> None:
        """Opens the stream. A gRPC thread iterates over `requests`, which are encoded messages."""
        invoke: Callable[..., Any] = channel.stream_stream(
            PUBLISH_EVENTS,
            request_serializer=bytes,
            response_deserializer=ingest.PublishEventsResponse.FromString,
        )
        self._call = invoke(iter(requests))

    def answers(self) -> Iterator[ingest.PublishEventsResponse]:
        """The server's answers, until it ends the stream."""
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise from_grpc(error) from error

    def cancel(self) -> None:
        """Ends the stream immediately."""
        self._call.cancel()
