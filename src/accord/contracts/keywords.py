"""Which keywords of draft 2019-09 hold schemas, and how. Whoever walks a schema walks by these."""

from typing import Final

ONE: Final = frozenset(
    {"additionalItems", "unevaluatedItems", "contains", "additionalProperties"}
    | {"unevaluatedProperties", "propertyNames", "if", "then", "else", "not", "contentSchema"}
)
"""The value is a schema."""

LISTS: Final = frozenset({"allOf", "anyOf", "oneOf"})
"""The value is a list of schemas."""

ONE_OR_LIST: Final = "items"
"""The value is a schema, or a list of schemas."""

MAPS: Final = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs"}
    | {"definitions"}
)
"""The value is a map of schemas; of `dependencies`, some may be lists of names instead."""
