"""Where the members of a JSON document stand in its text."""

import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from accord.kernel.canonical import pointer

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_SCALAR: Final = re.compile(r"[^,\]}\s]+")


class Position(NamedTuple):
    """A place in a text; both count from 1."""

    line: int
    column: int


_START: Final = Position(1, 1)


def positions(text: str) -> dict[str, Position]:
    """The position of each member, by JSON Pointer; that of its name where it has one.

    The text must be valid JSON. Of an empty or damaged one, what was read so far is returned.
    """
    found: dict[str, Position] = {}
    # Each open container: its path, whether it is an object, and the number of its next element.
    path: list[str | int] = []
    stack: list[tuple[bool, int]] = []
    line, line_start, at = 1, 0, 0
    while at < len(text):
        space = _SPACE.match(text, at)
        if space is not None and space.end() > at:
            breaks = text.count("\n", at, space.end())
            if breaks:
                line, line_start = line + breaks, text.rindex("\n", at, space.end()) + 1
            at = space.end()
            continue
        letter = text[at]
        if letter in ",:":
            at += 1
            continue
        if letter in "]}":
            if stack:
                stack.pop()
            if path:
                path.pop()
            at += 1
            continue
        place = Position(line, at - line_start + 1)
        if stack and stack[-1][0] and len(path) < len(stack):
            name = _STRING.match(text, at)
            if name is None:
                break
            path.append(json.loads(name[0]))
            found[pointer(*path)] = place
            at = name.end()
            continue
        if stack and not stack[-1][0]:
            number = stack[-1][1]
            stack[-1] = (False, number + 1)
            path.append(number)
        found.setdefault(pointer(*path), place)
        if letter in "[{":
            stack.append((letter == "{", 0))
            at += 1
            continue
        value = (_STRING if letter == '"' else _SCALAR).match(text, at)
        if value is None:
            break
        at = value.end()
        if path:
            path.pop()
    return found


def nearest(found: Mapping[str, Position], place: str) -> Position:
    """The position of a pointer, or of the closest part around it that exists."""
    while place and place not in found:
        place = place.rpartition("/")[0]
    return found.get(place, _START)
