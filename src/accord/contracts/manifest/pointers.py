"""JSON Pointers into payloads, followed through the schema that the payloads keep.

It answers whether a pointer leads to a value of a wanted type in every payload that has it
(specification, section 8). The work is bounded, whatever the schema.
"""

from typing import Any, Final

Path = tuple[str, ...]

SCALAR: Final = frozenset({"string", "number", "integer"})
"""What can stand as a token of a subject or as a segment of a job's key."""

_EFFORT: Final = 200_000
_TYPES: Final = {str: "string", int: "integer", float: "number", dict: "object", list: "array"}


def steps(pointer: str) -> list[str]:
    """The reference tokens of a JSON Pointer (RFC 6901)."""
    tokens = pointer.split("/")[1:]
    if "~" in pointer:
        return [token.replace("~1", "/").replace("~0", "~") for token in tokens]
    return tokens


class Tracer:
    """Follows pointers through schemas, until so much work is done that it refuses to go on."""

    def __init__(self) -> None:
        self._effort = _EFFORT

    def fault(
        self, schema: Any, pointer: str, wanted: frozenset[str], *, declared: bool = True
    ) -> str | None:
        """Why a pointer does not lead to a value of a wanted type; None if it does.

        Args:
            schema: What the payloads keep.
            pointer: The JSON Pointer.
            wanted: The types of JSON Schema that the value may have.
            declared: Whether it is a fault that the schema says nothing about the place.
        """
        exposed, fault = self._follow(schema, steps(pointer), 0, wanted)
        if fault is None and declared and not exposed:
            return "leads to nothing that the schema declares for every payload"
        return fault

    def _follow(
        self, schema: Any, path: list[str], at: int, wanted: frozenset[str]
    ) -> tuple[bool, str | None]:
        """Whether the schema itself constrains the place, and what is wrong there."""
        self._effort -= 1
        if self._effort < 0:
            return False, "takes too many branches of the schema to follow"
        if not isinstance(schema, dict):
            return False, None
        exposed, fault = (
            self._through(schema, path, at, wanted) if at < len(path) else _arrive(schema, wanted)
        )
        for branch in schema.get("allOf", ()):
            if fault is None:
                shown, fault = self._follow(branch, path, at, wanted)
                exposed = exposed or shown
        # Any variant may be the one that a payload keeps, so all must show the place.
        for keyword in ("anyOf", "oneOf"):
            everywhere = keyword in schema
            for variant in schema.get(keyword, ()):
                if fault is None and (everywhere or exposed):
                    shown, fault = self._follow(variant, path, at, wanted)
                    everywhere = everywhere and shown
            exposed = exposed or everywhere
        return exposed, fault

    def _through(
        self, schema: dict[str, Any], path: list[str], at: int, wanted: frozenset[str]
    ) -> tuple[bool, str | None]:
        if "type" in schema and _types(schema["type"]) != {"object"}:
            return False, "leads through a value that need not be an object"
        properties = schema.get("properties", {})
        if path[at] not in properties:
            return False, None
        return self._follow(properties[path[at]], path, at + 1, wanted)


def _arrive(schema: dict[str, Any], wanted: frozenset[str]) -> tuple[bool, str | None]:
    if "type" in schema:
        types = _types(schema["type"])
    elif "const" in schema:
        types = {_type_of(schema["const"])}
    elif "enum" in schema:
        types = set(map(_type_of, schema["enum"]))
    else:
        return False, None
    if types <= wanted:
        return True, None
    return True, f"leads to a value that may be of type {min(types - wanted)}"


def _types(declared: str | list[str]) -> set[str]:
    return {declared} if isinstance(declared, str) else set(declared)


def _type_of(value: Any) -> str:
    return _TYPES.get(type(value), "boolean or null")
