"""Hypothesis strategies for the schemas that contracts hold.

Needs the extra `accord[dev]`, and is imported by name.
"""

from typing import Any

from hypothesis import strategies as st

Strategy = st.SearchStrategy[Any]

TOKENS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "n": {"type": "integer"},
        "file": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "type": {"enum": ["text", "image"]},
                "labels": {"type": "object"},
            },
        },
    },
    "required": ["id", "n", "file"],
}
"""A schema whose payloads have what templates, keys and transfers point to."""


def payload_schemas() -> Strategy:
    """Schemas of draft 2019-09 as authors write them: objects of scalars, lists, choices."""
    return st.recursive(_scalar_schemas(), _composed_schemas, max_leaves=5)


def _scalar_schemas() -> Strategy:
    size = st.integers(0, 64)
    text = st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "minLength": st.integers(0, 4),
            "maxLength": st.integers(4, 64),
            "pattern": st.sampled_from(("^[a-z]+$", "^(a|b)*$", "^[0-9A-Z]{26}$")),
            "format": st.just("date-time"),
            "description": st.text(max_size=20),
        },
    )
    number = st.fixed_dictionaries(
        {"type": st.sampled_from(("integer", "number"))},
        optional={"minimum": st.integers(-9, 0), "exclusiveMaximum": size.map(lambda n: n + 0.5)},
    )
    choice = st.builds(
        lambda values: {"enum": values},
        st.lists(st.sampled_from(("open", "closed", 1, None)), min_size=1, unique=True),
    )
    other: Strategy = st.sampled_from(
        (True, False, {"type": "boolean"}, {"type": ["string", "null"]}, {"const": "x"})
    )
    return st.one_of(text, number, choice, other)


def _composed_schemas(inner: Strategy) -> Strategy:
    members = st.dictionaries(st.sampled_from(("a", "b", "$ref", "é")), inner, max_size=3)
    several = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": members},
            optional={
                "required": st.lists(st.sampled_from(("a", "b")), unique=True),
                "additionalProperties": st.booleans(),
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner}, optional={"maxItems": st.integers(0, 9)}
        ),
        *(
            st.builds(lambda k, branches: {k: branches}, st.just(keyword), several)
            for keyword in ("allOf", "anyOf", "oneOf")
        ),
    )
