"""Whether the client is still there.

Owns the one rule for work that only makes sense while somebody waits for it: when the client
leaves, the work is cancelled and has ended before anything else happens.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class GoneError(Exception):
    """The client left; there is nobody to answer."""


async def while_present(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do some work for as long as the client is there.

    Raises:
        GoneError: The client left, and the work was cancelled.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise GoneError
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
