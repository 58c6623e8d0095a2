"""Pulling from a durable consumer: one message at a time, and none is left lying when it ends.

The consumer is the authority's. Owns the request for the next message and the subscription on which
it comes; what becomes of a message is its reader's business.
"""

import asyncio
import json
import secrets
from contextlib import suppress
from typing import Final, Self

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from accord.fabric.errors import UnavailableError
from accord.fabric.link import Link

_EXPIRES_SECONDS: Final = 10.0
_MARGIN_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 1.0
# No messages, the request ran out, and what the server says when the consumer moves.
_NOTHING_THERE: Final = frozenset({"404", "408", "409"})

_log = structlog.stdlib.get_logger(__name__)


class Pull:
    """A reader of one consumer, while it is entered.

    Several may read the same consumer; each message goes to one of them.

    Args:
        link: The session's link.
        stream: The stream.
        consumer: The durable consumer.
    """

    def __init__(self, link: Link, stream: str, consumer: str) -> None:
        self._link = link
        self._nats = link.nats
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = f"{link.prefix}.{secrets.token_hex(8)}"
        self._came: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._subscription: Subscription | None = None

    async def __aenter__(self) -> Self:
        async def came(msg: Msg) -> None:
            self._came.put_nowait(msg)

        try:
            self._subscription = await self._nats.subscribe(self._inbox, cb=came)
        except NatsError as error:
            raise UnavailableError(f"the connection cannot be used: {error}") from None
        self._link.on_return.append(self._ask_again)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._link.on_return.remove(self._ask_again)
        # Without a subscription the server gives the message to another reader; what came before
        # it knew is given back.
        with suppress(NatsError):
            if self._subscription is not None:
                await self._subscription.unsubscribe()
                await self._nats.flush()
            while not self._came.empty():
                msg = self._came.get_nowait()
                if msg is not None and _status(msg) is None:
                    await msg.nak()

    async def next(self, stopping: asyncio.Event) -> Msg | None:
        """The next message; None when there was none for a while, or `stopping` was set."""
        wanted = {"batch": 1, "expires": int(_EXPIRES_SECONDS * 1e9)}
        try:
            await self._nats.publish(self._subject, json.dumps(wanted).encode(), self._inbox)
        except NatsError as error:
            await self._pause(stopping, str(error))
            return None
        msg = await self._wait(stopping, _EXPIRES_SECONDS + _MARGIN_SECONDS)
        status = None if msg is None else _status(msg)
        if status is None:
            return msg
        if status not in _NOTHING_THERE:
            await self._pause(stopping, f"the server answered {status}")
        return None

    async def _wait(self, stopping: asyncio.Event, seconds: float) -> Msg | None:
        coming = asyncio.ensure_future(self._came.get())
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait(
                {coming, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            return coming.result() if coming.done() else None
        finally:
            coming.cancel()
            stopped.cancel()

    def _ask_again(self) -> None:
        """What was asked on a connection that was lost is not answered on the next one."""
        self._came.put_nowait(None)

    async def _pause(self, stopping: asyncio.Event, why: str) -> None:
        _log.warning("nothing can be pulled", subject=self._subject, why=why)
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _PAUSE_SECONDS)


def _status(msg: Msg) -> str | None:
    return (msg.headers or {}).get("Status")
