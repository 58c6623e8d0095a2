"""Rules about what a service does unasked: consuming events, and running jobs."""

from collections.abc import Iterator

from accord.contracts.manifest.pointers import SCALAR, Path, Tracer
from accord.contracts.manifest.view import View


def empty_groups(view: View) -> Iterator[tuple[Path, str]]:
    """A consumer group selects at least one event."""
    for name, group in view.section("eventConsumers").items():
        if not group.get("self") and not any(group.get("uses", {}).values()):
            yield ("eventConsumers", name), "the group selects no event, in `uses` or in `self`"


def unknown_aliases(view: View) -> Iterator[tuple[Path, str]]:
    """A consumer group takes dependency events through an alias of `uses`."""
    known = {*view.declared("uses", "required"), *view.declared("uses", "optional")}
    for name, group in view.section("eventConsumers").items():
        for alias in group.get("uses", {}):
            if alias not in known:
                yield ("eventConsumers", name, "uses", alias), f"there is no use {alias!r}"


def unsubscribed_events(view: View) -> Iterator[tuple[Path, str]]:
    """A consumer group takes only events that its alias subscribes to."""
    aliases = {**view.section("uses", "optional"), **view.section("uses", "required")}
    subscribed = {
        alias: set(use.get("events", {}).get("subscribe", ())) for alias, use in aliases.items()
    }
    for name, group in view.section("eventConsumers").items():
        for alias, events in group.get("uses", {}).items():
            for at, event in enumerate(events):
                if event not in subscribed.get(alias, (event,)):
                    yield (
                        ("eventConsumers", name, "uses", alias, str(at)),
                        f"the use {alias!r} does not subscribe to {event!r}",
                    )


def unowned_events(view: View) -> Iterator[tuple[Path, str]]:
    """What a consumer group takes as its own, the contract owns."""
    known = view.declared("events")
    for name, group in view.section("eventConsumers").items():
        for at, event in enumerate(group.get("self", ())):
            if event not in known:
                yield (
                    ("eventConsumers", name, "self", str(at)),
                    f"the contract has no event {event!r}",
                )


def strict_concurrency(view: View) -> Iterator[tuple[Path, str]]:
    """Strict ordering, the only one there is, allows one handler at a time."""
    for name, group in view.section("eventConsumers").items():
        if group.get("concurrency", 1) != 1:
            yield (
                ("eventConsumers", name, "concurrency"),
                "strict ordering needs a concurrency of 1",
            )


def job_heartbeats(view: View) -> Iterator[tuple[Path, str]]:
    """A key's heartbeat lives longer than the interval between two."""
    for name, job in view.section("jobs").items():
        keyed = job.get("keyConcurrency", {})
        interval, lifetime = keyed.get("heartbeatIntervalMs"), keyed.get("heartbeatTtlMs")
        if interval is not None and lifetime is not None and lifetime <= interval:
            yield (
                ("jobs", name, "keyConcurrency", "heartbeatTtlMs"),
                "`heartbeatTtlMs` must exceed `heartbeatIntervalMs`",
            )


def job_key_pointers(view: View) -> Iterator[tuple[Path, str]]:
    """The pointers of a job's key lead to scalars, as far as the payload's schema says."""
    tracer = Tracer()
    schemas = view.section("schemas")
    for name, job in view.section("jobs").items():
        schema = schemas.get(job.get("payload", {}).get("schema"))
        for at, segment in enumerate(job.get("keyConcurrency", {}).get("key", ())):
            if segment.startswith("/"):
                fault = tracer.fault(schema, segment, SCALAR, declared=False)
                if fault is not None:
                    yield (
                        ("jobs", name, "keyConcurrency", "key", str(at)),
                        f"the pointer {segment!r} {fault}",
                    )
