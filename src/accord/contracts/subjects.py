"""The NATS subjects that a contract owns, and what can be said of subjects.

It owns the effective subject of a surface (the key of every collision check and grant), the
escaping of tokens, and the overlap of two subjects with wildcards. It takes contracts that
`validate` accepts, and never looks at who may use a subject.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["rpc", "operation", "control", "event", "feed"]

RESERVED: Final = ("$*.>", "_INBOX.>", "transfer.v1.>", "trellis.jobs.>", "trellis.work.>")
"""Spaces of the server and of the protocol itself, in which no surface may lie."""

# How a subject must begin to lie in one of them; a template may stand for any token.
_NEAR_RESERVED: Final = ("$", "_INBOX.", "transfer.", "trellis.", "{", "*")

CONTROL_SUFFIX: Final = ".control"
"""What an operation's subject is followed by where its control frames go."""

_TEMPLATE: Final = re.compile(r"\{([^{}]*)\}")
_PLAIN: Final = r"[^\s\x00-\x1f\x7f.*>{}]+"
_SUBJECT: Final = re.compile(rf"{_PLAIN}(?:\.{_PLAIN})*")
_EVENT_SUBJECT: Final = re.compile(rf"{_PLAIN}(?:\.(?:{_PLAIN}|\{{/[^{{}}]*\}}))*")
# White space as ECMAScript counts it, which is what existing implementations escape.
_UNSAFE: Final = re.compile(
    "[\x00\t\n\x0b\x0c\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff.*>~]"
)


class EffectiveSubject(NamedTuple):
    """A subject that a contract owns, and the surface it belongs to."""

    kind: Kind
    name: str
    subject: str


def effective_subjects(contract: Mapping[str, Any]) -> Iterator[EffectiveSubject]:
    """Every subject that a contract owns: templates as wildcards, operations with `.control`."""
    for name, surface in contract.get("rpc", {}).items():
        yield EffectiveSubject("rpc", name, surface["subject"])
    for name, surface in contract.get("operations", {}).items():
        yield EffectiveSubject("operation", name, surface["subject"])
        yield EffectiveSubject("control", name, control_subject(surface["subject"]))
    for name, surface in contract.get("events", {}).items():
        yield EffectiveSubject("event", name, wildcard(surface["subject"]))
    for name, surface in contract.get("feeds", {}).items():
        yield EffectiveSubject("feed", name, surface["subject"])


def control_subject(subject: str) -> str:
    """Where the control frames of the operation on a subject go."""
    return subject + CONTROL_SUFFIX


def template_pointers(subject: str) -> list[str]:
    """The JSON Pointers of an event's subject template, in order."""
    return _TEMPLATE.findall(subject) if "{" in subject else []


def wildcard(subject: str) -> str:
    """An event's subject with every template token replaced by `*`."""
    return _TEMPLATE.sub("*", subject) if "{" in subject else subject


def is_subject(subject: str, *, templates: bool = False) -> bool:
    """Whether a text is a concrete subject, or (for events) one with template tokens."""
    return (_EVENT_SUBJECT if templates else _SUBJECT).fullmatch(subject) is not None


def reserved_space(subject: str) -> str | None:
    """The reserved space that a subject, its template tokens as wildcards, may reach into."""
    if not subject.startswith(_NEAR_RESERVED):
        return None
    if subject.startswith("$"):
        return RESERVED[0]
    reached = wildcard(subject)
    return next((space for space in RESERVED[1:] if overlap(reached, space)), None)


def escape_token(value: str) -> str:
    """A value as one token of a subject."""
    token = _UNSAFE.sub(lambda found: f"~{ord(found[0]):X}~", value)
    return f"_{token}" if not token or token.startswith("$") else token


def overlap(one: str, other: str) -> bool:
    """Whether some concrete subject matches both; `*` is one token, a final `>` one or more."""
    ours, theirs = one.split("."), other.split(".")
    for mine, yours in zip(ours, theirs, strict=False):
        if ">" in (mine, yours):
            return True
        if mine != yours and "*" not in (mine, yours):
            return False
    return len(ours) == len(theirs)
