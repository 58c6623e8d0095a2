"""`accord top`, and the status line that `accord up` shows on a terminal.

Both show the state of every plane. `top` adds figures that are computed from two readings of the
station's metrics, so that it shows what Prometheus would.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from accord.cli import output
from accord.cli.output import Cli
from accord.telemetry.figures import Figure, Reading, figures, format_figure, read_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.text import Text

    from accord.station.plane import PlaneReport
    from accord.station.run import Observe

TOP_EXAMPLE = "Example: accord top --interval 5"

_STYLES: Final = {"ready": "green", "starting": "yellow", "backing off": "red", "failed": "red"}
_MARKS: Final = {"ready": "●", "starting": "◌", "stopped": "○"}


def top(
    cli: Cli,
    interval: Annotated[
        float, typer.Option(min=0.2, max=3600, help="Seconds between two readings.")
    ] = 2.0,
    times: Annotated[
        int | None,
        typer.Option(
            min=1, help="Stop after so many readings (default: one, or no end on a terminal)."
        ),
    ] = None,
) -> None:
    """Show the planes of a running station and what they do, live, until Ctrl-C.

    Without a terminal, and with --json, each reading is printed below the one before.
    """
    from rich.console import Console
    from rich.live import Live

    settings = cli.station_settings()
    address, token = _address(cli), settings.metrics.token.get_secret_value()
    before = _read(address, token)
    console = Console()
    is_live = console.is_terminal and not cli.as_json
    left = times if times is not None or is_live else 1
    try:
        if not is_live:
            for _ in range(left or 1):
                before = _print_reading(cli, address, token, before, interval)
            return
        with Live(console=console, auto_refresh=False, screen=left is None) as live:
            while left is None or left > 0:
                time.sleep(interval)
                planes, now = _planes(address), _read(address, token)
                live.update(_view(address, planes, figures(before, now)), refresh=True)
                before, left = now, left - 1 if left is not None else None
    except KeyboardInterrupt:
        return


def _print_reading(cli: Cli, address: str, token: str, before: Reading, interval: float) -> Reading:
    time.sleep(interval)
    planes, now = _planes(address), _read(address, token)
    shown = figures(before, now)
    result = {
        "address": address,
        "planes": planes,
        "figures": [
            {"plane": each.plane, "name": each.name, "value": each.value, "unit": each.unit}
            for each in shown
        ],
    }
    states = output.Table(
        ("plane", "state", "why"), [(each["name"], each["state"], _why(each)) for each in planes]
    )
    table = output.Table(
        ("plane", "figure", "value"),
        [(each.plane, each.name, format_figure(each)) for each in shown],
    )
    cli.emit(result, [states, table])
    return now


def _address(cli: Cli) -> str:
    from accord.station.errors import StationError
    from accord.station.home import Home, home_holder
    from accord.station.settings import home_option

    home = cli.settings().home
    held = home_holder(Home(home))
    if held is None or not held.is_station:
        raise StationError(
            "no station runs in this home",
            where=str(home),
            mend=f"start it with `accord up{home_option(home)}`",
        )
    return held.address


def _planes(address: str) -> list[dict[str, Any]]:
    from accord.station.errors import StationError
    from accord.station.home import ask_station

    answer = ask_station(address)
    if answer is None:
        raise StationError(
            "the station does not answer any more", where=address, mend="`accord status` says why"
        )
    return list(answer.get("planes", []))


def _read(address: str, token: str) -> Reading:
    from prometheus_client.parser import text_string_to_metric_families

    from accord.station.home import read_metrics

    families = text_string_to_metric_families(read_metrics(address, token))
    return Reading(time.monotonic(), read_samples(families))


def _why(plane: Mapping[str, Any]) -> str:
    if plane["state"] != "ready":
        return str(plane["reason"])
    return ", ".join(
        f"{part['name']}: {part['reason'] or part['state']}"
        for part in plane.get("parts", ())
        if not part["well"]
    )


def _view(
    address: str, planes: Sequence[Mapping[str, Any]], shown: Sequence[Figure]
) -> "RenderableType":
    from rich import box
    from rich.columns import Columns
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    states = Table("plane", "state", "why", box=box.SIMPLE_HEAD, pad_edge=False)
    for each in planes:
        style = _STYLES.get(each["state"], "")
        why = _why(each)
        mark = Text(f"{_MARKS.get(each['state'], '●')} {each['state']}", "yellow" if why else style)
        states.add_row(Text(str(each["name"])), mark, Text(why))
    tables = []
    for plane in dict.fromkeys(each.plane for each in shown):
        table = Table(plane, "", box=box.SIMPLE_HEAD, pad_edge=False)
        table.columns[1].justify = "right"
        for figure in shown:
            if figure.plane == plane:
                table.add_row(figure.name, format_figure(figure))
        tables.append(table)
    return Group(
        Text(f"{address}   Ctrl-C ends this view, not the station"), states, Columns(tables)
    )


def status_line(reports: "Sequence[PlaneReport]", seconds: float) -> "Text":
    """One line with the state of every plane, and how long the station has been up."""
    from rich.text import Text

    line = Text()
    for each in reports:
        state = each.state.value
        style = _STYLES.get(state, "dim")
        if state == "ready" and not each.is_well:
            style = "yellow"
        line.append(f"{_MARKS.get(state, '●')} {each.name}", style)
        line.append("  " if state == "ready" else f" {state}  ", style)
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    line.append(f"{hours}:{minutes:02}:{rest:02}", "dim")
    return line


@contextmanager
def status_display() -> "Iterator[Observe]":
    """Keep a status line at the bottom of the terminal; other output scrolls above it."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    begun, shown = time.monotonic(), Text()
    with Live(
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        # What is piped elsewhere stays on stdout.
        redirect_stdout=sys.stdout.isatty(),
    ) as live:

        def observe(reports: "Sequence[PlaneReport]") -> None:
            nonlocal shown
            line = status_line(reports, time.monotonic() - begun)
            if line != shown:
                shown = line
                live.update(line, refresh=True)

        yield observe
