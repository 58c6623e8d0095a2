"""`accord up`: start a station and say where it is."""

import contextlib
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli import report
from accord.cli.announcing import announcement, as_data, down
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accord.station.plane import Plane, PlaneReport
    from accord.station.run import Ground
    from accord.station.settings import Settings

EXAMPLE = "Example: accord up --home ./station --port 7071"
_TRIES = (
    "open the console, add a document under Files, and ask about it under Ask",
    "talk to the concierge:  accord relay chat invite --space {space}{home}",
    (
        'accord market post "Ladder to lend"{home}, then: '
        'accord market search "something to climb with"{home}'
    ),
)


def up(
    home: Home = None,
    config: Config = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Listen here instead; 0 takes a free one.")
    ] = None,
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
    as_json: Json = False,
) -> None:
    """Start a station on this machine and run it until it is told to stop.

    The first start makes the folder, the keys and a community. SIGTERM or Ctrl-C lets the planes
    finish; a second one ends at once.
    """
    if demo and join is not None:
        raise typer.BadParameter("the demo has a community of its own", param_hint="--join")
    clean = _served(_chosen(home, config, port, bus_port, join), demo=demo, as_json=as_json)
    raise typer.Exit(0 if clean else report.FAILED)


def _chosen(
    home: Home, config: Config, port: int | None, bus_port: int | None, join: str | None
) -> "Settings":
    """The settings, and before them what the command line says."""
    from accord.station.settings import load

    settings = load(home, config)
    if port is not None:
        chosen = settings.station.model_copy(update={"port": port})
        settings = settings.model_copy(update={"station": chosen})
    if bus_port is None and port == 0:
        bus_port = 0
    told: dict[str, object] = {} if bus_port is None else {"port": bus_port}
    if join is not None:
        from accord.community.envelope.invites import Invite
        from accord.station.belonging import refuse_late

        # Whatever is no invite, or would not be used, is refused before anything is made.
        refuse_late(settings.home, Invite.parse(join))
        told["join"] = join
    community = settings.community.model_copy(update=told)
    return settings.model_copy(update={"community": community})


def _served(settings: "Settings", *, demo: bool, as_json: bool) -> bool:
    from accord.station.run import planes, serve

    assemble = planes
    if demo:
        from accord.demo import DemoPlane, prepared

        settings = prepared(settings)

        def assemble(ground: "Ground") -> "Sequence[Plane]":
            made = planes(ground)
            return [*made, DemoPlane(ground, made, _told)]

    def announce(ground: "Ground", reports: "Sequence[PlaneReport]") -> None:
        # A station goes on when whoever read its first words has gone.
        with contextlib.suppress(BrokenPipeError):
            (_as_json if as_json else _as_text)(ground, reports)

    return serve(settings, announce=announce, assemble=assemble)


def _told(step: str, done: int, steps: int) -> None:
    """Say on a terminal how far the demo's story is."""
    report.say(f"demo: {step} ({done} of {steps})")


def _as_text(ground: "Ground", reports: "Sequence[PlaneReport]") -> None:
    from accord.station.settings import home_option

    link = _console(ground)
    option = home_option(ground.settings.home)
    facts = [
        ("address", ground.address),
        *([("console", f"{link} (works once, soon)")] if link else []),
        ("home", str(ground.settings.home)),
        ("device", ground.key.id),
    ]
    subject = f"The station {ground.settings.station.name!r}"
    typer.echo(announcement(subject, "", reports, facts=facts, home=option))
    # What is down comes first: most of what could be tried needs it.
    if not down(reports):
        space = shlex.quote(ground.settings.concierge.space)
        tries = "\n".join(
            f"  {number}. {each.replace('{home}', option).replace('{space}', space)}"
            for number, each in enumerate(_TRIES, 1)
        )
        typer.echo(f"Three things to try:\n{tries}")


def _console(ground: "Ground") -> str | None:
    """A way into the console, which works once, soon."""
    if not ground.settings.console.enabled:
        return None
    from accord.kernel.errors import AccordError
    from accord.station.console import login_link

    try:
        return login_link(ground.settings, ground.clock, ground.address)
    except AccordError as error:
        # A full disk, say: the station is up all the same.
        report.say(f"error: {error}")
        return None


def _as_json(ground: "Ground", reports: "Sequence[PlaneReport]") -> None:
    report.show_json(
        {
            "name": ground.settings.station.name,
            "address": ground.address,
            "home": str(ground.settings.home),
            "device": ground.key.id,
            "console": _console(ground),
            "down": as_data(reports),
        }
    )
