"""The bus's own figures for Prometheus.

Owns the counters. A capability that is not offered is counted without its name, which its caller
could choose at will.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from accord.community.bus.answering import Visit
from accord.community.bus.registry import Registry
from accord.metering import family


class Figures(Collector):
    """How many requests were answered and refused, and how many are in hand."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._answered: Counter[str] = Counter()
        self._refused: Counter[tuple[str, str]] = Counter()

    @property
    def refusals(self) -> dict[tuple[str, str], int]:
        """How many requests each check refused, by its name and the code."""
        return dict(self._refused)

    def count(self, visit: Visit) -> None:
        """Count an answer, an accepted stream or a refusal."""
        if visit.refused is not None:
            check = visit.check.name if visit.check else "handler"
            self._refused[check, visit.refused.value] += 1
            return
        name = visit.request.capability if visit.request else None
        self._answered[name if name and self._registry.descriptors(name) else "-"] += 1

    def collect(self) -> Iterator[Metric]:
        """Read the figures."""
        yield family(
            "accord_bus_answers_total",
            {(capability,): float(count) for capability, count in self._answered.items()},
        )
        yield family("accord_bus_refusals_total", self._refused)
        yield family("accord_bus_in_hand", self._registry.in_hand)
