"""A surface as authority sees it: a subject, and what each action on it asks for.

Schemas stay with the digest that declares them: callers and services validate by their own. The
functions take contracts that `validate` accepts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from accord.contracts.subjects import wildcard

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
    """One RPC, operation, event or feed.

    Attributes:
        section: Where the manifest declares it.
        name: Its logical name.
        subject: Its effective subject, template tokens as `*`.
        gates: For each action, the capabilities that it needs, all of them; an action that is not
            here is nobody's.
        transfer: The direction in which a caller transfers files, if any.
        digests: The contracts that offer it, once `union` has put some together.
    """

    section: Section
    name: str
    subject: str
    gates: Mapping[str, frozenset[str]]
    transfer: Literal["send", "receive"] | None = None
    digests: tuple[str, ...] = ()


def surfaces(contract: Mapping[str, Any], digests: tuple[str, ...] = ()) -> Iterator[Surface]:
    """The surfaces that a valid contract owns, as offered by the given digests."""
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
    """What each action needs (specification, sections 7a and 16)."""
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
