"""What there is to be on JetStream: streams and durable consumers, in the server's own words.

A bucket and an object store are streams of a certain form. Only the members that matter to us are
given; the others are the server's, or whoever runs it may set them. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

OWNER: Final = "accord.owner"
"""The member of a resource's metadata that says whose it is."""

ATTEMPT: Final = "accord.attempt"
"""The member of a resource's metadata that says which attempt created it."""

PLATFORM: Final = "platform"
"""The owner of what every deployment shares."""

_MILLISECOND: Final = 1_000_000
_SHORTEST_AGE_MS: Final = 100  # what the server takes
_DUPLICATES_MS: Final = 120_000
# The server counts headers (compare-and-set, message ids) as part of a message.
_HEADER_BYTES: Final = 1024


class Place(NamedTuple):
    """Where something is: a stream, or a consumer on one."""

    stream: str
    consumer: str = ""

    def __str__(self) -> str:
        return f"the consumer {self.consumer} of {self.stream}" if self.consumer else self.stream


@dataclass(frozen=True, slots=True)
class Resource:
    """A stream or consumer as it should be.

    Attributes:
        place: Where.
        owner: Whose: `platform`, or a deployment, contract, kind and alias in one text.
        config: The members that must be so.
    """

    place: Place
    owner: str
    config: Mapping[str, Any]


def stream(
    name: str,
    owner: str,
    subjects: Sequence[str],
    *,
    max_age_ms: int = 0,
    replicas: int = 1,
    **more: Any,
) -> Resource:
    """A stream on disk that keeps everything, unless told otherwise."""
    age = max(max_age_ms, _SHORTEST_AGE_MS) if max_age_ms else 0
    config = {
        "name": name,
        "subjects": list(subjects),
        "storage": "file",
        "retention": "limits",
        "discard": "old",
        "max_age": age * _MILLISECOND,
        "max_bytes": -1,
        "max_msgs": -1,
        "max_msg_size": -1,
        "max_msgs_per_subject": -1,
        "duplicate_window": min(age or _DUPLICATES_MS, _DUPLICATES_MS) * _MILLISECOND,
        "num_replicas": replicas,
        "sealed": False,
        **more,
    }
    return Resource(Place(name), owner, config)


def bucket(
    name: str,
    owner: str,
    *,
    history: int = 1,
    ttl_ms: int = 0,
    max_value_bytes: int | None = None,
    replicas: int = 1,
) -> Resource:
    """A key-value bucket, as every client of NATS knows it."""
    return stream(
        f"KV_{name}",
        owner,
        [f"$KV.{name}.>"],
        max_age_ms=ttl_ms,
        replicas=replicas,
        discard="new",
        max_msgs_per_subject=history,
        max_msg_size=-1 if max_value_bytes is None else max_value_bytes + _HEADER_BYTES,
        allow_rollup_hdrs=True,
        allow_direct=True,
        deny_delete=True,
    )


def store(
    name: str, owner: str, *, ttl_ms: int = 0, max_bytes: int | None = None, replicas: int = 1
) -> Resource:
    """An object store, as every client of NATS knows it."""
    return stream(
        f"OBJ_{name}",
        owner,
        [f"$O.{name}.C.>", f"$O.{name}.M.>"],
        max_age_ms=ttl_ms,
        replicas=replicas,
        discard="new",
        max_bytes=-1 if max_bytes is None else max_bytes,
        allow_rollup_hdrs=True,
        allow_direct=True,
    )


def consumer(
    place: Place,
    owner: str,
    filters: Sequence[str],
    *,
    deliver: str,
    ack_wait_ms: int,
    max_deliver: int,
    max_pending: int,
) -> Resource:
    """A durable consumer that is pulled from and acknowledged one by one.

    It has no backoff of the server's: there the first pause would take the place of the time that
    a handler has to acknowledge. Whoever handles a message puts it back with a delay.
    """
    config = {
        "name": place.consumer,
        "durable_name": place.consumer,
        "deliver_policy": deliver,
        "ack_policy": "explicit",
        "replay_policy": "instant",
        "ack_wait": ack_wait_ms * _MILLISECOND,
        "max_deliver": max_deliver,
        "max_ack_pending": max_pending,
        "filter_subjects": sorted(filters),
        "filter_subject": "",
        "deliver_subject": "",
    }
    return Resource(place, owner, config)
