"""Which payloads a change lets pass, in which direction, and what the witness shows."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from accord.contracts import CompatibilityReport, compare
from accord.contracts.compatibility import is_obviously_read
from accord.kernel.schema import compile_schema

Contract = Callable[..., dict[str, Any]]

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}


def having(**members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members}


def of(contract: Contract, place: str, old: Any, new: Any, **relation: Any) -> CompatibilityReport:
    return compare(contract({place: old}), contract({place: new}), **relation)


def rules(report: CompatibilityReport) -> set[str]:
    return {change.rule for change in report.findings}


@pytest.mark.parametrize(
    ("place", "wider", "narrower"),
    [
        ("rpc.input", True, False),
        ("operations.input", True, False),
        ("operations.signal", True, False),
        ("feeds.input", True, False),
        ("jobs.payload", True, False),
        ("rpc.output", False, True),
        ("feeds.event", False, True),
        ("error", False, True),
        ("operations.progress", False, False),
        ("operations.output", False, False),
        ("events.event", False, False),
        ("jobs.result", False, False),
        ("state.current", True, False),
        ("state.before", True, False),
    ],
)
def test_what_is_sent_to_a_service_may_widen_and_what_it_sends_may_narrow(
    contract: Contract, place: str, wider: bool, narrower: bool
) -> None:
    small, large = (having(a={"type": "string", "maxLength": n}) for n in (9, 10))
    assert of(contract, place, small, large).compatible is wider
    assert of(contract, place, large, small).compatible is narrower
    for old, new in ((small, large), (large, small)):
        if place == "state.before":  # nobody writes this version any more
            continue
        assert not of(contract, place, old, new, relation="coexistence").compatible


def test_a_value_that_is_stored_may_widen_and_narrowing_it_is_a_migration(
    contract: Contract,
) -> None:
    small, large = having(a={"enum": [1]}), having(a={"enum": [1, 2]})
    assert of(contract, "kv", small, large).classification == "update"
    narrowed = of(contract, "kv", large, small)
    assert rules(narrowed) == {"resource.narrowed"}
    assert narrowed.findings[0].witness == {"a": 2}
    beside = of(contract, "kv", small, large, relation="coexistence")
    assert rules(beside) == {"resource.narrowed"}


def test_a_schema_under_another_name_is_the_same_schema(contract: Contract) -> None:
    new = contract()
    new["schemas"]["renamed"] = new["schemas"].pop("rpc.input")
    new["rpc"]["Find"]["input"] = {"schema": "renamed"}
    assert compare(contract(), new).classification == "none"


def test_one_and_true_are_different_values(contract: Contract) -> None:
    report = of(contract, "rpc.output", having(a={"const": 1}), having(a={"const": True}))
    assert rules(report) == {"payload.refused", "payload.values-narrowed"}


def test_each_witness_shows_its_own_member(contract: Contract) -> None:
    old = having(a=TEXT, b=having(c=TEXT, d={"enum": [1, 2]}))
    new = copy.deepcopy(old)
    new["required"] = ["a"]
    new["properties"]["b"]["required"] = ["c"]
    new["properties"]["b"]["properties"]["d"] = {"enum": [1]}
    report = of(contract, "rpc.output", old, new)
    witnesses = {change.message.split()[0]: change.witness for change in report.findings}
    assert witnesses.keys() == {"/a", "/b/c", "/b/d"}
    assert "a" not in witnesses["/a"]
    assert "c" not in witnesses["/b/c"]["b"]
    assert witnesses["/b/d"]["b"]["d"] == 2
    for witness in witnesses.values():
        assert compile_schema(old).is_valid(witness)
        assert not compile_schema(new).is_valid(witness)


def test_a_null_witness_is_told_from_none(contract: Contract) -> None:
    report = of(contract, "rpc.input", {"type": ["string", "null"]}, TEXT)
    (finding,) = report.findings
    assert (finding.witness, finding.has_witness) == (None, True)
    assert finding.to_dict()["witness"] is None
    moved = contract()
    moved["rpc"]["Find"]["subject"] = "rpc.v2.Find"
    (finding,) = compare(contract(), moved).findings
    assert (finding.witness, finding.has_witness) == (None, False)
    assert "witness" not in finding.to_dict()


def test_members_declared_in_parts_are_seen_together(contract: Contract) -> None:
    old = {"allOf": [having(a=TEXT), having(b=TEXT)]}
    new = {"allOf": [having(a=TEXT, b=TEXT), {"required": ["b"]}]}
    report = of(contract, "rpc.output", old, new)
    assert rules(report) == {"payload.member-required"}
    assert "b" not in report.findings[0].witness


def test_items_and_alternatives_are_looked_into(contract: Contract) -> None:
    old = having(list={"type": "array", "items": having(x=TEXT)})
    new = having(list={"type": "array", "items": {**having(x=TEXT), "required": ["x"]}})
    report = of(contract, "rpc.output", old, new)
    assert [change.message for change in report.findings] == [
        "/list/*/x is required now, and was optional"
    ]
    assert report.findings[0].witness == {"list": [{}]}
    nullable = {"anyOf": [old, {"type": "null"}]}, {"anyOf": [{"type": "null"}, new]}
    assert rules(of(contract, "rpc.output", *nullable)) == {"payload.member-required"}


def test_alternatives_in_another_order_are_equal_in_substance(contract: Contract) -> None:
    one, two = having(kind={"const": "one"}, x=TEXT), having(kind={"const": "two"}, y=TEXT)
    report = of(contract, "events.event", {"anyOf": [one, two]}, {"anyOf": [two, one]})
    assert report.compatible
    assert report.findings == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"anyOf": [{"const": "p"}, {"const": "q"}]}, {"anyOf": [{"const": "p"}]}),
        ({"anyOf": [{"enum": ["p"]}, {"type": "null"}]}, {"enum": ["p"]}),
        ({"type": "string"}, {"enum": ["p", "q"]}),
        ({"enum": ["p", "q"]}, {"const": "p"}),
    ],
)
def test_a_list_of_values_may_be_written_in_many_ways(
    contract: Contract, old: Any, new: Any
) -> None:
    assert rules(of(contract, "rpc.output", old, new)) == {"payload.values-narrowed"}


def test_an_enum_may_grow_for_callers_and_not_for_readers(contract: Contract) -> None:
    old, new = {"enum": ["p"]}, {"enum": ["p", "q"]}
    assert of(contract, "rpc.input", old, new).compatible
    report = of(contract, "rpc.output", old, new)
    assert [change.witness for change in report.findings] == ["q"]


def test_a_format_may_widen_for_callers_and_not_for_readers(contract: Contract) -> None:
    old, new = {"type": "string", "format": "email"}, {"type": "string", "format": "idn-email"}
    assert of(contract, "rpc.input", old, new).findings == ()
    assert rules(of(contract, "rpc.output", old, new)) == {"payload.format-widened"}
    assert rules(of(contract, "rpc.input", new, old)) == {"payload.format-narrowed"}


def test_a_closed_object_may_open(contract: Contract) -> None:
    closed = {**having(a=TEXT), "additionalProperties": False}
    for place in ("rpc.input", "rpc.output", "events.event"):
        assert of(contract, place, closed, having(a=TEXT)).findings == ()


def test_a_member_that_a_half_open_object_refuses_is_breaking(contract: Contract) -> None:
    old = {**having(a=TEXT), "additionalProperties": NUMBER}
    fitting = {**having(a=TEXT, x=NUMBER), "additionalProperties": NUMBER}
    other = {**having(a=TEXT, x=TEXT), "additionalProperties": NUMBER}
    assert of(contract, "rpc.input", old, fitting).compatible
    assert "payload.closed-object-grown" in rules(of(contract, "rpc.input", old, other))


@pytest.mark.parametrize("place", ["rpc.input", "rpc.output", "events.event"])
def test_an_object_that_declares_nothing_may_begin_to(contract: Contract, place: str) -> None:
    for old in ({"type": "object"}, having()):
        assert of(contract, place, old, having(x=NUMBER)).findings == ()
        nested = of(contract, place, having(a=old), having(a=having(x=NUMBER)))
        assert nested.findings == ()
    assert not of(contract, place, having(x=NUMBER), {"type": "array"}).compatible


def test_a_member_that_is_only_required_is_declared(contract: Contract) -> None:
    report = of(contract, "rpc.input", {"type": "object", "required": ["x"]}, having(x=NUMBER))
    assert rules(report) == {"payload.refused"}


def test_a_map_of_anything_is_not_taken_for_an_empty_object(contract: Contract) -> None:
    texts = {"type": "object", "additionalProperties": TEXT}
    report = of(contract, "rpc.output", texts, {"type": "object"})
    assert rules(report) == {"payload.refused"}
    report = of(contract, "rpc.input", {"type": "object"}, texts)
    assert "payload.object-closed" in rules(report)


def test_what_is_not_proved_is_not_compatible(contract: Contract) -> None:
    many = [f"value {number:020}" for number in range(25_000)]
    report = of(contract, "rpc.input", {"not": {"enum": many}}, {"not": {"enum": many[1:]}})
    (finding,) = report.findings
    assert (finding.rule, finding.category) == ("payload.unproven", "unproven")
    assert not finding.has_witness
    assert not report.compatible
    assert report.classification == "migration"


def test_a_required_member_removed_from_what_callers_send_is_breaking(
    contract: Contract,
) -> None:
    old, new = {**having(a=TEXT, x=TEXT), "required": ["x"]}, having(a=TEXT)
    assert rules(of(contract, "rpc.input", old, new)) == {"payload.required-removed"}
    beside = of(contract, "rpc.input", old, new, relation="coexistence")
    assert "payload.refused" in rules(beside)


def test_an_error_whose_schema_goes_may_be_anything(contract: Contract) -> None:
    new = contract()
    del new["errors"]["missing"]["schema"]
    assert rules(compare(contract(), new)) == {"payload.refused"}
    assert compare(new, contract()).compatible


@pytest.mark.parametrize(
    ("sender", "reader"),
    [
        (having(a=TEXT), {**having(a=TEXT), "required": ["a"]}),
        (having(a=TEXT, b=TEXT), {**having(a=TEXT), "additionalProperties": False}),
        ({**having(a=TEXT), "additionalProperties": TEXT}, having(a=TEXT, b=NUMBER)),
        ({**having(a=TEXT), "required": ["b"]}, having(a=TEXT, b=NUMBER)),
        (having(a={"const": 1}), having(a={"const": True})),
        ({"enum": [1, 2]}, {"enum": [1]}),
        ({"type": "number"}, {"type": "integer"}),
        ({"maxLength": 3}, {"maxLength": 2}),
        ({"minimum": 0}, {"minimum": 1}),
        ({"type": "array"}, {"type": "array", "items": TEXT}),
        ({"anyOf": [TEXT, NUMBER]}, {"type": "string"}),
    ],
)
def test_what_is_refused_is_never_obviously_read(sender: Any, reader: Any) -> None:
    assert not is_obviously_read(sender, reader)


@pytest.mark.parametrize(
    ("sender", "reader"),
    [
        (having(a=TEXT), having(a=TEXT, b=NUMBER)),
        (having(a=TEXT, b=NUMBER), having(a=TEXT)),
        ({**having(a=TEXT), "required": ["a"]}, having(a=TEXT)),
        (having(a=having(b=TEXT)), having(a=having(b=TEXT, c=TEXT))),
        ({"enum": [1]}, {"enum": [2, 1]}),
        (NUMBER, {"type": ["number", "null"]}),
        ({"type": "string", "minLength": 2}, {"type": "string", "minLength": 1}),
        ({"type": "array", "items": NUMBER}, {"type": "array", "items": {"type": "number"}}),
    ],
)
def test_common_edits_need_no_proof(sender: Any, reader: Any) -> None:
    assert is_obviously_read(sender, reader)
