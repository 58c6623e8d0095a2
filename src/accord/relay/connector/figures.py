"""What a connector has done and refused, as figures for Prometheus.

Owns the names and labels under which the counts of its parts are shown. What has no name of its own
is shown as `accord_relay_total` with the words under which it was counted.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from accord.relay.connector.assembly import Connector
from accord.relay.connector.delivery.session import SocketState
from accord.relay.connector.durations import Durations

# A name, what it means, its label, and which counts belong to it, the label's value in a group.
_COUNTED: Final = (
    (
        "events",
        "Events that platforms handed over: taken, taken for nobody, or known already.",
        "outcome",
        "(taken|taken for nobody|duplicates)",
    ),
    ("dropped", "Events that reached nobody, by the rule that said no.", "rule", "dropped (.+)"),
    ("deliveries", "Rows that were written to a gateway's socket.", None, "delivered()"),
    ("acks", "Rows that a gateway acknowledged.", None, "acks()"),
    ("dead_letters", "Rows that are not delivered any more.", None, "dead letters()"),
    ("wakes", "Wake pokes: how many were wanted, and what became of them.", "outcome", "wake (.+)"),
    (
        "refused_connects",
        "Sockets that were refused, by the reason that they were closed with.",
        "reason",
        "connect refused (.+)",
    ),
)


def figures(connector: Connector) -> Iterator[Metric]:
    """Read everything."""
    rest = connector.counts
    for name, meaning, label, pattern in _COUNTED:
        yield _counter(rest, name, meaning, label, re.compile(pattern))
    delivery = connector.delivery
    yield GaugeMetricFamily(
        "accord_relay_buffered",
        "Rows that wait for gateways, as last counted by the process that tidies up.",
        delivery.buffered,
    )
    sockets = GaugeMetricFamily(
        "accord_relay_sockets", "Gateways' sockets, by where they are.", labels=["state"]
    )
    states = Counter(each.session.state for each in delivery.hub.connections)
    for state in SocketState:
        sockets.add_metric([state.value], states[state])
    yield sockets
    yield _histogram(
        "ingest", "From a platform's call until its event is on disk.", delivery.ingest_seconds
    )
    yield _histogram(
        "delivery", "From an event's storing to its acknowledgement.", delivery.delivery_seconds
    )
    others = CounterMetricFamily(
        "accord_relay", "What else the connector did, and what it refused.", labels=["what"]
    )
    for what, count in sorted(rest.items()):
        others.add_metric([what], count)
    yield others


def _counter(
    rest: Counter[str], name: str, meaning: str, label: str | None, pattern: re.Pattern[str]
) -> Metric:
    """The counts that belong together, which are taken out of the rest."""
    family = CounterMetricFamily(f"accord_relay_{name}", meaning, labels=[label] if label else [])
    found = {what: match[1] for what in sorted(rest) if (match := pattern.fullmatch(what))}
    for what, value in found.items():
        family.add_metric([value] if label else [], rest.pop(what))
    if label is None and not found:
        family.add_metric([], 0)
    return family


def _histogram(name: str, meaning: str, durations: Durations) -> Metric:
    return HistogramMetricFamily(
        f"accord_relay_{name}_seconds",
        meaning,
        buckets=[
            ("+Inf" if border == float("inf") else str(border), count)
            for border, count in durations.up_to()
        ],
        sum_value=durations.total,
    )
