import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from tests.fakes.strategies import manifests

from accord.contracts import digest, normalize, project, validate
from accord.kernel import canonical, schema
from accord.kernel.canonical import sha256

Manifest = dict[str, Any]
Edit = Callable[[Manifest], None]
SURFACES = ("rpc", "operations", "events", "feeds")


@given(manifests())
def test_drawn_manifests_are_valid_and_their_schemas_compile(manifest: Manifest) -> None:
    assert validate(manifest) == []
    for embedded in manifest["schemas"].values():
        schema.compile_schema(embedded)


@given(manifests())
def test_a_normal_form_is_normal_valid_and_of_the_same_digest(manifest: Manifest) -> None:
    normal = normalize(manifest)
    assert normalize(normal) == normal
    assert digest(normal) == digest(manifest)
    assert project(normal) == project(manifest)
    assert digest(canonical.decode(canonical.encode(manifest))) == digest(manifest)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """The objects of a manifest that have members of their own, not names that authors chose."""
    manifest = value
    yield manifest
    for section in (*SURFACES, "eventConsumers", "jobs", "state", "errors", "capabilities"):
        yield from manifest.get(section, {}).values()
    for parent, kinds in (("uses", ("required", "optional")), ("resources", ("kv", "store"))):
        for kind in kinds:
            yield from manifest.get(parent, {}).get(kind, {}).values()
    for operation in manifest.get("operations", {}).values():
        yield from operation.get("signals", {}).values()


def add_docs(manifest: Manifest) -> None:
    for part in objects(manifest):
        if "contract" not in part and "displayName" not in part.keys() - manifest.keys():
            part["docs"] = {"summary": "new", "markdown": "# New"}


def reword(manifest: Manifest) -> None:
    manifest.update(displayName="Other", description="Other.")


def shuffle_members(manifest: Manifest) -> None:
    chance = random.Random(7)

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items = list(value.items())
            chance.shuffle(items)
            return {name: shuffled(item) for name, item in items}
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    # Which of two errors of one type comes first decides which schema counts.
    errors = manifest.get("errors")
    mixed = shuffled(manifest)
    manifest.clear()
    manifest.update(mixed)
    if errors is not None:
        manifest["errors"] = errors


def add_unknown_members(manifest: Manifest) -> None:
    for part in objects(manifest):
        part["x-unknown"] = {"rpc": [1, 2.5, None]}


def add_unused_definitions(manifest: Manifest) -> None:
    manifest["schemas"]["Unused"] = {"type": "object"}
    manifest["exports"] = {"schemas": ["Unused"]}
    manifest.setdefault("errors", {})["ZZ"] = {
        "type": "NobodyNamesIt",
        "schema": {"schema": "Unused"},
    }


def set_like_lists(manifest: Manifest) -> Iterator[list[Any]]:
    for section in SURFACES:
        for surface in manifest.get(section, {}).values():
            yield from surface.get("capabilities", {}).values()
            if "errors" in surface:
                yield surface["errors"]
    for aliases in manifest.get("uses", {}).values():
        for use in aliases.values():
            for part in use.values():
                if isinstance(part, dict):
                    yield from part.values()
    for group in manifest.get("eventConsumers", {}).values():
        yield from group.get("uses", {}).values()
        if "self" in group:
            yield group["self"]


def turn_and_repeat_set_like_lists(manifest: Manifest) -> None:
    for names in set_like_lists(manifest):
        names.reverse()
        names.extend(copy.deepcopy(names[:2]))


NEUTRAL = (
    *(add_docs, reword, shuffle_members, add_unknown_members),
    *(add_unused_definitions, turn_and_repeat_set_like_lists),
)


@settings(max_examples=50)
@given(manifests())
def test_the_digest_is_unchanged_by_what_bears_on_nothing(manifest: Manifest) -> None:
    before = digest(manifest)
    for edit in NEUTRAL:
        edited = copy.deepcopy(manifest)
        edit(edited)
        assert validate(edited) == [], edit.__name__
        assert digest(edited) == before, edit.__name__


class AbsentError(Exception):
    """A manifest has nothing that an edit could change."""


def first(manifest: Manifest, *path: str) -> dict[str, Any]:
    """The first entry of a map, if the manifest has one."""
    entries: Any = manifest
    for step in path:
        entries = entries.get(step, {})
    if not entries:
        raise AbsentError
    entry: dict[str, Any] = next(iter(entries.values()))
    return entry


def identity(manifest: Manifest) -> None:
    name, _, version = manifest["id"].rpartition("@v")
    manifest["id"] = f"{name}@v{int(version) + 1}"


def kind(manifest: Manifest) -> None:
    manifest["kind"] = "agent" if manifest["kind"] != "agent" else "app"


def capability_text(manifest: Manifest) -> None:
    first(manifest, "capabilities")["description"] += "!"


def capability_removed(manifest: Manifest) -> None:
    first(manifest, "capabilities")
    manifest["capabilities"].popitem()


def subject(manifest: Manifest) -> None:
    surface = first(manifest, "rpc")
    surface["subject"] += ".moved"


def surface_renamed(manifest: Manifest) -> None:
    first(manifest, "operations")
    name, surface = manifest["operations"].popitem()
    manifest["operations"][f"{name}.Renamed"] = surface


def surface_version(manifest: Manifest) -> None:
    first(manifest, "feeds")["version"] = "v9"


def surface_removed(manifest: Manifest) -> None:
    first(manifest, "feeds")
    manifest["feeds"].popitem()


def capability_list(manifest: Manifest) -> None:
    first(manifest, "rpc").setdefault("capabilities", {}).setdefault("call", []).append("other")


def open_to_everyone(manifest: Manifest) -> None:
    allowed = first(manifest, "operations").setdefault("capabilities", {})
    if "cancel" in allowed:
        del allowed["cancel"]
    else:
        allowed["cancel"] = []


def cancel(manifest: Manifest) -> None:
    operation = first(manifest, "operations")
    operation["cancel"] = not operation.get("cancel", False)


def signal(manifest: Manifest) -> None:
    first(manifest, "operations").setdefault("signals", {})["new"] = {"input": {"schema": "Tokens"}}


def error_named(manifest: Manifest) -> None:
    first(manifest, "rpc").setdefault("errors", []).append({"type": "New"})


def reachable_schema(manifest: Manifest) -> None:
    name = first(manifest, "feeds")["event"]["schema"]
    manifest["schemas"][name] = {"title": "new", "not": manifest["schemas"][name]}


def reference(manifest: Manifest) -> None:
    feed = first(manifest, "feeds")
    names = sorted(manifest["schemas"])
    feed["input"] = {"schema": names[names.index(feed["input"]["schema"]) - 1]}


def template(manifest: Manifest) -> None:
    event = first(manifest, "events")
    event["event"] = {"schema": "Tokens"}
    event["params"] = [*event.get("params", []), "/n"]
    event["subject"] += ".{/n}"


def use_added(manifest: Manifest) -> None:
    uses = manifest.setdefault("uses", {}).setdefault("required", {})
    uses["new"] = {"contract": "new@v1"}


def use_selector(manifest: Manifest) -> None:
    use = first(manifest, "uses", "required")
    use.setdefault("rpc", {}).setdefault("call", []).append("New.Name")


def use_contract(manifest: Manifest) -> None:
    first(manifest, "uses", "required")["contract"] = "other@v1"


def use_no_longer_required(manifest: Manifest) -> None:
    first(manifest, "uses", "required")
    alias, use = manifest["uses"]["required"].popitem()
    manifest["uses"].setdefault("optional", {})[alias] = use


def job_default_spelled_out(manifest: Manifest) -> None:
    job = first(manifest, "jobs")
    if "maxDeliver" in job:
        raise AbsentError
    job["maxDeliver"] = 5


def job_backoff_order(manifest: Manifest) -> None:
    job = first(manifest, "jobs")
    job["backoffMs"] = [*job.get("backoffMs", []), 1]


def consumer_setting(manifest: Manifest) -> None:
    group = first(manifest, "eventConsumers")
    group["replay"] = "all" if group.get("replay", "new") == "new" else "new"


def state_version(manifest: Manifest) -> None:
    store = first(manifest, "state")
    store["stateVersion"] = "v3"


def resource_purpose(manifest: Manifest) -> None:
    first(manifest, "resources", "kv")["purpose"] += "!"


def resource_required(manifest: Manifest) -> None:
    bucket = first(manifest, "resources", "store")
    bucket["required"] = not bucket.get("required", True)


def resource_removed(manifest: Manifest) -> None:
    first(manifest, "resources", "kv")
    manifest["resources"]["kv"].popitem()


MEANINGFUL = (
    *(identity, kind, capability_text, capability_removed, subject, surface_renamed),
    *(surface_version, surface_removed, capability_list, open_to_everyone, cancel, signal),
    *(error_named, reachable_schema, reference, template, use_added, use_selector, use_contract),
    *(use_no_longer_required, job_default_spelled_out, job_backoff_order, consumer_setting),
    *(state_version, resource_purpose, resource_required, resource_removed),
)


SCHEMA = {"schema": "Tokens"}
SURFACE = {"version": "v1", "input": SCHEMA, "output": SCHEMA, "event": SCHEMA}
FULL: Manifest = {
    "format": "trellis.contract.v1",
    "id": "billing@v1",
    "displayName": "Billing",
    "description": "Bills.",
    "kind": "service",
    "schemas": {"Other": {"type": "object"}, "Tokens": {"properties": {"n": {"type": "number"}}}},
    "capabilities": {"billing::pay": {"displayName": "Pay", "description": "Spend money."}},
    "uses": {"required": {"graph": {"contract": "graph@v1", "events": {"subscribe": ["User"]}}}},
    "rpc": {"Get": {**SURFACE, "subject": "rpc.v1.Get", "errors": [{"type": "NotFound"}]}},
    "operations": {"Refund": {**SURFACE, "subject": "operations.v1.Refund"}},
    "events": {"Paid": {**SURFACE, "subject": "events.v1.Paid"}},
    "feeds": {"Live": {**SURFACE, "subject": "feeds.v1.Live"}},
    "eventConsumers": {"group": {"self": ["Paid"]}},
    "jobs": {"charge": {"payload": SCHEMA}},
    "state": {"drafts": {"kind": "map", "schema": SCHEMA}},
    "resources": {
        "kv": {"cache": {"purpose": "Speed.", "schema": SCHEMA}},
        "store": {"files": {"purpose": "Files."}},
    },
    "errors": {"NotFound": {"type": "NotFound", "schema": SCHEMA}},
}


@pytest.mark.parametrize("edit", MEANINGFUL, ids=lambda edit: edit.__name__)
def test_the_digest_is_changed_by(edit: Edit) -> None:
    edited = copy.deepcopy(FULL)
    edit(edited)
    assert validate(edited) == []
    assert digest(edited) != digest(FULL)


@settings(max_examples=50)
@given(manifests())
def test_the_digest_is_changed_by_what_bears_on_something(manifest: Manifest) -> None:
    before = digest(manifest)
    for edit in MEANINGFUL:
        edited = copy.deepcopy(manifest)
        try:
            edit(edited)
        except AbsentError:
            continue
        after = str(sha256(canonical.encode(project(edited))))
        assert after != before, edit.__name__
