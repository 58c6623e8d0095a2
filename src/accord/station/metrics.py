"""The station's figures for Prometheus: its own, its stores', its process's, and those of planes.

Owns one registry per station, who may read it, and the reference page. A plane that is down, or
whose figures fail, is left out and counted; it never spoils the page. Nothing is asked of a store
while somebody reads: what has to be counted there is counted by its plane, beforehand.
"""

import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from accord import __version__
from accord.community.bus.rates import is_from_here
from accord.kernel.clock import Clock
from accord.metering import METRICS, Measure, family, histogram
from accord.station.plane import Measured, Plane, PlaneState
from accord.station.settings import Settings
from accord.station.store import place
from accord.station.stores import SCHEMAS
from accord.station.supervisor import Supervisor
from accord.storage import figures

_log = structlog.stdlib.get_logger(__name__)

_PLANES: Final = {
    "station": "The station",
    "process": "The process",
    "stores": "Stores",
    "community": "The community",
    "models": "Language models",
    "relay": "The relay",
    "authority": "The authority",
    "pipeline": "The pipeline",
}


class StationCollector(Collector):
    """States and restarts of the planes, the uptime, and what was built."""

    def __init__(self, supervisor: Supervisor, clock: Clock) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._started = clock.monotonic()
        self.failures: Counter[tuple[str]] = Counter()

    def collect(self) -> Iterator[Metric]:
        """Read the figures."""
        states, restarts = {}, {}
        parts: Counter[tuple[str, str]] = Counter()
        for report in self._supervisor.reports():
            restarts[(report.name,)] = float(report.restarts)
            for state in PlaneState:
                label = state.value.replace(" ", "_")
                states[report.name, label] = float(state is report.state)
            for part in report.parts:
                parts[report.name, "well" if part.is_well else "troubled"] += 1
        yield family("accord_build_info", {(__version__,): 1.0})
        yield family("accord_uptime_seconds", self._clock.monotonic() - self._started)
        yield family("accord_plane_state", states)
        yield family("accord_plane_restarts_total", restarts)
        yield family("accord_plane_parts", parts)
        yield family("accord_scrape_failures_total", self.failures)


class StoresCollector(Collector):
    """What the station's stores have written."""

    def __init__(self, settings: Settings) -> None:
        self._where = place(settings)

    def collect(self) -> Iterator[Metric]:
        """Read the figures."""
        found = {(each.name,): figures(self._where, each) for each in SCHEMAS}
        known = {name: each for name, each in found.items() if each is not None}
        sizes = {name: each.size for name, each in known.items()}
        yield histogram(
            "accord_store_commit_seconds", {name: each.commits for name, each in known.items()}
        )
        yield family(
            "accord_store_units_total", {name: float(each.units) for name, each in known.items()}
        )
        yield family(
            "accord_store_failures_total",
            {name: float(each.failures) for name, each in known.items()},
        )
        yield family(
            "accord_store_size_bytes",
            {name: float(size) for name, size in sizes.items() if size is not None},
        )


class _Apart(Collector):
    """The figures of one plane, which fail alone."""

    def __init__(
        self, name: str, read: Callable[[], Iterable[Metric]], failed: Counter[tuple[str]]
    ):
        self._name = name
        self._read = read
        self._failed = failed

    def collect(self) -> Iterable[Metric]:
        try:
            return list(self._read())
        except Exception as error:  # noqa: BLE001 - whatever it is, the other figures are shown
            self._failed[(self._name,)] += 1
            _log.error("the figures of a plane could not be read", plane=self._name, exc_info=error)
            return ()


def registry(
    supervisor: Supervisor,
    clock: Clock,
    planes: Iterable[Plane] = (),
    settings: Settings | None = None,
) -> CollectorRegistry:
    """A registry of its own, so that two stations in one process do not meet.

    Args:
        supervisor: Reports how the planes are doing.
        clock: The time.
        planes: Those that may have figures.
        settings: Say where the stores are; None shows none.
    """
    made = CollectorRegistry()
    own = StationCollector(supervisor, clock)
    for plane in planes:
        if isinstance(plane, Measured):
            made.register(_Apart(plane.name, plane.collect, own.failures))
    if settings is not None:
        made.register(_Apart("stores", StoresCollector(settings).collect, own.failures))
    ProcessCollector(registry=made)
    # The last, so that it counts what failed just now.
    made.register(own)
    return made


def may_read(token: str, host: str, headers: Mapping[str, str]) -> bool:
    """Whether somebody may read the figures: by the token, or, where there is none, from here.

    Args:
        token: What `[metrics] token` is set to.
        host: The address that the request came from.
        headers: Those of the request, by small names.
    """
    if token:
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        given = shown.strip().encode("utf-8", "replace")
        return scheme.lower() == "bearer" and hmac.compare_digest(given, token.encode())
    return is_from_here(host, headers)


def reference() -> str:
    """The reference page of every metric, in Markdown."""
    parts = [_HEAD]
    for plane, measures in groupby(METRICS, key=lambda each: each.plane):
        rows = "\n".join(map(_row, measures))
        parts.append(f"## {_PLANES[plane]}\n\n{_COLUMNS}\n{rows}\n")
    return "\n".join(parts)


_HEAD: Final = """# Metrics

What a station shows at `/metrics`, in the text format of Prometheus. This page is made from the
table in `src/accord/metering/table.py`; a name in it means the same in every later version, or is
not used again. [The guide](../guides/monitoring.md) says how to scrape them, and what to do when an
alert fires.

A plane that does not run shows nothing. Of a histogram there are `_bucket`, `_sum` and `_count`.
The values of labels come from the program or the operator, and their number is bounded.
"""
_COLUMNS: Final = "| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|"


def _row(measure: Measure) -> str:
    labels = ", ".join(f"`{each}`" for each in measure.labels)
    cells = (f"`{measure.name}`", measure.kind.value, measure.unit, labels, measure.meaning)
    return f"| {' | '.join(cells)} |"
