"""Asyncio's channels to a server, and calls on them."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Callable, Optional, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from kvasir._rpc import CHANNEL_OPTIONS, Answer
from kvasir.errors import from_grpc

Outcome = TypeVar("Outcome")


def open_channel(target: str, credentials: Optional[grpc.ChannelCredentials]) -> grpc.aio.Channel:
    """Opens a channel of the running loop, which connects on its first call."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(target, credentials, options=CHANNEL_OPTIONS)


async def call(
    channel: grpc.aio.Channel,
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
        return cast(Answer, await invoke(request, timeout=timeout))
    except grpc.RpcError as error:
        raise from_grpc(error) from error


async def stream(
    channel: grpc.aio.Channel, path: str, request: Message, answer: type[Answer]
) -> AsyncGenerator[Answer, None]:
    """Makes a call that has many answers. Closing the generator cancels it. Raises as `call`."""
    invoke: Callable[..., Any] = channel.unary_stream(
        path,
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    answers = invoke(request)
    try:
        async for message in answers:
            yield message
    except grpc.RpcError as error:
        raise from_grpc(error) from error
    finally:
        answers.cancel()


class Tasks:
    """Tasks of one client. Each is kept until it ends."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Outcome], name: str) -> "asyncio.Task[Outcome]":
        """Starts a task. The cancellation of its starter does not cancel it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def join(self) -> None:
        """Waits until all tasks have ended, including those started meanwhile."""
        while self._running:
            await asyncio.wait(self._running)
