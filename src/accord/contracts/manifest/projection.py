"""Normal form and digest projection of a manifest (specification, sections 6.1 and 12).

One table of members serves both: normalising keeps `docs` and lists as they are, projecting drops
`docs` and sorts set-like lists. Both require a well-formed manifest and share unchanged parts.
The digest covers the projection.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from accord.contracts.errors import ContractError
from accord.contracts.manifest.rules import validate
from accord.contracts.manifest.view import is_reference, read_view, schema_references
from accord.kernel import canonical
from accord.kernel.canonical import sha256

Copy = Callable[[Any], Any]


def same(value: Any) -> Any:
    """Return a value unchanged."""
    return value


def members(copies: dict[str, Copy]) -> Copy:
    """Copies the named members of an object, each by its own function."""

    def copy(value: dict[str, Any]) -> dict[str, Any]:
        kept = {}
        for name, item in value.items():
            part = copies.get(name)
            if part is not None:
                kept[name] = item if part is same else part(item)
        return kept

    return copy


def each(part: Copy) -> Copy:
    """Copies every value of a map."""

    def copy(value: dict[str, Any]) -> dict[str, Any]:
        return {name: part(item) for name, item in value.items()}

    return copy


def in_order(names: list[str]) -> list[str]:
    """Unique names, sorted by UTF-16 units."""
    if len(names) < 2:
        return names
    ordered = sorted(set(names))
    if not "".join(ordered).isascii():
        ordered.sort(key=lambda name: name.encode("utf-16-be"))
    return ordered


def sections(*, docs: bool) -> dict[str, Copy]:
    """The copy function of each section, to normalise (with docs) or to project (without)."""
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
        input=_copy_reference,
        output=_copy_reference,
        capabilities=lists("call"),
        errors=error_types,
        transfer=plain("direction"),
    )
    operation = described(
        "version",
        "subject",
        "cancel",
        input=_copy_reference,
        progress=_copy_reference,
        output=_copy_reference,
        capabilities=lists("call", "observe", "cancel", "control"),
        errors=error_types,
        signals=each(described(input=_copy_reference)),
        transfer=plain(
            "direction", "store", "key", "contentType", "metadata", "expiresInMs", "maxBytes"
        ),
    )
    event = described(
        "version",
        "subject",
        "params",
        event=_copy_reference,
        capabilities=lists("publish", "subscribe"),
    )
    feed = described(
        "version",
        "subject",
        input=_copy_reference,
        event=_copy_reference,
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
        payload=_copy_reference,
        result=_copy_reference,
        keyConcurrency=plain(
            "key", "maxActive", "heartbeatIntervalMs", "heartbeatTtlMs", "stalePolicy"
        ),
        queue=plain("maxQueuedPerKey", "whenFull"),
    )
    state = described(
        "kind", "stateVersion", schema=_copy_reference, acceptedVersions=each(_copy_reference)
    )
    kv = described(
        "purpose", "required", "history", "ttlMs", "maxValueBytes", schema=_copy_reference
    )
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
        "errors": each(plain("type", schema=_copy_error_schema)),
    }


BACKOFF_MS: Final = (5000, 30000, 120000, 600000, 1800000)
"""Pauses between deliveries of a job or an event, if the contract names none."""

# What a runtime assumes where a contract says nothing; the digest does not cover it.
KV_DEFAULTS: Final = {"required": True, "history": 1, "ttlMs": 0}
STORE_DEFAULTS: Final = {"required": True, "ttlMs": 0}
JOB_DEFAULTS: Final = {
    "maxDeliver": 5,
    "backoffMs": list(BACKOFF_MS),
    "ackWaitMs": 300_000,
    "progress": True,
    "logs": True,
    "dlq": True,
    "concurrency": 1,
}

# The only defaults that normalisation fills in (specification, section 8a).
_CONSUMER_DEFAULTS: dict[str, Any] = {"replay": "new", "ordering": "strict", "concurrency": 1}


def _copy_reference(value: dict[str, Any]) -> dict[str, Any]:
    return value if len(value) == 1 else {"schema": value["schema"]}


def _copy_error_schema(value: Any) -> Any:
    return _copy_reference(value) if is_reference(value) else value


def _without_empty_capabilities(rpc: dict[str, Any]) -> dict[str, Any]:
    if "capabilities" in rpc and not rpc["capabilities"]:
        return {name: part for name, part in rpc.items() if name != "capabilities"}
    return rpc


normalized: Final[Copy] = members(sections(docs=True))
"""The manifest with its unknown members dropped, and the defaults of consumers filled in."""

_project_members: Final[Copy] = members(sections(docs=False))


def projected(manifest: dict[str, Any]) -> dict[str, Any]:
    """The parts that affect identity, authority, resources, dependencies or wire format."""
    projection: dict[str, Any] = dict(_project_members(manifest))
    errors = _declared_errors(projection)
    schemas = projection.get("schemas", {})
    reachable = {name: schemas[name] for name in _reachable(projection, errors) if name in schemas}
    for section, value in (
        ("schemas", reachable),
        ("errors", errors),
        ("uses", _projected_uses(projection.get("uses", {}))),
        ("resources", projection.get("resources")),
    ):
        if value:
            projection[section] = value
        else:
            projection.pop(section, None)
    return projection


def _projected_uses(uses: dict[str, Any]) -> dict[str, Any]:
    """Drop selectors without lists, and optional aliases that are also required."""
    required = uses.get("required", {})
    groups = {
        group: {
            alias: {name: part for name, part in use.items() if part}
            for alias, use in aliases.items()
            if group == "required" or alias not in required
        }
        for group, aliases in uses.items()
    }
    if not groups.get("optional"):
        groups.pop("optional", None)
    return groups


def _declared_errors(projection: dict[str, Any]) -> dict[str, Any]:
    """The error declarations whose type an RPC or operation names."""
    named = {
        error["type"]
        for section in ("rpc", "operations")
        for surface in projection.get(section, {}).values()
        for error in surface.get("errors", ())
    }
    return {
        name: error
        for name, error in projection.get("errors", {}).items()
        if error["type"] in named
    }


def _reachable(projection: dict[str, Any], errors: dict[str, Any]) -> Iterator[str]:
    """The schemas that the projection names; of errors of one type, the first counts."""
    for _, name in schema_references(projection):
        yield name
    seen = set()
    for error in errors.values():
        if error["type"] not in seen and is_reference(error.get("schema")):
            yield error["schema"]["schema"]
        seen.add(error["type"])


def normalize(manifest: Any) -> dict[str, Any]:
    """The manifest without unknown members, with consumer defaults; raises ContractError."""
    return _shaped(normalized, manifest)


def project(manifest: Any) -> dict[str, Any]:
    """The parts that the digest covers (specification, section 6.1); raises ContractError."""
    return _shaped(projected, manifest)


def digest(manifest: Any) -> str:
    """The digest that identifies a contract; raises ContractError with findings."""
    findings = validate(manifest)
    if findings:
        raise ContractError.invalid("the manifest", findings)
    return str(sha256(canonical.encode(projected(manifest))))


def text_digest(manifest: Any) -> str:
    """The digest of a manifest including display texts and docs; raises like `normalize`."""
    return str(sha256(canonical.encode(normalize(manifest))))


def _shaped(form: Callable[[Any], dict[str, Any]], manifest: Any) -> dict[str, Any]:
    seen = read_view(manifest)
    if seen.refusal is not None or seen.faults:
        raise ContractError.invalid("the manifest", validate(manifest))
    return form(manifest)
