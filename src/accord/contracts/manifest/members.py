"""Which members each part of a manifest has: the whitelist of normalisation and of projection.

One table serves both. Normalising keeps `docs`, and lists as they stand; projecting leaves `docs`
out and writes set-like lists sorted and unique (specification, sections 6.1 and 12). What is kept
as it stands is shared with the argument, not copied. A manifest of the right shape is expected.
"""

from collections.abc import Callable
from typing import Any

from accord.contracts.manifest.references import is_reference

Copy = Callable[[Any], Any]


def same(value: Any) -> Any:
    """Keep a value as it stands."""
    return value


def members(copies: dict[str, Copy]) -> Copy:
    """Keep the named members of an object, each by its own copy."""

    def copy(value: dict[str, Any]) -> dict[str, Any]:
        kept = {}
        for name, item in value.items():
            part = copies.get(name)
            if part is not None:
                kept[name] = item if part is same else part(item)
        return kept

    return copy


def each(part: Copy) -> Copy:
    """Copy every value of a map."""

    def copy(value: dict[str, Any]) -> dict[str, Any]:
        return {name: part(item) for name, item in value.items()}

    return copy


def in_order(names: list[str]) -> list[str]:
    """A set of names, in the order of UTF-16 units."""
    if len(names) < 2:
        return names
    ordered = sorted(set(names))
    if not "".join(ordered).isascii():
        ordered.sort(key=lambda name: name.encode("utf-16-be"))
    return ordered


def sections(*, docs: bool) -> dict[str, Copy]:
    """How to copy each section: to normalise (with docs), or to project (without)."""
    names = same if docs else in_order

    def plain(*kept: str, **copies: Copy) -> Copy:
        return members({**dict.fromkeys(kept, same), **copies})

    def described(*kept: str, **copies: Copy) -> Copy:
        return (
            plain(*kept, **copies, docs=plain("summary", "markdown"))
            if docs
            else plain(*kept, **copies)
        )

    def lists(*actions: str) -> Copy:
        return members(dict.fromkeys(actions, names))

    def error_types(value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"type": name} for name in names([error["type"] for error in value])]

    use = plain(
        "contract",
        rpc=lists("call"),
        operations=lists("call"),
        events=lists("publish", "subscribe"),
        feeds=lists("subscribe"),
    )
    rpc = described(
        "version",
        "subject",
        input=_reference,
        output=_reference,
        capabilities=lists("call"),
        errors=error_types,
        transfer=plain("direction"),
    )
    operation = described(
        "version",
        "subject",
        "cancel",
        input=_reference,
        progress=_reference,
        output=_reference,
        capabilities=lists("call", "observe", "cancel", "control"),
        errors=error_types,
        signals=each(described(input=_reference)),
        transfer=plain(
            "direction", "store", "key", "contentType", "metadata", "expiresInMs", "maxBytes"
        ),
    )
    event = described(
        "version",
        "subject",
        "params",
        event=_reference,
        capabilities=lists("publish", "subscribe"),
    )
    feed = described(
        "version",
        "subject",
        input=_reference,
        event=_reference,
        capabilities=lists("subscribe"),
    )
    consumer = described(
        *("replay", "ordering", "concurrency", "ackWaitMs", "maxDeliver", "backoffMs"),
        uses=each(in_order),
        self=in_order,
    )
    job = described(
        *("maxDeliver", "backoffMs", "ackWaitMs", "defaultDeadlineMs"),
        *("progress", "logs", "dlq", "concurrency"),
        payload=_reference,
        result=_reference,
        keyConcurrency=plain(
            "key", "maxActive", "heartbeatIntervalMs", "heartbeatTtlMs", "stalePolicy"
        ),
        queue=plain("maxQueuedPerKey", "whenFull"),
    )
    state = described("kind", "stateVersion", schema=_reference, acceptedVersions=each(_reference))
    kv = described("purpose", "required", "history", "ttlMs", "maxValueBytes", schema=_reference)
    store = described("purpose", "required", "ttlMs", "maxTotalBytes", "maxObjectBytes")
    display: dict[str, Copy] = {
        "displayName": same,
        "description": same,
        "docs": plain("summary", "markdown"),
        "exports": plain("schemas"),
    }
    return {
        "format": same,
        "id": same,
        "kind": same,
        **(display if docs else {}),
        "capabilities": each(plain("displayName", "description", "consequence")),
        "schemas": same,
        "uses": members({"required": each(use), "optional": each(use)}),
        "rpc": each(lambda value: _without_empty_capabilities(rpc(value))),
        "operations": each(operation),
        "events": each(event),
        "feeds": each(feed),
        "eventConsumers": each(lambda value: {**_CONSUMER_DEFAULTS, **consumer(value)}),
        "jobs": each(job),
        "state": each(state),
        "resources": members({"kv": each(kv), "store": each(store)}),
        "errors": each(plain("type", schema=_error_schema)),
    }


# The only defaults that normalisation fills in (specification, section 8a).
_CONSUMER_DEFAULTS: dict[str, Any] = {"replay": "new", "ordering": "strict", "concurrency": 1}


def _reference(value: dict[str, Any]) -> dict[str, Any]:
    return value if len(value) == 1 else {"schema": value["schema"]}


def _error_schema(value: Any) -> Any:
    return _reference(value) if is_reference(value) else value


def _without_empty_capabilities(rpc: dict[str, Any]) -> dict[str, Any]:
    if "capabilities" in rpc and not rpc["capabilities"]:
        return {name: part for name, part in rpc.items() if name != "capabilities"}
    return rpc
