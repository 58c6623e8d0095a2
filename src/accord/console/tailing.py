"""The end of the station's log: its latest lines, and those that are written from now on.

Owns reading the file, which is JSON by lines and is put aside when it is long. Never reads more of
it than it shows.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

_BYTES: Final = 512 * 1024
_STEP_SECONDS: Final = 0.5
_KNOWN: Final = frozenset({"event", "level", "timestamp", "logger"})
LEVELS: Final = ("debug", "info", "warning", "error", "critical")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log: when, how grave, who says what, and with which values."""

    at: str
    level: str
    logger: str
    event: str
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines are shown: from a level on, and only with a text in them."""

    level: str = "info"
    text: str = ""

    def lets(self, raw: bytes, line: Line) -> bool:
        """Whether a line is shown."""
        least = LEVELS.index(self.level) if self.level in LEVELS else 0
        here = LEVELS.index(line.level) if line.level in LEVELS else len(LEVELS)
        return here >= least and self.text.casefold() in raw.decode("utf-8", "replace").casefold()


def latest(file: Path, wanted: Filter, most: int) -> tuple[list[Line], int]:
    """The last lines of the file that are let through, and where the last whole line ends."""
    lines, end = _read(file, 0)
    shown = [line for each in lines if (line := _line(each, wanted)) is not None]
    return shown[-most:], end


async def following(file: Path, wanted: Filter, place: int) -> AsyncGenerator[list[Line], None]:
    """The lines that are written after a place, as they come."""
    while True:
        lines, place = await asyncio.to_thread(_read, file, place)
        if found := [line for each in lines if (line := _line(each, wanted)) is not None]:
            yield found
        await asyncio.sleep(_STEP_SECONDS)


def _read(file: Path, place: int) -> tuple[list[bytes], int]:
    """The whole lines after a place, of which there may be too many, and where they end."""
    try:
        with file.open("rb") as opened:
            end = opened.seek(0, os.SEEK_END)
            if end < place:
                place = 0  # another file was begun
            start = max(place, end - _BYTES)
            opened.seek(start)
            raw = opened.read(_BYTES)
    except OSError:
        return [], place
    lines = raw.split(b"\n")
    rest = lines.pop()
    if start > place:
        lines = lines[1:]  # it was cut
    return lines, start + len(raw) - len(rest)


def _line(raw: bytes, wanted: Filter) -> Line | None:
    try:
        told = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(told, dict):
        return None
    values = tuple((str(name), _text(told[name])) for name in told if name not in _KNOWN)
    line = Line(
        _text(told.get("timestamp", "")),
        _text(told.get("level", "")),
        _text(told.get("logger", "")).removeprefix("accord."),
        _text(told.get("event", "")),
        values,
    )
    return line if wanted.lets(raw, line) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
