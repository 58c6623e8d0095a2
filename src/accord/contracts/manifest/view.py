"""A manifest as the rules see it: only the well-formed parts; and its references to schemas.

A value must be plain JSON and match `data/trellis.contract.v1.json`. If it does not match, it is
checked entry by entry, so that one mistake does not hide another and rules never see a wrong type.
"""

import functools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final

import orjson

from accord.contracts.schemas import Path, steps
from accord.kernel import canonical, schema
from accord.kernel.canonical import DepthLimitedWriter
from accord.kernel.errors import Finding

_json_writer: Final = DepthLimitedWriter(
    functools.partial(
        orjson.dumps,
        option=orjson.OPT_STRICT_INTEGER
        | orjson.OPT_PASSTHROUGH_SUBCLASS
        | orjson.OPT_PASSTHROUGH_DATACLASS
        | orjson.OPT_PASSTHROUGH_DATETIME,
    )
)
_NULLS: Final = (b":null", b",null", b"[null")


def encode_plain(value: Any) -> bytes | None:
    """The value as compact JSON inside brackets; None if it is not plain JSON."""
    try:
        text = _json_writer.write(value)
        # orjson writes NaN as null too.
        if b"null" in text and any(null in text for null in _NULLS):
            canonical.encode(value)
    except (TypeError, canonical.CanonicalError):
        return None
    return None if b"-0.0" in text and _negative_zero(value) is not None else text


def decode_plain(value: Any) -> Any:
    """A copy of an encoded value."""
    return orjson.loads(orjson.dumps(value))


def explain_not_plain(value: Any) -> tuple[Path, str]:
    """Where and why a value is not plain JSON."""
    try:
        canonical.encode(value)
    except canonical.CanonicalError as error:
        return tuple(steps(error.where or "")), error.what
    zero = _negative_zero(value)
    if zero is not None:
        return zero, "negative zero, which not every reader keeps apart from zero"
    return (), "something in it is not plain JSON; decode the text of the manifest"


def _negative_zero(value: Any) -> Path | None:
    pending: list[tuple[Path, Any]] = [((), value)]
    while pending:
        path, part = pending.pop()
        if isinstance(part, float) and part == 0 and math.copysign(1, part) < 0:
            return path
        if isinstance(part, dict):
            pending.extend(((*path, name), item) for name, item in reversed(part.items()))
        elif isinstance(part, list):
            pending.extend(((*path, str(at)), item) for at, item in enumerate(part))
    return None


ENTRIES: Final = {
    ("capabilities",): "capability",
    ("schemas",): "schema",
    ("uses", "required"): "use",
    ("uses", "optional"): "use",
    ("rpc",): "rpc",
    ("operations",): "operation",
    ("events",): "event",
    ("feeds",): "feed",
    ("eventConsumers",): "eventConsumer",
    ("jobs",): "job",
    ("state",): "stateStore",
    ("resources", "kv"): "kv",
    ("resources", "store"): "store",
    ("errors",): "error",
}
"""The maps of a manifest, and the definition that each of their entries keeps."""

# Explaining a fault costs far more than detecting it.
_MAX_FAULTS: Final = 20_000
_MAX_VALUES: Final = 10_000


@dataclass(frozen=True, slots=True)
class ShapeFault:
    """A malformed place; `kind` is the JSON Schema keyword that it violates."""

    path: Path
    kind: str
    message: str


@functools.cache
def shape_schema(name: str | None) -> schema.Schema:
    """The compiled schema of a manifest (None) or of one of its parts."""
    whole = _contract_schema()
    if name is None:
        return schema.compile_schema(whole)
    return schema.compile_schema({"$ref": f"#/$defs/{name}", "$defs": whole["$defs"]})


# Patterns without groups, of atoms and repetitions that any engine takes: most that are written.
_ATOM: Final = (
    r"[A-Za-z0-9_ :;,@/%=-]|\\[dDwWsS.]|\."
    r"|\[\^?(a-z|A-Z|0-9|a-f|A-F|[A-Za-z0-9_.:@/ ]|\\[dDwWsS.])+-?\]"
)
_TIMES: Final = r"[*+?]|\{[0-9]{1,3}\}|\{[01],[1-9][0-9]{0,2}\}"
_USUAL_PATTERN: Final = rf"^\^?(({_ATOM})({_TIMES})?)*\$?$"


@functools.cache
def usual_schema() -> schema.Schema:
    """The schema of a manifest whose patterns need no closer check."""
    whole = _contract_schema()
    keywords = whole["$defs"]["schema"]["properties"]
    keywords["pattern"] = {"type": "string", "maxLength": 100, "pattern": _USUAL_PATTERN}
    keywords["patternProperties"] = False
    return schema.compile_schema(whole)


def _contract_schema() -> Any:
    file = resources.files("accord.contracts") / "data" / "trellis.contract.v1.json"
    return json.loads(file.read_bytes())


def entries(manifest: Any, path: Path) -> dict[str, Any]:
    """A map of a manifest; empty if there is none."""
    for step in path:
        manifest = manifest.get(step) if isinstance(manifest, dict) else None
    return manifest if isinstance(manifest, dict) else {}


def dissect(manifest: dict[str, Any]) -> tuple[dict[str, Any], list[ShapeFault]]:
    """The well-formed parts of a malformed manifest, which is modified, and the faults."""
    knife = _Dissection()
    sound: dict[str, Any] = knife.cut(_outline(manifest), shape_schema(None), ()) or {}
    for path, name in ENTRIES.items():
        parts = entries(manifest, path)
        if parts and path[0] in sound:
            rule = shape_schema(name)
            cut = {key: knife.cut(item, rule, (*path, key)) for key, item in parts.items()}
            entries(sound, path[:-1])[path[-1]] = {
                key: item for key, item in cut.items() if item is not None
            }
    if knife.effort > _MAX_FAULTS:
        knife.faults.append(ShapeFault((), "effort", "there is more wrong than is listed here"))
    return sound, knife.faults


def _outline(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with all its maps empty."""
    outline = dict(manifest)
    for section in ("uses", "resources"):
        if isinstance(outline.get(section), dict):
            outline[section] = dict(outline[section])
    for path in ENTRIES:
        parent = entries(outline, path[:-1])
        if isinstance(parent.get(path[-1]), dict):
            parent[path[-1]] = {}
    return outline


class _Dissection:
    """Removes malformed values from a manifest's parts and records them."""

    def __init__(self) -> None:
        self.faults: list[ShapeFault] = []
        self.effort = 0

    def cut(self, part: Any, rule: schema.Schema, path: Path) -> Any:
        """A part without the values that violate its schema; None if nothing remains."""
        if self.effort > _MAX_FAULTS:
            return None
        if rule.is_valid(part):
            return part
        size = _count(part)
        if size > _MAX_VALUES:
            self._add(
                ShapeFault(
                    path, "size", "it has not the right shape, and too many values to say where"
                )
            )
            return None
        found = rule.findings(part)
        for finding in found:
            self._add(_fault(finding, path))
        if len(found) >= schema.MAX_FINDINGS:  # others may be unlisted, but took their time
            self.effort += size
            return None
        # An embedded schema is sound as a whole or not at all.
        if path[:1] == ("schemas",) or any(_is_whole(finding) for finding in found):
            return None
        for finding in found:
            if finding.rule not in ("schema.required", "schema.additionalProperties"):
                _remove(part, steps(finding.pointer))
        return part

    def _add(self, fault: ShapeFault) -> None:
        self.faults.append(fault)
        self.effort += 1


def _is_whole(finding: Finding) -> bool:
    return not finding.pointer and finding.rule != "schema.required"


def _fault(finding: Finding, path: Path) -> ShapeFault:
    inner = tuple(steps(finding.pointer))
    return ShapeFault(path + inner, finding.rule.removeprefix("schema."), finding.message)


def _count(part: Any) -> int:
    """The number of values of a part, up to a limit."""
    count = 0
    pending = [part]
    while pending and count <= _MAX_VALUES:
        value = pending.pop()
        count += 1
        if isinstance(value, dict | list):
            count += len(value) if len(value) > _MAX_VALUES else 0
            pending.extend(value.values() if isinstance(value, dict) else value)
    return count


def _remove(value: Any, path: list[str]) -> None:
    for step in path[:-1]:
        if isinstance(value, list):
            value = value[int(step)] if int(step) < len(value) else None
        else:
            value = value.get(step)
        if not isinstance(value, dict | list):
            return  # removed with something that holds it
    if isinstance(value, list):
        del value[int(path[-1]) :]  # the remaining items keep their index
    else:
        value.pop(path[-1], None)


_NOTHING: Final[dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class ManifestView:
    """A manifest as the rules see it."""

    manifest: dict[str, Any] = field(default_factory=dict)  # the well-formed parts
    text: bytes = b""  # the manifest as compact JSON, for quick searches
    faults: tuple[ShapeFault, ...] = ()  # the malformed places
    refusal: tuple[Path, str] | None = None  # why the value cannot be checked at all, if so
    submitted: dict[str, Any] = field(default_factory=dict)  # the manifest as it came
    usual: bool = False  # whether all patterns are of a kind that is known to be fine

    def section(self, name: str, kind: str | None = None) -> dict[str, Any]:
        """A map of the manifest, or one kind of `uses` or `resources`; empty if there is none."""
        found: dict[str, Any] = self.manifest.get(name, _NOTHING)
        return found if kind is None else found.get(kind, _NOTHING)

    def declared(self, *path: str) -> dict[str, Any]:
        """The same map as submitted, including malformed entries."""
        return entries(self.submitted, path)


def read_view(manifest: Any) -> ManifestView:
    """Read any value as a manifest."""
    text = encode_plain(manifest)
    if text is None:
        return ManifestView(refusal=explain_not_plain(manifest))
    if not isinstance(manifest, dict):
        return ManifestView(faults=(ShapeFault((), "type", "a manifest is a JSON object"),))
    try:
        usual = usual_schema().is_valid(manifest)
        if usual or shape_schema(None).is_valid(manifest):
            return ManifestView(manifest, text, submitted=manifest, usual=usual)
    except ValueError:  # the validator found a Python value that is not JSON
        return ManifestView(refusal=explain_not_plain(manifest))
    sound, faults = dissect(decode_plain(manifest))
    return ManifestView(sound, text, tuple(faults), submitted=manifest)


_REFERRING: Final = {
    "rpc": ("input", "output"),
    "operations": ("input", "progress", "output"),
    "events": ("event",),
    "feeds": ("input", "event"),
    "jobs": ("payload", "result"),
    "state": ("schema",),
}


def is_reference(value: Any) -> bool:
    """Whether an error's schema is a reference and not an inline schema."""
    return isinstance(value, dict) and isinstance(value.get("schema"), str)


def schema_references(manifest: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Every schema reference except in exports and errors: place and schema name."""
    for path, reference in _references(manifest):
        if "schema" in reference:
            yield path, reference["schema"]


def _references(manifest: Mapping[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for section, parts in _REFERRING.items():
        for name, item in manifest.get(section, {}).items():
            for part in parts:
                if part in item:
                    yield (section, name, part), item[part]
    for name, operation in manifest.get("operations", {}).items():
        for signal, value in operation.get("signals", {}).items():
            if "input" in value:
                yield ("operations", name, "signals", signal, "input"), value["input"]
    for name, store in manifest.get("state", {}).items():
        for version, reference in store.get("acceptedVersions", {}).items():
            yield ("state", name, "acceptedVersions", version), reference
    for name, bucket in manifest.get("resources", {}).get("kv", {}).items():
        if "schema" in bucket:
            yield ("resources", "kv", name, "schema"), bucket["schema"]
