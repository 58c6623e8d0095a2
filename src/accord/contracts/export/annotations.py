"""A review for the tools of a team: SARIF 2.1.0, annotations of GitHub, code quality of GitLab.

Findings point at the line of the contract's file, or, where something was removed, at the closest
part that is still there. What an exception sets aside is a suppressed result in SARIF and a notice
elsewhere; what the level leaves out is not shown.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from accord.contracts.compatibility import RULES, Category, Review
from accord.contracts.compatibility.review import ReviewFinding
from accord.contracts.export.positions import Position, nearest, positions
from accord.kernel import canonical

SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
SARIF_VERSION: Final = "2.1.0"

_SARIF_LEVELS: Final[dict[Category, str]] = {
    "breaking": "error",
    "unproven": "error",
    "migration": "warning",
    "note": "note",
    "update": "none",
}
_GITHUB: Final[dict[Category, str]] = {
    "breaking": "error",
    "unproven": "error",
    "migration": "warning",
    "note": "notice",
    "update": "notice",
}
_GITLAB: Final[dict[Category, str]] = {
    "breaking": "critical",
    "unproven": "major",
    "migration": "major",
    "note": "info",
    "update": "info",
}
_UNSAFE: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class ReviewedFile:
    """A review with the file of the new contract: its name in the repository, and its text."""

    review: Review
    path: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A finding with its place in a file."""

    file: ReviewedFile
    finding: ReviewFinding
    position: Position

    @property
    def message(self) -> str:
        change = self.finding.change
        said = f"{change.pointer or '(whole contract)'}: {change.message}"
        if change.has_witness:
            said += f"; such as {canonical.encode(change.witness).decode()}"
        said += f" (with {', '.join(self.finding.versions)})"
        return _UNSAFE.sub("\ufffd", said)

    @property
    def fingerprint(self) -> str:
        """The same for the same finding, wherever it stands in the file."""
        change = self.finding.change
        parts = (self.file.review.contract, change.rule, change.pointer, change.message)
        return hashlib.sha256(canonical.encode(list(parts))).hexdigest()


def sarif(files: Sequence[ReviewedFile], version: str) -> dict[str, Any]:
    """A SARIF log with one run of all files; `version` is that of the program."""
    index = {rule.id: at for at, rule in enumerate(RULES)}
    driver = {
        "name": "accord",
        "version": version,
        "rules": [
            {
                "id": rule.id,
                "shortDescription": {"text": rule.purpose},
                "defaultConfiguration": {"level": _SARIF_LEVELS[rule.category]},
                "properties": {"category": rule.category, "level": rule.level},
            }
            for rule in RULES
        ],
    }
    results = [_result(each, index) for each in _placed(files)]
    return {
        "$schema": SARIF_SCHEMA,
        "version": SARIF_VERSION,
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }


def _result(placed: _Placed, index: dict[str, int]) -> dict[str, Any]:
    change, aside = placed.finding.change, placed.finding.set_aside
    result: dict[str, Any] = {
        "ruleId": change.rule,
        "ruleIndex": index[change.rule],
        "level": _SARIF_LEVELS[change.category],
        "message": {"text": placed.message},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(placed.file.path)},
                    "region": {
                        "startLine": placed.position.line,
                        "startColumn": placed.position.column,
                    },
                },
                "logicalLocations": [{"fullyQualifiedName": change.pointer or "/"}],
            }
        ],
        "partialFingerprints": {"contractChange/v1": placed.fingerprint},
        "properties": {"versions": list(placed.finding.versions)},
    }
    if aside is not None:
        result["suppressions"] = [{"kind": "external", "justification": aside.why}]
    return result


def github(files: Sequence[ReviewedFile]) -> Iterator[str]:
    """Workflow commands, one a line, that GitHub shows beside the lines of a change."""
    for each in _placed(files):
        change, aside = each.finding.change, each.finding.set_aside
        command = _GITHUB[change.category] if aside is None else "notice"
        said = each.message if aside is None else f"{each.message}; {aside.why}"
        members = {
            "file": each.file.path,
            "line": str(each.position.line),
            "col": str(each.position.column),
            "title": change.rule,
        }
        shown = ",".join(f"{name}={_property(value)}" for name, value in members.items())
        yield f"::{command} {shown}::{_data(said)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def gitlab(files: Sequence[ReviewedFile]) -> list[dict[str, Any]]:
    """A code quality report."""
    return [
        {
            "description": each.message
            if each.finding.set_aside is None
            else f"{each.message}; {each.finding.set_aside.why}",
            "check_name": each.finding.change.rule,
            "fingerprint": each.fingerprint,
            "severity": _GITLAB[each.finding.change.category]
            if each.finding.set_aside is None
            else "info",
            "location": {"path": each.file.path, "lines": {"begin": each.position.line}},
        }
        for each in _placed(files)
    ]


def _placed(files: Sequence[ReviewedFile]) -> Iterator[_Placed]:
    for file in files:
        known = positions(file.text)
        for finding in file.review.findings():
            if finding.set_aside is None or finding.set_aside.exception is not None:
                yield _Placed(file, finding, nearest(known, finding.change.pointer))
