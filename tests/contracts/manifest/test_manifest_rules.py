import copy
from typing import Any

import pytest

from accord.contracts import validate
from accord.contracts.manifest import RULES

EMPTY = {
    "format": "trellis.contract.v1",
    "id": "g@v1",
    "displayName": "G",
    "description": "d",
    "kind": "service",
}
A = {"schema": "A"}
RPC = {"version": "v1", "subject": "rpc.v1.X", "input": A, "output": A}
OPERATION = {"version": "v1", "subject": "operations.v1.O", "input": A, "output": A}
EVENT = {"version": "v1", "subject": "events.v1.E", "event": A}
FEED = {"version": "v1", "subject": "feeds.v1.F", "input": A, "event": A}
FILE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}, "labels": {}},
}
SEND = {"direction": "send", "store": "uploads", "key": "/name"}


def manifest(**sections: Any) -> dict[str, Any]:
    schemas = {"A": {"type": "object"}, "File": FILE, **sections.pop("schemas", {})}
    return copy.deepcopy({**EMPTY, "schemas": schemas, **sections})


def found(value: Any) -> list[tuple[str, str]]:
    return [(finding.rule, finding.pointer) for finding in validate(value)]


def templated(schema: Any, pointer: str = "/id") -> dict[str, Any]:
    event = {**EVENT, "subject": f"events.v1.E.{{{pointer}}}", "params": [pointer]}
    return manifest(schemas={"P": schema}, events={"E": {**event, "event": {"schema": "P"}}})


def consuming(group: Any, **sections: Any) -> dict[str, Any]:
    use = {"contract": "b@v1", "events": {"subscribe": ["B.X"]}}
    return manifest(
        events={"E": EVENT}, uses={"required": {"b": use}}, eventConsumers={"g": group}, **sections
    )


def sending(**transfer: Any) -> dict[str, Any]:
    operation = {**OPERATION, "input": {"schema": "File"}, "transfer": {**SEND, **transfer}}
    return manifest(
        operations={"O": operation}, resources={"store": {"uploads": {"purpose": "files"}}}
    )


def keyed(**keys: Any) -> dict[str, Any]:
    job = {"payload": {"schema": "File"}, "keyConcurrency": {"key": ["x", "/name"], **keys}}
    return manifest(jobs={"j": job})


VALID = {
    "nothing but the required members": EMPTY,
    "one of each surface": manifest(
        rpc={"X": RPC}, operations={"O": OPERATION}, events={"E": EVENT}, feeds={"F": FEED}
    ),
    "unknown members everywhere": manifest(
        rpc={"X": {**RPC, "internal": True, "capabilities": {"other": 3}}}, zzz=[None, 1.5]
    ),
    "an error type that nobody declares": manifest(rpc={"X": {**RPC, "errors": [{"type": "Q"}]}}),
    "an inline error schema": manifest(errors={"E": {"type": "E", "schema": {"type": "object"}}}),
    "a property named $ref": manifest(schemas={"P": {"properties": {"$ref": {"type": "string"}}}}),
    "a const that looks like a schema": manifest(schemas={"P": {"const": {"type": "nonsense"}}}),
    "a const that looks like a pattern": manifest(
        schemas={"P": {"const": {"pattern": "(?=x)"}, "properties": {"pattern": {}}}}
    ),
    "an identified schema": manifest(schemas={"P": {"$id": "https://a.example/p", "items": True}}),
    "a template": templated({"type": "object", "properties": {"id": {"type": "string"}}}),
    "a template through allOf": templated(
        {"allOf": [{"type": "object"}, {"properties": {"id": {"type": "integer"}}}]}
    ),
    "a template through every variant": templated(
        {
            "oneOf": [
                {"properties": {"id": {"const": "a"}, "x": {}}},
                {"properties": {"id": {"enum": ["b", 1]}}},
            ]
        }
    ),
    "a template beside variants": templated(
        {"properties": {"id": {"type": "string"}}, "anyOf": [{"required": ["id"]}, {}]}
    ),
    "a template with an escaped pointer": templated(
        {"properties": {"a/b": {"properties": {"c.~": {"type": "number"}}}}}, "/a~1b/c.~0"
    ),
    "a consumer of both kinds": consuming({"uses": {"b": ["B.X"]}, "self": ["E"]}),
    "a transfer": sending(),
    "a keyed job": keyed(heartbeatIntervalMs=5, heartbeatTtlMs=6),
    "a key that the payload's schema says nothing about": keyed(key=["/other"]),
}


@pytest.mark.parametrize("name", VALID)
def test_a_valid_manifest_has_no_findings(name: str) -> None:
    assert validate(VALID[name]) == []


OBJECT = {"type": "object", "properties": {"id": {"type": "string"}}}

INVALID: dict[str, tuple[str, str, Any]] = {
    "not a number": ("manifest.plain-json", "/x/0", manifest(x=[float("nan")])),
    "negative zero": ("manifest.plain-json", "/schemas/P/maximum", manifest(
        schemas={"P": {"maximum": -0.0}})),
    "an integer beyond a double": ("manifest.plain-json", "/x", manifest(x=2**53 + 1)),
    "raw subjects": ("manifest.unsupported-member", "/subjects", manifest(subjects={})),
    "job resources": ("manifest.unsupported-member", "/resources/jobs", manifest(
        resources={"jobs": 1})),
    "stream resources": ("manifest.unsupported-member", "/resources/stream", manifest(
        resources={"stream": {}})),
    "used subjects": ("manifest.unsupported-member", "/uses/optional/b/subjects", manifest(
        uses={"optional": {"b": {"contract": "b@v1", "subjects": {}}}})),
    "a missing member": ("manifest.shape", "/rpc/X/errors/0", manifest(
        rpc={"X": {**RPC, "errors": [{}]}})),
    "an id without a version": ("manifest.shape", "/id", {**EMPTY, "id": "graph"}),
    "an alias outside its group": ("manifest.shape", "/uses", manifest(
        uses={"b": {"contract": "b@v1"}})),
    "a version that is none": ("manifest.shape", "/rpc/X/version", manifest(
        rpc={"X": {**RPC, "version": "1"}})),
    "a history of nothing": ("manifest.shape", "/resources/kv/s/history", manifest(
        resources={"kv": {"s": {"purpose": "p", "schema": A, "history": 0}}})),
    "a group of nothing": ("consumer.empty", "/eventConsumers/g", consuming({"uses": {"b": []}})),
    "an unknown alias": ("consumer.unknown-use", "/eventConsumers/g/uses/c", consuming(
        {"uses": {"c": ["B.X"]}})),
    "an event not subscribed to": (
        "consumer.not-subscribed", "/eventConsumers/g/uses/b/1", consuming(
            {"uses": {"b": ["B.X", "B.Y"]}})),
    "an event not owned": ("consumer.not-owned", "/eventConsumers/g/self/0", consuming(
        {"self": ["Z"]})),
    "two at a time": ("consumer.strict-concurrency", "/eventConsumers/g/concurrency", consuming(
        {"self": ["E"], "concurrency": 2})),
    "a reference": ("schema.reference", "/schemas/P/properties/x/$ref", manifest(
        schemas={"P": {"properties": {"x": {"$ref": "#/$defs/y"}}}})),
    "a recursive reference": ("schema.reference", "/schemas/P/not/$recursiveRef", manifest(
        schemas={"P": {"not": {"$recursiveRef": "#"}}})),
    "a reference inside an error": ("schema.reference", "/errors/E/schema/items/$ref", manifest(
        errors={"E": {"type": "E", "schema": {"items": {"$ref": "x"}}}})),
    "an unknown type": ("schema.dialect", "/schemas/P/type", manifest(
        schemas={"P": {"type": "strng"}})),
    "an unknown type in a list": ("schema.dialect", "/schemas/P/items/0/type/1", manifest(
        schemas={"P": {"items": [{"type": ["null", "strng"]}]}})),
    "a negative length": ("schema.dialect", "/schemas/P/anyOf/0/minLength", manifest(
        schemas={"P": {"anyOf": [{"minLength": -1}]}})),
    "a number for a schema": ("schema.dialect", "/schemas/P", manifest(schemas={"P": 3})),
    "an identifier that is no URI": ("schema.dialect", "/schemas/P/$id", manifest(
        schemas={"P": {"$id": "::"}})),
    "look-around": ("schema.pattern", "/schemas/P/properties/a~1b/pattern", manifest(
        schemas={"P": {"properties": {"a/b": {"pattern": '(?="x")'}}}})),
    "a back-reference": ("schema.pattern", "/schemas/P/patternProperties/(a)\\1", manifest(
        schemas={"P": {"patternProperties": {"(a)\\1": True}}})),
    "no pattern at all": ("schema.pattern", "/errors/E/schema/pattern", manifest(
        errors={"E": {"type": "E", "schema": {"pattern": "["}}})),
    "a pattern that explodes": ("schema.pattern", "/schemas/P/pattern", manifest(
        schemas={"P": {"pattern": "((a{99}){99}){99}"}})),
    "an unknown schema": ("reference.unknown-schema", "/rpc/X/output/schema", manifest(
        rpc={"X": {**RPC, "output": {"schema": "B"}}})),
    "an unknown schema of a feed": ("reference.unknown-schema", "/feeds/F/event/schema", manifest(
        feeds={"F": {**FEED, "event": {"schema": "B"}}})),
    "an unknown schema of a signal": (
        "reference.unknown-schema", "/operations/O/signals/s/input/schema", manifest(
            operations={"O": {**OPERATION, "signals": {"s": {"input": {"schema": "B"}}}}})),
    "an unknown accepted version": (
        "reference.unknown-schema", "/state/s/acceptedVersions/v0/schema", manifest(
            state={"s": {
                "kind": "map", "schema": A, "acceptedVersions": {"v0": {"schema": "B"}}}})),
    "an unknown schema of a bucket": (
        "reference.unknown-schema", "/resources/kv/s/schema/schema", manifest(
            resources={"kv": {"s": {"purpose": "p", "schema": {"schema": "B"}}}})),
    "an unknown schema of an error": (
        "reference.unknown-schema", "/errors/E/schema/schema", manifest(
            errors={"E": {"type": "E", "schema": {"schema": "B"}}})),
    "an unknown export": ("reference.unknown-schema", "/exports/schemas/1", manifest(
        exports={"schemas": ["A", "B"]})),
    "params that are missing": ("event.params-order", "/events/E/params", manifest(
        schemas={"P": OBJECT},
        events={"E": {**EVENT, "subject": "events.v1.E.{/id}", "event": {"schema": "P"}}})),
    "params without a template": ("event.params-order", "/events/E/params", manifest(
        events={"E": {**EVENT, "params": ["/id"]}})),
    "a pointer to nothing": ("event.template-pointer", "/events/E/subject", templated(
        OBJECT, "/other")),
    "a pointer to a boolean schema": ("event.template-pointer", "/events/E/subject", templated(
        {"properties": {"id": True}})),
    "a pointer to an object": ("event.template-pointer", "/events/E/subject", templated(
        {"properties": {"id": {"type": "object"}}})),
    "a pointer to what may be null": ("event.template-pointer", "/events/E/subject", templated(
        {"properties": {"id": {"type": ["string", "null"]}}})),
    "a pointer to true": ("event.template-pointer", "/events/E/subject", templated(
        {"properties": {"id": {"enum": ["a", True]}}})),
    "a pointer through an array": ("event.template-pointer", "/events/E/subject", templated(
        {"properties": {"id": {"type": "array", "items": {"type": "string"}}}}, "/id/0")),
    "a variant without the place": ("event.template-pointer", "/events/E/subject", templated(
        {"anyOf": [OBJECT, {"type": "object"}]})),
    "a variant with another type": ("event.template-pointer", "/events/E/subject", templated(
        {**OBJECT, "oneOf": [{"properties": {"id": {"type": "array"}}}]})),
    "a branch with another type": ("event.template-pointer", "/events/E/subject", templated(
        {"allOf": [OBJECT, {"properties": {"id": {"type": "array"}}}]})),
    "a wildcard": ("subject.syntax", "/rpc/X/subject", manifest(
        rpc={"X": {**RPC, "subject": "rpc.v1.*"}})),
    "a space": ("subject.syntax", "/feeds/F/subject", manifest(
        feeds={"F": {**FEED, "subject": "feeds.v1.a b"}})),
    "an empty token": ("subject.syntax", "/operations/O/subject", manifest(
        operations={"O": {**OPERATION, "subject": "operations..O"}})),
    "a template outside events": ("subject.syntax", "/rpc/X/subject", manifest(
        rpc={"X": {**RPC, "subject": "rpc.v1.{/id}"}})),
    "the server's own space": ("subject.reserved", "/events/E/subject", manifest(
        events={"E": {**EVENT, "subject": "$JS.API.INFO"}})),
    "callers' inboxes": ("subject.reserved", "/rpc/X/subject", manifest(
        rpc={"X": {**RPC, "subject": "_INBOX.a.b"}})),
    "the protocol's own space": ("subject.reserved", "/rpc/X/subject", manifest(
        rpc={"X": {**RPC, "subject": "trellis.work.a.b"}})),
    "a template that reaches into it": ("subject.reserved", "/events/E/subject", manifest(
        schemas={"P": OBJECT}, events={"E": {**EVENT, "event": {"schema": "P"},
        "subject": "trellis.{/id}.billing", "params": ["/id"]}})),
    "an event that no stream takes": ("subject.events", "/events/E/subject", manifest(
        events={"E": {**EVENT, "subject": "billing.v1.Paid"}})),
    "an event that only begins like one": ("subject.events", "/events/E/subject", manifest(
        events={"E": {**EVENT, "subject": "events"}})),
    "a subject twice": ("subject.duplicate", "/rpc/Y/subject", manifest(rpc={"X": RPC, "Y": RPC})),
    "a subject that is a control subject": ("subject.duplicate", "/feeds/F/subject", manifest(
        operations={"O": OPERATION}, feeds={"F": {**FEED, "subject": "operations.v1.O.control"}})),
    "templates with the same wildcard": ("subject.duplicate", "/events/F/subject", manifest(
        schemas={"P": {"properties": {k: {"type": "string"} for k in "ab"}}},
        events={
            name: {"version": "v1", "subject": f"events.v1.E.{{/{key}}}", "params": [f"/{key}"],
                   "event": {"schema": "P"}}
            for name, key in (("E", "a"), ("F", "b"))
        })),
    "another's capability": ("capability.namespace", "/capabilities/h::read", manifest(
        capabilities={"h::read": {"displayName": "Read", "description": "d"}})),
    "a capability of no namespace": ("capability.namespace", "/capabilities/admin", manifest(
        capabilities={"admin": {"displayName": "Read", "description": "d"}})),
    "an unknown store": ("transfer.unknown-store", "/operations/O/transfer/store", sending(
        store="other")),
    "a key that is no text": ("transfer.pointer", "/operations/O/transfer/key", sending(
        key="/size")),
    "metadata from nowhere": ("transfer.pointer", "/operations/O/transfer/metadata", sending(
        metadata="/nowhere")),
    "a heartbeat that dies at once": (
        "job.heartbeat", "/jobs/j/keyConcurrency/heartbeatTtlMs", keyed(
            heartbeatIntervalMs=5, heartbeatTtlMs=5)),
    "a key that is no scalar": ("job.key-pointer", "/jobs/j/keyConcurrency/key/0", manifest(
        schemas={"P": {"properties": {"x": {"type": "object"}}}},
        jobs={"j": {"payload": {"schema": "P"}, "keyConcurrency": {"key": ["/x"]}}})),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_a_mistake_is_found_at_its_place_by_its_rule(name: str) -> None:
    rule, pointer, value = INVALID[name]
    findings = validate(value)
    assert [(finding.rule, finding.pointer) for finding in findings] == [(rule, pointer)]
    assert all(finding.message for finding in findings)


def test_every_rule_is_described_and_has_a_case() -> None:
    assert {rule.id for rule in RULES} == {rule for rule, _, _ in INVALID.values()}
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.purpose.endswith(".") and "\n" not in rule.purpose for rule in RULES)


def test_all_findings_are_listed_in_the_order_of_the_rules() -> None:
    value = manifest(
        subjects={},
        id="no version",
        schemas={"P": {"type": "strng", "items": {"pattern": "(?=x)"}}, "Q": {"$ref": "x"}},
        rpc={"X": {"version": "v1", "subject": "rpc v1", "input": {"schema": 5}, "output": A},
             "Y": {"version": "v1", "input": {"schema": "B"}, "output": A}},
        events={"E": 3},
        eventConsumers={"g": {"self": ["E", "F"], "concurrency": 2}},
    )  # fmt: skip
    assert found(value) == [
        ("manifest.unsupported-member", "/subjects"),
        ("manifest.shape", "/id"),
        ("manifest.shape", "/rpc/X/input/schema"),
        ("manifest.shape", "/rpc/Y"),
        ("manifest.shape", "/events/E"),
        ("consumer.not-owned", "/eventConsumers/g/self/1"),
        ("consumer.strict-concurrency", "/eventConsumers/g/concurrency"),
        ("schema.reference", "/schemas/Q/$ref"),
        ("schema.dialect", "/schemas/P/type"),
        ("schema.pattern", "/schemas/P/items/pattern"),
        ("reference.unknown-schema", "/rpc/Y/input/schema"),
        ("subject.syntax", "/rpc/X/subject"),
    ]
