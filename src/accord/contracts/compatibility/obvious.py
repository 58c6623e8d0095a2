"""Containment that a look is enough to see: what most edits of authors need.

It answers yes only where yes is certain, and in linear time; no means nothing. The sender is read
as sending the members that its schema declares and no others.
"""

from collections.abc import Callable
from typing import Any, Final

from accord.kernel import canonical


def _most(sent: Any, read: Any) -> bool:
    return bool(sent <= read)


def _least(sent: Any, read: Any) -> bool:
    return bool(sent >= read)


def _types(sent: Any, read: Any) -> bool:
    wanted = {read} if isinstance(read, str) else set(read)
    if "number" in wanted:
        wanted.add("integer")
    return wanted.issuperset([sent] if isinstance(sent, str) else sent)


def _values(sent: list[Any], read: list[Any]) -> bool:
    return {*map(canonical.encode, sent)} <= {*map(canonical.encode, read)}


def _names(sent: list[str], read: list[str]) -> bool:
    return set(sent) >= set(read)


def _is_same(sent: Any, read: Any) -> bool:
    # Not by ==, to which 1 and true are equal.
    return canonical.encode(sent) == canonical.encode(read)


_KEYWORDS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "type": _types,
    "enum": _values,
    "required": _names,
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), _most),
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), _least),
    **dict.fromkeys(("const", "pattern", "multipleOf", "uniqueItems", "format"), _is_same),
}
"""Keywords that stand for themselves: when what one says implies what the other says."""

_OBJECT: Final = frozenset({"properties", "additionalProperties"})
_NAMING: Final = _OBJECT | {"type", "required"}
_KNOWN: Final = _KEYWORDS.keys() | _OBJECT | {"items"}


def is_obviously_read(sender: Any, reader: Any) -> bool:
    """Whether a look is enough to see that the reader accepts what the sender sends."""
    if reader is True or reader == {} or sender is False:
        return True
    if not isinstance(sender, dict) or not isinstance(reader, dict):
        return False
    if not sender.keys() <= _KNOWN or not reader.keys() <= _KNOWN:
        return _is_same(sender, reader)
    return (
        all(
            keyword in sender and implies(sender[keyword], reader[keyword])
            for keyword, implies in _KEYWORDS.items()
            if keyword in reader and keyword != "format"  # an annotation
        )
        and _items_read(sender, reader)
        and _members_read(sender, reader)
    )


def _items_read(sender: dict[str, Any], reader: dict[str, Any]) -> bool:
    if "items" not in reader:
        return True
    sent, read = sender.get("items", True), reader["items"]
    if isinstance(sent, list) or isinstance(read, list):
        return _is_same(sent, read)
    return is_obviously_read(sent, read)


def _members_read(sender: dict[str, Any], reader: dict[str, Any]) -> bool:
    if not reader.keys() & _OBJECT:
        return True
    sent, read = sender.get("properties", {}), reader.get("properties", {})
    rest = sender.get("additionalProperties", True)
    # The sender's reading closes only an object that declares members and nothing of the others.
    if (
        (not sent and rest is not False)
        or rest not in (True, False, {})
        or not sent.keys() >= {*sender.get("required", ())}
    ):
        return all(_is_same(sender.get(word, True), reader.get(word, True)) for word in _OBJECT)
    is_open = reader.get("additionalProperties", True) in (True, {})
    return all(
        is_obviously_read(schema, read[name]) if name in read else is_open
        for name, schema in sent.items()
    )


def declaring(sender: Any, reader: Any) -> Any:
    """The sender's schema with objects that declare no members taken to have none.

    An object schema without members may stand for a map of anything, so it is only taken in this
    way where the reader, just as open, names members: then they are new.
    """
    if not isinstance(sender, dict) or not isinstance(reader, dict):
        return sender
    if _is_open_object(sender) and not sender.get("properties") and not sender.get("required"):
        is_new = _is_open_object(reader) and reader.get("properties")
        return {**sender, "additionalProperties": False} if is_new else sender
    told = dict(sender)
    if isinstance(sender.get("properties"), dict) and isinstance(reader.get("properties"), dict):
        read = reader["properties"]
        told["properties"] = {
            name: declaring(schema, read[name]) if name in read else schema
            for name, schema in sender["properties"].items()
        }
    if "items" in sender and "items" in reader:
        told["items"] = declaring(sender["items"], reader["items"])
    return told


def _is_open_object(schema: dict[str, Any]) -> bool:
    return (
        schema.get("type") == "object"
        and schema.keys() <= _NAMING
        and schema.get("additionalProperties", True) in (True, {})
    )
