"""Surfaces of a contract, the NATS subjects that they own, and the capabilities of each action.

Grants and collision checks use effective subjects. The functions take contracts that `validate`
accepts.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

SubjectKind = Literal["rpc", "operation", "control", "event", "feed"]

RESERVED: Final = ("$*.>", "_INBOX.>", "transfer.v1.>", "trellis.jobs.>", "trellis.work.>")
"""Subject spaces of the server and the protocol, closed to surfaces."""

# How a subject must begin to lie in one of them; a template may stand for any token.
_NEAR_RESERVED: Final = ("$", "_INBOX.", "transfer.", "trellis.", "{", "*")

EVENTS: Final = "events."
"""Prefix of event subjects; the event stream stores exactly those."""

CONTROL_SUFFIX: Final = ".control"
"""Suffix of an operation's control subject."""

_TEMPLATE: Final = re.compile(r"\{([^{}]*)\}")
_PLAIN: Final = r"[^\s\x00-\x1f\x7f.*>{}]+"
_SUBJECT: Final = re.compile(rf"{_PLAIN}(?:\.{_PLAIN})*")
_EVENT_SUBJECT: Final = re.compile(rf"{_PLAIN}(?:\.(?:{_PLAIN}|\{{/[^{{}}]*\}}))*")
# White space as ECMAScript counts it, which is what existing implementations escape.
_UNSAFE: Final = re.compile(
    "[\x00\t\n\x0b\x0c\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff.*>~]"
)


class EffectiveSubject(NamedTuple):
    """A subject that a contract owns, and its surface."""

    kind: SubjectKind
    name: str
    subject: str


def effective_subjects(contract: Mapping[str, Any]) -> Iterator[EffectiveSubject]:
    """All subjects of a contract: templates as wildcards, operations with `.control`."""
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
    """The control subject of an operation."""
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
    """The reserved space that a subject may reach, with template tokens as wildcards."""
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


Section = Literal["rpc", "operations", "events", "feeds"]

SECTIONS: Final[tuple[Section, ...]] = ("rpc", "operations", "events", "feeds")
"""The sections of a manifest whose entries others may use."""

_OPEN: Final[dict[Section, tuple[str, ...]]] = {
    "rpc": ("call",),
    "operations": ("call",),
    "events": ("publish", "subscribe"),
    "feeds": ("subscribe",),
}
"""Actions that ask for no capability where their list is omitted."""


@dataclass(frozen=True, slots=True)
class Surface:
    """An RPC, operation, event or feed."""

    section: Section
    name: str
    subject: str  # the effective subject, template tokens as `*`
    # All capabilities that each action requires; actions not listed are closed.
    gates: Mapping[str, frozenset[str]]
    # The direction in which a caller transfers a file, if any.
    transfer: Literal["send", "receive"] | None = None
    digests: tuple[str, ...] = ()  # the contracts that offer it, after `union`


def surfaces(contract: Mapping[str, Any], digests: tuple[str, ...] = ()) -> Iterator[Surface]:
    """The surfaces of a valid contract, marked as offered by `digests`."""
    for section in SECTIONS:
        for name, declared in contract.get(section, {}).items():
            yield Surface(
                section,
                name,
                wildcard(declared["subject"]),
                _gates(section, declared),
                declared.get("transfer", {}).get("direction"),
                digests,
            )


def _gates(section: Section, declared: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The capabilities of each action (specification, sections 7a and 16)."""
    lists = declared.get("capabilities", {})
    gates = {action: frozenset(lists.get(action, ())) for action in _OPEN[section]}
    if section == "operations":
        gates["observe"] = frozenset(lists.get("observe", gates["call"]))
        # To omit the list of `cancel` gives it to nobody; to omit that of `control`, to everybody.
        if declared.get("cancel") and "cancel" in lists:
            gates["cancel"] = frozenset(lists["cancel"])
        if declared.get("signals"):
            gates["control"] = frozenset(lists.get("control", ()))
    return gates
