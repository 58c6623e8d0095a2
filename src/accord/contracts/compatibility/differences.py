"""Where two schemas of one payload differ in a way that the specification names (section 6.2).

It walks both schemas side by side and says what it sees; it proves nothing. A difference carries
the claim by which a proof can be asked for: something that the one schema says of every payload
and that payloads of the other may break.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from accord.contracts.compatibility.members import (
    Conjuncts,
    Object,
    conjuncts,
    joined,
    listed_values,
    read_object,
)
from accord.kernel import canonical
from accord.kernel.finding import pointer

Kind = Literal[
    "required", "values", "format-narrowed", "format-widened", "closed", "grown", "removed"
]
Step = tuple[str, ...]
Steps = tuple[Step, ...] | None
"""The way to a place; None where no claim about the whole payload can be made of it."""

_FORMATS: Final = ("format", "contentEncoding", "contentMediaType")
_WIDER: Final = {
    "email": {"idn-email"},
    "hostname": {"idn-hostname"},
    "uri": {"iri", "uri-reference", "iri-reference"},
    "iri": {"iri-reference"},
    "uri-reference": {"iri-reference"},
}
"""Formats whose texts all have the other formats too."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that differs.

    Attributes:
        kind: What it is.
        place: Where in a payload, as a JSON Pointer with `*` for every item.
        what: The end of a sentence that begins with the place.
        claim: A schema that all payloads of one side keep, if such a claim can be made.
    """

    kind: Kind
    place: str
    what: str
    claim: Any = None


def differences(old: bytes, new: bytes) -> tuple[Difference, ...]:
    """What differs between two schemas, given as canonical JSON."""
    return tuple(_walk(canonical.decode(old), canonical.decode(new), (), ()))


def _walk(old: Any, new: Any, place: tuple[str, ...], steps: Steps) -> Iterator[Difference]:
    # First by ==, which is quick; but to it 1 and true are equal.
    if old == new and canonical.encode(old) == canonical.encode(new):
        return
    before, after = conjuncts(old), conjuncts(new)
    yield from _formats(before, after, place)
    narrowed = _values(before, after, place, steps)
    if narrowed is not None:
        yield from narrowed
        return
    one, other = read_object(before), read_object(after)
    if one is not None and other is not None:
        yield from _members(one, other, place, steps)
    yield from _items(before, after, place, steps)
    yield from _alternatives(before, after, place)


def _formats(old: Conjuncts, new: Conjuncts, place: tuple[str, ...]) -> Iterator[Difference]:
    for keyword in _FORMATS:
        before = {part[keyword] for part in old if keyword in part}
        after = {part[keyword] for part in new if keyword in part}
        for name in sorted(after - before):
            if not any(name in _WIDER.get(known, ()) for known in before):
                what = f"must have the {keyword} {name!r}, which the old contract did not ask for"
                yield Difference("format-narrowed", pointer(*place), what)
        for name in sorted(before - after):
            if not any(name in _WIDER.get(known, ()) for known in after):
                what = f"need no longer have the {keyword} {name!r}"
                yield Difference("format-widened", pointer(*place), what)


def _values(
    old: Conjuncts, new: Conjuncts, place: tuple[str, ...], steps: Steps
) -> Iterator[Difference] | None:
    """Values that a list no longer has; None if there is no list to look at."""
    after = listed_values(new)
    if after is None:
        return None
    before = listed_values(old)
    lost = () if before is None else tuple(before.keys() - after.keys())
    if before is not None and not lost:
        return iter(())
    some = ", ".join(sorted(text.decode()[:40] for text in lost)[:3])
    what = f"may no longer be {some}" if lost else "must be one of a list now"
    claim = _claim({"enum": list(after.values())}, steps)
    return iter((Difference("values", pointer(*place), what, claim),))


def _members(
    old: Object, new: Object, place: tuple[str, ...], steps: Steps
) -> Iterator[Difference]:
    for name in sorted((old.properties.keys() & new.required) - old.required):
        what = "is required now, and was optional"
        claim = _claim({"required": [name]}, steps)
        yield Difference("required", pointer(*place, name), what, claim)
    for name in sorted(old.properties.keys() - new.properties.keys() - new.required):
        kind = "required" if name in old.required else "optional"
        yield Difference("removed", pointer(*place, name), f"is gone; it was {kind}")
    if old.rest is not True:
        for name in sorted(new.properties.keys() - old.properties.keys()):
            what = "is new, in an object that was closed to unknown members"
            claim = None if old.patterns else _claim({"properties": {name: old.rest}}, steps)
            yield Difference("grown", pointer(*place, name), what, claim)
    elif new.rest is not True:
        what = "is closed to unknown members now"
        shape = {
            "properties": dict.fromkeys(sorted(new.properties.keys() | new.required), True),
            "patternProperties": dict.fromkeys(sorted(new.patterns), True),
            "additionalProperties": new.rest,
        }
        yield Difference("closed", pointer(*place), what, _claim(shape, steps))
    for name in sorted(old.properties.keys() & new.properties.keys()):
        inner = None if steps is None else (*steps, ("properties", name))
        yield from _walk(old.properties[name], new.properties[name], (*place, name), inner)
    for name in sorted(old.patterns.keys() & new.patterns.keys()):
        yield from _walk(old.patterns[name], new.patterns[name], (*place, "*"), None)
    if isinstance(old.rest, dict) and isinstance(new.rest, dict):
        yield from _walk(old.rest, new.rest, (*place, "*"), None)


def _items(
    old: Conjuncts, new: Conjuncts, place: tuple[str, ...], steps: Steps
) -> Iterator[Difference]:
    before = [part["items"] for part in old if "items" in part]
    after = [part["items"] for part in new if "items" in part]
    if not before or not after:
        return
    lists = [items for items in (*before, *after) if isinstance(items, list)]
    if not lists:
        inner = None if steps is None else (*steps, ("items",))
        yield from _walk(joined(before), joined(after), (*place, "*"), inner)
    elif len(before) == len(after) == 1 and len(lists) == 2:
        for at, (one, other) in enumerate(zip(before[0], after[0], strict=False)):
            yield from _walk(one, other, (*place, str(at)), None)


def _alternatives(old: Conjuncts, new: Conjuncts, place: tuple[str, ...]) -> Iterator[Difference]:
    for keyword in ("anyOf", "oneOf"):
        before = [part[keyword] for part in old if keyword in part]
        after = [part[keyword] for part in new if keyword in part]
        if len(before) == len(after) == 1 and len(before[0]) == len(after[0]):
            for one, other in _pairs(before[0], after[0]):
                yield from _walk(one, other, place, None)


def _pairs(old: list[Any], new: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Alternatives that correspond: those that did not stay as they are, in their order."""
    before = {canonical.encode(schema): schema for schema in old}
    after = {canonical.encode(schema): schema for schema in new}
    return zip(
        [schema for text, schema in before.items() if text not in after],
        [schema for text, schema in after.items() if text not in before],
        strict=False,
    )


def _claim(schema: Any, steps: Steps) -> Any:
    """The claim about one place as a claim about the whole payload."""
    if steps is None:
        return None
    for step in reversed(steps):
        schema = {"properties": {step[1]: schema}} if len(step) == 2 else {"items": schema}
    return schema
