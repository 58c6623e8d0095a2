"""Figures that people look at: metrics, and how fast they grow, with one table of all of them.

`accord top`, the console and the station's history show the same ones. Everything here is pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_KIB: Final = 1024.0
_TENTH: Final = 0.1

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
    """What a figure is made from: a metric, or how fast it grows."""

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
"""In the order in which they are shown; what a station has no metric for is left out."""


def read_samples(families: Iterable["Metric"]) -> Samples:
    """The samples of metric families, as a registry collects them or a scrape is parsed."""
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in families:
        # A counter that has not counted yet has no samples; its family's name lacks the suffix.
        samples.setdefault(f"{family.name}_total" if family.type == "counter" else family.name, {})
        for each in family.samples:
            samples.setdefault(each.name, {})[tuple(sorted(each.labels.items()))] = each.value
    return samples


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
    places = 0 if value >= 100 or value == int(value) else 1 if value >= _TENTH else 2
    number = f"{value:,.{places}f}"
    return f"{number}{figure.unit}"
