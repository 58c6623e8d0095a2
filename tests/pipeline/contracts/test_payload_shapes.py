"""Shapes of payloads, without Spark."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from accord.kernel import canonical
from accord.pipeline.rules import MORE, MOST_SHAPES, declared_names, shape

NAMES = frozenset({"a", "b", "c"})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text("xyz"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcxyz"), inner),
    max_leaves=20,
)


@given(JSON)
def test_a_shape_is_json_made_of_types_and_declared_names(value: Any) -> None:
    made = shape(value, NAMES)
    assert canonical.decode(canonical.encode(made)) == made
    types = {"null", "boolean", "integer", "number", "string"}

    def look(part: Any) -> None:
        if isinstance(part, dict):
            assert part.keys() <= NAMES | {"*"}
            for each in part.values():
                look(each)
        elif isinstance(part, list):
            for each in part:
                look(each)
        else:
            assert part in types

    look(made)


@given(st.lists(JSON, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_elements_makes_no_shape(values: list[Any], chance: Any) -> None:
    shuffled = values.copy()
    chance.shuffle(shuffled)
    assert shape(values, NAMES) == shape(shuffled, NAMES)


def test_an_array_of_many_shapes_is_cut_short() -> None:
    wide = [_nested(n) for n in range(MOST_SHAPES + 5)]
    cut = shape(wide, NAMES)
    assert len(cut) == MOST_SHAPES + 1
    assert cut[-1] == MORE


def _nested(depth: int) -> Any:
    return [] if depth == 0 else [_nested(depth - 1)]


def test_a_name_is_declared_wherever_a_schema_declares_it() -> None:
    schema = {
        "properties": {"a": {"items": [{"properties": {"b": True}}]}},
        "$defs": {"x": {"properties": {"c": {}}}},
        "required": ["never"],
    }
    assert declared_names(schema) == {"a", "b", "c"}
