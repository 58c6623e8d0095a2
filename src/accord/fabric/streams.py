"""JetStream requests: append, read back, list, purge, pull.

Nothing is created here: streams, buckets and consumers belong to the authority. A durable consumer
is read one message at a time, and an unread message is given back when the reader ends.
"""

import asyncio
import base64
import binascii
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self

import orjson
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from accord.fabric.link import Inbox, Link, subscribe
from accord.fabric.rules.errors import ConflictError, FabricError, NotFoundError, UnavailableError

_EXPIRES_SECONDS: Final = 10.0
_MARGIN_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 1.0
# No messages, request expired, consumer moved.
_NOTHING_THERE: Final = frozenset({"404", "408", "409"})

_log = structlog.stdlib.get_logger(__name__)


class PullReader:
    """Reads one durable consumer while it is entered; several readers share its messages."""

    def __init__(self, link: Link, stream: str, consumer: str) -> None:
        self._link = link
        self._nats = link.nats
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = f"{link.prefix}.{secrets.token_hex(8)}"
        self._came: deque[Msg] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._subscription: Subscription | None = None

    async def __aenter__(self) -> Self:
        def came(msg: Msg) -> None:
            self._came.append(msg)
            self._wake()

        try:
            self._subscription = await subscribe(self._nats, self._inbox, came)
        except NatsError as error:
            raise UnavailableError(f"the connection cannot be used: {error}") from None
        self._link.on_return.append(self._wake)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._link.on_return.remove(self._wake)
        if self._watching is not None:
            self._watching.cancel()
        # Without a subscription the server delivers to another reader; messages that arrived
        # before are given back.
        with suppress(NatsError):
            if self._subscription is not None:
                await self._subscription.unsubscribe()
                await self._nats.flush()
            while self._came:
                msg = self._came.popleft()
                if _status(msg) is None:
                    await msg.nak()

    async def next(self, stopping: asyncio.Event) -> Msg | None:
        """The next message; None if there was none for a while, or `stopping` was set."""
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
        if not self._came and not stopping.is_set():
            loop = asyncio.get_running_loop()
            if self._watching is None:  # one task for all messages, not one for each
                self._watching = loop.create_task(self._wake_at(stopping))
            self._waiter = loop.create_future()
            timer = loop.call_later(seconds, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self._came.popleft() if self._came else None

    async def _wake_at(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._wake()

    def _wake(self) -> None:
        """End a wait: a message came, or none will; after a reconnect the request was lost."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _pause(self, stopping: asyncio.Event, why: str) -> None:
        _log.warning("messages cannot be pulled", subject=self._subject, why=why)
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _PAUSE_SECONDS)


def _status(msg: Msg) -> str | None:
    return (msg.headers or {}).get("Status")


TIMEOUT: Final = 5.0
"""Seconds to wait for the server."""

_API: Final = "$JS.API"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
# The first server that checks `_EXPECTED` on another subject; older ones ignore the header.
_CHECKS_OTHERS: Final = (2, 11)
_MESSAGE_ID: Final = "Nats-Msg-Id"
_WRONG_LAST: Final = (10071, 10164)
_NO_MESSAGE: Final = 10037
_FULL: Final = (10047, 10077, 10078, 10093)  # bytes, messages, messages of one subject
_TOO_LARGE: Final = 10054


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a stream; `at` is the server's time in seconds since the epoch."""

    subject: str
    data: bytes
    sequence: int
    at: float
    headers: Mapping[str, str] = field(default_factory=dict)


async def append(
    inbox: Inbox,
    subject: str,
    data: bytes,
    *,
    headers: Mapping[str, str] | None = None,
    last: int | None = None,
    message_id: str | None = None,
) -> int:
    """Publish to the stream of a subject and return the message's sequence.

    ConflictError: `last` is not the sequence of the subject's last message, 0 for none.
    FabricError: it is not known to be stored. `message_id` deduplicates within the stream's window.
    """
    given = dict(headers or {})
    if last is not None:
        given[_EXPECTED] = str(last)
    if message_id is not None:
        given[_MESSAGE_ID] = message_id
    answer = await inbox.ask(subject, data, given, TIMEOUT)
    sequence = _checked(answer.data, subject).get("seq")
    if not isinstance(sequence, int):
        raise UnavailableError("no stream takes what is published here", where=subject)
    return sequence


def can_append_unless(nats: Client) -> bool:
    """Whether the server knows `append_unless`."""
    version = nats.connected_server_version
    return (version.major, version.minor) >= _CHECKS_OTHERS


async def append_unless(
    inbox: Inbox, blocker: str, subject: str, data: bytes, *, message_id: str | None = None
) -> int:
    """Like `append`, and atomically: ConflictError if the stream has a message on `blocker`."""
    headers = {_EXPECTED: "0", _EXPECTED_SUBJECT: blocker}
    return await append(inbox, subject, data, headers=headers, message_id=message_id)


async def last_on(inbox: Inbox, stream: str, subject: str) -> StoredMessage | None:
    """The last message on a subject, read from the stream's leader."""
    return await _read(inbox, stream, {"last_by_subj": subject})


async def has_any(inbox: Inbox, stream: str, subject: str) -> bool:
    """Whether a stream with direct access has a message on a subject."""
    answer = await inbox.ask(f"{_API}.DIRECT.GET.{stream}.{subject}", b"", {}, TIMEOUT)
    return "Status" not in (answer.headers or {})


async def next_on(inbox: Inbox, stream: str, subject: str, sequence: int) -> StoredMessage | None:
    """The first message on a subject (wildcards allowed) from a sequence on."""
    return await _read(inbox, stream, {"seq": sequence, "next_by_subj": subject})


async def chunk_on(
    inbox: Inbox, stream: str, subject: str, sequence: int
) -> tuple[int, bytes] | None:
    """Like `next_on`, from any replica; only sequence and bytes."""
    asked = orjson.dumps({"seq": sequence, "next_by_subj": subject})
    answer = await inbox.ask(f"{_API}.DIRECT.GET.{stream}", asked, {}, TIMEOUT)
    headers = answer.headers or {}
    if "Status" not in headers and headers.get("Nats-Sequence", "").isdecimal():
        return int(headers["Nats-Sequence"]), answer.data
    found = await next_on(inbox, stream, subject, sequence)  # the leader is authoritative
    return None if found is None else (found.sequence, found.data)


async def subjects(inbox: Inbox, stream: str, matching: str) -> AsyncIterator[str]:
    """The subjects of a stream that have messages."""
    offset = 0
    while True:
        asked = {"subjects_filter": matching, "offset": offset}
        info = await call(inbox, f"STREAM.INFO.{stream}", asked)
        found = info.get("state", {}).get("subjects") or {}
        for subject in found:
            yield subject
        offset += len(found)
        if not found or offset >= info.get("total", 0):
            return


async def server_time(inbox: Inbox, stream: str) -> float:
    """The server's time, by which the stream's messages are stamped."""
    info = await call(inbox, f"STREAM.INFO.{stream}", None)
    return _seconds(info.get("ts"))


async def purge(inbox: Inbox, stream: str, subject: str, *, below: int | None = None) -> None:
    """Delete the messages on a subject, all or those below a sequence."""
    asked = {"filter": subject} | ({} if below is None else {"seq": below})
    await call(inbox, f"STREAM.PURGE.{stream}", asked)


async def call(inbox: Inbox, what: str, asked: Mapping[str, Any] | None) -> dict[str, Any]:
    """Call the JetStream API; raises NotFoundError for a missing message, else FabricError."""
    data = b"" if asked is None else orjson.dumps(asked)
    answer = await inbox.ask(f"{_API}.{what}", data, {}, TIMEOUT)
    return _checked(answer.data, what)


def read_headers(headers: bytes) -> dict[str, str]:
    """Parse stored headers; malformed lines are left out."""
    lines = headers.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


async def _read(inbox: Inbox, stream: str, asked: Mapping[str, Any]) -> StoredMessage | None:
    try:
        answer = await call(inbox, f"STREAM.MSG.GET.{stream}", asked)
    except NotFoundError:
        return None
    message = answer.get("message", {})
    try:
        return StoredMessage(
            message["subject"],
            base64.b64decode(message.get("data", "")),
            message["seq"],
            _seconds(message.get("time")),
            read_headers(base64.b64decode(message.get("hdrs", ""))),
        )
    except (KeyError, TypeError, binascii.Error):
        raise UnavailableError("the server's answer is not a message", where=stream) from None


def _checked(data: bytes, where: str) -> dict[str, Any]:
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise UnavailableError("the server's answer is not a JSON object", where=where)
    refusal = answer.get("error")
    if refusal is None:
        return answer
    code, text = refusal.get("err_code"), refusal.get("description", "the server refuses")
    if code in _WRONG_LAST:
        raise ConflictError("it was changed meanwhile", where=where)
    if code == _NO_MESSAGE:
        raise NotFoundError("there is no such message", where=where)
    if code in _FULL:
        raise FabricError(
            f"the resource is full: {text}", where=where, mend="remove something, or let it grow"
        )
    if code == _TOO_LARGE:
        raise FabricError("the value is larger than the resource takes", where=where)
    raise UnavailableError(f"the server refuses: {text}", where=where)


def _seconds(text: Any) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        raise UnavailableError("the server's answer has no time") from None
