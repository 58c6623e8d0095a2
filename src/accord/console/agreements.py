"""Contracts and plans as a page shows them: lines and tables out of manifests and deltas.

Pure: it knows nothing of the authority, and decides nothing.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.contracts.compatibility import Report

_SURFACES: Final = {
    "rpc": ("RPC", ("input", "output")),
    "operations": ("operation", ("input", "progress", "output")),
    "events": ("event", ("event",)),
    "feeds": ("feed", ("input", "event")),
}
_SIGNS: Final = {"added": "+", "changed": "~", "removed": "-"}
_GRAVE: Final = frozenset({"breaking", "unproven", "migration"})


@dataclass(frozen=True, slots=True)
class Offered:
    """A surface that a contract offers: what goes over it, and what who needs to use it."""

    kind: str
    name: str
    payloads: str
    needed: str


@dataclass(frozen=True, slots=True)
class Needed:
    """Something that a contract needs, of another contract or of the platform."""

    kind: str
    name: str
    what: str


@dataclass(frozen=True, slots=True)
class Difference:
    """One change between two contracts, by which rule, where, and a payload that shows it."""

    category: str
    is_grave: bool
    pointer: str
    message: str
    rule: str
    witness: str | None


def offered(manifest: Mapping[str, Any]) -> list[Offered]:
    """Every surface of a contract."""
    return [
        Offered(
            kind,
            name,
            ", ".join(f"{part} {surface[part]['schema']}" for part in parts if part in surface),
            "; ".join(
                f"{action}: {', '.join(keys) or 'everybody'}"
                for action, keys in surface.get("capabilities", {}).items()
            )
            or "everybody",
        )
        for section, (kind, parts) in _SURFACES.items()
        for name, surface in sorted(manifest.get(section, {}).items())
    ]


def needed(manifest: Mapping[str, Any]) -> list[Needed]:
    """What a contract uses of others, and the resources that it asks for."""
    return [*_uses(manifest.get("uses", {})), *_resources(manifest)]


def laid_out(value: Any) -> str:
    """JSON for a person."""
    return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)


def differences(report: Report) -> list[Difference]:
    """What a comparison found, the gravest first."""
    return [_difference(each.to_dict()) for each in (*report.findings, *report.updates)]


def findings(delta: Mapping[str, Any]) -> list[Difference]:
    """What the comparison behind a plan found."""
    return [_difference(each) for each in delta.get("findings", ())]


def changes(delta: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """What a plan would add, change and remove, part by part; a part without change is left out."""
    found = [
        (part, list(_lines(value)))
        for part, value in delta.items()
        if part not in ("contract", "findings")
    ]
    return [(part, lines) for part, lines in found if lines]


def _uses(declared: Mapping[str, Any]) -> Iterator[Needed]:
    for group in ("required", "optional"):
        for _alias, use in sorted(declared.get(group, {}).items()):
            used = ", ".join(
                f"{action} {name}"
                for section in _SURFACES
                for action, names in use.get(section, {}).items()
                for name in names
            )
            yield Needed(f"contract, {group}", use["contract"], used)


def _resources(manifest: Mapping[str, Any]) -> Iterator[Needed]:
    resources = manifest.get("resources", {})
    for kind, declared in (
        ("key-value bucket", resources.get("kv", {})),
        ("object store", resources.get("store", {})),
        ("job queue", manifest.get("jobs", {})),
        ("event consumer", manifest.get("eventConsumers", {})),
        ("state", manifest.get("state", {})),
    ):
        for name, entry in sorted(declared.items()):
            yield Needed(kind, name, str(entry.get("purpose", "")))


def _difference(change: Mapping[str, Any]) -> Difference:
    category = str(change.get("category", ""))
    return Difference(
        category,
        category in _GRAVE,
        str(change.get("pointer") or "(whole contract)"),
        str(change["message"]),
        str(change["rule"]),
        laid_out(change["witness"]) if "witness" in change else None,
    )


def _lines(value: Any) -> Iterator[str]:
    """A part of a plan: what comes and goes, or how it stands."""
    if isinstance(value, Mapping) and value.keys() <= _SIGNS.keys():
        for how, some in value.items():
            yield from (f"{_SIGNS[how]} {_line(each)}" for each in some)
    elif isinstance(value, list | tuple):
        yield from map(_line, value)
    elif value:
        yield _line(value)


def _line(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    if {"kind", "contract", "alias"} <= value.keys():
        return f"{value['kind']} {value['alias']} of {value['contract']}"
    return ", ".join(f"{name} {each}" for name, each in sorted(value.items()) if each is not None)
