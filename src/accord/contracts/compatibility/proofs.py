"""Proofs that what one side sends is what the other side reads, within one comparison's means.

A sender is read as sending the members that its schema declares and no others. Most changes that
authors make are obvious; the rest is asked of `containment`. The means are counted in bytes of
schema, so that the answer does not depend on the machine or on what was proved before, and a
comparison that exceeds them says "not proven".
"""

from functools import lru_cache
from typing import Any, Final

from accord.contracts.compatibility.obvious import declaring, is_obviously_read
from accord.contracts.containment import ABSENT, MAX_STEPS, Verdict, contains, sender_language
from accord.contracts.containment.strings import forget as forget_patterns
from accord.contracts.errors import ContractError
from accord.kernel import canonical
from accord.kernel.schema import Schema, compile_schema

MEANS: Final = 512 * 1024
"""Bytes of schemas that one comparison proves something about."""

_SPENT: Final = Verdict(
    "unproven", reason="too much else changed for one comparison; compare in smaller steps"
)
_PER_PROOF: Final = 1024
# A search that ends without an answer costs as much as hundreds that find one, so a search gets
# half of the steps that are left, and keeps them if it fails.
_STEPS: Final = MAX_STEPS * 3 // 2
_FEWEST_STEPS: Final = 1000
_KNOWN: Final = 1024


class Prover:
    """Answers the questions of one comparison."""

    def __init__(self) -> None:
        self._left = MEANS
        self._steps = _STEPS
        self._known: dict[tuple[bytes, bytes, bool], Verdict] = {}
        self._parsed: dict[bytes, Any] = {}

    def reads(self, sender: bytes, reader: bytes) -> Verdict:
        """Whether the reader accepts what the sender sends; both are given as canonical JSON."""
        key = (sender, reader, False)
        if key not in self._known and self._is_obvious(sender, reader):
            self._known[key] = Verdict("contained")
        return self.keeps(sender, reader)

    def keeps(self, sender: bytes, claim: bytes, *, strict: bool = False) -> Verdict:
        """Whether what the sender sends keeps a claim, which is a schema as well.

        Args:
            sender: The schema that is sent by.
            claim: What is claimed.
            strict: Whether the sender may send undeclared members, too.
        """
        key = (sender, claim, strict)
        if key not in self._known:
            self._known[key] = self._prove(*key)
        return self._known[key]

    def _is_obvious(self, sender: bytes, reader: bytes) -> bool:
        sent, read = self._parse(sender), self._parse(reader)
        return is_obviously_read(declaring(sent, read), read)

    def _parse(self, schema: bytes) -> Any:
        if schema not in self._parsed:
            self._parsed[schema] = canonical.decode(schema)
        return self._parsed[schema]

    def _prove(self, sender: bytes, reader: bytes, strict: bool) -> Verdict:
        cost = _PER_PROOF + len(sender) + len(reader)
        if cost > self._left or self._steps < _FEWEST_STEPS:
            return _SPENT
        self._left -= cost
        verdict = _proved(sender, reader, strict, self._steps // 2)
        if verdict.status == "unproven":
            self._steps //= 2
        return verdict


@lru_cache(_KNOWN)
def _proved(sender: bytes, reader: bytes, strict: bool, steps: int) -> Verdict:
    sent, read = canonical.decode(sender), canonical.decode(reader)
    try:
        sent = sent if strict else sender_language(declaring(sent, read))
        verdict = contains(sent, read, steps=steps)
    except ContractError as error:
        return Verdict("unproven", reason=str(error))
    if verdict.has_witness and not (
        accepts(sender, verdict.witness) and not accepts(reader, verdict.witness)
    ):
        return Verdict("unproven", reason="a witness that the validator does not confirm")
    return verdict


def forget() -> None:
    """Forget every proof; the answers stay the same, but have to be found again."""
    _proved.cache_clear()
    forget_patterns()


def accepts(schema: bytes, value: Any) -> bool:
    """Whether the validator takes a value."""
    return _compiled(schema).is_valid(value)


def refusal_of(schema: bytes, value: Any) -> str:
    """Why the validator does not take a value, in its own words."""
    finding = _compiled(schema).findings(value)[0]
    return f"{finding.pointer or 'the payload'}: {finding.message}"


@lru_cache(_KNOWN)
def _compiled(schema: bytes) -> Schema:
    return compile_schema(canonical.decode(schema))


def witness_of(verdict: Verdict, reader: bytes) -> Any:
    """The verdict's witness if the reader refuses it, else ABSENT."""
    if verdict.has_witness and not accepts(reader, verdict.witness):
        return verdict.witness
    return ABSENT
