"""The station's Prometheus registry: its own metrics, those of stores, process and planes.

A plane that is down, or whose metrics fail, is left out and counted. Scraping queries no store;
planes count beforehand what has to be counted there.
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
from accord.kernel.clock import Clock
from accord.station.plane import HasMetrics, Plane, PlaneState
from accord.station.settings import Settings
from accord.station.store import store_location
from accord.station.stores import SCHEMAS
from accord.station.supervisor import Supervisor
from accord.storage import store_metrics
from accord.telemetry.metrics import METRICS, MetricDefinition, family, histogram
from accord.web.addresses import is_from_here

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
    """States and restarts of the planes, the uptime, and the version."""

    def __init__(self, supervisor: Supervisor, clock: Clock) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._started = clock.monotonic()
        self.failures: Counter[tuple[str]] = Counter()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
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
    """The metrics of the station's stores."""

    def __init__(self, settings: Settings) -> None:
        self._where = store_location(settings)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        found = {(each.name,): store_metrics(self._where, each) for each in SCHEMAS}
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


class _IsolatedCollector(Collector):
    """The metrics of one plane; a failure does not affect others."""

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
            _log.error("the metrics of a plane could not be read", plane=self._name, exc_info=error)
            return ()


def registry(
    supervisor: Supervisor,
    clock: Clock,
    planes: Iterable[Plane] = (),
    settings: Settings | None = None,
) -> CollectorRegistry:
    """Return a registry of its own, so that a process can have two stations.

    Args:
        supervisor: Reports the state of the planes.
        planes: Those that may have metrics.
        settings: Say where the stores are; None leaves them out.
    """
    made = CollectorRegistry()
    own = StationCollector(supervisor, clock)
    for plane in planes:
        if isinstance(plane, HasMetrics):
            made.register(_IsolatedCollector(plane.name, plane.collect, own.failures))
    if settings is not None:
        made.register(_IsolatedCollector("stores", StoresCollector(settings).collect, own.failures))
    ProcessCollector(registry=made)
    # Last, so that it counts failures of this scrape.
    made.register(own)
    return made


def may_read_metrics(token: str, host: str, headers: Mapping[str, str]) -> bool:
    """Whether a request may read the metrics: by the token, or from this machine if there is none.

    Args:
        token: The setting `[metrics] token`.
        headers: By lower-case names.
    """
    if token:
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        given = shown.strip().encode("utf-8", "replace")
        return scheme.lower() == "bearer" and hmac.compare_digest(given, token.encode())
    return is_from_here(host, headers)


def reference_page() -> str:
    """Return the reference page of every metric, in Markdown."""
    parts = [_HEAD]
    for plane, measures in groupby(METRICS, key=lambda each: each.plane):
        rows = "\n".join(map(_row, measures))
        parts.append(f"## {_PLANES[plane]}\n\n{_COLUMNS}\n{rows}\n")
    return "\n".join(parts)


_HEAD: Final = """# Metrics

What a station shows at `/metrics`, in the text format of Prometheus. This page is made from the
table in `src/accord/telemetry/metrics.py`; a name in it means the same in every later version, or
is not used again. [The guide](../guides/monitoring.md) says how to scrape them, and what to do when
an alert fires.

A plane that does not run shows nothing. Of a histogram there are `_bucket`, `_sum` and `_count`.
The values of labels come from the program or the operator, and their number is bounded.
"""
_COLUMNS: Final = "| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|"


def _row(measure: MetricDefinition) -> str:
    labels = ", ".join(f"`{each}`" for each in measure.labels)
    cells = (f"`{measure.name}`", measure.kind.value, measure.unit, labels, measure.meaning)
    return f"| {' | '.join(cells)} |"
