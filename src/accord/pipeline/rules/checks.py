"""Checks of landed records, each with the rule that a record breaks, and shapes of payloads.

`check` judges one record by the schema of its stream, its signatures and its contract;
`batch_checker` does so over the Arrow batches of Spark's workers. Each process compiles a schema
once. A shape is the structure of a payload without its values.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from blake3 import blake3

from accord import __version__
from accord.community.errors import CommunityError
from accord.community.rules.event import MAX_EVENT_BYTES, Event, read_signed_event, verify_event
from accord.contracts import ContractError, digest
from accord.contracts.manifest import schema_references
from accord.kernel import canonical
from accord.kernel.errors import AccordError
from accord.kernel.schema import Schema, SchemaError, compile_schema
from accord.pipeline.errors import PipelineError
from accord.pipeline.rules import redaction, streams
from accord.pipeline.rules.redaction import body_schema
from accord.pipeline.rules.streams import CONTRACTS_HISTORY

if TYPE_CHECKING:
    Batches = Iterator[Any]

RULES: Final = {
    "stream.unknown": "the record belongs to a stream that the pipeline has",
    "body.missing": "a record has a body",
    "body.size": "a body is not longer than its stream allows",
    "json.syntax": "a body is JSON that no two readers understand differently",
    "schema": "a body keeps the schema of its stream",
    "event.form": "an event has the form of the envelope, and its data that of its type",
    "event.redacted": "an event that landed without its text says what was left out, and why",
    "signature": "every signature of an event holds",
    "contract.manifest": "a manifest is valid, and of the contract that is named",
    "contract.digest": "a manifest has the digest under which it was presented",
    "contract.unknown": "a call names a contract that was presented",
    "contract.surface": "a call names a surface and a part that its contract has",
    "contract.payload": "a payload keeps the schema of its surface",
}
"""What each rule requires, by its stable id."""


@lru_cache(maxsize=1)
def rules_version() -> str:
    """The version of the rules: that of Accord, and a digest of the rules and the bodies' schemas.

    Where it differs between two verdicts, `accord pipeline refresh checked` judges anew.
    """
    # The schemas of community events are the fold's.
    described = [each for each in streams.STREAMS if each != streams.COMMUNITY_EVENTS]
    told = [RULES, [redaction.body_schema_document(each) for each in described]]
    return f"{__version__}+{blake3(canonical.encode(told)).hexdigest()[:8]}"


_LONGEST: Final = 500


class EventHead(NamedTuple):
    """The envelope of an event: the column `event`."""

    community_id: str
    lamport: int
    event_id: str
    author: str
    author_seq: int | None
    prev: str | None
    event_type: str

    @classmethod
    def of(cls, event: Event) -> "EventHead":
        """The head of an event."""
        return cls(
            event.community_id,
            event.lamport,
            event.event_id,
            event.author,
            event.author_seq,
            event.prev,
            event.event_type,
        )


class RecordVerdict(NamedTuple):
    """The verdict on a record."""

    digest: str  # hexadecimal: of an event's signed bytes, elsewhere of stream, id and body
    rule: str | None = None  # the broken rule; None if the record is valid
    reason: str | None = None
    event: EventHead | None = None  # the envelope, for an event that could be read


class RefusedError(AccordError):
    """A record breaks a rule; `check` turns it into a verdict."""

    def __init__(self, rule: str, reason: object, event: Event | None = None) -> None:
        super().__init__(str(reason)[:_LONGEST])
        self.rule = rule
        self.event = event


def decode_body(raw: bytes, most: int) -> Any:
    """Decode a body; raise `RefusedError` if it is too long or not strict JSON."""
    if len(raw) > most:
        raise RefusedError(
            "body.size", f"a body of {len(raw)} bytes where at most {most} are allowed"
        )
    try:
        return canonical.decode(raw, max_bytes=most)
    except canonical.CanonicalError as error:
        raise RefusedError("json.syntax", error) from None


def check_body(stream: str, raw: bytes) -> Any:
    """Decode a body and validate it by its stream's schema; raise `RefusedError` if it fails."""
    value = decode_body(raw, canonical.MAX_BYTES)
    schema = body_schema(stream)
    if not schema.is_valid(value):
        raise RefusedError("schema", schema.findings(value)[0])
    return value


def check_event(raw: bytes) -> Event:
    """Read an event and verify its signatures; a `RefusedError` carries the event if readable."""
    value = decode_body(raw, MAX_EVENT_BYTES)
    # A redacted event lacks its text, so its signature cannot be verified.
    if isinstance(value, dict) and "redacted" in value:
        return _redacted(raw)
    try:
        event, signed = read_signed_event(value)
    except CommunityError as error:
        raise RefusedError("event.form", error) from None
    try:
        verify_event(event, signed)
    except CommunityError as error:
        raise RefusedError("signature", error, event) from None
    return event


def _redacted(raw: bytes) -> Event:
    try:
        event = redaction.restore_event(raw.decode())
    except PipelineError as error:
        raise RefusedError("event.redacted", error) from None
    if event is None:
        raise RefusedError("event.form", "an event has no member `redacted`")
    return event


PayloadPath = tuple[str, ...]
"""The path of a payload in a manifest, such as `("rpc", "Account.Get", "input")`."""

_SIGNAL: Final = "signal:"


class Manifests:
    """The presented manifests by digest, as canonical JSON, which is cheap to pickle."""

    __slots__ = ("_texts",)

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        self._texts = dict(texts)

    def __len__(self) -> int:
        return len(self._texts)

    def payloads(self, name: str) -> "tuple[str, dict[PayloadPath, Schema]] | None":
        """The id of a contract and the schemas of its payloads; None if it is unknown."""
        text = self._texts.get(name)
        return None if text is None else _payloads(text)


def payload_path(kind: str, surface: str, part: str) -> PayloadPath:
    """The path of a recorded payload's schema in a manifest."""
    if part.startswith(_SIGNAL):
        return (kind, surface, "signals", part.removeprefix(_SIGNAL), "input")
    return (kind, surface, part)


def check_history(value: Mapping[str, Any], _manifests: Manifests) -> None:
    """Raise `RefusedError` unless a manifest is valid and has the record's contract and digest."""
    manifest = value["manifest"]
    if manifest is None:
        return
    try:
        found = _manifest_digest(canonical.encode(manifest))
    except (canonical.CanonicalError, ContractError) as error:
        raise RefusedError("contract.manifest", error) from None
    if found != value["digest"]:
        raise RefusedError("contract.digest", f"the manifest's own digest is {found}")
    if manifest["id"] != value["contract_id"]:
        raise RefusedError("contract.manifest", f"the manifest is that of {manifest['id']}")


def check_call(value: Mapping[str, Any], manifests: Manifests) -> None:
    """Raise `RefusedError` unless a call names a known surface and its payload fits the schema."""
    known = manifests.payloads(value["digest"])
    if known is None:
        raise RefusedError("contract.unknown", f"nobody presented the contract {value['digest']}")
    contract_id, schemas = known
    if contract_id != value["contract_id"]:
        raise RefusedError(
            "contract.unknown",
            f"the contract {value['digest']} is that of {contract_id}",
        )
    where = f"{value['kind']} {value['surface'][:80]} {value['part'][:80]}"
    schema = schemas.get(payload_path(value["kind"], value["surface"], value["part"]))
    if schema is None:
        raise RefusedError("contract.surface", f"{contract_id} has no {where}")
    # A payload that policy kept out cannot be checked.
    if "payload" in value and not schema.is_valid(value["payload"]):
        first = schema.findings(value["payload"])[0]
        raise RefusedError("contract.payload", f"the payload of {where} breaks its schema: {first}")


@lru_cache(maxsize=1024)
def _manifest_digest(text: bytes) -> str:
    return digest(canonical.decode(text))


@lru_cache(maxsize=1024)
def _payloads(text: bytes) -> tuple[str, dict[PayloadPath, Schema]]:
    manifest = canonical.decode(text)
    declared = manifest.get("schemas", {})
    schemas: dict[PayloadPath, Schema] = {}
    for place, name in schema_references(manifest):
        try:
            schemas[place] = compile_schema(declared[name])
        except (KeyError, SchemaError):
            # A valid manifest has all its schemas; only such are given to `Manifests`.
            continue
    for name, job in manifest.get("jobs", {}).items():
        if "result" not in job:  # its end is recorded all the same, with any payload
            schemas["jobs", name, "result"] = compile_schema(True)
    return manifest["id"], schemas


NO_MANIFESTS: Final = Manifests({})

_STREAM_CHECKS: Final[dict[str, Callable[[Any, Manifests], None]]] = {
    streams.CONTRACTS_HISTORY: check_history,
    streams.CONTRACTS_CALLS: check_call,
}
"""Checks of a stream beyond its schema."""


def check(
    stream: str, record_id: str, body: bytes | str | None, manifests: Manifests = NO_MANIFESTS
) -> RecordVerdict:
    """The verdict on one record; a body in bytes is UTF-8."""
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    rule = reason = None
    try:
        event = _check(stream, raw, manifests)
    except RefusedError as refused:
        rule, reason, event = refused.rule, refused.what, refused.event
    if event is None:
        return RecordVerdict(_record_digest(stream, record_id, raw or b""), rule, reason)
    return RecordVerdict(event.digest.hex(), rule, reason, EventHead.of(event))


def _check(stream: str, raw: bytes | None, manifests: Manifests) -> Event | None:
    if raw is None:
        raise RefusedError("body.missing", "the record has no body")
    if stream == streams.COMMUNITY_EVENTS:
        return check_event(raw)
    if stream not in streams.STREAMS:
        raise RefusedError("stream.unknown", f"there is no stream {stream[:80]!r}")
    value = check_body(stream, raw)
    if law := _STREAM_CHECKS.get(stream):
        law(value, manifests)
    return None


def _record_digest(stream: str, record_id: str, raw: bytes) -> str:
    name = f"{stream}\0{record_id}\0".encode("utf-8", "surrogatepass")
    return blake3(name + raw).hexdigest()


def batch_checker(manifests: Manifests) -> "Callable[[Batches], Batches]":
    """The function that checks batches of bronze, for `mapInArrow`."""

    def run(batches: "Batches") -> "Batches":
        for batch in batches:
            yield check_batch(batch, manifests)

    return run


def check_batch(batch: Any, manifests: Manifests) -> Any:
    """A batch of bronze with the columns of the verdicts added."""
    import pyarrow as pa

    streams, ids, bodies = (_bytes(batch, name) for name in ("stream", "id", "body"))
    verdicts = [
        check(_text(stream), _text(record_id), body, manifests)
        for stream, record_id, body in zip(streams, ids, bodies, strict=True)
    ]
    heads = [verdict.event for verdict in verdicts]
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["digest"] = pa.array([verdict.digest for verdict in verdicts], pa.string())
    columns["event"] = _structs(heads)
    columns["rule"] = pa.array([verdict.rule for verdict in verdicts], pa.string())
    columns["reason"] = pa.array([verdict.reason for verdict in verdicts], pa.string())
    columns["rules_version"] = pa.array([rules_version()] * len(verdicts), pa.string())
    return pa.RecordBatch.from_pydict(columns)


def read_manifests(batch: Any) -> Any:
    """The valid manifests in a batch of contract histories: digest and canonical JSON."""
    import pyarrow as pa

    found: dict[str, bytes] = {}
    for body in _bytes(batch, "body"):
        if check(CONTRACTS_HISTORY, "", body).rule is None:
            step = canonical.decode(body or b"")
            if step["manifest"] is not None:
                found[step["digest"]] = canonical.encode(step["manifest"])
    return pa.RecordBatch.from_pydict(
        {
            "digest": pa.array(list(found), pa.string()),
            "manifest": pa.array(list(found.values()), pa.binary()),
        }
    )


def _bytes(batch: Any, name: str) -> list[bytes | None]:
    import pyarrow as pa

    found: list[bytes | None] = batch.column(name).cast(pa.binary()).to_pylist()
    return found


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _structs(heads: list[EventHead | None]) -> Any:
    import pyarrow as pa

    kinds = {"lamport": pa.int64(), "author_seq": pa.int64()}
    nothing = (None,) * len(EventHead._fields)
    by_column = list(zip(*(head or nothing for head in heads), strict=True))
    arrays = [
        pa.array(by_column[at] if heads else (), kinds.get(name, pa.string()))
        for at, name in enumerate(EventHead._fields)
    ]
    absent = pa.array([head is None for head in heads], pa.bool_())
    return pa.StructArray.from_arrays(arrays, names=list(EventHead._fields), mask=absent)


MOST_SHAPES: Final = 16
"""The most distinct shapes of an array's elements, or of members that no schema names."""

OTHER: Final = "*"
MORE: Final = "..."

_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}


def shape(value: Any, names: Collection[str]) -> Any:
    """The shape of a JSON value; member names that are not in `names` are replaced."""
    if isinstance(value, dict):
        members = {name: shape(each, names) for name, each in value.items() if name in names}
        others = [shape(each, names) for name, each in value.items() if name not in names]
        return {**members, OTHER: _distinct(others)} if others else members
    if isinstance(value, list):
        return _distinct([shape(each, names) for each in value])
    return "null" if value is None else _TYPES[type(value)]


def declared_names(schema: Any) -> frozenset[str]:
    """Every member name that a schema declares, at any depth."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            properties = part.get("properties")
            if isinstance(properties, dict):
                found.update(properties)
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return frozenset(found)


def read_shape(row: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """A row with the shape of a recorded call's payload."""
    call = canonical.decode(row["body"])
    if "payload" not in call:
        return
    place = (call["kind"], call["surface"], call["part"])
    names = _names(row["manifest"]).get(payload_path(*place), frozenset())
    written = canonical.encode(shape(call["payload"], names)).decode()
    yield call["contract_id"], call["digest"], *place, written, row["recorded_at"]


@lru_cache(maxsize=256)
def _names(manifest: str) -> dict[tuple[str, ...], frozenset[str]]:
    from accord.contracts.manifest import schema_references

    contract = canonical.decode(manifest)
    schemas = {name: declared_names(each) for name, each in contract.get("schemas", {}).items()}
    return {place: schemas[name] for place, name in schema_references(contract) if name in schemas}


def _distinct(shapes: list[Any]) -> list[Any]:
    """Distinct shapes in the order of their canonical text, up to a limit."""
    known = {canonical.encode(each): each for each in shapes}
    some = [known[text] for text in sorted(known)]
    return some if len(some) <= MOST_SHAPES else [*some[:MOST_SHAPES], MORE]
