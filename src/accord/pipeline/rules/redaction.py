"""Redaction of records before they land: keeps secrets and chat text out.

A body lands unchanged, redacted (`{"event", "redacted"}`: a chat event without its text, with the
digest of the signed bytes), withheld (`{"withheld"}`: unreadable, ends in quarantine), or without
its payload if that looks like a secret.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any, Final

from blake3 import blake3

from accord.community.errors import CommunityError
from accord.community.rules import formats
from accord.community.rules.event import Event, read_event
from accord.kernel import canonical, tokens
from accord.kernel.schema import Schema, compile_schema
from accord.pipeline.errors import PipelineError
from accord.pipeline.rules.streams import COMMUNITY_EVENTS, CONTRACTS_CALLS

CLEAR: Final = "chat.clear"
"""The rule that removes the text of unsealed messages."""

UNKNOWN: Final = "chat.unknown"
"""The rule that removes the data of chat events of unknown type or version."""

UNREADABLE: Final = "record.unreadable"
UNDESCRIBED: Final = "record.undescribed"

_REDACTED: Final = '{"event":{'
_MEMBERS: Final = {"event", "redacted"}
_DIGEST: Final = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)

# The last word of a name decides: `access_token` is a secret, `token_count` is not.
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SECRET_WORDS: Final = frozenset(
    [
        "secret",
        "token",
        "password",
        "passwd",
        "passphrase",
        "authorization",
        "authorisation",
        "cookie",
        "credential",
        "credentials",
        "jwt",
        "apikey",
    ]
)
_KEYS: Final = frozenset({"api", "private", "secret", "access", "signing"})
_SECRET_TEXT: Final = re.compile(
    r"\b(?:bearer|basic) +[\w.~+/=-]{6,}"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
    r"|(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"
    r"|\w://[^\s/:@]*:[^\s/@]+@",
    re.IGNORECASE | re.ASCII,
)
_LONGEST_TOKEN: Final = 1024


def redact(stream: str, body: str) -> str:
    """The body of a record as it may land."""
    try:
        value = canonical.decode(body)
    except canonical.CanonicalError:
        return _withheld(body, UNREADABLE)
    if stream == COMMUNITY_EVENTS:
        return _event(body, value)
    # What a stream's schema does not describe may hold anything.
    if not body_schema(stream).is_valid(value):
        return _withheld(body, UNDESCRIBED)
    if stream == CONTRACTS_CALLS and _holds_secret(value.get("payload")):
        del value["payload"]
        return canonical.encode(value).decode()
    return body


def restore_event(body: str) -> Event | None:
    """The event of a redacted record, with its original digest; None if a body is not redacted.

    Its signature cannot be verified here: the node verified it before writing it to its log, and
    only chat content is accepted in this form. Raises PipelineError if it claims to be redacted
    and no exporter wrote it.
    """
    if not body.startswith(_REDACTED):
        return None
    try:
        value = canonical.decode(body)
        event = read_event(value["event"])
        is_exact = value.keys() == _MEMBERS and canonical.encode(value).decode() == body
    except (canonical.CanonicalError, CommunityError) as error:
        raise PipelineError(f"a redacted record holds no event ({error.what})") from None
    blank = _blank(event)
    if not is_exact or blank is None or event.data != blank[1]:
        raise PipelineError("only chat events that were in clear text land redacted")
    redacted = value["redacted"]
    if (
        not isinstance(redacted, dict)
        or redacted.keys() != {"digest", "rule"}
        or redacted["rule"] != blank[0]
    ):
        raise PipelineError("a redacted record says by which rule, and the digest of the event")
    digest = redacted["digest"]
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise PipelineError("the digest of a redacted event is not one", where="/redacted/digest")
    return replace(event, digest=bytes.fromhex(digest[7:]))


@cache
def body_schema(stream: str) -> Schema:
    """The schema of a stream's bodies; every stream has one except community events."""
    return compile_schema(body_schema_document(stream))


def body_schema_document(stream: str) -> Any:
    """The schema of a stream's bodies as it is written."""
    file = resources.files("accord.pipeline") / "data" / "streams" / f"{stream}.json"
    return canonical.decode(file.read_bytes())


def _event(body: str, value: Any) -> str:
    event_type = value.get("event_type") if isinstance(value, dict) else None
    if not isinstance(event_type, str):
        return _withheld(body, UNREADABLE)
    if not event_type.startswith("chat."):
        return body
    try:
        event = read_event(value)
    except CommunityError:
        return _withheld(body, UNREADABLE)
    blank = _blank(event)
    if blank is None or event.data == blank[1]:
        return body
    rule, data = blank
    redacted = {
        "event": {**value, "data": data},
        "redacted": {"digest": event.hash, "rule": rule},
    }
    return canonical.encode(redacted).decode()


def _blank(event: Event) -> tuple[str, Mapping[str, Any]] | None:
    """The rule that keeps the data of an event out, and the data that lands instead.

    The fold reads all members of a message but its text, and none of unknown types.
    """
    if not event.event_type.startswith("chat."):
        return None
    if formats.find_event_type(event.event_type, event.schema_version) is None:
        return UNKNOWN, {}
    return (CLEAR, {**event.data, "body": ""}) if "body" in event.data else None


def _withheld(body: str, rule: str) -> str:
    raw = body.encode("utf-8", "surrogatepass")
    withheld = {"bytes": len(raw), "digest": "blake3:" + blake3(raw).hexdigest(), "rule": rule}
    return canonical.encode({"withheld": withheld}).decode()


def _holds_secret(payload: Any) -> bool:
    return any(_is_secret(name, text) for name, text in _texts(payload))


def _texts(payload: Any) -> Iterator[tuple[str, str]]:
    """Every string in a payload, with the name of its member."""
    waiting: list[tuple[str, Any]] = [("", payload)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += ((name, each) for each in value)


def _is_secret(name: str, text: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    by_name = bool(words) and (
        words[-1] in _SECRET_WORDS or (words[-1] == "key" and not _KEYS.isdisjoint(words))
    )
    if text and by_name:
        return True
    is_token = len(text) <= _LONGEST_TOKEN and tokens.expiry(text) is not None
    return is_token or _SECRET_TEXT.search(text) is not None
