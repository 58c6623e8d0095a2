"""One recorded call against a proposed contract. Pure.

Owns the question which recorded payloads a proposal touches at all, and what becomes of one. The
schemas decide, by the validator that services run.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Final, NamedTuple

from accord.contracts.compatibility.annotations import bare
from accord.contracts.compatibility.side import Side, read_side
from accord.kernel import canonical
from accord.kernel.schema import Schema, compile_schema
from accord.pipeline.checks.contracts import Place, place_of

MOST_SHOWN: Final = 4096
"""The longest payload that is shown as a witness, in bytes of canonical JSON."""

_INDEX: Final = re.compile(r"/[0-9]+(?=/|$)")
_BY_CALLERS: Final = ("input", "payload", "signal")


class Fate(Enum):
    """What becomes of a recorded payload under the proposal."""

    KEPT = "kept"
    FAILED = "failed"
    GONE = "gone"
    UNRECORDED = "unrecorded"
    UNTOUCHED = "untouched"


class Judged(NamedTuple):
    """A fate with its reason.

    Attributes:
        rule: What the schema said, or which part of the contract is gone; None where nothing is
            wrong.
        pointer: Where in the payload, with indices of arrays as `*`.
        message: A sentence, without any value of the payload.
    """

    fate: Fate
    rule: str | None = None
    pointer: str | None = None
    message: str | None = None


_UNTOUCHED: Final = Judged(Fate.UNTOUCHED)
_KEPT: Final = Judged(Fate.KEPT)
_UNRECORDED: Final = Judged(Fate.UNRECORDED)


@dataclass(frozen=True)
class Proposal:
    """A proposed contract beside those under which calls were recorded.

    It is plain JSON text, so that it travels to the executors; what it needs to judge is read there
    once.

    Attributes:
        manifest: The proposed manifest, as canonical JSON.
        recorded: Manifests by digest, likewise.
    """

    manifest: bytes
    recorded: Mapping[str, bytes]
    _known: dict[tuple[str, Place], Schema | Judged] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Proposal, (self.manifest, self.recorded)

    def judge(self, call: Mapping[str, Any]) -> Judged:
        """What becomes of a call that stood under its own contract."""
        key = call["digest"], place_of(call["kind"], call["surface"], call["part"])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._look_up(*key)
        if isinstance(found, Judged):
            return found
        if "payload" not in call:
            return _UNRECORDED
        payload = call["payload"]
        if found.is_valid(payload):
            return _KEPT
        first = found.findings(payload)[0]
        pointer = _INDEX.sub("/*", first.pointer)
        return Judged(Fate.FAILED, first.rule, pointer, first.message)

    def _look_up(self, digest: str, place: Place) -> Schema | Judged:
        """The schema to judge by; or the answer for every call of this digest at this place."""
        schema = self._proposed.payloads.get(place)
        if schema is None:
            return self._gone(place)
        before = self._sides[digest].payloads.get(place) if digest in self._sides else None
        if before is not None and _means(before) == _means(schema):
            return _UNTOUCHED
        return compile_schema(canonical.decode(schema))

    def _gone(self, place: Place) -> Judged:
        if place[1] in self._proposed.section(place[0]):
            part = " ".join(place[2:4])
            return Judged(Fate.GONE, "part.gone", None, f"the surface has no {part} any more")
        return Judged(Fate.GONE, "surface.gone", None, "the contract has no such surface any more")

    @cached_property
    def _proposed(self) -> Side:
        return read_side(canonical.decode(self.manifest), "proposed")

    @cached_property
    def _sides(self) -> dict[str, Side]:
        return {
            digest: read_side(canonical.decode(text), "recorded")
            for digest, text in self.recorded.items()
        }


def written_by(part: str) -> str:
    """Who wrote the payload: the caller, or the service."""
    return "caller" if part.partition(":")[0] in _BY_CALLERS else "service"


def shown(payload: Any) -> str | None:
    """A payload as a witness; None where it is too long."""
    text = canonical.encode(payload)
    return text.decode() if len(text) <= MOST_SHOWN else None


def _means(schema: bytes) -> bytes:
    return canonical.encode(bare(canonical.decode(schema)))
