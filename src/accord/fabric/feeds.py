"""Feeds: a signed request that is answered by a stream.

The first frame is empty with `feed-status: ready`, the last one has `end`. In between the service
sends `keepalive` with a reply subject, so that the server reports when nobody listens any more.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from accord.fabric.journal import NO_PAYLOAD, CallJournal
from accord.fabric.link import TIMEOUT, Link
from accord.fabric.requests import HandleRequest, Request, RequestDispatcher
from accord.fabric.rules import payloads
from accord.fabric.rules.errors import DeadlineError, FabricError, UnavailableError
from accord.fabric.rules.terms import Feed

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
    """Open a feed and yield its payloads; raises FabricError if it is refused or breaks off."""
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
    dispatcher: RequestDispatcher, feed: Feed, handler: FeedHandler, calls: CallJournal | None
) -> HandleRequest:
    """The request handler of a feed."""

    async def serve(request: Request, msg: Msg) -> None:
        asked: Any = NO_PAYLOAD
        error: FabricError | None = None
        try:
            request.who.require(feed.gates["subscribe"], f"subscribe to {feed.name}")
            asked = payloads.read(feed.input, msg.data, "the request")
        except FabricError as refusal:
            error = refusal
            raise
        finally:
            if calls is not None:
                await calls.record(
                    *("feeds", feed.name, "input"),
                    caller=request.who,
                    request_id=request.id,
                    payload=asked,
                    error=None if error is None else error.type,
                )
        await dispatcher.answer(msg, b"", {STATUS: READY})
        values = _journaled(calls, feed, request, handler(request, asked))
        await _while_read(dispatcher, msg, _pump(dispatcher, msg, feed, values))
        await dispatcher.answer(msg, b"", {STATUS: END})

    return serve


async def _journaled(
    calls: CallJournal | None, feed: Feed, request: Request, values: AsyncIterator[Any]
) -> AsyncIterator[Any]:
    """The values of a feed, each journaled after it was sent."""
    async with aclosing(values) as stream:  # type: ignore[type-var]
        async for value in stream:
            yield value
            if calls is not None:
                await calls.record(
                    *("feeds", feed.name, "event"),
                    caller=request.who,
                    request_id=request.id,
                    payload=value,
                )


async def _pump(
    dispatcher: RequestDispatcher, msg: Msg, feed: Feed, values: AsyncIterator[Any]
) -> None:
    async with aclosing(values) as stream:  # type: ignore[type-var]
        async for value in stream:
            try:
                data = payloads.write(feed.event, value, "what the feed sends")
            except FabricError as error:
                raise FabricError(f"the service breaks its contract: {error}") from error
            await dispatcher.answer(msg, data)


async def _while_read(dispatcher: RequestDispatcher, msg: Msg, pumping: Awaitable[None]) -> None:
    """Run a stream to its end, or until nobody reads it."""
    pump = asyncio.ensure_future(pumping)
    try:
        while not (await asyncio.wait({pump}, timeout=KEEPALIVE_SECONDS))[0]:
            if not await _is_read(dispatcher, msg):
                return
        pump.result()
    except asyncio.CancelledError:
        await dispatcher.refuse(msg, UnavailableError("the service is ending", mend="ask again"))
        raise
    finally:
        pump.cancel()
        with suppress(asyncio.CancelledError, FabricError):
            await pump


async def _is_read(dispatcher: RequestDispatcher, msg: Msg) -> bool:
    """Whether somebody subscribes to the reply subject; readers themselves do not answer."""
    try:
        await dispatcher.nats.request(msg.reply, timeout=_PROBE_SECONDS, headers={STATUS: ALIVE})
    except NoRespondersError:
        return False
    except NatsError:
        return True
    return True
