"""What a connector has done and refused, as figures for Prometheus.

Owns which counts of its parts belong to which metric. What has none of its own is shown as
`accord_relay_total` with the words under which it was counted, all of which are the program's.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from accord.metering import family, histogram
from accord.relay.connector.assembly import Connector
from accord.relay.connector.delivery.session import SocketState

# Which counts belong to a metric; its label's value, where it has one, in a group.
_COUNTED: Final = {
    "accord_relay_events_total": re.compile("(taken|taken for nobody|duplicates)"),
    "accord_relay_dropped_total": re.compile("dropped (.+)"),
    "accord_relay_deliveries_total": re.compile("delivered"),
    "accord_relay_acks_total": re.compile("acks"),
    "accord_relay_dead_letters_total": re.compile("dead letters"),
    "accord_relay_wakes_total": re.compile("wake (.+)"),
    "accord_relay_refused_connects_total": re.compile("connect refused (.+)"),
}


def figures(connector: Connector) -> Iterator[Metric]:
    """Read everything."""
    rest = connector.counts
    for name, pattern in _COUNTED.items():
        found = {what: match for what in rest if (match := pattern.fullmatch(what))}
        values = {match.groups(): float(rest.pop(what)) for what, match in found.items()}
        yield family(name, values or ({} if pattern.groups else 0))
    delivery = connector.delivery
    yield family("accord_relay_buffered", delivery.waiting.rows)
    yield family("accord_relay_oldest_unacknowledged_seconds", delivery.waiting.oldest_seconds)
    states = Counter(each.session.state for each in delivery.hub.connections)
    yield family(
        "accord_relay_sockets", {(each.value,): float(states[each]) for each in SocketState}
    )
    yield histogram("accord_relay_ingest_seconds", {(): delivery.ingest_seconds})
    yield histogram("accord_relay_delivery_seconds", {(): delivery.delivery_seconds})
    yield family("accord_relay_total", {(what,): float(count) for what, count in rest.items()})
