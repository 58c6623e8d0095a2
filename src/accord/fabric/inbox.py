"""Where the answers of one connection come in: one subscription for every request under way.

Owns the matching of answers to requests, deadlines, and what becomes of a request that the
server will not carry. It signs nothing and reads no payload.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError

from accord.fabric.backlog import Backlog
from accord.fabric.errors import (
    DeadlineError,
    FabricError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
)
from accord.fabric.wire import subscribe

_NO_RESPONDERS: Final = "503"
Headers = dict[str, str]


class _Waiting(NamedTuple):
    subject: str
    heard: Callable[[Msg], None]
    failed: Callable[[FabricError], None]


class Inbox:
    """The answers to one connection's requests.

    Args:
        nats: The connection.
        prefix: What every reply subject of the session begins with.
    """

    def __init__(self, nats: Client, prefix: str) -> None:
        self._nats = nats
        self._stem = f"{prefix}.{secrets.token_hex(8)}."
        self._waiting: dict[str, _Waiting] = {}
        self._opening: asyncio.Task[None] | None = None
        self._open = False

    async def ask(self, subject: str, data: bytes, headers: Headers, within: float) -> Msg:
        """Send a request and return its one answer.

        Raises:
            DeadlineError: No answer came in time.
            UnavailableError: Nobody listens, or the connection is closed or was lost meanwhile.
            UnauthorizedError: The server does not let this session publish there.
            ValidationError: The request is larger than the server carries.
        """
        if not self._open:
            await self._subscribe()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Msg] = loop.create_future()

        def heard(msg: Msg) -> None:
            if not future.done():
                future.set_result(msg)

        def failed(error: FabricError) -> None:
            if not future.done():
                future.set_exception(error)

        reply = self._new_reply()
        self._waiting[reply] = _Waiting(subject, heard, failed)
        timer = loop.call_later(within, lambda: failed(_late(subject, within)))
        try:
            await self._publish(subject, data, reply, headers)
            msg = await future
        finally:
            timer.cancel()
            del self._waiting[reply]
        _refuse_unheard(msg, subject)
        return msg

    @asynccontextmanager
    async def stream(
        self, subject: str, data: bytes, headers: Headers
    ) -> AsyncIterator[AsyncIterator[Msg]]:
        """Send a request and hear everything that answers it, until the block ends.

        The frames raise what `ask` raises, and UnavailableError when the connection was lost or
        the reader fell too far behind: then frames may be missing.
        """
        if not self._open:
            await self._subscribe()
        backlog = Backlog(subject)

        def heard(msg: Msg) -> None:
            if not backlog.put(msg):
                self._waiting.pop(reply, None)

        def failed(error: FabricError) -> None:
            self._waiting.pop(reply, None)
            backlog.fail(error)

        async def frames() -> AsyncIterator[Msg]:
            while True:
                frame = await backlog.get()
                _refuse_unheard(frame, subject)
                yield frame

        reply = self._new_reply()
        self._waiting[reply] = _Waiting(subject, heard, failed)
        try:
            await self._publish(subject, data, reply, headers)
            yield frames()
        finally:
            self._waiting.pop(reply, None)

    def _new_reply(self) -> str:
        # Any service may write into any inbox: who was asked once must not guess what comes next.
        return f"{self._stem}{secrets.token_hex(8)}"

    def refuse(self, subject: str) -> None:
        """The server does not let this session publish on a subject, given in lower case."""
        for waiting in list(self._waiting.values()):
            if waiting.subject.lower() == subject:
                waiting.failed(_forbidden(waiting.subject))

    def interrupt(self) -> None:
        """The connection was lost, and with it the answers to what was asked on it."""
        for waiting in list(self._waiting.values()):
            waiting.failed(
                UnavailableError(
                    "the connection was lost, so it is not known whether this was done",
                    where=waiting.subject,
                )
            )

    async def _subscribe(self) -> None:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._listen())
        await asyncio.shield(self._opening)

    async def _listen(self) -> None:
        def heard(msg: Msg) -> None:
            waiting = self._waiting.get(msg.subject)
            if waiting is not None:
                waiting.heard(msg)

        try:
            await subscribe(self._nats, f"{self._stem}*", heard)
        except NatsError as error:
            self._opening = None
            raise UnavailableError(f"the connection cannot be used: {error}") from None
        self._open = True

    async def _publish(self, subject: str, data: bytes, reply: str, headers: Headers) -> None:
        try:
            await self._nats.publish(subject, data, reply, headers)
        except MaxPayloadError:
            raise ValidationError(
                f"a payload of {len(data)} bytes is more than the server carries", where=subject
            ) from None
        except NatsError as error:
            raise UnavailableError(
                f"the connection cannot be used: {error}", where=subject
            ) from None


def _late(subject: str, within: float) -> DeadlineError:
    return DeadlineError(f"no answer came within {within:g} seconds", where=subject)


def _forbidden(subject: str) -> UnauthorizedError:
    return UnauthorizedError(
        "this session may not publish here",
        where=subject,
        mend="declare the use in the contract, and have the change accepted",
    )


def _refuse_unheard(msg: Msg, subject: str) -> None:
    if not msg.data and msg.headers and msg.headers.get("Status") == _NO_RESPONDERS:
        raise UnavailableError("nobody answers here at the moment", where=subject)
