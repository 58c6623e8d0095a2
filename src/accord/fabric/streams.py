"""What the durable parts ask of JetStream: append, read back, list, purge.

Owns the server's JSON and the meaning of its refusals. It creates nothing: streams, buckets and
consumers are the authority's, and a session may not make any.
"""

import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import orjson

from accord.fabric.errors import ConflictError, FabricError, NotFoundError, UnavailableError
from accord.fabric.inbox import Inbox

TIMEOUT: Final = 5.0
"""How long the server may take to answer, in seconds."""

_API: Final = "$JS.API"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_MESSAGE_ID: Final = "Nats-Msg-Id"
_WRONG_LAST: Final = (10071, 10164)
_NO_MESSAGE: Final = 10037
_FULL: Final = (10047, 10077, 10078, 10093)  # bytes, messages, messages of one subject
_TOO_LARGE: Final = 10054


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of a stream.

    Attributes:
        sequence: Its place in the stream.
        at: When the server took it, in seconds since the epoch, by the server's clock.
    """

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
    """Publish to whichever stream takes the subject, and return the message's sequence.

    Args:
        inbox: Where the server's answer comes in.
        subject: The subject.
        data: The message.
        headers: More headers.
        last: The sequence that the subject's last message must have; 0 where there must be none.
        message_id: The same id within the stream's window is stored once.

    Raises:
        ConflictError: The subject's last message is another one.
        FabricError: Why it is not stored, or why that is not known.
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


async def last_on(inbox: Inbox, stream: str, subject: str) -> Stored | None:
    """The last message on a subject, as the stream's leader has it."""
    return await _read(inbox, stream, {"last_by_subj": subject})


async def has_any(inbox: Inbox, stream: str, subject: str) -> bool:
    """Whether a stream that may be asked directly has a message on a subject."""
    answer = await inbox.ask(f"{_API}.DIRECT.GET.{stream}.{subject}", b"", {}, TIMEOUT)
    return "Status" not in (answer.headers or {})


async def next_on(inbox: Inbox, stream: str, subject: str, sequence: int) -> Stored | None:
    """The first message on a subject, wildcards included, from a sequence on."""
    return await _read(inbox, stream, {"seq": sequence, "next_by_subj": subject})


async def chunk_on(
    inbox: Inbox, stream: str, subject: str, sequence: int
) -> tuple[int, bytes] | None:
    """What `next_on` gives, its sequence and bytes alone, from whichever server is quickest."""
    asked = orjson.dumps({"seq": sequence, "next_by_subj": subject})
    answer = await inbox.ask(f"{_API}.DIRECT.GET.{stream}", asked, {}, TIMEOUT)
    headers = answer.headers or {}
    if "Status" not in headers and headers.get("Nats-Sequence", "").isdecimal():
        return int(headers["Nats-Sequence"]), answer.data
    found = await next_on(inbox, stream, subject, sequence)  # the leader knows for sure
    return None if found is None else (found.sequence, found.data)


async def subjects(inbox: Inbox, stream: str, matching: str) -> AsyncIterator[str]:
    """The subjects that a stream has messages on."""
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
    """What the server's clock says, by which it stamps the stream's messages."""
    info = await call(inbox, f"STREAM.INFO.{stream}", None)
    return _seconds(info.get("ts"))


async def purge(inbox: Inbox, stream: str, subject: str, *, below: int | None = None) -> None:
    """Take the messages on a subject out of a stream, where wanted only those below a sequence."""
    asked = {"filter": subject} | ({} if below is None else {"seq": below})
    await call(inbox, f"STREAM.PURGE.{stream}", asked)


async def call(inbox: Inbox, what: str, asked: Mapping[str, Any] | None) -> dict[str, Any]:
    """Ask the server's API.

    Raises:
        NotFoundError: There is no such message.
        FabricError: The refusal, or why nothing came back.
    """
    data = b"" if asked is None else orjson.dumps(asked)
    answer = await inbox.ask(f"{_API}.{what}", data, {}, TIMEOUT)
    return _checked(answer.data, what)


def read_headers(headers: bytes) -> dict[str, str]:
    """Headers as the server keeps them; what is malformed is left out."""
    lines = headers.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


async def _read(inbox: Inbox, stream: str, asked: Mapping[str, Any]) -> Stored | None:
    try:
        answer = await call(inbox, f"STREAM.MSG.GET.{stream}", asked)
    except NotFoundError:
        return None
    message = answer.get("message", {})
    try:
        return Stored(
            message["subject"],
            base64.b64decode(message.get("data", "")),
            message["seq"],
            _seconds(message.get("time")),
            read_headers(base64.b64decode(message.get("hdrs", ""))),
        )
    except (KeyError, TypeError, binascii.Error):
        raise UnavailableError("the server's answer is no message", where=stream) from None


def _checked(data: bytes, where: str) -> dict[str, Any]:
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise UnavailableError("the server's answer is no JSON object", where=where)
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
