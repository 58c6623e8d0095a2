"""The 24 classic cases, read from the table that people read."""

import re
from pathlib import Path
from typing import Any

import pytest

from accord.contracts import compare

DOCUMENT = Path(__file__).parents[3] / "docs" / "concepts" / "compatibility.md"
ROW = re.compile(
    r"^\| (add|remove) \| (required|optional|default) \| (open|closed) \| (lenient|strict)"
    r" \| (\w+) \| (\w+) \|$",
    re.MULTILINE,
)
ROWS = ROW.findall(DOCUMENT.read_text())


def test_the_table_has_every_case_once() -> None:
    assert len({row[:4] for row in ROWS}) == len(ROWS) == 24


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_a_classic_case_has_the_verdict_of_the_table(
    contract: Any, row: tuple[str, str, str, str, str, str]
) -> None:
    change, member, sender, reader, to_service, to_reader = row
    for place, expected in (("rpc.input", to_service), ("rpc.output", to_reader)):
        closed = (sender == "closed", reader == "strict")
        # Callers are of the old contract; what services send comes from the new one.
        old_closed, new_closed = closed if place == "rpc.input" else closed[::-1]
        old = _object(member if change == "remove" else None, old_closed)
        new = _object(member if change == "add" else None, new_closed)
        report = compare(contract({place: old}), contract({place: new}))
        assert _verdict([finding.category for finding in report.findings]) == expected, place


def _object(member: str | None, closed: bool) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"id": {"type": "string"}},
        "required": ["id"],
    }
    if member is not None:
        schema["properties"]["x"] = {"type": "integer"}
    if member == "default":
        schema["properties"]["x"]["default"] = 0
    if member == "required":
        schema["required"].append("x")
    if closed:
        schema["additionalProperties"] = False
    return schema


def _verdict(categories: list[str]) -> str:
    if "breaking" in categories:
        return "breaking"
    return "note" if categories else "compatible"
