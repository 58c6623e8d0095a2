import json
from importlib import resources
from typing import Any

import pytest

from accord.contracts.manifest import usual_schema
from accord.kernel import schema

DATA = resources.files("accord.contracts") / "data"


def read(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_bytes())


@pytest.mark.parametrize("name", ["trellis.contract.v1", "trellis.catalog.v1"])
def test_the_shapes_are_schemas_of_our_dialect(name: str) -> None:
    shape = read(name)
    assert shape["$schema"] == "https://json-schema.org/draft/2019-09/schema"
    assert shape["title"] == shape["properties"]["format"]["const"] == name
    schema.compile_schema(shape)


def test_a_catalog_lists_contracts_by_digest() -> None:
    catalog = schema.compile_schema(read("trellis.catalog.v1"))
    entry = {"id": "g@v1", "digest": "A" * 43, "displayName": "G", "description": "d"}
    value = {"format": "trellis.catalog.v1", "contracts": [entry]}
    assert catalog.is_valid(value)
    for member in entry:
        broken = {**value, "contracts": [{**entry, member: ""}]}
        assert catalog.is_valid(broken) == (member in ("displayName", "description"))
    assert not catalog.is_valid({**value, "contracts": {}})


METASCHEMA = {"$ref": "https://json-schema.org/draft/2019-09/schema"}
KEYWORDS = sorted(read("trellis.contract.v1")["$defs"]["schema"]["properties"])
VALUES: list[Any] = [
    *(0, -1, 1.5, "x", "string", True, None),
    *([], ["a"], ["a", "a"], [{}], [1], ["string", "null"]),
    *({}, {"a": {}}, {"a": 1}, {"a": ["b"]}, {"a": True}, {"a": "b"}),
]


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_the_embedded_dialect_agrees_with_the_meta_schema(keyword: str) -> None:
    definitions = read("trellis.contract.v1")["$defs"]
    ours = schema.compile_schema({"$ref": "#/$defs/schema", "$defs": definitions})
    draft = schema.compile_schema(METASCHEMA)
    for value in VALUES:
        allowed = draft.is_valid({keyword: value}) and keyword not in ("$ref", "$recursiveRef")
        assert ours.is_valid({keyword: value}) == allowed, value


USUAL = ["^[0-9A-Z]{26}$", "^[a-z0-9._-]+$", "a", "", "^$", r"^\d{4}-\d{2}$", "[^a-z]*", "x{0,9}"]
UNUSUAL = ["(a)", "[z-a]", "a{2,1}", "[", "a|b", "a**", "^^", r"\1", "(?=a)", "[]", "[^]", "{2}"]


def test_a_usual_pattern_needs_no_closer_look_because_it_compiles() -> None:
    def is_usual(pattern: str) -> bool:
        manifest = {
            "format": "trellis.contract.v1",
            "id": "g@v1",
            "displayName": "",
            "description": "",
            "kind": "app",
            "schemas": {"A": {"pattern": pattern}},
        }
        return usual_schema().is_valid(manifest)

    atoms = ["a", "[a-z]", "[^0-9-]", r"\d", r"[\w.]", ".", "-", "/", " "]
    times = ["", "*", "+", "?", "{0}", "{999}", "{0,1}", "{1,999}"]
    made = [f"^{one}{many}{two}$" for one in atoms for many in times for two in atoms]
    for pattern in (*USUAL, *made):
        assert is_usual(pattern), pattern
        schema.compile_schema({"pattern": pattern})
    assert not any(map(is_usual, UNUSUAL))
