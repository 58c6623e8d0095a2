"""Forms from schemas, and the JSON values of what was typed."""

from typing import Any

import pytest

from accord.web.forms import WHOLE, FormError, fields_of, read_value

ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "count": {"type": "integer", "default": 1, "minimum": 1},
        "price": {"type": "number"},
        "gift": {"type": "boolean"},
        "size": {"enum": ["s", "m"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "For us."},
    },
    "required": ["name", "price"],
}


def test_simple_members_get_fields_of_their_own() -> None:
    fields = {each.name: each for each in fields_of(ITEM)}
    assert [each.input for each in fields.values()] == [
        *("text", "number", "number", "checkbox", "select", "json", "text"),
    ]
    assert fields["count"].text == "1"
    assert fields["count"].help == "at least 1"
    assert fields["note"].help == "For us."
    assert fields["size"].choices == ("s", "m")
    assert [name for name, each in fields.items() if each.is_required] == ["name", "price"]


def test_what_was_typed_becomes_the_value() -> None:
    typed = {
        "name": " x ",
        "count": "3",
        "price": "2.5",
        "gift": "true",
        "size": "m",
        "tags": '["a"]',
        "note": "",
    }
    assert read_value(fields_of(ITEM), typed) == {
        "name": " x ",
        "count": 3,
        "price": 2.5,
        "gift": True,
        "size": "m",
        "tags": ["a"],
    }


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("count", "three", "not a whole number"),
        ("price", "", "needed"),
        ("price", "x", "not a number"),
        ("tags", "[", "not JSON"),
        ("tags", "[" * 100_000, "not JSON"),
    ],
)
def test_a_text_that_is_no_value_names_its_field(name: str, text: str, why: str) -> None:
    with pytest.raises(FormError, match=why) as caught:
        read_value(fields_of(ITEM), {"name": "x", "price": "1", name: text})
    assert caught.value.where == name


def test_what_has_no_simple_members_is_typed_as_json() -> None:
    schemas: list[Any] = [True, {"type": "array"}, {"anyOf": []}]
    for schema in schemas:
        (field,) = fields_of(schema)
        assert (field.name, field.input) == (WHOLE, "json")
        assert read_value([field], {WHOLE: "[1]"}) == [1]
    assert fields_of({"type": "object"}) == []
    assert read_value([], {}) == {}
