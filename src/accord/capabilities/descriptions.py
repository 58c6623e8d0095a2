"""The descriptions of our capabilities, from the folders `data`."""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from accord.community.rules.capabilities import schema_hash


@cache
def descriptions() -> dict[str, dict[str, Any]]:
    """Return every description by schema hash."""
    found: dict[str, dict[str, Any]] = {}
    for folder in files("accord.capabilities").iterdir():
        data = folder.joinpath("data")
        for file in data.iterdir() if data.is_dir() else ():
            if file.name.endswith(".json"):
                form = json.loads(file.read_bytes())
                digest = schema_hash(
                    form["name"],
                    form["version"],
                    form["request_schema"],
                    form.get("response_schema"),
                    form.get("stream_schema"),
                )
                found[digest] = form
    return found
