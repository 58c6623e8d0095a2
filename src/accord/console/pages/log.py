"""Log: the station's log, the audit trail, and the community's log."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from starlette.responses import Response

from accord.console.messages import mark, tr
from accord.console.page import Page, Piece, Visit
from accord.console.sessions import ConsoleError
from accord.console.templates import MemberNames, member_names
from accord.kernel.errors import AccordError

_BYTES: Final = 512 * 1024
_STEP_SECONDS: Final = 0.5
_KNOWN: Final = frozenset({"event", "level", "timestamp", "logger"})
LEVELS: Final = ("debug", "info", "warning", "error", "critical")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log."""

    at: str
    level: str
    logger: str
    event: str
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which lines are shown: the least level, and a text that they contain."""

    level: str = "info"
    text: str = ""

    def matches(self, raw: bytes, line: LogLine) -> bool:
        """Whether a line is shown."""
        least = LEVELS.index(self.level) if self.level in LEVELS else 0
        here = LEVELS.index(line.level) if line.level in LEVELS else len(LEVELS)
        return here >= least and self.text.casefold() in raw.decode("utf-8", "replace").casefold()


def latest_lines(file: Path, wanted: LogFilter, most: int) -> tuple[list[LogLine], int]:
    """Return the last matching lines of the file, and the offset after the last complete line."""
    lines, end = _read(file, 0)
    shown = [line for each in lines if (line := _line(each, wanted)) is not None]
    return shown[-most:], end


async def follow_log(
    file: Path, wanted: LogFilter, place: int
) -> AsyncGenerator[list[LogLine], None]:
    """Yield the lines that are written after an offset, as they come."""
    while True:
        lines, place = await asyncio.to_thread(_read, file, place)
        if found := [line for each in lines if (line := _line(each, wanted)) is not None]:
            yield found
        await asyncio.sleep(_STEP_SECONDS)


def _read(file: Path, place: int) -> tuple[list[bytes], int]:
    """The complete lines after an offset, up to a limit, and where they end."""
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


def _line(raw: bytes, wanted: LogFilter) -> LogLine | None:
    try:
        told = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(told, dict):
        return None
    values = tuple((str(name), _text(told[name])) for name in told if name not in _KNOWN)
    line = LogLine(
        _text(told.get("timestamp", "")),
        _text(told.get("level", "")),
        _text(told.get("logger", "")).removeprefix("accord."),
        _text(told.get("event", "")),
        values,
    )
    return line if wanted.matches(raw, line) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


_LINES: Final = 200
_ENTRIES: Final = 40
_ACTS: Final = 50
# Filtered are the latest so many; `accord audit` has all of them.
_READ: Final = 2000
_PLANES: Final = ("station", "community", "relay", "authority")


async def show(visit: Visit) -> Response:
    """Show the latest lines, and the latest entries of the community's log with their verdicts."""
    wanted = _filter(visit)
    file = visit.parts.log_file
    lines, end = (
        ([], 0) if file is None else await asyncio.to_thread(latest_lines, file, wanted, _LINES)
    )
    entries: list[dict[str, Any]] = []
    called: MemberNames = MemberNames({})
    missing: AccordError | None = None
    refused = visit.query("refused") == "yes"
    try:
        async with visit.community() as client:
            called = member_names(await client.get("/node/v1/members"))
            asked = {"limit": _ENTRIES, "refused": refused}
            entries = (await client.post("/node/v1/log", asked))["entries"][::-1]
    except AccordError as error:
        missing = error
    after = urlencode({"level": wanted.level, "text": wanted.text, "after": end})
    return visit.show(
        "log.html",
        lines=lines,
        wanted=wanted,
        levels=LEVELS[:-1],
        file=file,
        after=after,
        entries=entries,
        names=called,
        missing=missing,
        refused=refused,
        acts=await _acts(visit),
        planes=_PLANES,
        plane=visit.query("plane"),
        about=visit.query("about"),
    )


async def _acts(visit: Visit) -> list[Mapping[str, Any]]:
    """The latest acts of a plane that have some words, the newest first."""
    plane, words = visit.query("plane"), visit.query("about").casefold().split()
    is_filtered = bool(plane or words)
    found = await visit.parts.audit(_READ if is_filtered else _ACTS)
    return [
        each
        for each in reversed(found)
        if plane in ("", each["plane"])
        and all(word in " ".join(map(str, each.values())).casefold() for word in words)
    ][:_ACTS]


async def live(visit: Visit) -> Response:
    """Stream new lines."""
    file = visit.parts.log_file
    if file is None:
        raise ConsoleError(tr("no log is kept"), where="[log] file", mend=tr("set it to true"))
    after, wanted = visit.number("after"), _filter(visit)

    async def pieces() -> AsyncGenerator[Piece, None]:
        async with aclosing(follow_log(file, wanted, after)) as coming:
            async for lines in coming:
                yield Piece("lines", visit.part("log_lines.html", lines=lines))

    return visit.stream(pieces())


def _filter(visit: Visit) -> LogFilter:
    level = visit.query("level") or "info"
    if level not in LEVELS:
        raise ConsoleError(tr("there is no such level"), where=level[:40], mend=", ".join(LEVELS))
    return LogFilter(level, visit.query("text")[:200])


PAGE: Final = Page("log", mark("Log"), show, reads={"live": live}, group=mark("Station"))
