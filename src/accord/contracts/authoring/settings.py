"""The optional members of manifest entries, as keyword arguments of the builder.

Names are converted from Python's spelling: `max_deliver` becomes `maxDeliver`. No defaults are
filled in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict


@dataclass(frozen=True, slots=True)
class Docs:
    """Documentation of a contract or one of its parts; it never changes the digest."""

    markdown: str
    summary: str | None = None


class SurfaceSettings(TypedDict, total=False):
    """Version and subject of a surface, instead of those by convention."""

    version: str
    subject: str
    docs: Docs


class Transfer(TypedDict, total=False):
    """The file that an operation's caller uploads: pointers into the input, and limits."""

    store: str
    key: str
    content_type: str
    metadata: str
    expires_in_ms: int
    max_bytes: int


class KeyConcurrency(TypedDict, total=False):
    """How many jobs of one key run at once."""

    key: Sequence[str]
    max_active: int
    heartbeat_interval_ms: int
    heartbeat_ttl_ms: int
    stale_policy: Literal["fail-stale", "block"]


class Queue(TypedDict, total=False):
    """How many jobs of one key may wait."""

    max_queued_per_key: int
    when_full: Literal["reject", "coalesce", "replace-oldest"]


class JobSettings(TypedDict, total=False):
    """Delivery settings of a job queue."""

    max_deliver: int
    backoff_ms: Sequence[int]
    ack_wait_ms: int
    default_deadline_ms: int
    progress: bool
    logs: bool
    dlq: bool
    concurrency: int
    key_concurrency: KeyConcurrency
    queue: Queue


class ConsumerSettings(TypedDict, total=False):
    """Delivery settings of a consumer group."""

    replay: Literal["new", "all"]
    ordering: Literal["strict"]
    concurrency: int
    ack_wait_ms: int
    max_deliver: int
    backoff_ms: Sequence[int]


class KvSettings(TypedDict, total=False):
    """Settings of a key-value bucket."""

    required: bool
    history: int
    ttl_ms: int
    max_value_bytes: int


class StoreSettings(TypedDict, total=False):
    """Settings of an object store."""

    required: bool
    ttl_ms: int
    max_total_bytes: int
    max_object_bytes: int


def members(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as manifest members, without those that are None."""
    return {_camel(name): _plain(value) for name, value in settings.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Docs):
        return members({"markdown": value.markdown, "summary": value.summary})
    if isinstance(value, Mapping):
        return members(value)
    return list(value) if isinstance(value, tuple) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
