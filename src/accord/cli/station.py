"""`accord up | status | logs | audit | doctor`, `accord config` and `accord console`."""

import asyncio
import contextlib
import json
import re
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from accord.cli import output
from accord.cli.arguments import printable
from accord.cli.output import App, Cli
from accord.cli.top import status_display

if TYPE_CHECKING:
    from accord.station.audit import AuditEntry
    from accord.station.plane import Plane, PlaneReport
    from accord.station.run import StationContext
    from accord.station.settings import Settings

# Of parts, what does not mend itself in a moment.
_LASTING: Final = frozenset({"lost", "restored", "troubled"})


def startup_text(
    subject: str,
    where: str,
    reports: "Sequence[PlaneReport]",
    *,
    facts: Sequence[tuple[str, str]] = (),
    home: str = "",
) -> str:
    """The text that is printed once a station has started.

    Args:
        where: Such as " at http://127.0.0.1:7070"; may be empty.
        home: The --home option for commands on this home, with a space before it; may be empty.
    """
    from accord.station.plane import PlaneState

    failed = failed_planes(reports)
    troubled = [part for each in reports for part in each.parts if part.state in _LASTING]
    extent = ", but not all of it" if failed or troubled else ""
    width = max((len(name) for name, _ in facts), default=0)
    lines = [f"{subject} is up{where}{extent}."]
    lines += [f"  {name:{width}}  {value}" for name, value in facts]
    if failed:
        lines += ["Not up:", *(f"  {each.name}: {printable(each.reason)}" for each in failed)]
        lines.append(
            f"Planes that are down are restarted; `accord status{home}` shows their state."
        )
    if troubled:
        lines += ["In trouble:", *(f"  {each.name}: {printable(each.reason)}" for each in troubled)]
    late = [each.name for each in reports if each.state is PlaneState.STARTING]
    if late := [name for name in late if name not in {each.name for each in failed}]:
        lines.append(f"Still starting: {', '.join(late)}.")
    return "\n".join(lines)


def failed_planes(reports: "Sequence[PlaneReport]") -> "list[PlaneReport]":
    """The planes that have failed, those that are tried again right now among them."""
    from accord.station.plane import PlaneState

    return [
        each
        for each in reports
        if each.state in (PlaneState.BACKING_OFF, PlaneState.FAILED)
        or (each.state is PlaneState.STARTING and each.restarts)
    ]


def failed_planes_json(reports: "Sequence[PlaneReport]") -> list[dict[str, str]]:
    """The planes that are down, for a program."""
    return [
        {"name": each.name, "state": each.state.value, "reason": each.reason}
        for each in failed_planes(reports)
    ]


config_app = App(no_args_is_help=True, epilog="Example: accord config check --home ./station")


@config_app.command(epilog="Example: accord config check --home ./station")
def check(cli: Cli) -> None:
    """Read the settings and say what is wrong with them; exit 2 if something is."""
    from accord.station.errors import SettingsError

    try:
        settings = cli.settings()
    except SettingsError as error:
        if not cli.as_json:
            raise
        findings = [
            {"where": finding.where, "what": finding.what, "mend": finding.mend}
            for finding in (error, *error.also)
        ]
        cli.emit({"ok": False, "findings": findings})
        raise typer.Exit(output.MISUSED) from None
    cli.emit(
        {"ok": True, "home": str(settings.home), "findings": []},
        f"The settings for {settings.home} are fine.",
    )


@config_app.command(epilog="Example: accord config show > accord.toml")
def show(cli: Cli) -> None:
    """Print every setting with its effective value, as TOML, with secrets hidden."""
    settings = cli.settings().model_dump(mode="json")
    cli.emit(settings, _toml_lines(settings))


def _toml_lines(settings: dict[str, Any]) -> Iterator[str]:
    yield f"# The settings of {settings.pop('home')}"
    for section, values in settings.items():
        yield f"\n[{section}]"
        tables = {key: value for key, value in values.items() if _is_table_list(value)}
        yield from _toml_values({key: value for key, value in values.items() if key not in tables})
        for key, rows in tables.items():
            for row in rows:
                yield f"\n[[{section}.{key}]]"
                yield from _toml_values(row)


def _is_table_list(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def _toml_values(values: dict[str, object]) -> Iterator[str]:
    for key, value in values.items():
        # For texts, numbers and truth values JSON's form is TOML's, DEL excepted.
        text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        yield f"{key} = {text}"


class ConsoleRole(StrEnum):
    """What a user of the console may do."""

    READER = "reader"
    OPERATOR = "operator"
    OWNER = "owner"


console_app = App(no_args_is_help=True, epilog="Example: accord console link")


@console_app.callback()
def _console() -> None:
    """Open the web console."""


@console_app.command(epilog="Example: accord console link --home ./station")
def link(
    cli: Cli,
    *,
    user: Annotated[
        str, typer.Option(help="For this user; without it, for the owner of the station.")
    ] = "",
    role: Annotated[
        ConsoleRole | None, typer.Option(help="Add the user with this role, or change it.")
    ] = None,
) -> None:
    """Print a one-time link that logs a browser in, valid for 15 minutes.

    If the station is not running, the link works as soon as it is up. A reader sees everything and
    asks questions, an operator also acts on the pages, an owner also changes settings and users.
    """
    from accord.kernel.clock import SystemClock
    from accord.station.console import admit_user, login_link
    from accord.station.errors import StationError
    from accord.station.home import Home as Place
    from accord.station.home import home_holder

    if role is not None and not user:
        raise typer.BadParameter("a role is given to a user", param_hint="--role")
    settings = cli.settings()
    if not Place(settings.home).device_key.exists():
        raise StationError(
            "there is no station here yet", where=str(settings.home), mend="start it: `accord up`"
        )
    if not settings.console.enabled:
        raise StationError(
            "this station has no console", where="[console] enabled", mend="set it to true"
        )
    held = home_holder(Place(settings.home))
    is_up = held is not None and held.address.startswith("http")
    host, port = settings.station.host, settings.station.port
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    if held is not None and is_up:
        address = held.address
    if user:
        asyncio.run(admit_user(settings, SystemClock(), user, role and role.value))
    made = login_link(settings, SystemClock(), address, user)
    cli.emit({"link": made, "station_is_up": is_up}, made)
    if not is_up:
        cli.note("the station is not running; the link works once `accord up` has started it")


DOCTOR_EXAMPLE = "Example: accord doctor --json"


@output.yes_or_no
def doctor(cli: Cli) -> None:
    """Check this machine, the settings, the home, its keys and its stores; exit 1 if one fails."""
    from accord.station.checks import CheckStatus
    from accord.station.doctor import examine

    checks = list(examine(cli.home, cli.config))
    failed = any(check.status is CheckStatus.FAIL for check in checks)
    rows = [
        {
            "name": check.name,
            "status": check.status.value,
            "seen": check.seen,
            "advice": check.advice,
        }
        for check in checks
    ]
    seen = ["\nto do: ".join(filter(None, (check.seen, check.advice))) for check in checks]
    table = output.Table(
        ["", "check", "seen"],
        [(check.status.value, check.name, text) for check, text in zip(checks, seen, strict=True)],
    )
    cli.emit({"ok": not failed, "checks": rows}, table)
    raise typer.Exit(output.FAILED if failed else 0)


Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Listen here instead; 0 takes a free one.")
]
UP_EXAMPLE = "Example: accord up --home ./station --port 7071"
_TRIES = (
    "open the console, add a document under Files, and ask about it under Ask",
    "talk to the concierge:  accord relay chat invite --space {space}{home}",
    (
        'accord market post "Ladder to lend"{home}, then: '
        'accord market search "something to climb with"{home}'
    ),
)


def up(
    cli: Cli,
    *,
    port: Port = None,
    bus_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Listen for other nodes here; 0, or --port 0, takes a free one."
        ),
    ] = None,
    join: Annotated[
        str | None, typer.Option(help="On the first start, join by this invite.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Fill a new home with a small demo community.")
    ] = False,
) -> None:
    """Start a station on this machine and run it until SIGTERM or Ctrl-C.

    The first start makes the folder, the keys and a community. SIGTERM or Ctrl-C lets the planes
    finish; a second one ends at once.
    """
    if demo and join is not None:
        raise typer.BadParameter("the demo has a community of its own", param_hint="--join")
    clean = _serve(cli, _choose_settings(cli, port, bus_port, join), demo=demo)
    raise typer.Exit(0 if clean else output.FAILED)


def serve_plane(
    cli: Cli,
    subject: str,
    assemble: "Callable[[StationContext], Sequence[Plane]]",
    port: int | None,
    *,
    with_device: bool = False,
) -> NoReturn:
    """Run some planes alone until the process is told to stop; `subject` names them in the text.

    With `with_device` the announcement for programs names the device.
    """
    from accord.station.run import serve
    from accord.station.settings import home_option

    def announce(ground: "StationContext", reports: "Sequence[PlaneReport]") -> None:
        result = {
            "address": ground.address,
            "home": str(ground.settings.home),
            **({"device": ground.key.id} if with_device else {}),
            "down": failed_planes_json(reports),
        }
        option = home_option(ground.settings.home)
        # It goes on when whoever read its first words has gone.
        with contextlib.suppress(BrokenPipeError):
            cli.emit(result, startup_text(subject, f" at {ground.address}", reports, home=option))

    clean = serve(_with_port(cli.settings(), port), announce=announce, assemble=assemble)
    raise typer.Exit(0 if clean else output.FAILED)


def _with_port(settings: "Settings", port: int | None) -> "Settings":
    if port is None:
        return settings
    chosen = settings.station.model_copy(update={"port": port})
    return settings.model_copy(update={"station": chosen})


def _choose_settings(
    cli: Cli, port: int | None, bus_port: int | None, join: str | None
) -> "Settings":
    """The settings, overridden by the options."""
    settings = _with_port(cli.settings(), port)
    if bus_port is None and port == 0:
        bus_port = 0
    told: dict[str, object] = {} if bus_port is None else {"port": bus_port}
    if join is not None:
        from accord.community.rules.invites import Invite
        from accord.station.community import refuse_late_invite

        # Whatever is no invite, or would not be used, is refused before anything is made.
        refuse_late_invite(settings.home, Invite.parse(join))
        told["join"] = join
    community = settings.community.model_copy(update=told)
    return settings.model_copy(update={"community": community})


def _serve(cli: Cli, settings: "Settings", *, demo: bool) -> bool:
    from accord.station.run import serve, station_planes

    assemble = station_planes
    if demo:
        from accord.demo import DemoPlane, prepare_demo

        settings = prepare_demo(settings)

        def assemble(ground: "StationContext") -> "Sequence[Plane]":
            made = station_planes(ground)
            return [*made, DemoPlane(ground, made, _show_demo_progress)]

    def announce(ground: "StationContext", reports: "Sequence[PlaneReport]") -> None:
        # A station goes on when whoever read its first words has gone.
        with contextlib.suppress(BrokenPipeError):
            _show_start(cli, ground, reports)

    # On a terminal a status line takes the place of the log, unless the settings name a format.
    if cli.as_json or settings.log.format != "auto" or not sys.stderr.isatty():
        return serve(settings, announce=announce, assemble=assemble)
    with status_display() as observe:
        return serve(settings, announce=announce, assemble=assemble, observe=observe)


def _show_demo_progress(step: str, done: int, steps: int) -> None:
    """Report the progress of the demo."""
    output.say(f"demo: {step} ({done} of {steps})")


def _show_start(cli: Cli, ground: "StationContext", reports: "Sequence[PlaneReport]") -> None:
    from accord.station.settings import home_option

    link = _login_link(ground)
    option = home_option(ground.settings.home)
    facts = [
        ("address", ground.address),
        *([("console", f"{link} (works once, for 15 minutes)")] if link else []),
        ("home", str(ground.settings.home)),
        ("device", ground.key.id),
    ]
    subject = f"The station {ground.settings.station.name!r}"
    lines = [startup_text(subject, "", reports, facts=facts, home=option)]
    # What is down comes first: most of what could be tried needs it.
    if not failed_planes(reports):
        space = shlex.quote(ground.settings.concierge.space)
        lines.append("Three things to try:")
        lines += [
            f"  {number}. {each.replace('{home}', option).replace('{space}', space)}"
            for number, each in enumerate(_TRIES, 1)
        ]
    result = {
        "name": ground.settings.station.name,
        "address": ground.address,
        "home": str(ground.settings.home),
        "device": ground.key.id,
        "console": link,
        "down": failed_planes_json(reports),
    }
    cli.emit(result, lines)


def _login_link(ground: "StationContext") -> str | None:
    """A link to the console that works once; None if the console is off or the link fails."""
    if not ground.settings.console.enabled:
        return None
    from accord.kernel.errors import AccordError
    from accord.station.console import login_link

    try:
        return login_link(ground.settings, ground.clock, ground.address)
    except AccordError as error:
        # A full disk, say: the station is up all the same.
        output.say(f"error: {error}")
        return None


STATUS_EXAMPLE = "Example: accord status --json"
LOGS_EXAMPLE = "Example: accord logs --level warning --follow"

_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
_LOG_COLUMNS = ("timestamp", "level", "event")
_POLL_SECONDS = 0.3


def status(cli: Cli) -> None:
    """Say whether the station runs and how each of its planes is; exit 1 if one is not well."""
    from accord.station.home import Home as Place
    from accord.station.home import ask_station, home_holder
    from accord.station.settings import home_option

    settings = cli.settings()
    held = home_holder(Place(settings.home))
    answer = ask_station(held.address) if held else None
    is_well = bool(answer and answer.get("ready"))
    planes: list[dict[str, Any]] = (answer or {}).get("planes", [])
    running = {"pid": held.pid, "address": held.address} if held else None
    text: output.Text
    if held is None:
        command = f"accord up{home_option(settings.home)}"
        text = f"No station runs in {settings.home}; start it with `{command}`."
    elif answer is None:
        text = f"Process {held.pid} holds {settings.home} but does not answer."
    else:
        title = f"The station runs at {held.address}, process {held.pid}."
        text = [title, output.Table(("plane", "state", "why"), _plane_rows(planes))]
    cli.emit(
        {"home": str(settings.home), "running": running, "ready": is_well, "planes": planes}, text
    )
    raise typer.Exit(0 if is_well else output.FAILED)


def logs(
    cli: Cli,
    level: Annotated[
        str, typer.Option(help=f"The least level: {', '.join(_LOG_LEVELS)}.")
    ] = "info",
    lines: Annotated[
        int, typer.Option(min=0, max=100_000, help="How many of the last lines.")
    ] = 50,
    follow: Annotated[bool, typer.Option(help="Keep printing new lines.")] = False,
    contains: Annotated[str, typer.Option(help="Only lines that contain this text.")] = "",
) -> None:
    """Show what the station wrote into its log, the newest last."""
    from accord.station.errors import StationError
    from accord.station.home import Home as Place

    if level not in _LOG_LEVELS:
        raise typer.BadParameter(f"use one of {', '.join(_LOG_LEVELS)}", param_hint="--level")
    file = Place(cli.settings().home).log_file
    wanted = frozenset(_LOG_LEVELS[_LOG_LEVELS.index(level) :])
    last: deque[str] = deque(maxlen=lines)
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            last.extend(line for line in opened if _is_wanted_line(line, wanted, contains))
            position = opened.tell()
    except FileNotFoundError:
        raise StationError(
            "there is no log yet", where=str(file), mend="start the station with `accord up`"
        ) from None
    for line in last:
        _show_line(cli, line)
    if follow:
        for line in _follow(file, position):
            if _is_wanted_line(line, wanted, contains):
                _show_line(cli, line)


def _plane_rows(planes: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for plane in planes:
        yield plane["name"], plane["state"], plane["reason"] if plane["state"] != "ready" else ""
        for part in plane.get("parts", ()):
            yield f"  {part['name']}", part["state"], part["reason"]


def _follow(file: Path, position: int) -> Iterator[str]:
    """Yield lines written after a position; a log that was rotated is read from its start."""
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


def _is_wanted_line(line: str, levels: frozenset[str], contains: str) -> bool:
    return contains in line and str(_read_line(line).get("level", "info")) in levels


def _read_line(line: str) -> dict[str, Any]:
    try:
        read = json.loads(line)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _show_line(cli: Cli, line: str) -> None:
    record = _read_line(line)
    if not record:
        cli.emit(output.RawJson({"event": line.rstrip("\n")}), line.rstrip("\n"))
        return
    when, level, what = (str(record.get(name, "")) for name in _LOG_COLUMNS)
    more = " ".join(
        f"{name}={value}"
        for name, value in record.items()
        if value not in ("", None) and name not in (*_LOG_COLUMNS, "logger")
    )
    text = f"{when[:19]} {level:8} {what}{'  ' if more else ''}{more}"
    cli.emit(output.RawJson(record), text)


AUDIT_EXAMPLE = "Example: accord audit --since 7d --plane relay --actor operator"

_AUDIT_POLL_SECONDS = 1.0
_AGO = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def audit(
    cli: Cli,
    since: Annotated[
        str,
        typer.Option(
            help="Only entries since then: 30m, 12h, 7d, or a time like 2026-05-26T08:00:00Z."
        ),
    ] = "",
    plane: Annotated[
        list[str] | None,
        typer.Option(help="Only of this plane: station, community, relay, webchat, authority."),
    ] = None,
    actor: Annotated[str, typer.Option(help="Only by actors whose name contains this.")] = "",
    lines: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="At most this many, the latest.")
    ] = 1000,
    follow: Annotated[bool, typer.Option(help="Keep printing new entries.")] = False,
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
            await asyncio.sleep(_AUDIT_POLL_SECONDS)
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
    """Parse a time such as 7d or 2026-05-26T08:00:00Z."""
    from accord.kernel.clock import parse_time
    from accord.kernel.errors import AccordError

    if ago := _AGO.fullmatch(text):
        return now - int(ago[1]) * _SECONDS[ago[2]]
    try:
        return parse_time(text)
    except AccordError:
        raise typer.BadParameter(
            "write it like 30m, 12h, 7d or 2026-05-26T08:00:00Z", param_hint="--since"
        ) from None
