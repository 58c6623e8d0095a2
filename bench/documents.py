"""Documents to measure with: seeded, so that every run sees the same ones."""

import random
from typing import Any

_WORDS = (
    "agent",
    "agreement",
    "bridge",
    "capability",
    "contract",
    "event",
    "fabric",
    "Grüße",
    "日本",
)


def document(size: int, *, doubles: bool, seed: int = 0) -> dict[str, Any]:
    """A document of about `size` bytes that looks like a log of messages."""
    chance = random.Random(seed)
    entry_size = 260 + 90 * doubles
    return {
        f"{chance.choice(_WORDS)}-{index}": _entry(chance, doubles=doubles)
        for index in range(max(1, round(size / entry_size)))
    }


def _entry(chance: random.Random, *, doubles: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "event_id": f"01HXR{chance.randrange(10**20):021d}",
        "lamport": chance.randrange(10**6),
        "wall_clock": "2026-05-26T08:14:22.281Z",
        "title": " ".join(chance.choices(_WORDS, k=8)),
        "tags": chance.sample(_WORDS, 3),
        "reply_to": None,
        "edited": chance.random() < 0.5,
        "version": "1.0.2",
    }
    if doubles:
        entry["location"] = {"lat": chance.uniform(-90, 90), "lng": round(chance.uniform(0, 99), 1)}
        entry["weight"] = float(chance.randrange(100))
        entry["score"] = chance.random()
    return entry
