"""Streams, buckets, object stores and consumers on JetStream: their configurations and names.

Names follow from deployment, contract id, kind and alias alone, so that a retry adopts what it
finds and an update keeps its data.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from accord.kernel import canonical

_NAME_LENGTH: Final = 26  # 130 bits in base32


class NamePrefix(StrEnum):
    """The kind of a resource, as its name begins."""

    KV = "acc_kv"
    STORE = "acc_obj"
    CONSUMER = "acc_ev"
    NAMESPACE = "acc_ns"
    QUEUE = "acc_q"
    KEYS = "acc_key"
    OPERATIONS = "acc_op"


def physical_name(prefix: NamePrefix, deployment: str, contract: str, alias: str = "") -> str:
    """The name of a resource; it never changes."""
    identity = canonical.encode([prefix.value, deployment, contract, alias])
    hashed = base64.b32encode(hashlib.sha256(identity).digest()).decode("ascii").lower()
    return f"{prefix}_{hashed[:_NAME_LENGTH]}"


OWNER: Final = "accord.owner"
"""The member of a resource's metadata that says whose it is."""

ATTEMPT: Final = "accord.attempt"
"""The member of a resource's metadata that says which attempt created it."""

PLATFORM_OWNER: Final = "platform"
"""The owner of what every deployment shares."""

_MILLISECOND: Final = 1_000_000
_SHORTEST_AGE_MS: Final = 100  # what the server takes
_DUPLICATES_MS: Final = 120_000
# The server counts headers (compare-and-set, message ids) as part of a message.
_HEADER_BYTES: Final = 1024


class ResourceRef(NamedTuple):
    """A stream, or a consumer on one."""

    stream: str
    consumer: str = ""

    def __str__(self) -> str:
        return f"the consumer {self.consumer} of {self.stream}" if self.consumer else self.stream


@dataclass(frozen=True, slots=True)
class Resource:
    """The desired configuration of a stream or consumer; `owner` is stored in its metadata."""

    place: ResourceRef
    owner: str
    config: Mapping[str, Any]


def define_stream(
    name: str,
    owner: str,
    subjects: Sequence[str],
    *,
    max_age_ms: int = 0,
    replicas: int = 1,
    **more: Any,
) -> Resource:
    """A stream on disk, without limits by default."""
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
    return Resource(ResourceRef(name), owner, config)


def define_bucket(
    name: str,
    owner: str,
    *,
    history: int = 1,
    ttl_ms: int = 0,
    max_value_bytes: int | None = None,
    max_bytes: int | None = None,
    replicas: int = 1,
) -> Resource:
    """A key-value bucket as NATS clients expect it."""
    return define_stream(
        f"KV_{name}",
        owner,
        [f"$KV.{name}.>"],
        max_age_ms=ttl_ms,
        replicas=replicas,
        discard="new",
        max_bytes=-1 if max_bytes is None else max_bytes,
        max_msgs_per_subject=history,
        max_msg_size=-1 if max_value_bytes is None else max_value_bytes + _HEADER_BYTES,
        allow_rollup_hdrs=True,
        allow_direct=True,
        deny_delete=True,
    )


def define_object_store(
    name: str, owner: str, *, ttl_ms: int = 0, max_bytes: int | None = None, replicas: int = 1
) -> Resource:
    """An object store as NATS clients expect it."""
    return define_stream(
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


def define_consumer(
    place: ResourceRef,
    owner: str,
    filters: Sequence[str],
    *,
    deliver: str,
    ack_wait_ms: int,
    max_deliver: int,
    max_pending: int,
) -> Resource:
    """A durable pull consumer whose messages are acknowledged one by one.

    It has no server-side backoff, whose first pause would replace the time to acknowledge; handlers
    put a message back with a delay.
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


EVENTS: Final = "trellis"
JOBS: Final = "JOBS"
JOBS_WORK: Final = "JOBS_WORK"
JOBS_ADVISORIES: Final = "JOBS_ADVISORIES"
STATE_BUCKET: Final = "acc_state"

TRANSIENT_SUBJECTS: Final[Mapping[str, int]] = {"events.v1.Health.Heartbeat": 10_000}
"""Events that soon lose their meaning, by subject: how many are kept."""

_DAY_MS: Final = 24 * 60 * 60 * 1000
_ADVISORY_MEGABYTES: Final = 32
_ADVISORY: Final = "$JS.EVENT.ADVISORY.CONSUMER"


_MEGABYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class StreamRetention:
    """How long and how much the shared streams keep, and how many copies.

    The oldest events and job history are deleted first. Waiting jobs and state are never deleted: a
    full stream refuses more. A limit of 0 is none.
    """

    events_days: float = 90
    events_megabytes: int = 512
    jobs_days: float = 90
    jobs_megabytes: int = 256
    work_megabytes: int = 256
    state_megabytes: int = 0
    replicas: int = 1


def platform_resources(retention: StreamRetention) -> tuple[Resource, ...]:
    """The shared streams, section 7 of the notes on the fabric."""
    copies = retention.replicas
    return (
        define_stream(
            EVENTS,
            PLATFORM_OWNER,
            ["events.>"],
            max_age_ms=_ms(retention.events_days),
            replicas=copies,
            allow_direct=True,
            max_bytes=_bytes(retention.events_megabytes),
        ),
        define_stream(
            JOBS,
            PLATFORM_OWNER,
            ["trellis.jobs.>"],
            max_age_ms=_ms(retention.jobs_days),
            replicas=copies,
            allow_direct=True,
            max_bytes=_bytes(retention.jobs_megabytes),
        ),
        define_stream(
            JOBS_WORK,
            PLATFORM_OWNER,
            ["trellis.work.>"],
            replicas=copies,
            retention="workqueue",
            discard="new",
            max_bytes=_bytes(retention.work_megabytes),
        ),
        define_stream(
            JOBS_ADVISORIES,
            PLATFORM_OWNER,
            [
                f"{_ADVISORY}.MAX_DELIVERIES.{JOBS_WORK}.>",
                f"{_ADVISORY}.MSG_TERMINATED.{JOBS_WORK}.>",
            ],
            max_age_ms=7 * _DAY_MS,
            replicas=copies,
            max_bytes=_ADVISORY_MEGABYTES * _MEGABYTE,
        ),
        define_bucket(
            STATE_BUCKET,
            PLATFORM_OWNER,
            max_bytes=retention.state_megabytes * _MEGABYTE or None,
            replicas=copies,
        ),
    )


def _ms(days: float) -> int:
    return round(days * _DAY_MS)


def _bytes(megabytes: int) -> int:
    return megabytes * _MEGABYTE or -1
