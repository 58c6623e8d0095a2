"""`accord audit`: who did what to a station, when, and what came of it."""

import asyncio
import re
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli.arguments import printable
from accord.cli.context import Cli

if TYPE_CHECKING:
    from collections.abc import Callable

    from accord.station.audit import AuditEntry
    from accord.station.settings import Settings

EXAMPLE = "Example: accord audit --since 7d --plane relay --actor operator"

_POLL_SECONDS = 1.0
_AGO = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def audit(
    cli: Cli,
    since: Annotated[
        str,
        typer.Option(
            help="Only what is not older: 30m, 12h, 7d, or a time like 2026-05-26T08:00:00Z."
        ),
    ] = "",
    plane: Annotated[
        list[str] | None,
        typer.Option(help="Only of this plane: station, community, relay, webchat, authority."),
    ] = None,
    actor: Annotated[str, typer.Option(help="Only by whoever has this in the name.")] = "",
    lines: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="At most so many, the latest.")
    ] = 1000,
    follow: Annotated[bool, typer.Option(help="Go on with what is done from now on.")] = False,
) -> None:
    """Tell every act of authority, membership and management, the newest last.

    It is read from the journals of the planes, whether or not the station runs. With --json each
    act is an object on a line of its own.
    """
    from accord.kernel.clock import SystemClock
    from accord.station import logs
    from accord.station.audit import PLANES

    if unknown := sorted({*(plane or ())} - {*PLANES}):
        raise typer.BadParameter(
            f"there is no {unknown[0]}; use {', '.join(PLANES)}", param_hint="--plane"
        )
    earliest = _parse_since(since, SystemClock().now()) if since else float("-inf")
    settings = cli.station_settings()

    def is_wanted(deed: "AuditEntry") -> bool:
        return deed.at >= earliest and actor in deed.who

    with logs.configured(settings.log.model_copy(update={"level": "error"})):
        asyncio.run(_show_entries(cli, settings, plane or PLANES, is_wanted, lines, follow))


async def _show_entries(
    cli: Cli,
    settings: "Settings",
    planes: "list[str] | tuple[str, ...]",
    is_wanted: "Callable[[AuditEntry], bool]",
    lines: int,
    follow: bool,
) -> None:
    from accord.station.audit import open_trail

    async with open_trail(settings, planes) as trail:
        deeds = [deed for deed in await trail.news() if is_wanted(deed)][-lines:]
        while True:
            for deed in deeds:
                _show_entry(cli, deed)
            if not follow:
                return
            await asyncio.sleep(_POLL_SECONDS)
            deeds = [deed for deed in await trail.news() if is_wanted(deed)]


def _show_entry(cli: Cli, deed: "AuditEntry") -> None:
    told = deed.to_dict()
    when, name, who, what, about, result, why = map(printable, map(str, told.values()))
    ending = "" if result == "done" else f"  [{result}]"
    more = f"  ({why})" if why else ""
    cli.emit(
        told, f"{when[:19]} {name:9} {what:24} {who}{'  ' if about else ''}{about}{ending}{more}"
    )


def _parse_since(text: str, now: float) -> float:
    """Parse a time such as 7d or 2026-05-26T08:00:00Z.

    Raises:
        typer.BadParameter: It is none.
    """
    from accord.kernel.clock import parse_time
    from accord.kernel.errors import AccordError

    if ago := _AGO.fullmatch(text):
        return now - int(ago[1]) * _SECONDS[ago[2]]
    try:
        return parse_time(text)
    except AccordError:
        raise typer.BadParameter(
            "say it like 30m, 12h, 7d or 2026-05-26T08:00:00Z", param_hint="--since"
        ) from None
