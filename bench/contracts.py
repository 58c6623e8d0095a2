"""Contracts beside reading the same text with the standard library."""

import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from accord.contracts import digest
from accord.kernel import canonical
from bench.figure import Figure
from bench.measure import rates

SIZES = {"3 KB": 3_000, "30 KB": 30_000, "400 KB": 400_000}
GOAL = 1 / 2.5
EXPLAINED: Final = {
    "parse, validate, digest": "The baseline is one pass in C; to name a contract takes seven "
    "passes. At 3 KB, of 120 us of processor time (`json.loads` takes 30), strict decoding takes "
    "20, the check that it is plain JSON 9, the shape 12, seventeen rules 34, the projection 22, "
    "the canonical bytes 17, SHA-256 and the rest 6. At 30 KB it is 720 us against 265, shared out "
    "alike, and at 400 KB the goal is reached or all but reached. Rules and projection are plain "
    "Python, and each rule costs something even where there is little to ask, which is why the "
    "smallest contract is the worst. We keep each rule a function of its own: a contract is named "
    "when it is written or proposed, not when it is called."
}
_WORDS = ("account", "billing", "device", "invoice", "ledger", "order", "partner", "report", "user")


def run() -> Iterator[Figure]:
    """Measure every part."""
    for label, size in SIZES.items():
        value = manifest(size)
        for layout, text in (
            ("compact", json.dumps(value, separators=(",", ":"), ensure_ascii=False)),
            ("indented", json.dumps(value, indent=2, ensure_ascii=False)),
        ):
            rate, base = rates(partial(_name, text), partial(json.loads, text))
            scale = len(text.encode()) / 1e6
            yield Figure(
                f"parse, validate, digest {label}, {layout}",
                "MB/s",
                rate * scale,
                base * scale,
                "json.loads",
                GOAL,
                size,
                layout,
            )


def _name(text: str) -> str:
    return digest(canonical.decode(text))


def manifest(size: int, *, seed: int = 0) -> dict[str, Any]:
    """A contract whose compact text has about `size` bytes: each surface with its own schemas."""
    chance = random.Random(seed)
    contract: dict[str, Any] = {
        "format": "trellis.contract.v1",
        "id": "bench@v1",
        "displayName": "Bench",
        "description": "A service of many surfaces.",
        "kind": "service",
        "capabilities": {
            f"bench::{word}.read": {"displayName": f"Read {word}s", "description": f"See {word}s."}
            for word in _WORDS[:4]
        },
        "schemas": {},
        **{section: {} for section in _SURFACES},
    }
    written = len(json.dumps(contract))
    for number in range(size):
        if written >= size:
            break
        section = chance.choice(_SURFACES)
        name = f"{chance.choice(_WORDS).title()}.{chance.choice(_WORDS).title()}{number}"
        schemas = {f"{name}.{part}": _schema(chance) for part in ("In", "Out")}
        surface = _surface(section, name, chance)
        contract["schemas"].update(schemas)
        contract[section][name] = surface
        written += len(json.dumps([schemas, surface, name]))
    return contract


_SURFACES = ("rpc", "operations", "events", "feeds", "jobs")


def _surface(section: str, name: str, chance: random.Random) -> dict[str, Any]:
    received, sent = {"schema": f"{name}.In"}, {"schema": f"{name}.Out"}
    allowed = [f"bench::{word}.read" for word in chance.sample(_WORDS[:4], 2)]
    if section == "jobs":
        return {"payload": received, "result": sent, "maxDeliver": 5, "backoffMs": [5000, 30000]}
    subject = f"{section}.v1.{name}"
    surfaces: dict[str, dict[str, Any]] = {
        "rpc": {"input": received, "output": sent, "capabilities": {"call": allowed}},
        "operations": {
            "input": received,
            "output": sent,
            "capabilities": {"call": allowed, "control": allowed[:1]},
            "signals": {"approve": {"input": received}},
            "cancel": True,
        },
        "events": {
            "event": sent,
            "params": ["/id"],
            "capabilities": {"publish": allowed, "subscribe": allowed},
        },
        "feeds": {"input": received, "event": sent, "capabilities": {"subscribe": allowed}},
    }
    token = ".{/id}" if section == "events" else ""
    docs = {"summary": f"The {name}.", "markdown": "What it does, and *when* to use it."}
    return {"version": "v1", "subject": subject + token, **surfaces[section], "docs": docs}


def _schema(chance: random.Random) -> dict[str, Any]:
    properties: dict[str, Any] = {"id": {"type": "string", "pattern": "^[0-9A-Z]{26}$"}}
    for word in chance.sample(_WORDS, chance.randrange(1, 5)):
        properties[word] = chance.choice(
            (
                {"type": "string", "maxLength": 200, "description": f"The {word}, by name."},
                {"type": "integer", "minimum": 0},
                {"type": "number", "minimum": 0.5},
                {"type": "array", "items": {"type": "string"}, "maxItems": 16},
                {"enum": ["open", "closed", "pending"]},
                {"type": "object", "properties": {"name": {"type": "string"}}},
            )
        )
    return {"type": "object", "required": ["id"], "properties": properties}
