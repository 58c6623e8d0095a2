"""The station's own figures for Prometheus, read off the supervisor when they are asked for.

Owns one registry per station. Planes register their own collectors on it.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from accord import __version__
from accord.kernel.clock import Clock
from accord.station.plane import PlaneState
from accord.station.supervisor import Supervisor


class StationCollector(Collector):
    """States and restarts of the planes, the uptime, and what was built."""

    def __init__(self, supervisor: Supervisor, clock: Clock) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._started = clock.monotonic()

    def collect(self) -> Iterator[Metric]:
        """Read the figures."""
        yield InfoMetricFamily("accord_build", "What runs here.", {"version": __version__})
        yield GaugeMetricFamily(
            "accord_uptime_seconds",
            "Seconds since the station started.",
            self._clock.monotonic() - self._started,
        )
        states = GaugeMetricFamily(
            "accord_plane_state", "1 for the state a plane is in.", labels=["plane", "state"]
        )
        restarts = CounterMetricFamily(
            "accord_plane_restarts", "How often a plane was started again.", labels=["plane"]
        )
        for report in self._supervisor.reports():
            restarts.add_metric([report.name], report.restarts)
            for state in PlaneState:
                label = state.value.replace(" ", "_")
                states.add_metric([report.name, label], float(state is report.state))
        yield states
        yield restarts


def registry(supervisor: Supervisor, clock: Clock) -> CollectorRegistry:
    """A registry of its own, so that two stations in one process do not meet."""
    made = CollectorRegistry()
    made.register(StationCollector(supervisor, clock))
    return made
