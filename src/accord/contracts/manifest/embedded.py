"""Rules about the schemas that a manifest holds (specification, section 4).

A schema is compiled where payloads are validated, not here: that would cost more than everything
else together. Shape says that it is a schema of draft 2019-09; what shape cannot say, whether a
pattern can be used, is asked of the pattern alone.
"""

import functools
import math
import re
from collections.abc import Iterator
from typing import Any, Final

from accord.contracts import keywords
from accord.contracts.manifest.pointers import Path
from accord.contracts.manifest.references import is_reference
from accord.contracts.manifest.shape import Fault
from accord.contracts.manifest.view import View
from accord.kernel import canonical, schema

_PATTERN: Final = re.compile(rb'"pattern":("[^"\\]*+(?:\\.[^"\\]*+)*+")')

# Compiling a pattern costs time for its length, for classes of many characters, and for what its
# counted repetitions unroll to. The unit is about 5 microseconds.
_EFFORT: Final = 100_000
_UNICODE: Final = re.compile(r"\\[pP]")
_CLASS: Final = re.compile(r"\\[dDwWsS]")
_REPETITION: Final = re.compile(r"(^|.)\{([0-9]{1,9})(?:,([0-9]{0,9}))?\}", re.DOTALL)
_ATOM_END: Final = re.compile(r"[\w\].-]")
_KNOWN: Final = 4096
_TOO_MUCH: Final = (
    "the patterns of this contract take too long to compile; have fewer, with small repetitions"
)


def is_embedded(view: View, fault: Fault) -> bool:
    """Whether a fault of shape lies in an embedded schema."""
    path = fault.path
    if path[:1] == ("schemas",):
        return len(path) > 1
    return (
        path[:1] == ("errors",)
        and path[2:3] == ("schema",)
        and not is_reference(view.declared("errors")[path[1]]["schema"])
    )


def references(view: View) -> Iterator[tuple[Path, str]]:
    """Embedded schemas stand alone."""
    for fault in view.faults:
        if fault.kind == "falseSchema" and is_embedded(view, fault):
            yield fault.path, f"`{fault.path[-1]}` is not allowed here; write the schema out"


def dialect(view: View) -> Iterator[tuple[Path, str]]:
    """Embedded schemas are schemas of draft 2019-09."""
    for fault in view.faults:
        if fault.kind != "falseSchema" and is_embedded(view, fault):
            if fault.kind == "enum":
                yield fault.path, "there is no such type in JSON Schema"
            else:
                yield fault.path, f"not a schema of draft 2019-09: {fault.message}"


def patterns(view: View) -> Iterator[tuple[Path, str]]:
    """Patterns run in linear time, and compile in little."""
    if view.usual or _all_usable(view.text):
        return
    effort = 0
    known: dict[str, str | None] = {}
    for path, pattern in _patterns(view):
        if pattern not in known:
            effort += _weight(pattern)
            if effort > _EFFORT:
                yield path, _TOO_MUCH
                return
            known[pattern] = _refusal(pattern)
        if (refusal := known[pattern]) is not None:
            yield path, refusal


def _all_usable(text: bytes) -> bool:
    """Whether all is well, by a quick look at bytes that sees more patterns than there are."""
    if b'"patternProperties":' in text:
        return False
    found = set(_PATTERN.findall(text))
    if len(found) > _EFFORT // _weight(""):
        return False
    seen = set(map(_unquoted, found))
    return sum(map(_weight, seen)) <= _EFFORT and not any(map(_refusal, seen))


def _unquoted(text: bytes) -> str:
    return str(canonical.decode(text)) if b"\\" in text else text[1:-1].decode()


@functools.lru_cache(_KNOWN)
def _refusal(pattern: str) -> str | None:
    try:
        schema.compile_schema({"pattern": pattern})
    except schema.SchemaError as error:
        return f"{error.what}; {error.mend}" if error.mend else error.what
    return None


@functools.lru_cache(_KNOWN)
def _weight(pattern: str) -> int:
    unicode, classes = len(_UNICODE.findall(pattern)), len(_CLASS.findall(pattern))
    found = _REPETITION.findall(pattern)
    bounds = [min(max(int(least), int(most or 0), 1), _EFFORT) for _, least, most in found]
    nested = not all(_ATOM_END.fullmatch(before) for before, _, _ in found)
    times = math.prod(bounds[:50]) if nested else sum(bounds)
    return (
        5 + len(pattern) + 200 * unicode + 50 * classes + times * (1 + 20 * unicode + 3 * classes)
    )


def _patterns(view: View) -> Iterator[tuple[Path, str]]:
    """Every pattern; what only looks like one, in a `const` say, is none."""
    pending: list[tuple[Path, Any]] = [
        (("schemas", name), embedded) for name, embedded in view.declared("schemas").items()
    ]
    for name, error in view.section("errors").items():
        if "schema" in error and not is_reference(error["schema"]):
            pending.append((("errors", name, "schema"), error["schema"]))
    pending.reverse()
    while pending:
        path, part = pending.pop()
        if not isinstance(part, dict):
            continue
        if isinstance(part.get("pattern"), str):
            yield (*path, "pattern"), part["pattern"]
        for pattern in _map(part, "patternProperties"):
            yield (*path, "patternProperties", pattern), pattern
        pending.extend(reversed(list(_subschemas(path, part))))


def _subschemas(path: Path, part: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    for keyword, value in part.items():
        if isinstance(value, list):
            if keyword in keywords.LISTS or keyword == keywords.ONE_OR_LIST:
                for at, item in enumerate(value):
                    yield (*path, keyword, str(at)), item
        elif keyword in keywords.ONE or keyword == keywords.ONE_OR_LIST:
            yield (*path, keyword), value
        elif keyword in keywords.MAPS:
            for name, item in _map(part, keyword).items():
                yield (*path, keyword, name), item


def _map(part: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = part.get(keyword)
    return value if isinstance(value, dict) else {}
