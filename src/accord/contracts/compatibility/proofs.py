"""Proofs that a reader accepts what a sender sends, within a budget per comparison.

A sender is taken to send only the members that its schema declares. Obvious cases are decided in
linear time, the rest by `containment`. The budget is counted in bytes of schema, so that the answer
does not depend on the machine.
"""

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from accord.contracts.containment import (
    ABSENT,
    MAX_STEPS,
    ContainmentVerdict,
    contains,
    sender_language,
)
from accord.contracts.containment.strings import clear_string_cache as forget_patterns
from accord.contracts.errors import ContractError
from accord.kernel import canonical
from accord.kernel.schema import Schema, compile_schema


def _types(sent: Any, read: Any) -> bool:
    wanted = {read} if isinstance(read, str) else set(read)
    if "number" in wanted:
        wanted.add("integer")
    return wanted.issuperset([sent] if isinstance(sent, str) else sent)


def _is_same(sent: Any, read: Any) -> bool:
    # Not by ==, to which 1 and true are equal.
    return canonical.encode(sent) == canonical.encode(read)


_KEYWORDS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "type": _types,
    "enum": lambda sent, read: {*map(canonical.encode, sent)} <= {*map(canonical.encode, read)},
    "required": lambda sent, read: set(sent) >= set(read),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), operator.le),
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), operator.ge),
    **dict.fromkeys(("const", "pattern", "multipleOf", "uniqueItems", "format"), _is_same),
}
"""Keywords that stand for themselves: when what one says implies what the other says."""

_OBJECT: Final = frozenset({"properties", "additionalProperties"})
_NAMING: Final = _OBJECT | {"type", "required"}
_KNOWN: Final = _KEYWORDS.keys() | _OBJECT | {"items"}


def is_obviously_read(sender: Any, reader: Any) -> bool:
    """Whether a linear-time check shows that the reader accepts what the sender sends."""
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


def declare_members(sender: Any, reader: Any) -> Any:
    """The sender's schema, with objects that declare no members read as empty.

    An object schema without members may mean a map of anything, so it is read as empty only where
    the reader, equally open, names members: those are new then.
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
            name: declare_members(schema, read[name]) if name in read else schema
            for name, schema in sender["properties"].items()
        }
    if "items" in sender and "items" in reader:
        told["items"] = declare_members(sender["items"], reader["items"])
    return told


def _is_open_object(schema: dict[str, Any]) -> bool:
    return (
        schema.get("type") == "object"
        and schema.keys() <= _NAMING
        and schema.get("additionalProperties", True) in (True, {})
    )


MEANS: Final = 512 * 1024
"""Bytes of schemas that one comparison proves something about."""

_SPENT: Final = ContainmentVerdict(
    "unproven", reason="too much else changed for one comparison; compare in smaller steps"
)
_PER_PROOF: Final = 1024
# A search that ends without an answer costs as much as hundreds that find one, so a search gets
# half of the steps that are left, and keeps them if it fails.
_STEPS: Final = MAX_STEPS * 3 // 2
_FEWEST_STEPS: Final = 1000
_MAX_KNOWN: Final = 1024


class Prover:
    """Answers the questions of one comparison."""

    def __init__(self) -> None:
        self._left = MEANS
        self._steps = _STEPS
        self._known: dict[tuple[bytes, bytes, bool], ContainmentVerdict] = {}
        self._parsed: dict[bytes, Any] = {}

    def reads(self, sender: bytes, reader: bytes) -> ContainmentVerdict:
        """Whether the reader accepts what the sender sends; both as canonical JSON."""
        key = (sender, reader, False)
        if key not in self._known and self._is_obvious(sender, reader):
            self._known[key] = ContainmentVerdict("contained")
        return self.keeps(sender, reader)

    def keeps(self, sender: bytes, claim: bytes, *, strict: bool = False) -> ContainmentVerdict:
        """Whether what the sender sends is valid under `claim`, a schema as well.

        With `strict`, the sender may send undeclared members, too.
        """
        key = (sender, claim, strict)
        if key not in self._known:
            self._known[key] = self._prove(*key)
        return self._known[key]

    def _is_obvious(self, sender: bytes, reader: bytes) -> bool:
        sent, read = self._parse(sender), self._parse(reader)
        return is_obviously_read(declare_members(sent, read), read)

    def _parse(self, schema: bytes) -> Any:
        if schema not in self._parsed:
            self._parsed[schema] = canonical.decode(schema)
        return self._parsed[schema]

    def _prove(self, sender: bytes, reader: bytes, strict: bool) -> ContainmentVerdict:
        cost = _PER_PROOF + len(sender) + len(reader)
        if cost > self._left or self._steps < _FEWEST_STEPS:
            return _SPENT
        self._left -= cost
        verdict = _proved(sender, reader, strict, self._steps // 2)
        if verdict.status == "unproven":
            self._steps //= 2
        return verdict


@lru_cache(_MAX_KNOWN)
def _proved(sender: bytes, reader: bytes, strict: bool, steps: int) -> ContainmentVerdict:
    sent, read = canonical.decode(sender), canonical.decode(reader)
    try:
        sent = sent if strict else sender_language(declare_members(sent, read))
        verdict = contains(sent, read, steps=steps)
    except ContractError as error:
        return ContainmentVerdict("unproven", reason=str(error))
    if verdict.has_witness and not (
        accepts(sender, verdict.witness) and not accepts(reader, verdict.witness)
    ):
        return ContainmentVerdict(
            "unproven", reason="a witness that the validator does not confirm"
        )
    return verdict


def clear_proof_cache() -> None:
    """Empty the cache of proofs; answers do not change."""
    _proved.cache_clear()
    forget_patterns()


def accepts(schema: bytes, value: Any) -> bool:
    """Whether the validator accepts a value."""
    return _compiled(schema).is_valid(value)


def refusal_of(schema: bytes, value: Any) -> str:
    """The validator's reason for refusing a value."""
    finding = _compiled(schema).findings(value)[0]
    return f"{finding.pointer or 'the payload'}: {finding.message}"


@lru_cache(_MAX_KNOWN)
def _compiled(schema: bytes) -> Schema:
    return compile_schema(canonical.decode(schema))


def witness_of(verdict: ContainmentVerdict, reader: bytes) -> Any:
    """The verdict's witness if the reader refuses it, else ABSENT."""
    if verdict.has_witness and not accepts(reader, verdict.witness):
        return verdict.witness
    return ABSENT
