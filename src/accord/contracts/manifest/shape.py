"""The shape of a manifest, asked of the JSON Schema in `data/trellis.contract.v1.json`.

The whole manifest is asked at once. One that fails is taken apart entry by entry, which finds all
its faults, and leaves the parts that are sound for the rules to look at. The work is bounded.
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from accord.contracts.manifest.pointers import Path, steps
from accord.kernel import schema
from accord.kernel.finding import Finding

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

# To say what is wrong costs far more than to see that something is.
_MAX_FAULTS: Final = 20_000
_MAX_VALUES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Fault:
    """A place without the right shape; `kind` is the keyword of JSON Schema that says so."""

    path: Path
    kind: str
    message: str


@functools.cache
def definition(name: str | None) -> schema.Schema:
    """The compiled schema of a manifest (None), or of one of its parts."""
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
def usual() -> schema.Schema:
    """The schema of a manifest none of whose patterns needs a closer look."""
    whole = _contract_schema()
    keywords = whole["$defs"]["schema"]["properties"]
    keywords["pattern"] = {"type": "string", "maxLength": 100, "pattern": _USUAL_PATTERN}
    keywords["patternProperties"] = False
    return schema.compile_schema(whole)


def _contract_schema() -> Any:
    file = resources.files("accord.contracts") / "data" / "trellis.contract.v1.json"
    return json.loads(file.read_bytes())


def entries(manifest: Any, path: Path) -> dict[str, Any]:
    """A map of a manifest; empty where there is none."""
    for step in path:
        manifest = manifest.get(step) if isinstance(manifest, dict) else None
    return manifest if isinstance(manifest, dict) else {}


def dissect(manifest: dict[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """The sound parts of a manifest without the right shape, which it consumes, and the faults."""
    knife = _Knife()
    sound: dict[str, Any] = knife.cut(_outline(manifest), definition(None), ()) or {}
    for path, name in ENTRIES.items():
        parts = entries(manifest, path)
        if parts and path[0] in sound:
            rule = definition(name)
            cut = {key: knife.cut(item, rule, (*path, key)) for key, item in parts.items()}
            entries(sound, path[:-1])[path[-1]] = {
                key: item for key, item in cut.items() if item is not None
            }
    if knife.effort > _MAX_FAULTS:
        knife.faults.append(Fault((), "effort", "there is more wrong than is listed here"))
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


class _Knife:
    """Takes what is not sound from the parts of one manifest, and keeps account."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.effort = 0

    def cut(self, part: Any, rule: schema.Schema, path: Path) -> Any:
        """What is left of a part without the values that break its rule; None if nothing is."""
        if self.effort > _MAX_FAULTS:
            return None
        if rule.is_valid(part):
            return part
        size = _count(part)
        if size > _MAX_VALUES:
            self._add(
                Fault(path, "size", "it has not the right shape, and too many values to say where")
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

    def _add(self, fault: Fault) -> None:
        self.faults.append(fault)
        self.effort += 1


def _is_whole(finding: Finding) -> bool:
    return not finding.pointer and finding.rule != "schema.required"


def _fault(finding: Finding, path: Path) -> Fault:
    inner = tuple(steps(finding.pointer))
    return Fault(path + inner, finding.rule.removeprefix("schema."), finding.message)


def _count(part: Any) -> int:
    """How many values a part has, as far as it matters."""
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
        del value[int(path[-1]) :]  # what is left keeps its place
    else:
        value.pop(path[-1], None)
