"""Connection to a router, and reports on it."""

import logging
from typing import Optional, Union

import grpc
import grpc.aio
from google.protobuf.message import Message

from kvasir import _aio, _rpc
from kvasir._gen import router_pb2 as pb
from kvasir.block_types import Fetched
from kvasir.errors import ClosedError, NotFoundError, RpcError

_log = logging.getLogger("kvasir")

_Report = Union[pb.MarkPrefillCompletedRequest, pb.ReportOutputRequest, pb.FreeRequest]


class RouterLink:
    """Connection to a router, for one model and tenant."""

    def __init__(
        self,
        target: str,
        model: str,
        tenant: str,
        timeout: float,
        credentials: Optional[grpc.ChannelCredentials],
    ) -> None:
        self.model = model
        self.tenant = tenant
        self.timeout = timeout
        self.tasks = _aio.Tasks()
        self._target = target
        self._credentials = credentials
        self._channel: Optional[grpc.aio.Channel] = None
        self._is_closed = False

    def open(self) -> grpc.aio.Channel:
        """The channel. It belongs to the first event loop that uses it."""
        if self._is_closed:
            raise ClosedError("the router's client was closed")
        if self._channel is None:
            self._channel = _aio.open_channel(self._target, self._credentials)
        return self._channel

    async def close(self) -> None:
        """Closes the channel once all tasks have ended."""
        await self.tasks.join()
        self._is_closed = True
        if self._channel is not None:
            await self._channel.close(None)

    async def call(
        self,
        method: str,
        request: Message,
        answer: type[_rpc.Answer],
        timeout: Optional[float] = None,
    ) -> _rpc.Answer:
        """Makes a call. Raises an `RpcError`."""
        limit = self.timeout if timeout is None else timeout
        return await _aio.call(self.open(), _rpc.ROUTER + method, request, answer, limit)

    async def first_token(self, request_id: str) -> bool:
        """Reports the first token of a request. Returns whether the router took the report."""
        request = pb.MarkPrefillCompletedRequest(
            model=self.model, tenant=self.tenant, request_id=request_id
        )
        answer = pb.MarkPrefillCompletedResponse
        return await self._report("MarkPrefillCompleted", request, answer) is not None

    async def output_tokens(self, request_id: str, count: int) -> bool:
        """Reports the output of a request. Returns whether the router took the report."""
        request = pb.ReportOutputRequest(
            model=self.model, tenant=self.tenant, request_id=request_id, output_tokens=count
        )
        return await self._report("ReportOutput", request, pb.ReportOutputResponse) is not None

    async def free(
        self,
        request_id: str,
        failed: Optional[bool] = None,
        cached_tokens: Optional[int] = None,
        prefill_failed: Optional[bool] = None,
        fetched: Optional[Fetched] = None,
    ) -> Optional[int]:
        """Frees a request. Returns the cached tokens that the router had expected, if it knows."""
        request = pb.FreeRequest(model=self.model, tenant=self.tenant, request_id=request_id)
        if failed is not None:
            request.failed = failed
        if cached_tokens is not None:
            request.cached_tokens = cached_tokens
        if prefill_failed is not None:
            request.prefill_failed = prefill_failed
        if fetched is not None:
            request.fetched_bytes, request.fetch_us = fetched.bytes, fetched.micros
        answer = await self._report("Free", request, pb.FreeResponse)
        if answer is None or not answer.HasField("expected_cached_tokens"):
            return None
        return answer.expected_cached_tokens

    async def _report(
        self, method: str, request: _Report, answer: type[_rpc.Answer]
    ) -> Optional[_rpc.Answer]:
        """Makes a report. A failure is logged, because it must not fail the reported request."""
        try:
            return await self.call(method, request, answer)
        except NotFoundError:
            # The request was freed, its lease ended, its worker is gone or the router restarted.
            return None
        except (ClosedError, RpcError) as error:
            _log.info("%s of request %s: %s", method, request.request_id, error)
            return None
