"""Numbers as families of Prometheus, named, typed and explained as the table says."""

from collections.abc import Mapping
from typing import Final, TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from accord.metering.durations import Durations
from accord.metering.table import METRICS, Kind

Labels = TypeVar("Labels", bound=tuple[str, ...])

_NAMED: Final = {each.name: each for each in METRICS}


def family(name: str, values: float | Mapping[Labels, float]) -> Metric:
    """A metric with its values: one, or one for each choice of its labels.

    Raises:
        KeyError: The table has no such metric.
    """
    measure = _NAMED[name]
    kind = CounterMetricFamily if measure.kind is Kind.COUNTER else GaugeMetricFamily
    made = kind(name, measure.meaning, labels=measure.labels)
    if isinstance(values, Mapping):
        for labels, value in sorted(values.items()):
            made.add_metric(labels, value)
    else:
        made.add_metric((), values)
    return made


def histogram(name: str, values: Mapping[Labels, Durations]) -> Metric:
    """A metric of durations, by the choices of its labels.

    Raises:
        KeyError: The table has no such metric.
    """
    measure = _NAMED[name]
    made = HistogramMetricFamily(name, measure.meaning, labels=measure.labels)
    for labels, durations in sorted(values.items()):
        borders = [
            ("+Inf" if border == float("inf") else str(border), count)
            for border, count in durations.up_to()
        ]
        made.add_metric(labels, borders, durations.total)
    return made
