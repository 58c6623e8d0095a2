"""The descriptions of our own capabilities, by the hash of their schemas.

Owns the reading of the data files. A node's registry knows hashes and compiled schemas; what a
contract holds is the text.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from accord.community.bus import Registry
from accord.community.envelope.schemas import schema_hash


def offered_forms(registry: Registry, wanted: Iterable[str]) -> list[Mapping[str, Any]]:
    """The descriptions of what a node offers of some names; what has none here is left out."""
    known = known_forms()
    return [
        known[descriptor.schema_hash]
        for name in sorted(set(wanted))
        for descriptor in registry.descriptors(name)
        if descriptor.schema_hash in known
    ]


@cache
def known_forms() -> dict[str, dict[str, Any]]:
    """Every description, by the hash of its schemas."""
    found: dict[str, dict[str, Any]] = {}
    for folder in files("accord.capabilities").iterdir():
        data = folder.joinpath("data")
        for file in data.iterdir() if data.is_dir() else ():
            if file.name.endswith(".json"):
                form = json.loads(file.read_bytes())
                found[_hash(form)] = form
    return found


def _hash(form: Mapping[str, Any]) -> str:
    return schema_hash(
        form["name"],
        form["version"],
        form["request_schema"],
        form.get("response_schema"),
        form.get("stream_schema"),
    )
