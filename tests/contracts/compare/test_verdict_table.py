"""The verdict table of the specification of compatibility, row by row and by name."""

from collections.abc import Callable
from typing import Any

import pytest

from accord.contracts import CompatibilityReport, compare

Contract = Callable[..., dict[str, Any]]
Edit = Callable[[dict[str, Any]], object]

CALLER = ("rpc.input", "operations.input", "operations.signal", "feeds.input", "jobs.payload")
PASSING = ("rpc.output", "feeds.event", "error")
KEPT = ("operations.progress", "operations.output", "events.event", "jobs.result")
SERVICE = (*PASSING, *KEPT)
WIRE = (*CALLER, *SERVICE)


def thing(*optional: str, required: tuple[str, ...] = (), closed: bool = False) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in (*optional, *required)},
        "required": list(required),
    }
    return {**schema, "additionalProperties": False} if closed else schema


def of_schemas(
    contract: Contract, place: str, old: Any, new: Any, **relation: Any
) -> CompatibilityReport:
    return compare(contract({place: old}), contract({place: new}), **relation)


def of_edit(contract: Contract, edit: Edit, **relation: Any) -> CompatibilityReport:
    new = contract()
    edit(new)
    return compare(contract(), new, **relation)


def found(report: CompatibilityReport) -> dict[str, str]:
    return {change.rule: change.category for change in report.findings}


@pytest.mark.parametrize("relation", ["replacement", "coexistence"])
@pytest.mark.parametrize(
    "path",
    [
        ("rpc", "Find"),
        ("operations", "Import"),
        ("events", "Changed"),
        ("feeds", "Watch"),
        ("jobs", "plain"),
        ("operations", "Import", "signals", "approve"),
    ],
    ids="/".join,
)
def test_removing_a_surface_is_breaking_and_adding_it_is_compatible(
    contract: Contract, path: tuple[str, ...], relation: Any
) -> None:
    less = contract()
    del less["eventConsumers"]["projection"]["self"]
    more = contract()
    del more["eventConsumers"]["projection"]["self"]
    parent = less
    for step in path[:-1]:
        parent = parent[step]
    del parent[path[-1]]
    without = compare(more, less, relation)
    assert ("surface.removed", "/" + "/".join(path)) in {
        (change.rule, change.pointer) for change in without.findings
    }
    assert not without.compatible
    within = compare(less, more, relation)
    assert within.compatible
    assert within.classification == "update"


def test_renaming_a_surface_is_breaking(contract: Contract) -> None:
    def rename(new: dict[str, Any]) -> None:
        new["rpc"]["Search"] = new["rpc"].pop("Find")

    assert found(of_edit(contract, rename))["surface.removed"] == "breaking"


@pytest.mark.parametrize(
    ("section", "name"),
    [("rpc", "Find"), ("operations", "Import"), ("events", "Changed"), ("feeds", "Watch")],
)
def test_moving_a_surface_is_breaking(contract: Contract, section: str, name: str) -> None:
    report = of_edit(contract, lambda new: new[section][name].update(subject="events.elsewhere.v1"))
    assert found(report) == {"surface.moved": "breaking"}


@pytest.mark.parametrize("relation", ["replacement", "coexistence"])
@pytest.mark.parametrize("place", WIRE)
def test_an_optional_member_added_to_an_open_object_is_compatible(
    contract: Contract, place: str, relation: Any
) -> None:
    report = of_schemas(contract, place, thing("a"), thing("a", "x"), relation=relation)
    assert report.compatible
    assert report.findings == ()
    assert report.classification == "update"


@pytest.mark.parametrize("place", WIRE)
def test_an_optional_member_added_to_a_closed_object_is_breaking(
    contract: Contract, place: str
) -> None:
    report = of_schemas(contract, place, thing("a", closed=True), thing("a", "x", closed=True))
    assert found(report)["payload.closed-object-grown"] == "breaking"
    assert all(change.witness == {"x": ""} for change in report.findings)


@pytest.mark.parametrize("place", WIRE)
def test_an_open_object_made_closed_is_breaking(contract: Contract, place: str) -> None:
    report = of_schemas(contract, place, thing("a"), thing("a", closed=True))
    assert found(report) == {"payload.object-closed": "breaking"}


@pytest.mark.parametrize("place", SERVICE)
def test_an_optional_member_removed_from_what_services_send_is_a_note(
    contract: Contract, place: str
) -> None:
    report = of_schemas(contract, place, thing("a", "x"), thing("a"))
    assert found(report) == {"payload.member-removed": "note"}
    assert report.compatible


@pytest.mark.parametrize("place", PASSING)
def test_it_is_a_note_in_a_closed_object_too_where_nothing_is_kept(
    contract: Contract, place: str
) -> None:
    report = of_schemas(contract, place, thing("a", "x", closed=True), thing("a", closed=True))
    assert found(report) == {"payload.member-removed": "note"}


@pytest.mark.parametrize("place", KEPT)
def test_it_is_breaking_in_a_closed_object_where_records_hold_it(
    contract: Contract, place: str
) -> None:
    report = of_schemas(contract, place, thing("a", "x", closed=True), thing("a", closed=True))
    assert found(report)["payload.refused"] == "breaking"
    assert "records of the old contract" in report.findings[0].message


@pytest.mark.parametrize("place", CALLER)
def test_an_optional_member_removed_from_what_callers_send_is_a_note_in_an_open_object(
    contract: Contract, place: str
) -> None:
    report = of_schemas(contract, place, thing("a", "x"), thing("a"))
    assert found(report) == {"payload.member-removed": "note"}
    assert report.compatible


@pytest.mark.parametrize("place", CALLER)
def test_an_optional_member_removed_from_what_callers_send_is_breaking_in_a_closed_object(
    contract: Contract, place: str
) -> None:
    report = of_schemas(contract, place, thing("a", "x", closed=True), thing("a", closed=True))
    assert found(report)["payload.refused"] == "breaking"
    assert report.findings[0].witness == {"x": ""}


@pytest.mark.parametrize("place", SERVICE)
def test_a_required_member_removed_from_what_services_send_is_breaking(
    contract: Contract, place: str
) -> None:
    report = of_schemas(contract, place, thing("a", required=("x",)), thing("a"))
    assert found(report)["payload.refused"] == "breaking"
    assert report.findings[0].witness == {}


@pytest.mark.parametrize("place", [*WIRE, "state.current", "state.before"])
def test_an_optional_member_made_required_is_breaking_in_every_direction(
    contract: Contract, place: str
) -> None:
    report = of_schemas(contract, place, thing("a", "x"), thing("a", required=("x",)))
    assert found(report)["payload.member-required"] == "breaking"
    assert {str(change.witness) for change in report.findings} == {"{}"}


@pytest.mark.parametrize("place", WIRE)
def test_a_narrowed_enum_is_breaking_in_every_direction(contract: Contract, place: str) -> None:
    old, new = ({"properties": {"a": {"enum": values}}} for values in (["p", "q"], ["p"]))
    report = of_schemas(contract, place, old, new)
    assert found(report)["payload.values-narrowed"] == "breaking"
    assert {str(change.witness) for change in report.findings} == {"{'a': 'q'}"}


@pytest.mark.parametrize("place", WIRE)
def test_a_narrowed_format_is_breaking_in_every_direction(contract: Contract, place: str) -> None:
    text, mail = {"type": "string"}, {"type": "string", "format": "email"}
    old, new = ({"properties": {"to": {"items": schema}}} for schema in (text, mail))
    report = of_schemas(contract, place, old, new)
    assert found(report) == {"payload.format-narrowed": "breaking"}


GATES = [
    ("rpc", "Find", "call"),
    ("operations", "Import", "call"),
    ("operations", "Import", "observe"),
    ("operations", "Import", "cancel"),
    ("operations", "Import", "control"),
    ("events", "Changed", "publish"),
    ("events", "Changed", "subscribe"),
    ("feeds", "Watch", "subscribe"),
]


@pytest.mark.parametrize("relation", ["replacement", "coexistence"])
@pytest.mark.parametrize(("section", "name", "action"), GATES)
def test_a_capability_added_to_an_old_surface_is_breaking(
    contract: Contract, section: str, name: str, action: str, relation: Any
) -> None:
    old, new = (_gated(contract, section, name, action, n) for n in (1, 2))
    report = compare(old, new, relation)
    assert found(report) == {"capability.added": "breaking"}


@pytest.mark.parametrize(("section", "name", "action"), GATES)
def test_a_capability_removed_from_an_old_surface_is_a_migration_and_in_coexistence_breaking(
    contract: Contract, section: str, name: str, action: str
) -> None:
    old, new = (_gated(contract, section, name, action, n) for n in (2, 1))
    report = compare(old, new)
    assert found(report) == {"capability.removed": "migration"}
    assert report.compatible
    assert report.classification == "migration"
    beside = compare(old, new, "coexistence")
    assert found(beside) == {"capability.differs": "breaking"}
    assert not beside.compatible


def _gated(contract: Contract, section: str, name: str, action: str, count: int) -> dict[str, Any]:
    built = contract()
    gates = built[section][name].setdefault("capabilities", {})
    gates.setdefault("observe", gates.get("call", []))
    gates[action] = ["graph::read", "graph::write"][:count]
    return built


@pytest.mark.parametrize("relation", ["replacement", "coexistence"])
def test_reordered_capabilities_and_observe_spelled_out_as_call_are_equal(
    contract: Contract, relation: Any
) -> None:
    def reorder(new: dict[str, Any]) -> None:
        new["rpc"]["Find"]["capabilities"]["call"].reverse()
        gates = new["operations"]["Import"]["capabilities"]
        gates["observe"] = [*gates["call"], *gates["call"]]

    report = of_edit(contract, reorder, relation=relation)
    assert (report.findings, report.updates, report.classification) == ((), (), "none")


def test_a_declared_error_added_or_removed_is_a_note(contract: Contract) -> None:
    more = contract()
    more["rpc"]["Find"]["errors"].append({"type": "Later"})
    report = compare(contract(), more)
    assert (found(report), report.compatible) == ({"error.added": "note"}, True)
    report = compare(more, contract())
    assert (found(report), report.compatible) == ({"error.removed": "note"}, True)


def test_the_schema_of_an_error_compares_as_output(contract: Contract) -> None:
    old, new = thing("a"), thing("a", required=("x",))
    assert of_schemas(contract, "error", old, new).compatible
    report = of_schemas(contract, "error", new, old)
    assert found(report)["payload.refused"] == "breaking"
    assert report.findings[0].pointer == "/errors/missing/schema"


@pytest.mark.parametrize(
    ("rule", "edit"),
    [
        ("job.tightened", lambda new: new["jobs"]["sync"]["keyConcurrency"].update(maxActive=1)),
        ("job.tightened", lambda new: new["jobs"]["sync"]["queue"].update(maxQueuedPerKey=2)),
        ("job.tightened", lambda new: new["jobs"]["sync"]["queue"].update(whenFull="coalesce")),
        ("job.keyed", lambda new: new["jobs"]["plain"].update(keyConcurrency={"key": ["/a"]})),
        ("resource.shrunk", lambda new: new["resources"]["kv"]["cache"].update(history=1)),
        ("resource.shrunk", lambda new: new["resources"]["store"]["files"].update(ttlMs=9)),
        ("resource.removed", lambda new: new["resources"]["kv"].pop("cache")),
        ("resource.removed", lambda new: new["resources"]["store"].pop("files")),
        ("resource.narrowed", lambda new: new["schemas"].update(kv=thing(required=("a",)))),
        ("resource.narrowed", lambda new: new["schemas"].update(kv=thing("a", closed=True))),
    ],
)
def test_a_tighter_queue_and_a_smaller_resource_are_migrations(
    contract: Contract, rule: str, edit: Edit
) -> None:
    report = of_edit(contract, edit)
    assert found(report) == {rule: "migration"}
    assert report.compatible
    assert report.classification == "migration"


@pytest.mark.parametrize(
    ("rule", "edit"),
    [
        (
            "resource.added",
            lambda new: new["resources"]["kv"].update(
                more={"purpose": "More.", "schema": {"schema": "kv"}}
            ),
        ),
        ("resource.added", lambda new: new["resources"]["store"].update(more={"purpose": "More."})),
        ("resource.grown", lambda new: new["resources"]["kv"]["cache"].update(history=3)),
        ("resource.grown", lambda new: new["resources"]["kv"]["cache"].update(ttlMs=0)),
        ("resource.grown", lambda new: new["resources"]["kv"]["cache"].pop("maxValueBytes")),
        ("resource.grown", lambda new: new["resources"]["kv"]["cache"].update(purpose="Clearer.")),
        ("payload.changed", lambda new: new["schemas"].update(kv=thing("a", "x"))),
    ],
)
def test_a_resource_added_or_grown_is_an_update(contract: Contract, rule: str, edit: Edit) -> None:
    report = of_edit(contract, edit)
    assert (report.findings, report.classification) == ((), "update")
    assert [change.rule for change in report.updates] == [rule]


@pytest.mark.parametrize("place", [*WIRE, "state.current", "kv"])
def test_annotations_are_compatible(contract: Contract, place: str) -> None:
    old = {"type": "object", "properties": {"title": {"type": "string", "default": "x"}}}
    new = {
        **old,
        "title": "A title",
        "description": "More.",
        "examples": [1],
        "properties": {"title": {"type": "string", "default": "y", "description": "A title."}},
    }
    report = of_schemas(contract, place, old, new)
    assert (report.findings, report.updates) == ((), ())
