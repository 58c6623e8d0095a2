"""Generated contracts: a few lineages with several digests, their history and their payloads.

Payloads match the schemas of their digest, except planted faults.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Final

from accord.contracts import compare, digest
from accord.contracts.authoring import Contract
from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.kernel.identifiers import UlidSource
from accord.pipeline.errors import PipelineError
from accord.pipeline.generate.records import FaultPlan, HistoryClock, RecordDraft

JsonSchema = Mapping[str, Any]

_WORDS: Final = ("alder", "birch", "cedar", "elm", "hazel", "linden", "maple", "oak", "rowan")


@dataclass(frozen=True, slots=True)
class Release:
    """One contract of a lineage."""

    manifest: Mapping[str, Any]
    digest: str
    classification: str | None  # the compatibility with the previous release; None for the first
    previous: str | None  # the digest of the previous release

    @property
    def contract_id(self) -> str:
        """The lineage."""
        return str(self.manifest["id"])

    def schema(self, kind: str, surface: str, part: str) -> JsonSchema:
        """The schema of a payload."""
        declared = self.manifest[kind][surface]
        entry = declared[part] if part in declared else declared["signals"][part[7:]]["input"]
        schema: JsonSchema = self.manifest["schemas"][entry["schema"]]
        return schema


@cache
def lineages() -> tuple[tuple[Release, ...], ...]:
    """Every lineage with its releases in order."""
    return tuple(
        _releases([write(step) for step in range(3)])
        for write in (_graph, _orders, _weather, _shop)
    )


def payload(schema: JsonSchema, chance: Random) -> Any:
    """A value that matches a schema of the few forms that these contracts use."""
    if "enum" in schema:
        return chance.choice(schema["enum"])
    kind = schema["type"]
    if kind == "object":
        required = schema.get("required", ())
        return {
            name: payload(member, chance)
            for name, member in schema["properties"].items()
            if name in required or chance.random() < 0.5
        }
    if kind == "array":
        return [payload(schema["items"], chance) for _ in range(chance.randrange(1, 4))]
    if kind == "integer":
        return chance.randrange(schema["minimum"], schema["maximum"] + 1)
    if kind == "boolean":
        return chance.random() < 0.5
    if kind == "string":
        return " ".join(chance.choices(_WORDS, k=chance.randrange(1, 4)))
    raise PipelineError(f"no payload is made for schemas of type {kind!r}")


def broken_payload(schema: JsonSchema, chance: Random) -> Any:
    """A value that breaks an object schema: a member is missing or of another type."""
    value = payload(schema, chance)
    name = chance.choice(schema["required"])
    turn = chance.randrange(3)
    if turn == 0:
        return {key: member for key, member in value.items() if key != name}
    if turn == 1:
        return {**value, name: [["unexpected"]]}
    return None


def _releases(manifests: list[dict[str, Any]]) -> tuple[Release, ...]:
    releases: list[Release] = []
    for manifest in manifests:
        before = releases[-1] if releases else None
        releases.append(
            Release(
                manifest,
                digest(manifest),
                compare(before.manifest, manifest).classification if before else None,
                before.digest if before else None,
            )
        )
    return tuple(releases)


def _object(required: dict[str, JsonSchema], **optional: JsonSchema) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **optional}, "required": sorted(required)}


_TEXT: Final[JsonSchema] = {"type": "string"}
_NUMBER: Final[JsonSchema] = {"type": "integer", "minimum": 0, "maximum": 1_000_000}
_FLAG: Final[JsonSchema] = {"type": "boolean"}


def _graph(step: int) -> dict[str, Any]:
    """Adds an optional member, then requires more."""
    contract = Contract("graph@v1", display_name="Graph", description="Who knows whom.")
    user = {"id": _TEXT, "name": _TEXT, "age": {**_NUMBER, "maximum": 120}}
    more: dict[str, JsonSchema] = {"nickname": _TEXT} if step else {}
    asked = {"id": _TEXT, "purpose": _TEXT} if step == 2 else {"id": _TEXT}
    contract.schema("FindUser", _object(asked))
    contract.schema("User", _object(user, **more))
    contract.schema("Friends", _object({"users": {"type": "array", "items": _TEXT}}))
    contract.rpc("User.Find", "FindUser", "User")
    contract.rpc("User.Friends", "FindUser", "Friends")
    contract.event("User.Changed", "User")
    return contract.manifest()


def _orders(step: int) -> dict[str, Any]:
    """Adds a feed, then another state of an order."""
    contract = Contract("orders@v1", display_name="Orders", description="What is bought.")
    states = ["placed", "packed", "sent", *(["returned"] if step == 2 else [])]
    line = _object({"article": _TEXT, "pieces": {**_NUMBER, "minimum": 1, "maximum": 99}})
    contract.schema("Order", _object({"lines": {"type": "array", "items": line}}, gift=_FLAG))
    contract.schema("Progress", _object({"state": {"enum": states}}, note=_TEXT))
    contract.schema("Receipt", _object({"number": _NUMBER, "cents": _NUMBER}))
    contract.schema("Hurry", _object({"reason": _TEXT}))
    signals = {"hurry": "Hurry"}
    contract.operation("Order.Place", "Order", "Receipt", progress="Progress", signals=signals)
    contract.job("pack", "Order", "Receipt")
    if step:
        contract.schema("Watch", _object({"number": _NUMBER}))
        contract.feed("Order.Watch", "Watch", "Progress")
    return contract.manifest()


def _weather(step: int) -> dict[str, Any]:
    """Removes a member."""
    contract = Contract("weather@v1", display_name="Weather", description="What is outside.")
    report = {"place": _TEXT, "degrees": {**_NUMBER, "maximum": 45}}
    more: dict[str, JsonSchema] = {"wind": _NUMBER} if step < 2 else {}
    contract.schema("Report", _object({**report, **more} if step == 0 else report, **more))
    contract.schema("Place", _object({"place": _TEXT}, days={**_NUMBER, "maximum": 14}))
    contract.event("Report.Made", "Report")
    contract.rpc("Report.Get", "Place", "Report")
    return contract.manifest()


def _shop(step: int) -> dict[str, Any]:
    """An app that uses more of the others with each release."""
    contract = Contract("shop@v1", display_name="Shop", description="Sells things.", kind="app")
    contract.uses("graph", "graph@v1", rpc=["User.Find", "User.Friends"][: 1 + step])
    contract.uses("orders", "orders@v1", operations=["Order.Place"])
    if step == 2:
        contract.uses("weather", "weather@v1", subscribe=["Report.Made"], optional=True)
    return contract.manifest()


_ERRORS: Final = ("NotFound", "Unavailable", "Conflict")
_DAY: Final = 86_400.0

_Part = tuple[str, bool]


class RecordWriter:
    """Assigns ids and times to the records of one stream."""

    def __init__(self, chance: Random) -> None:
        self.clock = HistoryClock()
        self.chance = chance
        self._ids = UlidSource(self.clock, lambda: chance.getrandbits(80))

    def draft(self, body: dict[str, Any], kind: str | None = None) -> RecordDraft:
        """A record at the present time."""
        body = {"at": format_time(self.clock.time, millis=True), **body}
        at = int(self.clock.time * 1000)
        return RecordDraft(self._ids.new(), at, canonical.encode(body).decode(), kind)


def contract_history(plan: FaultPlan, chance: Random) -> list[RecordDraft]:
    """Every release presented, accepted and offered, and the previous one withdrawn."""
    record = RecordWriter(chance)
    drafts: list[RecordDraft] = []
    for lineage in lineages():
        record.clock.time += _DAY
        for release in lineage:
            drafts += _presented(record, release)
    for kind in ("contract.digest", "contract.manifest"):
        for _ in range(plan.get(kind, 0)):
            release = chance.choice(chance.choice(lineages()))
            drafts.append(record.draft(_mispresented(release, kind, chance), kind))
    return drafts


def _presented(record: RecordWriter, release: Release) -> Iterator[RecordDraft]:
    steps = ["presented", "accepted", "offered"]
    if record.chance.random() < 0.3:
        steps[1:1] = ["rejected", "presented"]
    for step in steps:
        record.clock.time += record.chance.uniform(60, _DAY / 4)
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


def contract_calls(count: int, plan: FaultPlan, chance: Random) -> Iterator[RecordDraft]:
    """At least `count` valid payloads, and the planted faults."""
    record = RecordWriter(chance)
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


def _exchange(record: RecordWriter) -> Iterator[RecordDraft]:
    """The records of one call with its answer, one event or one job."""
    chance = record.chance
    record.clock.time += chance.expovariate(1 / 10)
    release, kind, surface = _surface(chance)
    common = _common_members(record, release, kind, surface)
    failed = chance.random() < 0.04
    for part, is_last in _parts(kind, chance):
        body: dict[str, Any] = {**common, "part": part, "outcome": "ok", "error": None, "ms": None}
        if is_last:
            body["ms"] = int(chance.lognormvariate(3, 1))
            record.clock.time += body["ms"] / 1000
        if is_last and failed:
            yield record.draft({**body, "outcome": "error", "error": chance.choice(_ERRORS)})
        elif chance.random() < 0.02:
            yield record.draft(body)  # policy keeps the payload out
        else:
            value = payload(release.schema(kind, surface, part), chance)
            yield record.draft({**body, "payload": value})


def _wrong(record: RecordWriter, fault: str) -> RecordDraft:
    release, kind, surface = _surface(record.chance)
    common = _common_members(record, release, kind, surface)
    part = _parts(kind, record.chance)[0][0]
    schema = release.schema(kind, surface, part)
    body = {**common, "part": part, "outcome": "ok", "error": None, "ms": None}
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
    """The payloads of one exchange in order, and whether each is the answer."""
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


def _common_members(
    record: RecordWriter, release: Release, kind: str, surface: str
) -> dict[str, Any]:
    """The members that all records of one exchange share."""
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
    return canonical.encode_base64url(chance.randbytes(32))
