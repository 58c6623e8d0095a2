"""What a gateway asks the connector to do: each request once, its answer awaited.

Owns request ids and their timeouts. A request whose socket ended before the answer is sent again on
the next one under the same id, which the connector takes for the same request. It never raises:
what cannot be done is a `Result` that says so.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from accord import tracing
from accord.kernel import canonical
from accord.relay.gateway.limits import Limits
from accord.relay.gateway.link import Link
from accord.relay.gateway.sockets import Closed
from accord.relay.wire import Action, Outbound, OutboundResult, Result, Typing, write_frame
from accord.tracing import SpanKind


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    line: bytes
    answer: asyncio.Future[Result]
    again: bool


class Requests:
    """The actions under way.

    Args:
        new_id: Makes request ids.
        limits: How long an action may take, and how many are under way at once.
        counts: What happened how often.
    """

    def __init__(self, new_id: Callable[[], str], limits: Limits, counts: Counter[str]) -> None:
        self._new_id = new_id
        self._limits = limits
        self._counts = counts
        self._slots = asyncio.Semaphore(limits.pending_outbound)
        self._pending: dict[str, _Request] = {}
        self._link: Link | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return not self._pending

    async def perform(
        self, action: Action, platform: str | None = None, bot_id: str | None = None
    ) -> Result:
        """Do something on a platform and tell what became of it."""
        is_fleeting = isinstance(action, Typing)
        if is_fleeting and self._link is None:
            return Result(False, error="not connected")
        with tracing.step("gateway request", SpanKind.CLIENT, op=action.op):
            try:
                async with asyncio.timeout(self._limits.outbound), self._slots:
                    return await self._ask(action, platform, bot_id, again=not is_fleeting)
            except TimeoutError:
                self._counts["actions without answer"] += 1
                why = f"no answer within {self._limits.outbound:g} seconds"
                return Result(False, error=why if self._link else f"{why}, and not connected")

    async def connected(self, link: Link) -> None:
        """Use this link from now on, and ask again what was not answered.

        Raises:
            Closed: The link has ended already.
        """
        self._link = link
        for request in list(self._pending.values()):
            if request.again:
                await link.write(request.line)

    def disconnected(self) -> None:
        """There is no link until the next one."""
        self._link = None

    def answered(self, frame: OutboundResult) -> None:
        """The connector told what became of a request."""
        request = self._pending.get(frame.request_id)
        if request is None:
            self._counts["answers to nothing"] += 1
        elif not request.answer.done():
            request.answer.set_result(frame.result)

    async def _ask(
        self, action: Action, platform: str | None, bot_id: str | None, *, again: bool
    ) -> Result:
        name = self._new_id()
        try:
            line = write_frame(Outbound(name, action, platform, bot_id, tracing.current()))
        except canonical.CanonicalError as error:
            return Result(False, error=f"this cannot be sent: {error}")
        if len(line) > self._limits.action_bytes:
            return Result(False, error=f"more than {self._limits.action_bytes} bytes")
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._pending[name] = _Request(line, answer, again)
        try:
            if self._link is not None:
                try:
                    await self._link.write(line)
                except Closed:
                    if not again:
                        return Result(False, error="not connected")
            return await answer
        finally:
            del self._pending[name]
