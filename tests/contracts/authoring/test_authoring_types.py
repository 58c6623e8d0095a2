"""What the schema of a Python type says."""

import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from typing_extensions import TypedDict

from accord.contracts import ContractError
from accord.contracts.authoring import schema_of
from accord.kernel.schema import compile_schema


class Colour(Enum):
    """What can be seen."""

    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str] = []


class Owner(BaseModel):
    """Somebody with a pet."""

    name: Annotated[str, Field(max_length=5)]
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    colours: list[Colour] = []
    place: tuple[int, str] = (0, "")
    notes: dict[str, str | None] = {}
    second: Cat | None = Field(None, description="Another one.")


@dataclass
class Point:
    x: int
    tags: list[str] = field(default_factory=list)


class Move(TypedDict):
    to: str
    fast: NotRequired[bool]


class Node(BaseModel):
    children: list["Node"]


def keywords(schema: Any) -> set[str]:
    """Every member name at any depth."""
    if isinstance(schema, dict):
        return set(schema) | {name for part in schema.values() for name in keywords(part)}
    if isinstance(schema, list):
        return {name for part in schema for name in keywords(part)}
    return set()


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (
            Point,
            {
                "type": "object",
                "properties": {
                    "x": {"type": "integer"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["x"],
            },
        ),
        (
            Move,
            {
                "type": "object",
                "properties": {"to": {"type": "string"}, "fast": {"type": "boolean"}},
                "required": ["to"],
            },
        ),
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (
            tuple[int, str],
            {
                "type": "array",
                "items": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    ],
)
def test_a_type_has_a_plain_schema(annotation: Any, schema: Any) -> None:
    assert schema_of(annotation) == schema


def test_definitions_are_written_out_in_words_of_the_dialect() -> None:
    schema = schema_of(Owner)
    assert not keywords(schema) & {"$ref", "$defs", "discriminator", "prefixItems", "title"}
    assert schema["properties"]["second"]["description"] == "Another one."
    assert schema["properties"]["place"]["items"] == [{"type": "integer"}, {"type": "string"}]


def test_names_and_docstrings_of_classes_are_no_part_of_a_schema() -> None:
    renamed = create_model("Other", __base__=Owner, __doc__="Said differently.")
    assert schema_of(renamed) == schema_of(Owner)


def test_what_the_author_puts_into_a_schema_stays() -> None:
    class Titled(BaseModel):
        model_config = ConfigDict(title="Mine", extra="forbid")
        prefixItems: int = Field(title="Theirs")  # noqa: N815 - a keyword as the name of a member

    assert schema_of(Titled) == {
        "type": "object",
        "title": "Mine",
        "additionalProperties": False,
        "properties": {"prefixItems": {"type": "integer", "title": "Theirs"}},
        "required": ["prefixItems"],
    }


@given(st.from_type(Owner))
def test_what_a_type_writes_keeps_its_schema(owner: Owner) -> None:
    written = TypeAdapter(Owner).dump_python(owner, mode="json")
    assert compile_schema(schema_of(Owner)).is_valid(written)


def test_a_type_that_contains_itself_is_refused() -> None:
    with pytest.raises(ContractError, match="Node: the type contains itself"):
        schema_of(Node)


def test_a_type_without_a_schema_is_refused() -> None:
    with pytest.raises(ContractError, match="has no JSON Schema"):
        schema_of(pytest.Item)


def test_a_type_that_doubles_at_every_level_is_refused() -> None:
    level: Any = Point
    for number in range(40):
        level = create_model(f"Level{number}", left=(level, ...), right=(level, ...))
    with pytest.raises(ContractError, match="parts when definitions are written out"):
        schema_of(level)


def test_a_type_nested_without_end_is_refused() -> None:
    level: Any = int
    for _ in range(5000):
        level = list[level]
    with pytest.raises(ContractError, match="nested too deeply"):
        schema_of(level)


def test_authoring_is_light_until_a_type_is_given() -> None:
    program = "import sys, accord.contracts.authoring; print('pydantic' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout == "False\n"
