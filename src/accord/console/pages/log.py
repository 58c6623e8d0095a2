"""Log: what the station says, live, who did what to it, and what the community's log holds."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from accord.console.errors import ConsoleError
from accord.console.naming import Names, names
from accord.console.page import Page, Visit
from accord.console.stream import Piece
from accord.console.tailing import LEVELS, Filter, following, latest
from accord.kernel.errors import AccordError

_LINES: Final = 200
_ENTRIES: Final = 40
_ACTS: Final = 25


async def show(visit: Visit) -> Response:
    """The latest lines, and the latest entries of the community's log with their verdicts."""
    wanted = _filter(visit)
    file = visit.parts.log_file
    lines, end = ([], 0) if file is None else await asyncio.to_thread(latest, file, wanted, _LINES)
    entries: list[dict[str, Any]] = []
    called: Names = Names({})
    missing: AccordError | None = None
    refused = visit.query("refused") == "yes"
    try:
        async with visit.community() as client:
            called = names(await client.get("/node/v1/members"))
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
        acts=(await visit.parts.audit(_ACTS))[::-1],
    )


async def live(visit: Visit) -> Response:
    """The lines that are written from now on."""
    file = visit.parts.log_file
    if file is None:
        raise ConsoleError("no log is kept", where="[log] file", mend="set it to true")
    after = visit.query("after")
    if not (after.isascii() and after.isdecimal() and len(after) < 16):
        raise ConsoleError("expected a number", where="after")
    wanted = _filter(visit)

    async def pieces() -> AsyncGenerator[Piece, None]:
        async with aclosing(following(file, wanted, int(after))) as coming:
            async for lines in coming:
                yield Piece("lines", visit.part("log_lines.html", lines=lines))

    return visit.stream(pieces())


def _filter(visit: Visit) -> Filter:
    level = visit.query("level") or "info"
    if level not in LEVELS:
        raise ConsoleError("there is no such level", where=level[:40], mend=", ".join(LEVELS))
    return Filter(level, visit.query("text")[:200])


PAGE: Final = Page("log", "Log", show, reads={"live": live})
