"""The rules of manifest validation: one function each, and the table RULES in reporting order.

Embedded schemas are not compiled here, which would cost more than everything else; only their shape
and their patterns are checked (specification, section 4).
"""

import functools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from accord.contracts import schemas, surfaces
from accord.contracts.manifest.view import (
    ManifestView,
    ShapeFault,
    is_reference,
    read_view,
    schema_references,
)
from accord.contracts.schemas import SCALAR, Path, Tracer
from accord.kernel import canonical
from accord.kernel.canonical import pointer
from accord.kernel.errors import Finding
from accord.kernel.schema import SchemaError, compile_schema


def empty_groups(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """A consumer group selects at least one event."""
    for name, group in view.section("eventConsumers").items():
        if not group.get("self") and not any(group.get("uses", {}).values()):
            yield ("eventConsumers", name), "the group selects no event, in `uses` or in `self`"


def unknown_aliases(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """A consumer group takes dependency events through an alias of `uses`."""
    known = {*view.declared("uses", "required"), *view.declared("uses", "optional")}
    for name, group in view.section("eventConsumers").items():
        for alias in group.get("uses", {}):
            if alias not in known:
                yield ("eventConsumers", name, "uses", alias), f"there is no use {alias!r}"


def unsubscribed_events(view: ManifestView) -> Iterator[tuple[Path, str]]:
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


def unowned_events(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """What a consumer group takes as its own, the contract owns."""
    known = view.declared("events")
    for name, group in view.section("eventConsumers").items():
        for at, event in enumerate(group.get("self", ())):
            if event not in known:
                yield (
                    ("eventConsumers", name, "self", str(at)),
                    f"the contract has no event {event!r}",
                )


def strict_concurrency(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """Strict ordering, the only one there is, allows one handler at a time."""
    for name, group in view.section("eventConsumers").items():
        if group.get("concurrency", 1) != 1:
            yield (
                ("eventConsumers", name, "concurrency"),
                "strict ordering needs a concurrency of 1",
            )


def job_heartbeats(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """A key's heartbeat lives longer than the interval between two."""
    for name, job in view.section("jobs").items():
        keyed = job.get("keyConcurrency", {})
        interval, lifetime = keyed.get("heartbeatIntervalMs"), keyed.get("heartbeatTtlMs")
        if interval is not None and lifetime is not None and lifetime <= interval:
            yield (
                ("jobs", name, "keyConcurrency", "heartbeatTtlMs"),
                "`heartbeatTtlMs` must exceed `heartbeatIntervalMs`",
            )


def job_key_pointers(view: ManifestView) -> Iterator[tuple[Path, str]]:
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


_PATTERN: Final = re.compile(rb'"pattern":("[^"\\]*+(?:\\.[^"\\]*+)*+")')

# Compiling a pattern costs time for its length, for classes of many characters, and for what its
# counted repetitions unroll to. The unit is about 5 microseconds.
_EFFORT: Final = 100_000
_UNICODE: Final = re.compile(r"\\[pP]")
_CLASS: Final = re.compile(r"\\[dDwWsS]")
_REPETITION: Final = re.compile(r"(^|.)\{([0-9]{1,9})(?:,([0-9]{0,9}))?\}", re.DOTALL)
_ATOM_END: Final = re.compile(r"[\w\].-]")
_KNOWN: Final = 4096
_TOO_MUCH: Final = (
    "the patterns of this contract take too long to compile; have fewer, with small repetitions"
)


def is_embedded(view: ManifestView, fault: ShapeFault) -> bool:
    """Whether a fault lies in an embedded schema."""
    path = fault.path
    if path[:1] == ("schemas",):
        return len(path) > 1
    return (
        path[:1] == ("errors",)
        and path[2:3] == ("schema",)
        and not is_reference(view.declared("errors")[path[1]]["schema"])
    )


def standalone_schemas(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """Embedded schemas stand alone."""
    for fault in view.faults:
        if fault.kind == "falseSchema" and is_embedded(view, fault):
            yield fault.path, f"`{fault.path[-1]}` is not allowed here; write the schema out"


def schema_dialect(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """Embedded schemas are schemas of draft 2019-09."""
    for fault in view.faults:
        if fault.kind != "falseSchema" and is_embedded(view, fault):
            if fault.kind == "enum":
                yield fault.path, "there is no such type in JSON Schema"
            else:
                yield fault.path, f"not a schema of draft 2019-09: {fault.message}"


def pattern_cost(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """Patterns run in linear time, and compile in little."""
    if view.usual or _all_usable(view.text):
        return
    effort = 0
    known: dict[str, str | None] = {}
    for path, pattern in _patterns(view):
        if pattern not in known:
            effort += _weight(pattern)
            if effort > _EFFORT:
                yield path, _TOO_MUCH
                return
            known[pattern] = _pattern_refusal(pattern)
        if (refusal := known[pattern]) is not None:
            yield path, refusal


def _all_usable(text: bytes) -> bool:
    """Whether all patterns are fine, by a quick scan that may see more than patterns."""
    if b'"patternProperties":' in text:
        return False
    found = set(_PATTERN.findall(text))
    if len(found) > _EFFORT // _weight(""):
        return False
    seen = set(map(_unquoted, found))
    return sum(map(_weight, seen)) <= _EFFORT and not any(map(_pattern_refusal, seen))


def _unquoted(text: bytes) -> str:
    return str(canonical.decode(text)) if b"\\" in text else text[1:-1].decode()


@functools.lru_cache(_KNOWN)
def _pattern_refusal(pattern: str) -> str | None:
    try:
        compile_schema({"pattern": pattern})
    except SchemaError as error:
        return f"{error.what}; {error.mend}" if error.mend else error.what
    return None


@functools.lru_cache(_KNOWN)
def _weight(pattern: str) -> int:
    unicode, classes = len(_UNICODE.findall(pattern)), len(_CLASS.findall(pattern))
    found = _REPETITION.findall(pattern)
    bounds = [min(max(int(least), int(most or 0), 1), _EFFORT) for _, least, most in found]
    nested = not all(_ATOM_END.fullmatch(before) for before, _, _ in found)
    times = math.prod(bounds[:50]) if nested else sum(bounds)
    return (
        5 + len(pattern) + 200 * unicode + 50 * classes + times * (1 + 20 * unicode + 3 * classes)
    )


def _patterns(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """Every pattern, without lookalikes inside a `const`, for example."""
    pending: list[tuple[Path, Any]] = [
        (("schemas", name), embedded) for name, embedded in view.declared("schemas").items()
    ]
    for name, error in view.section("errors").items():
        if "schema" in error and not is_reference(error["schema"]):
            pending.append((("errors", name, "schema"), error["schema"]))
    pending.reverse()
    while pending:
        path, part = pending.pop()
        if not isinstance(part, dict):
            continue
        if isinstance(part.get("pattern"), str):
            yield (*path, "pattern"), part["pattern"]
        for pattern in _map(part, "patternProperties"):
            yield (*path, "patternProperties", pattern), pattern
        pending.extend(reversed(list(_subschemas(path, part))))


def _subschemas(path: Path, part: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    for keyword, value in part.items():
        if isinstance(value, list):
            if keyword in schemas.SCHEMA_LIST_KEYWORDS or keyword == schemas.SCHEMA_OR_LIST_KEYWORD:
                for at, item in enumerate(value):
                    yield (*path, keyword, str(at)), item
        elif keyword in schemas.SCHEMA_KEYWORDS or keyword == schemas.SCHEMA_OR_LIST_KEYWORD:
            yield (*path, keyword), value
        elif keyword in schemas.SCHEMA_MAP_KEYWORDS:
            for name, item in _map(part, keyword).items():
                yield (*path, keyword, name), item


def _map(part: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = part.get(keyword)
    return value if isinstance(value, dict) else {}


_SENTENCES: Final = {
    ("pattern", "id"): "a contract id is a name and a major version, such as graph@v1",
    ("pattern", "contract"): "a contract id is a name and a major version, such as graph@v1",
    ("pattern", "version"): "a version is `v` and a number, such as v1",
    ("pattern", "key"): "not a JSON Pointer such as /file/name",
    ("pattern", "contentType"): "not a JSON Pointer such as /file/type",
    ("pattern", "metadata"): "not a JSON Pointer such as /file/labels",
    ("additionalProperties", "uses"): "aliases are declared under `required` or `optional`",
    ("enum", "kind"): "unknown; a contract is of kind service, app, agent or device, a state store"
    " of kind value or map",
}


def plain_json(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """The manifest is a value that every reader reads alike (section 12)."""
    if view.refusal is not None:
        yield view.refusal


def unsupported(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """Members of other versions that would be dangerous to ignore are refused (section 9)."""
    if "subjects" in view.submitted:
        yield ("subjects",), "raw subjects are not supported; declare RPCs, operations or events"
    for kind in ("jobs", "stream"):
        if kind in view.declared("resources"):
            yield ("resources", kind), f"`resources.{kind}` is not supported"
    for group in ("required", "optional"):
        for alias in view.declared("uses", group):
            if "subjects" in view.declared("uses", group, alias):
                yield ("uses", group, alias, "subjects"), "raw subjects cannot be used"


def right_shape(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """The manifest has the shape of `trellis.contract.v1`."""
    for fault in view.faults:
        if not is_embedded(view, fault):
            sentence = _SENTENCES.get((fault.kind, fault.path[-1] if fault.path else ""))
            yield fault.path, sentence or fault.message


def existing_schemas(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """Schemas that are referred to exist."""
    known = view.declared("schemas")
    for at, name in enumerate(view.section("exports").get("schemas", ())):
        if name not in known:
            yield ("exports", "schemas", str(at)), _no_schema(name)
    for path, name in schema_references(view.manifest):
        if name not in known:
            yield (*path, "schema"), _no_schema(name)
    for key, error in view.section("errors").items():
        referred = error.get("schema")
        if is_reference(referred) and referred["schema"] not in known:
            yield ("errors", key, "schema", "schema"), _no_schema(referred["schema"])


def _no_schema(name: str) -> str:
    return f"there is no schema {name!r} in `schemas`"


def params_order(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """An event's `params` list the pointers of its subject template, in order."""
    for name, event in view.section("events").items():
        if "subject" in event:
            pointers = surfaces.template_pointers(event["subject"])
            if event.get("params", []) != pointers:
                yield (
                    ("events", name, "params"),
                    f"`params` must list the pointers of the subject in order: {pointers}",
                )


def template_targets(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """A template's pointers lead to a string or number in every payload (section 8)."""
    tracer = Tracer()
    schemas = view.section("schemas")
    for name, event in view.section("events").items():
        if "{" in event.get("subject", ""):
            referred = event.get("event", {}).get("schema")
            for pointer in surfaces.template_pointers(event["subject"]):
                if referred in schemas:
                    fault = tracer.fault(schemas[referred], pointer, SCALAR)
                    if fault is not None:
                        yield ("events", name, "subject"), f"the pointer {pointer!r} {fault}"


def subject_syntax(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """Subjects are concrete."""
    for section in ("rpc", "operations", "events", "feeds"):
        templates = section == "events"
        for name, surface in view.section(section).items():
            subject = surface.get("subject")
            if subject is None:
                continue
            if not surfaces.is_subject(subject, templates=templates):
                yield (
                    (section, name, "subject"),
                    "a subject is tokens joined by `.`, without wildcards, spaces or empty tokens"
                    + ("; a template token is a whole token, such as {/id}" if templates else ""),
                )


def subject_reserved(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """Subjects lie outside the spaces that the server and the protocol keep for themselves."""
    for section in ("rpc", "operations", "events", "feeds"):
        for name, surface in view.section(section).items():
            space = surfaces.reserved_space(surface.get("subject", ""))
            if space is not None:
                yield (section, name, "subject"), f"subjects in {space} are not for contracts"


def event_space(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """Subjects of events lie under `events.`: the stream of events takes only those."""
    for name, event in view.section("events").items():
        subject = event.get("subject")
        if (
            subject is not None
            and not subject.startswith(surfaces.EVENTS)
            and surfaces.reserved_space(subject) is None
        ):
            message = f"only events under `{surfaces.EVENTS}` are stored and delivered"
            yield ("events", name, "subject"), f"{message}, such as events.v1.{name}"


def duplicate_subjects(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """No two surfaces of a contract have the same effective subject (section 15)."""
    owners: dict[str, surfaces.EffectiveSubject] = {}
    for owned in surfaces.effective_subjects(_with_subjects(view)):
        first = owners.setdefault(owned.subject, owned)
        if first is not owned:
            yield (
                (_SECTION[owned.kind], owned.name, "subject"),
                f"{owned.subject!r}, of this {owned.kind}, is the {first.kind} {first.name!r}",
            )


def _with_subjects(view: ManifestView) -> dict[str, Any]:
    if not view.faults:
        return view.manifest
    return {
        section: {name: item for name, item in view.section(section).items() if "subject" in item}
        for section in _SECTION.values()
    }


_SECTION: Final = {
    "rpc": "rpc",
    "operation": "operations",
    "control": "operations",
    "event": "events",
    "feed": "feeds",
}


def capability_namespaces(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """A contract declares capabilities of its own namespace (section 6.3)."""
    identity = view.manifest.get("id")
    if identity is None:
        return
    prefix = f"{identity.rpartition('@')[0]}::"
    for key in view.section("capabilities"):
        if not key.startswith(prefix) or key == prefix:
            yield ("capabilities", key), f"the capabilities of {identity} are named {prefix}..."


def transfer_stores(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """What a transfer sends goes to a store that the contract requests."""
    known = view.declared("resources", "store")
    for path, transfer, _ in _transfers(view):
        if "store" in transfer and transfer["store"] not in known:
            yield (*path, "store"), f"there is no store {transfer['store']!r} in `resources.store`"


def transfer_pointers(view: ManifestView) -> Iterator[tuple[Path, str]]:
    """A transfer's pointers lead to what they need in the operation's input."""
    tracer = Tracer()
    for path, transfer, schema in _transfers(view):
        for member, wanted in _TRANSFER_POINTERS.items():
            if member in transfer and schema is not None:
                fault = tracer.fault(schema, transfer[member], wanted)
                if fault is not None:
                    yield (*path, member), f"the pointer {transfer[member]!r} {fault}"


_TRANSFER_POINTERS: Final = {
    "key": frozenset({"string"}),
    "contentType": frozenset({"string"}),
    "metadata": frozenset({"object"}),
}


def _transfers(view: ManifestView) -> Iterator[tuple[Path, dict[str, Any], Any]]:
    schemas = view.section("schemas")
    for name, operation in view.section("operations").items():
        if "transfer" in operation:
            schema = schemas.get(operation.get("input", {}).get("schema"))
            yield ("operations", name, "transfer"), operation["transfer"], schema


Check = Callable[[ManifestView], Iterator[tuple[Path, str]]]


@dataclass(frozen=True, slots=True)
class ManifestRule:
    """A requirement on every manifest."""

    id: str  # stable; named by findings
    category: str
    purpose: str  # one sentence for people
    check: Check  # yields place and sentence of each finding
    section: str | None  # skip the rule if the manifest lacks this section


def _rule(identity: str, check: Check, section: str | None = None) -> ManifestRule:
    purpose = (check.__doc__ or "").strip()
    return ManifestRule(identity, identity.partition(".")[0], purpose, check, section)


RULES: Final = (
    _rule("manifest.plain-json", plain_json),
    _rule("manifest.unsupported-member", unsupported),
    _rule("manifest.shape", right_shape),
    _rule("consumer.empty", empty_groups, "eventConsumers"),
    _rule("consumer.unknown-use", unknown_aliases, "eventConsumers"),
    _rule("consumer.not-subscribed", unsubscribed_events, "eventConsumers"),
    _rule("consumer.not-owned", unowned_events, "eventConsumers"),
    _rule("consumer.strict-concurrency", strict_concurrency, "eventConsumers"),
    _rule("schema.reference", standalone_schemas),
    _rule("schema.dialect", schema_dialect),
    _rule("schema.pattern", pattern_cost),
    _rule("reference.unknown-schema", existing_schemas),
    _rule("event.params-order", params_order, "events"),
    _rule("event.template-pointer", template_targets, "events"),
    _rule("subject.syntax", subject_syntax),
    _rule("subject.reserved", subject_reserved),
    _rule("subject.events", event_space, "events"),
    _rule("subject.duplicate", duplicate_subjects),
    _rule("capability.namespace", capability_namespaces, "capabilities"),
    _rule("transfer.unknown-store", transfer_stores, "operations"),
    _rule("transfer.pointer", transfer_pointers, "operations"),
    _rule("job.heartbeat", job_heartbeats, "jobs"),
    _rule("job.key-pointer", job_key_pointers, "jobs"),
)
"""Every rule."""


def validate(manifest: Any) -> list[Finding]:
    """Everything that is wrong with a manifest, in rule order; empty if it is valid."""
    seen = read_view(manifest)
    return [
        Finding(rule.id, pointer(*path), message)
        for rule in RULES
        if rule.section is None or rule.section in seen.manifest
        for path, message in rule.check(seen)
    ]
