"""`accord status | logs`: how this home's station is, and what it wrote down."""

import json
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from accord.cli import report
from accord.cli.options import Config, Home, Json

STATUS_EXAMPLE = "Example: accord status --json"
LOGS_EXAMPLE = "Example: accord logs --level warning --follow"

_LEVELS = ("debug", "info", "warning", "error", "critical")
_POLL_SECONDS = 0.3


def status(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Say whether the station runs and how each of its planes is; exit 1 if one is not well."""
    from accord.station.doctor import told
    from accord.station.home import Home as Place
    from accord.station.home import holder
    from accord.station.settings import home_option, load

    settings = load(home, config)
    held = holder(Place(settings.home))
    answer = told(held.address) if held else None
    is_well = bool(answer and answer.get("ready"))
    planes: list[dict[str, Any]] = (answer or {}).get("planes", [])
    if as_json:
        running = {"pid": held.pid, "address": held.address} if held else None
        report.show_json(
            {"home": str(settings.home), "running": running, "ready": is_well, "planes": planes}
        )
    elif held is None:
        command = f"accord up{home_option(settings.home)}"
        typer.echo(f"No station runs in {settings.home}; start it with `{command}`.")
    elif answer is None:
        typer.echo(f"Process {held.pid} holds {settings.home} but does not answer.")
    else:
        typer.echo(f"The station runs at {held.address}, process {held.pid}.")
        report.show_table(("plane", "state", "why"), _rows(planes))
    raise typer.Exit(0 if is_well else report.FAILED)


def logs(
    level: Annotated[str, typer.Option(help=f"The least level: {', '.join(_LEVELS)}.")] = "info",
    lines: Annotated[int, typer.Option(min=0, max=100_000, help="How many of the last.")] = 50,
    follow: Annotated[bool, typer.Option(help="Go on with what is written from now on.")] = False,
    contains: Annotated[str, typer.Option(help="Only lines that hold this text.")] = "",
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show what the station wrote into its log, the newest last."""
    from accord.station.errors import StationError
    from accord.station.home import Home as Place
    from accord.station.settings import load

    if level not in _LEVELS:
        raise typer.BadParameter(f"use one of {', '.join(_LEVELS)}", param_hint="--level")
    file = Place(load(home, config).home).log_file
    wanted = frozenset(_LEVELS[_LEVELS.index(level) :])
    last: deque[str] = deque(maxlen=lines)
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            last.extend(line for line in opened if _is_wanted(line, wanted, contains))
            position = opened.tell()
    except FileNotFoundError:
        raise StationError(
            "there is no log yet", where=str(file), mend="start the station with `accord up`"
        ) from None
    for line in last:
        _show(line, as_json=as_json)
    if follow:
        for line in _following(file, position):
            if _is_wanted(line, wanted, contains):
                _show(line, as_json=as_json)


def _rows(planes: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for plane in planes:
        yield plane["name"], plane["state"], plane["reason"] if plane["state"] != "ready" else ""
        for part in plane.get("parts", ()):
            yield f"  {part['name']}", part["state"], part["reason"]


def _following(file: Path, position: int) -> Iterator[str]:
    """Each line that is written from a place on; a log that was put away begins anew."""
    rest = ""
    while True:
        try:
            size = file.stat().st_size
            position = position if size >= position else 0
            with file.open(encoding="utf-8", errors="replace") as opened:
                opened.seek(position)
                rest += opened.read()
                position = opened.tell()
        except FileNotFoundError:
            position = 0
        *whole, rest = rest.split("\n")
        yield from whole
        time.sleep(_POLL_SECONDS)


def _is_wanted(line: str, levels: frozenset[str], contains: str) -> bool:
    return contains in line and str(_read(line).get("level", "info")) in levels


def _read(line: str) -> dict[str, Any]:
    try:
        read = json.loads(line)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _show(line: str, *, as_json: bool) -> None:
    record = _read(line)
    if as_json or not record:
        typer.echo(line.rstrip("\n"))
        return
    when, level, what = (str(record.pop(name, "")) for name in ("timestamp", "level", "event"))
    record.pop("logger", None)
    more = " ".join(f"{name}={value}" for name, value in record.items() if value not in ("", None))
    typer.echo(f"{when[:19]} {level:8} {what}{'  ' if more else ''}{more}")
