"""A request at the worker that was chosen for it."""

import asyncio
from types import TracebackType
from typing import Any, Optional

from kvasir._check import read_int
from kvasir._router_link import RouterLink
from kvasir.block_types import Fetched
from kvasir.errors import KvasirError
from kvasir.route_types import Decision

_U64 = (1 << 64) - 1


class Reservation:
    """A request that counts as load of its worker until it is freed.

    It also counts as load of its prefill worker, `response.prefill`, if it has one, until the first
    token is reported.

    As an async context manager, it frees the request once the block is left. A report raises no
    error if the router is unreachable or does not know the request, since neither is a reason to
    fail the request: it is logged, and the router frees the request itself after the lease.
    """

    def __init__(self, link: RouterLink, decision: Decision, *, is_counted: bool) -> None:
        """Use `Router.select` to create one. `is_counted` is False after a dry run."""
        self.response = decision
        """The decision."""
        self._link = link
        self._is_counted = is_counted
        self._has_prefill_worker = decision.prefill is not None
        self._end: Optional[asyncio.Task[Optional[int]]] = None
        self._report: Optional[asyncio.Task[Any]] = None

    @property
    def worker_id(self) -> str:
        """The worker to send the request to."""
        return self.response.worker_id

    @property
    def dp_rank(self) -> int:
        """Rank of the worker to send the request to."""
        return self.response.dp_rank

    @property
    def request_id(self) -> str:
        """Id of the request at the router; "" after a dry run."""
        return self.response.request_id

    async def __aenter__(self) -> "Reservation":
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        failed = _has_failed(error)
        if failed and self._has_prefill_worker:
            # It may be the prefill worker that failed.
            failed = None
        await self.free(failed=failed)

    async def first_token(self) -> bool:
        """Reports the first token: the prompt no longer counts as load, its blocks still do.

        Call it once the prefill worker is done, if there is one. Returns whether the router took
        the report.
        """
        self._has_prefill_worker = False
        return self._is_open() and await self._link.first_token(self.request_id)

    async def output_tokens(self, count: int) -> bool:
        """Reports the number of output tokens so far, and renews the lease.

        Returns whether the router took the report.
        """
        read_int("count", count, 0, _U64)
        self._has_prefill_worker = False
        return self._is_open() and await self._link.output_tokens(self.request_id, count)

    def report_soon(self, count: int) -> None:
        """Reports the number of output tokens so far, without waiting for the router.

        The first report is that of the first token. While one is in progress, others are skipped.
        """
        read_int("count", count, 0, _U64)
        if not self._is_open() or (self._report is not None and not self._report.done()):
            return
        self._has_prefill_worker = False
        report = self.first_token() if self._report is None else self.output_tokens(count)
        self._report = self._link.tasks.start(report, f"report of request {self.request_id}")

    async def free(
        self,
        *,
        failed: Optional[bool] = None,
        cached_tokens: Optional[int] = None,
        prefill_failed: Optional[bool] = None,
        fetched: Optional[Fetched] = None,
    ) -> Optional[int]:
        """Ends the request. The first call counts; further calls return the same.

        `failed` is whether the worker failed the request: the router avoids a worker that fails
        too often. None is for failures that are not the worker's, as when the client hangs up.
        `prefill_failed` is whether the prefill worker failed it. To continue without one, select
        again without `disaggregate`.

        `cached_tokens` is the number of prompt tokens that the engine found in its cache. Returns
        the number that the router had expected, or None if that is not known.

        `fetched` is what `Session.fetch` returned at the worker, if it fetched blocks: the router
        measures the bandwidth between agents by it.

        The request is freed even if the caller is cancelled meanwhile.
        """
        if cached_tokens is not None:
            read_int("cached_tokens", cached_tokens, 0, _U64)
        if self._end is None:
            if not self._is_counted:
                return None
            end = self._link.free(self.request_id, failed, cached_tokens, prefill_failed, fetched)
            self._end = self._link.tasks.start(end, f"end of request {self.request_id}")
        return await asyncio.shield(self._end)

    def _is_open(self) -> bool:
        return self._is_counted and self._end is None


def _has_failed(error: Optional[BaseException]) -> Optional[bool]:
    """Whether the worker failed a request whose block was left by this error."""
    if error is None:
        return False
    # A cancellation and the end of a generator are not the worker's doing. Nor are our own errors.
    if isinstance(error, Exception) and not isinstance(error, KvasirError):
        return True
    return None
