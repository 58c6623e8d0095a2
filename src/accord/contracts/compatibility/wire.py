"""Rules about payloads: what is sent or stored under one contract and read under the other."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from accord.contracts.compatibility.comparison import MAX_CHANGED, Comparison, Payload
from accord.contracts.compatibility.differences import Difference, Kind
from accord.contracts.compatibility.proofs import refusal_of, witness_of
from accord.contracts.compatibility.rule import Found
from accord.contracts.containment import ABSENT, Verdict
from accord.kernel import canonical

_NARROWING: Final[tuple[Kind, ...]] = ("required", "values", "closed", "format-narrowed")


def refused(comparison: Comparison) -> Iterator[Found]:
    """Whoever reads a payload accepts everything that may have been written."""
    for payload in comparison.payloads:
        if not payload.is_resource:
            yield from _refusals(comparison, payload)


def unproven(comparison: Comparison) -> Iterator[Found]:
    """That a changed payload stays readable is proved, not hoped."""
    if comparison.is_cut:
        message = f"more than {MAX_CHANGED} payloads changed; compare in smaller steps"
        yield Found((), message)
    for payload in comparison.payloads:
        for asked, verdict in _verdicts(comparison, payload):
            if verdict.status == "unproven":
                claim = f"{asked.reader} accept everything that {asked.writer} may {asked.verb}"
                yield Found(payload.path, f"it is not proven that {claim}: {verdict.reason}")


def changed(comparison: Comparison) -> Iterator[Found]:
    """A schema may change as long as everything stays readable."""
    for payload in comparison.payloads:
        proved = all(v.status == "contained" for _, v in _verdicts(comparison, payload))
        if proved and not any(_found(comparison, payload, kind) for kind in _judged(payload)):
            yield Found(payload.path, "the schema changed, and everything stays readable")


def member_required(comparison: Comparison) -> Iterator[Found]:
    """A member that was optional does not become required, whoever sends it."""
    yield from _everywhere(comparison, "required")


def values_narrowed(comparison: Comparison) -> Iterator[Found]:
    """A list of allowed values loses none, whoever sends them."""
    yield from _everywhere(comparison, "values")


def format_narrowed(comparison: Comparison) -> Iterator[Found]:
    """A text need not have a format that it needed not have before, whoever sends it."""
    yield from _everywhere(comparison, "format-narrowed")


def format_widened(comparison: Comparison) -> Iterator[Found]:
    """What old readers meet keeps the format that they were promised."""
    for payload in comparison.payloads_with("format-widened"):
        if "format-widened" in _judged(payload) and not payload.is_resource:
            yield from _found(comparison, payload, "format-widened")


def object_closed(comparison: Comparison) -> Iterator[Found]:
    """An object that is open to unknown members stays open."""
    yield from _everywhere(comparison, "closed")


def closed_object_grown(comparison: Comparison) -> Iterator[Found]:
    """An object that is closed to unknown members gets no new ones."""
    for payload in comparison.payloads_with("grown"):
        if "grown" in _judged(payload):
            yield from _found(comparison, payload, "grown")


def member_removed(comparison: Comparison) -> Iterator[Found]:
    """A member that is no longer declared may be missed by those who read it."""
    for payload in comparison.payloads_with("removed"):
        yield from _found(comparison, payload, "removed")


def resource_narrowed(comparison: Comparison) -> Iterator[Found]:
    """The schema of a resource keeps accepting the values that are stored there."""
    for payload in comparison.payloads:
        if payload.is_resource:
            yield from _refusals(comparison, payload)
            for kind in _judged(payload):
                if kind in ("closed", "format-narrowed", "format-widened"):
                    yield from _found(comparison, payload, kind)


def _judged(payload: Payload) -> Iterator[Kind]:
    """The kinds of differences that speak against a payload, whatever is proved of it."""
    yield from _NARROWING
    if payload.position.role != "stored":
        yield "grown"
    if payload.backward:
        yield "format-widened"


def _everywhere(comparison: Comparison, kind: Kind) -> Iterator[Found]:
    for payload in comparison.payloads_with(kind):
        if not payload.is_resource:
            yield from _found(comparison, payload, kind)


class _Question(NamedTuple):
    """Whether a reader, who goes by a schema, accepts all that a writer may write."""

    writer: str
    verb: str
    reader: str
    schema: bytes


def _refusals(comparison: Comparison, payload: Payload) -> Iterator[Found]:
    for asked, verdict in _verdicts(comparison, payload):
        if verdict.status == "not_contained":
            why = refusal_of(asked.schema, verdict.witness)
            message = f"{asked.writer} may {asked.verb} what {asked.reader} refuse: {why}"
            yield Found(payload.path, message, verdict.witness)


def _verdicts(comparison: Comparison, payload: Payload) -> Iterator[tuple[_Question, Verdict]]:
    """The questions that a payload asks, and their answers."""
    prover = comparison.prover
    if payload.forward:
        yield _forward(payload), prover.reads(payload.old, payload.new)
    if payload.backward:
        yield _backward(payload), prover.reads(payload.new, payload.old)


def _forward(payload: Payload) -> _Question:
    services, schema = "services of the new one", payload.new
    if payload.position.role == "sent by callers":
        return _Question("callers of the old contract", "send", services, schema)
    if payload.position.durable:
        return _Question("records of the old contract", "hold", services, schema)
    return _Question("services of the old contract", "send", "readers of the new one", schema)


def _backward(payload: Payload) -> _Question:
    services, schema = "services of the old one", payload.old
    if payload.position.role == "sent by callers":
        return _Question("callers of the new contract", "send", services, schema)
    if payload.position.role == "stored":
        return _Question("services of the new contract", "store", services, schema)
    return _Question("services of the new contract", "send", "readers of the old one", schema)


def _found(comparison: Comparison, payload: Payload, kind: Kind) -> list[Found]:
    """The differences of a kind that payloads can tell."""
    found = []
    for difference in comparison.differences(payload):
        if difference.kind == kind:
            verdict = _verdict(comparison, payload, difference)
            if verdict is None or verdict.status != "contained":
                message = f"{difference.place or 'the payload'} {difference.what}"
                witness = ABSENT if verdict is None else _witness(comparison, payload, difference)
                found.append(Found(payload.path, message, witness))
    return found


def _verdict(comparison: Comparison, payload: Payload, difference: Difference) -> Verdict | None:
    """Whether payloads can tell a difference; None if it is not about what payloads are valid."""
    if difference.kind in ("removed", "format-narrowed", "format-widened"):
        return None
    sender, reader = _ends(payload, difference)
    claim = reader if difference.claim is None else canonical.encode(difference.claim)
    return comparison.prover.keeps(sender, claim, strict=difference.kind == "closed")


def _witness(comparison: Comparison, payload: Payload, difference: Difference) -> object:
    """A payload that shows the difference alone, or at least one that shows it is refused."""
    sender, reader = _ends(payload, difference)
    verdict = _verdict(comparison, payload, difference)
    witness = ABSENT if verdict is None else witness_of(verdict, reader)
    if witness is not ABSENT:
        return witness
    strict = difference.kind == "closed"
    return witness_of(comparison.prover.keeps(sender, reader, strict=strict), reader)


def _ends(payload: Payload, difference: Difference) -> tuple[bytes, bytes]:
    """Who sends and who reads where the difference tells."""
    if difference.kind == "grown":
        return payload.new, payload.old
    return payload.old, payload.new
