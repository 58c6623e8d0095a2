"""Bodies of HTTP messages: requests, read with a limit of bytes and time, and event streams.

Slow senders hold a socket and a task, so a body has a deadline, which arriving bytes extend only at
a minimum rate. Nothing of a stream is buffered for a slow reader: the next part is made when the
last was sent.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from accord.kernel.errors import AccordError

# Enough for a form or a small object over any line.
SECONDS: Final = 10.0


class BodyError(AccordError):
    """A body that is too long, too slow or incomplete; `status` is the HTTP status."""

    def __init__(self, what: str, *, mend: str | None = None, status: int = 400) -> None:
        super().__init__(what, mend=mend)
        self.status = status


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of a body."""

    most: int  # bytes of the whole body
    seconds: float = SECONDS  # until the body must be complete
    rate: int = 0  # bytes that extend the deadline by a second; 0 for no extension


async def read(request: Request, limits: BodyLimits) -> bytes:
    """Read a whole body, or raise `BodyError`: too long (413), slow (408), incomplete (400)."""
    async with aclosing(parts(request, limits)) as arriving:
        return b"".join([part async for part in arriving])


async def parts(request: Request, limits: BodyLimits) -> AsyncGenerator[bytes, None]:
    """Yield a body as it arrives; close the generator to drop the rest.

    Raises:
        BodyError: As `read`; a declared length is checked before anything is read.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal() and int(declared[:20]) > limits.most:
        raise _too_long(limits)
    begun = asyncio.get_running_loop().time()
    count = 0
    async with aclosing(request.stream()) as stream:
        while True:
            earned = count / limits.rate if limits.rate else 0.0
            try:
                async with asyncio.timeout_at(begun + limits.seconds + earned):
                    part = await anext(stream, None)
            except TimeoutError:
                raise BodyError(
                    "the body did not arrive in time", mend="send it again, faster", status=408
                ) from None
            except ClientDisconnect:
                raise BodyError("the body broke off", mend="send it again") from None
            if part is None:
                return
            count += len(part)
            if count > limits.most:
                raise _too_long(limits)
            if part:
                yield part


def _too_long(limits: BodyLimits) -> BodyError:
    return BodyError(f"a body has at most {limits.most} bytes", mend="send less", status=413)


class EventStream(Response):
    """Server-sent events; `begun` and `ended` are called at the start and the end."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        begun: Callable[[], None] | None,
        ended: Callable[[], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            headers={**(headers or {}), "cache-control": "no-store", "x-accel-buffering": "no"},
            media_type="text/event-stream",
        )
        del self.headers["content-length"]
        self._parts = parts
        self._begun = begun
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the stream or the client ends."""
        if self._begun is not None:
            self._begun()
        telling = asyncio.create_task(self._tell(send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._ended()
            for task in (telling, leaving):
                task.cancel()
            await asyncio.wait({telling, leaving})
        if not telling.cancelled():
            telling.result()

    async def _tell(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with aclosing(self._parts) as parts:
            try:
                await send(start)
                async for part in parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
            except OSError:
                return  # the client is gone


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
