"""Request bodies, read with a limit of bytes and time.

Slow senders hold a socket and a task, so a body has a deadline, which arriving bytes extend only at
a minimum rate.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from starlette.requests import ClientDisconnect, Request

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
