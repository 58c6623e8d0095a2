"""`accord top`, and the status line that `accord up` shows on a terminal.

Both show the state of every plane. `top` adds figures that are computed from two readings of the
station's metrics, so that it shows what Prometheus would.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from accord.cli import output
from accord.cli.context import Cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.text import Text

    from accord.station.plane import PlaneReport
    from accord.station.run import Observe

TOP_EXAMPLE = "Example: accord top --interval 5"

_STYLES: Final = {"ready": "green", "starting": "yellow", "backing off": "red", "failed": "red"}
_MARKS: Final = {"ready": "●", "starting": "◌", "stopped": "○"}
_KIB: Final = 1024.0

Samples = Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]
"""Values of metrics, by name and by labels."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The metrics of a station at a moment of a monotonic clock, in seconds."""

    at: float
    samples: Samples

    def total(self, metric: str, labels: frozenset[tuple[str, str]]) -> float | None:
        """The sum over all series with these labels; None if the station does not show it."""
        if (series := self.samples.get(metric)) is None:
            return None
        return sum(value for own, value in series.items() if labels <= frozenset(own))


@dataclass(frozen=True, slots=True)
class FigureDefinition:
    """A figure of the view: a metric, or how fast it grows."""

    plane: str
    name: str
    metric: str
    unit: str
    is_rate: bool = False
    labels: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its value; a unit that ends in `/s` is a rate."""

    plane: str
    name: str
    value: float
    unit: str


def _rate(plane: str, name: str, metric: str, unit: str, **labels: str) -> FigureDefinition:
    return FigureDefinition(
        plane, name, metric, unit, is_rate=True, labels=frozenset(labels.items())
    )


def _level(plane: str, name: str, metric: str, unit: str, **labels: str) -> FigureDefinition:
    return FigureDefinition(plane, name, metric, unit, labels=frozenset(labels.items()))


FIGURES: Final = (
    _rate("relay", "messages received", "accord_relay_events_total", "/s"),
    _rate("relay", "delivered to agents", "accord_relay_deliveries_total", "/s"),
    _level("relay", "waiting for agents", "accord_relay_buffered", ""),
    _level("relay", "replies to send", "accord_relay_outbox_waiting", ""),
    _level("relay", "replies not sent", "accord_relay_outbox_dead", ""),
    _rate("community", "calls answered", "accord_bus_answers_total", "/s"),
    _level("community", "calls in progress", "accord_bus_in_hand", ""),
    _level("community", "members", "accord_community_members", ""),
    _rate("community", "events received", "accord_sync_received_events_total", "/s"),
    _rate("models", "tokens generated", "accord_llm_tokens_total", "/s", direction="out"),
    _level("models", "generations waiting", "accord_llm_waiting", ""),
    _level("authority", "connections", "accord_authority_connections", ""),
    _level("authority", "live offers", "accord_authority_offers", "", state="live"),
    _level("pipeline", "records to land", "accord_pipeline_waiting_records", ""),
    _level("station", "memory", "process_resident_memory_bytes", "bytes"),
    _rate("station", "processor", "process_cpu_seconds_total", "cores"),
    _level("station", "stores", "accord_store_size_bytes", "bytes"),
)
"""What `accord top` shows, in this order; a metric that the station does not show is left out."""


def figures(before: Reading, now: Reading) -> list[Figure]:
    """The figures at `now`; rates are those since `before`.

    A counter that went back was restarted: its rate counts from zero.
    """
    seconds = max(now.at - before.at, 1e-9)
    made = []
    for each in FIGURES:
        value = now.total(each.metric, each.labels)
        if value is None:
            continue
        if each.is_rate:
            earlier = before.total(each.metric, each.labels) or 0.0
            value = (value - earlier if value >= earlier else value) / seconds
        made.append(Figure(each.plane, each.name, value, each.unit))
    return made


def format_figure(figure: Figure) -> str:
    """The value with its unit, short enough for a column."""
    value = figure.value
    if figure.unit == "bytes":
        for unit in ("B", "KiB", "MiB", "GiB"):
            if value < _KIB or unit == "GiB":
                return f"{value:.0f} {unit}" if unit in ("B", "KiB") else f"{value:.1f} {unit}"
            value /= _KIB
    if figure.unit == "cores":
        return f"{value * 100:.0f} %"
    number = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
    return f"{number}{figure.unit}"


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

    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(read_metrics(address, token)):
        # A counter that has not counted yet has no samples; its family's name lacks the suffix.
        samples.setdefault(f"{family.name}_total" if family.type == "counter" else family.name, {})
        for each in family.samples:
            samples.setdefault(each.name, {})[tuple(sorted(each.labels.items()))] = each.value
    return Reading(time.monotonic(), samples)


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
