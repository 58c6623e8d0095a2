"""Feeds: a signed request that is answered by a stream.

The first frame is empty and says `feed-status: ready`, as existing implementations have it; a
stream that ends says `end`. Between them the service says `keepalive` from time to time, with a
reply subject: the server then tells whether the reader is still there.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from accord.fabric import payloads
from accord.fabric.calls import ABSENT, Calls
from accord.fabric.errors import DeadlineError, FabricError, UnavailableError
from accord.fabric.link import TIMEOUT, Link
from accord.fabric.reception import Handle, Reception, Request
from accord.fabric.terms import Feed

STATUS: Final = "feed-status"
READY: Final = "ready"
ALIVE: Final = "keepalive"
END: Final = "end"

KEEPALIVE_SECONDS: Final = 15.0
_SILENCE: Final = 3 * KEEPALIVE_SECONDS
_PROBE_SECONDS: Final = 1.0

FeedHandler = Callable[[Request, Any], AsyncIterator[Any]]


async def open_feed(
    link: Link, feed: Feed, payload: Any, *, within: float = TIMEOUT
) -> AsyncIterator[Any]:
    """The payloads of a feed, as they come.

    Raises:
        FabricError: What the service answered, or why the stream broke off.
    """
    data = payloads.write(feed.input, payload, "the request")
    async with link.stream(feed.subject, data) as frames:
        status = (await _next(frames, within, feed)).headers or {}
        if status.get(STATUS) != READY:
            raise FabricError("the feed does not begin with its first frame", where=feed.subject)
        while True:
            msg = await _next(frames, _SILENCE, feed)
            status = msg.headers or {}
            if status.get(STATUS) == END:
                return
            if status.get(STATUS) != ALIVE:
                yield payloads.read(feed.event, msg.data, "what the feed sent")


async def _next(frames: AsyncIterator[Msg], seconds: float, feed: Feed) -> Msg:
    try:
        return await asyncio.wait_for(anext(frames), seconds)
    except TimeoutError:
        raise DeadlineError(
            f"nothing came from the feed within {seconds:g} seconds", where=feed.subject
        ) from None


def serve_feed(
    reception: Reception, feed: Feed, handler: FeedHandler, calls: Calls | None
) -> Handle:
    """What answers the requests of a feed."""

    async def serve(request: Request, msg: Msg) -> None:
        asked: Any = ABSENT
        error: FabricError | None = None
        try:
            request.who.require(feed.gates["subscribe"], f"subscribe to {feed.name}")
            asked = payloads.read(feed.input, msg.data, "the request")
        except FabricError as refusal:
            error = refusal
            raise
        finally:
            if calls is not None:
                await calls.tell(
                    *("feeds", feed.name, "input"),
                    caller=request.who,
                    request_id=request.id,
                    payload=asked,
                    error=None if error is None else error.type,
                )
        await reception.answer(msg, b"", {STATUS: READY})
        values = _told(calls, feed, request, handler(request, asked))
        await _while_read(reception, msg, _pump(reception, msg, feed, values))
        await reception.answer(msg, b"", {STATUS: END})

    return serve


async def _told(
    calls: Calls | None, feed: Feed, request: Request, values: AsyncIterator[Any]
) -> AsyncIterator[Any]:
    """The values of a feed, each told to the journal once it has gone out."""
    async with aclosing(values) as stream:  # type: ignore[type-var]
        async for value in stream:
            yield value
            if calls is not None:
                await calls.tell(
                    *("feeds", feed.name, "event"),
                    caller=request.who,
                    request_id=request.id,
                    payload=value,
                )


async def _pump(reception: Reception, msg: Msg, feed: Feed, values: AsyncIterator[Any]) -> None:
    async with aclosing(values) as stream:  # type: ignore[type-var]
        async for value in stream:
            try:
                data = payloads.write(feed.event, value, "what the feed sends")
            except FabricError as error:
                raise FabricError(f"the service breaks its contract: {error}") from error
            await reception.answer(msg, data)


async def _while_read(reception: Reception, msg: Msg, pumping: Awaitable[None]) -> None:
    """Run a stream to its end, or until its reader is gone."""
    pump = asyncio.ensure_future(pumping)
    try:
        while not (await asyncio.wait({pump}, timeout=KEEPALIVE_SECONDS))[0]:
            if not await _is_read(reception, msg):
                return
        pump.result()
    except asyncio.CancelledError:
        await reception.refuse(msg, UnavailableError("the service is ending", mend="ask again"))
        raise
    finally:
        pump.cancel()
        with suppress(asyncio.CancelledError, FabricError):
            await pump


async def _is_read(reception: Reception, msg: Msg) -> bool:
    """Whether somebody listens where the frames go; readers themselves do not answer."""
    try:
        await reception.nats.request(msg.reply, timeout=_PROBE_SECONDS, headers={STATUS: ALIVE})
    except NoRespondersError:
        return False
    except NatsError:
        return True
    return True
