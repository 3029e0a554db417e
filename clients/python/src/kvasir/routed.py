"""Sends prompts to the workers that a router chooses."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TYPE_CHECKING, Callable, Generic, Optional, TypeVar

from kvasir._check import read_int
from kvasir.errors import InvalidArgumentError, KvasirError
from kvasir.limits import REPORT_ITEMS
from kvasir.route_types import RouterMode, SelectHints
from kvasir.router import Router

if TYPE_CHECKING:
    from typing_extensions import Unpack

ATTEMPTS_DEFAULT = 2
"""Default of `attempts`: workers to which a prompt is sent until one answers."""

Item = TypeVar("Item")

Send = Callable[[str, int, Sequence[int]], AsyncIterator[Item]]
"""Sends tokens to a worker, by its id and rank. Yields the items of the output."""


class RoutedClient(Generic[Item]):
    """Sends prompts to workers that a router chooses, and reports to the router how they proceed.

    A worker that fails before its first item is excluded, and the prompt is sent to another one.
    Calls raise the error of the last worker, or that of `Router.select`. An item counts as one
    token of output. Close the generator of a call to stop early: that frees the worker, too.
    """

    def __init__(
        self, router: Router, send: Send[Item], *, attempts: int = ATTEMPTS_DEFAULT
    ) -> None:
        """`send` sends a prompt to a worker and yields the output.

        `attempts` is the maximum number of workers to which a prompt is sent.
        """
        self._router = router
        self._send = send
        self._attempts = read_int("attempts", attempts, 1, 1 << 16)

    def generate(
        self, tokens: Sequence[int], **hints: "Unpack[SelectHints]"
    ) -> AsyncGenerator[Item, None]:
        """Sends a prompt to the worker that the router chooses by its own mode and the hints.

        Not with `disaggregate`, as `send` gets one worker: use `Router.select`.
        """
        if hints.get("disaggregate", False):
            raise InvalidArgumentError("disaggregate", "goes with Router.select only")
        return self._generate(tokens, hints)

    def random(self, tokens: Sequence[int]) -> AsyncGenerator[Item, None]:
        """Sends a prompt to any worker."""
        return self._generate(tokens, {"mode": RouterMode.RANDOM})

    def round_robin(self, tokens: Sequence[int]) -> AsyncGenerator[Item, None]:
        """Sends a prompt to each worker in turn."""
        return self._generate(tokens, {"mode": RouterMode.ROUND_ROBIN})

    def direct(
        self, tokens: Sequence[int], worker_id: str, dp_rank: Optional[int] = None
    ) -> AsyncGenerator[Item, None]:
        """Sends a prompt to this worker, once."""
        hints: SelectHints = {"mode": RouterMode.DIRECT, "worker_id": worker_id}
        if dp_rank is not None:
            hints["dp_rank"] = dp_rank
        return self._generate(tokens, hints)

    async def _generate(
        self, tokens: Sequence[int], hints: SelectHints
    ) -> AsyncGenerator[Item, None]:
        # There is no other worker if the request names one.
        attempts = 1 if "worker_id" in hints else self._attempts
        excluded = list(hints.get("excluded", ()))
        failure: Optional[Exception] = None
        while True:
            retry: SelectHints = {**hints, "excluded": excluded}
            try:
                reservation = await self._router.select(tokens=tokens, **retry)
            except KvasirError:
                if failure is None:
                    raise
                # No other worker may have the prompt: what counts is how the last one failed.
                raise failure from None
            count = 0
            try:
                async with reservation:
                    items = self._send(reservation.worker_id, reservation.dp_rank, tokens)
                    try:
                        async for item in items:
                            count += 1
                            if count == 1 or count % REPORT_ITEMS == 0:
                                reservation.report_soon(count)
                            yield item
                    finally:
                        await _close(items)
            except Exception as error:
                attempts -= 1
                if count > 0 or attempts == 0:
                    raise
                failure = error
                excluded.append(reservation.worker_id)
            else:
                return


async def _close(items: AsyncIterator[Item]) -> None:
    """Ends the request at the worker, if it is still in progress."""
    if isinstance(items, AsyncGenerator):
        await items.aclose()
