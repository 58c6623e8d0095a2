"""What holds of every comparison."""

import copy
import random
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.strategies import SCHEMAS, manifests, payload_schemas

from accord.contracts import compare, contains
from accord.contracts.compatibility import declare_members, is_obviously_read, proofs
from accord.contracts.containment import candidates, sender_language
from accord.kernel.schema import compile_schema

Contract = Callable[..., dict[str, Any]]

RELATIONS = st.sampled_from(("replacement", "coexistence"))
SECTIONS = ("rpc", "operations", "events", "feeds", "jobs")


@st.composite
def edits(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A manifest, and one that differs in schemas, surfaces and whole sections."""
    old = draw(manifests())
    new = copy.deepcopy(old)
    for name in draw(st.sets(st.sampled_from(SCHEMAS))):
        new["schemas"][name] = draw(payload_schemas())
    other = draw(manifests())
    for section in draw(st.sets(st.sampled_from(("jobs", "state", "rpc", "feeds")))):
        if section in other:
            new[section] = other[section]
    return old, new


@st.composite
def related_schemas(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two schemas, of which the second is mostly an edit of the first."""
    old = draw(payload_schemas())
    if not isinstance(old, dict) or draw(st.booleans()):
        return old, draw(payload_schemas())
    new = {k: v for k, v in old.items() if draw(st.integers(0, 4))}
    if isinstance(new.get("properties"), dict):
        members = new["properties"]
        new["properties"] = {k: v for k, v in members.items() if draw(st.integers(0, 3))}
        if draw(st.booleans()):
            new["properties"]["b"] = draw(payload_schemas())
    return old, new


SCALARS: st.SearchStrategy[Any] = st.sampled_from(
    (
        *(True, {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "object"}),
        *({"enum": ["p"]}, {"enum": ["p", 1]}, {"enum": ["p", True]}, {"const": 1}),
        *({"type": ["string", "null"]}, {"type": "string", "maxLength": 1}, {"maxLength": 2}),
        *({"type": "integer", "minimum": 1}, {"minimum": 0}, {"type": "array", "items": False}),
    )
)
OBJECTS = st.recursive(
    SCALARS,
    lambda inner: st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "required": st.sets(st.sampled_from("ab")).map(sorted),
            "additionalProperties": st.sampled_from((True, False, {"type": "string"})),
        },
    ),
    max_leaves=3,
)


@given(manifests(), RELATIONS)
def test_a_contract_is_compatible_with_itself(manifest: dict[str, Any], relation: Any) -> None:
    report = compare(manifest, copy.deepcopy(manifest), relation)
    assert report.compatible
    assert report.classification == "none"
    assert (report.findings, report.updates) == ((), ())


@given(manifests(), st.text(max_size=9))
def test_documentation_never_shows(manifest: dict[str, Any], text: str) -> None:
    new = copy.deepcopy(manifest)
    new.update(displayName=text, description=text, docs={"markdown": text}, xUnknown=text)
    for section in SECTIONS:
        for surface in new.get(section, {}).values():
            surface["docs"] = {"markdown": text}
    for schema in new["schemas"].values():
        if isinstance(schema, dict):
            schema.update(title=text, description=text, default=text)
    report = compare(manifest, new)
    assert (report.findings, report.updates) == ((), ())


@given(edits(), RELATIONS)
@settings(max_examples=50)
def test_a_report_depends_on_nothing_but_the_contracts(
    edit: tuple[dict[str, Any], dict[str, Any]], relation: Any
) -> None:
    report = compare(*edit, relation)
    proofs.clear_proof_cache()
    old, new = map(_shuffled, edit)
    again = compare(old, new, relation)
    assert sorted(map(str, again.findings)) == sorted(map(str, report.findings))
    assert sorted(map(str, again.updates)) == sorted(map(str, report.updates))
    assert compare(*edit, relation) == report


def _shuffled(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    # Of several errors of one type the first counts, so their order says something.
    items = list(value.items())
    random.Random(0).shuffle(items)
    return {k: v if k in ("errors", "schemas") else _shuffled(v) for k, v in items}


@given(manifests(), st.sampled_from(SECTIONS), RELATIONS)
def test_adding_a_surface_is_compatible_and_removing_it_is_breaking(
    manifest: dict[str, Any], section: str, relation: Any
) -> None:
    more = copy.deepcopy(manifest)
    reference = {"schema": "Tokens"}
    surface: dict[str, Any] = {"version": "v1", "subject": "events.entirely.new"}
    surface |= {"input": reference, "output": reference, "event": reference}
    more.setdefault(section, {})["Entirely.New"] = (
        {"payload": reference} if section == "jobs" else surface
    )
    report = compare(manifest, more, relation)
    assert report.compatible
    assert report.classification == "update"
    assert [change.pointer for change in report.updates] == [f"/{section}/Entirely.New"]
    back = compare(more, manifest, relation)
    assert [change.rule for change in back.findings] == ["surface.removed"]


@given(edits())
@settings(max_examples=50)
def test_what_may_stand_beside_may_also_follow(
    edit: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    old, new = edit
    beside, after, before = compare(old, new, "coexistence"), compare(old, new), compare(new, old)
    if beside.compatible:
        assert after.compatible
        # And back again, but for what was added, rules that look from old to new, and versions of
        # a state that are read and never written any more.
        directed = {"payload.refused", "payload.unproven", "capability.added", "surface.moved"}
        assert not directed & {
            change.rule for change in before.findings if "/acceptedVersions/" not in change.pointer
        }


@given(related_schemas(), RELATIONS)
def test_every_witness_is_sent_by_one_side_and_refused_by_the_other(
    contract: Contract, schemas: tuple[Any, Any], relation: Any
) -> None:
    old, new = map(compile_schema, schemas)
    for place in ("rpc.input", "rpc.output", "events.event", "kv"):
        before, after = (contract({place: schema}) for schema in schemas)
        for change in compare(before, after, relation).findings:
            if change.has_witness:
                assert old.is_valid(change.witness) is not new.is_valid(change.witness)


@given(related_schemas())
@settings(max_examples=150)
def test_nothing_is_compatible_where_there_is_a_witness(
    contract: Contract, schemas: tuple[Any, Any]
) -> None:
    old, new = schemas
    if compare(contract({"rpc.input": old}), contract({"rpc.input": new})).compatible:
        assert _refuted(old, new) == []
    if compare(contract({"rpc.output": old}), contract({"rpc.output": new})).compatible:
        assert _refuted(new, old) == []


@given(st.tuples(OBJECTS, OBJECTS))
@settings(max_examples=400)
def test_what_is_obvious_is_true(schemas: tuple[Any, Any]) -> None:
    for sender, reader in (schemas, schemas[::-1]):
        if is_obviously_read(declare_members(sender, reader), reader):
            assert contains(_sent(sender, reader), reader).status != "not_contained"


def _refuted(sender: Any, reader: Any) -> list[Any]:
    """Payloads at and around every bound that the sender may send and the reader refuses."""
    sent, read = compile_schema(_sent(sender, reader)), compile_schema(reader)
    payloads = (value for schema in (sender, reader) for value in candidates(schema, 60))
    return [value for value in payloads if sent.is_valid(value) and not read.is_valid(value)]


def _sent(sender: Any, reader: Any) -> Any:
    """What is sent; an object that declares nothing has none of the members that are new."""
    return sender_language(declare_members(sender, reader))
