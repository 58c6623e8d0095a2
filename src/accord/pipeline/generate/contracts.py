"""What happened to the contracts of a generated history: how they came in, and every payload.

Payloads keep the schemas of the digest that they were exchanged under, but for those that are
planted.
"""

from collections.abc import Iterator
from random import Random
from typing import Any, Final

from accord.kernel import base64url, canonical
from accord.kernel.clock import format_time
from accord.kernel.ulid import UlidSource
from accord.pipeline.generate.arrivals import Draft
from accord.pipeline.generate.chronicle import Calendar
from accord.pipeline.generate.faults import Plan
from accord.pipeline.generate.lineages import Release, broken_payload, lineages, payload

_ERRORS: Final = ("NotFound", "Unavailable", "Conflict")
_DAY: Final = 86_400.0

_Part = tuple[str, bool]


class Record:
    """Names and dates the records of one stream."""

    def __init__(self, chance: Random) -> None:
        self.calendar = Calendar()
        self.chance = chance
        self._ids = UlidSource(self.calendar, lambda: chance.getrandbits(80))

    def draft(self, body: dict[str, Any], kind: str | None = None) -> Draft:
        """A record of now."""
        body = {"at": format_time(self.calendar.time, millis=True), **body}
        at = int(self.calendar.time * 1000)
        return Draft(self._ids.new(), at, canonical.encode(body).decode(), kind)


def history(plan: Plan, chance: Random) -> list[Draft]:
    """How every release was presented, accepted and offered, and the one before it withdrawn."""
    record = Record(chance)
    drafts: list[Draft] = []
    for lineage in lineages():
        record.calendar.time += _DAY
        for release in lineage:
            drafts += _presented(record, release)
    for kind in ("contract.digest", "contract.manifest"):
        for _ in range(plan.get(kind, 0)):
            release = chance.choice(chance.choice(lineages()))
            drafts.append(record.draft(_mispresented(release, kind, chance), kind))
    return drafts


def _presented(record: Record, release: Release) -> Iterator[Draft]:
    steps = ["presented", "accepted", "offered"]
    if record.chance.random() < 0.3:
        steps[1:1] = ["rejected", "presented"]
    for step in steps:
        record.calendar.time += record.chance.uniform(60, _DAY / 4)
        manifest = release.manifest if step == "presented" else None
        yield record.draft(_step(release, step, manifest=manifest))
    if release.previous is not None:
        end = record.chance.choice(("withdrawn", "expired"))
        yield record.draft({**_step(release, end), "digest": release.previous, "previous": None})


def _mispresented(release: Release, kind: str, chance: Random) -> dict[str, Any]:
    step = _step(release, "presented", manifest=release.manifest)
    if kind == "contract.digest":
        return {**step, "digest": _unknown(chance)}
    return {**step, "manifest": {**release.manifest, "kind": "nothing of the sort"}}


def _step(release: Release, kind: str, manifest: Any = None) -> dict[str, Any]:
    return {
        "kind": kind,
        "deployment": _deployment(release),
        "contract_id": release.contract_id,
        "digest": release.digest,
        "by": "admin" if kind in ("accepted", "rejected") else _deployment(release),
        "classification": release.classification if kind in ("accepted", "rejected") else None,
        "previous": release.previous,
        "manifest": manifest,
    }


def calls(count: int, plan: Plan, chance: Random) -> Iterator[Draft]:
    """At least so many payloads that keep their contracts, and those that do not."""
    record = Record(chance)
    planted = [
        (chance.randrange(count), kind)
        for kind in ("contract.payload", "contract.surface", "contract.unknown")
        for _ in range(plan.get(kind, 0))
    ]
    waiting = sorted(planted, reverse=True)
    written = 0
    while written < count or waiting:
        while waiting and (waiting[-1][0] <= written or written >= count):
            yield _wrong(record, waiting.pop()[1])
        for draft in _exchange(record):
            yield draft
            written += 1


def _exchange(record: Record) -> Iterator[Draft]:
    """One call with its answer, one event, one job: whatever crosses a surface as one."""
    chance = record.chance
    record.calendar.time += chance.expovariate(1 / 10)
    release, kind, surface = _surface(chance)
    told = _told(record, release, kind, surface)
    failed = chance.random() < 0.04
    for part, is_last in _parts(kind, chance):
        body: dict[str, Any] = {**told, "part": part, "outcome": "ok", "error": None, "ms": None}
        if is_last:
            body["ms"] = int(chance.lognormvariate(3, 1))
            record.calendar.time += body["ms"] / 1000
        if is_last and failed:
            yield record.draft({**body, "outcome": "error", "error": chance.choice(_ERRORS)})
        elif chance.random() < 0.02:
            yield record.draft(body)  # policy keeps the payload out
        else:
            value = payload(release.schema(kind, surface, part), chance)
            yield record.draft({**body, "payload": value})


def _wrong(record: Record, fault: str) -> Draft:
    release, kind, surface = _surface(record.chance)
    told = _told(record, release, kind, surface)
    part = _parts(kind, record.chance)[0][0]
    schema = release.schema(kind, surface, part)
    body = {**told, "part": part, "outcome": "ok", "error": None, "ms": None}
    if fault == "contract.payload":
        return record.draft({**body, "payload": broken_payload(schema, record.chance)}, fault)
    wrong = (
        {"surface": f"{surface}.Nowhere"}
        if fault == "contract.surface"
        else {"digest": _unknown(record.chance)}
    )
    value = payload(schema, record.chance)
    return record.draft({**body, **wrong, "payload": value}, fault)


def _surface(chance: Random) -> tuple[Release, str, str]:
    *services, _ = lineages()
    release = chance.choice(chance.choice(services))
    found = [
        (kind, name)
        for kind in ("rpc", "operations", "events", "feeds", "jobs")
        for name in release.manifest.get(kind, {})
    ]
    return release, *chance.choice(found)


def _parts(kind: str, chance: Random) -> list[_Part]:
    """What crosses a surface of a kind, in order, and what of it is the answer."""
    if kind == "rpc":
        return [("input", False), ("output", True)]
    if kind == "operations":
        middle = ["progress"] * chance.randrange(3) + ["signal:hurry"] * (chance.random() < 0.2)
        return [("input", False), *((each, False) for each in middle), ("output", True)]
    if kind == "feeds":
        return [("input", False), *[("event", False)] * chance.randrange(1, 4)]
    if kind == "jobs":
        return [("payload", False), ("result", True)]
    return [("event", False)]


def _told(record: Record, release: Release, kind: str, surface: str) -> dict[str, Any]:
    """What all records of one exchange say."""
    chance = record.chance
    app = chance.choice(lineages()[-1])
    caller: dict[str, Any] = {"contract_id": app.contract_id, "digest": app.digest}
    if chance.random() < 0.8:
        caller["deployment"] = f"shop-{chance.randrange(5)}"
    else:
        caller["session"] = f"session-{chance.randrange(40)}"
    if kind in ("events", "jobs"):
        own = {"contract_id": release.contract_id, "digest": release.digest}
        caller = {**own, "deployment": _deployment(release)}
    return {
        "contract_id": release.contract_id,
        "digest": release.digest,
        "kind": kind,
        "surface": surface,
        "service": _deployment(release),
        "caller": caller,
        "request_id": f"{chance.getrandbits(64):016x}",
    }


def _deployment(release: Release) -> str:
    return f"{release.contract_id.partition('@')[0]}-main"


def _unknown(chance: Random) -> str:
    return base64url.encode(chance.randbytes(32))
