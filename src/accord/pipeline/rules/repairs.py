"""Repairs of refused records: a few operations on a body, and what the checks say of the result.

Nothing that is signed or named by its digest is repaired into something else: an event is admitted
again only as it is and with a signature that holds, a manifest only as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from blake3 import blake3

from accord.kernel import canonical
from accord.pipeline.errors import PipelineError
from accord.pipeline.rules.checks import NO_MANIFESTS, Manifests, RecordVerdict, check
from accord.pipeline.rules.redaction import body_schema, redact
from accord.pipeline.rules.streams import COMMUNITY_EVENTS, CONTRACTS_HISTORY, STREAMS

Kind: TypeAlias = Literal["set", "cast", "drop"]

TYPES: Final = ("integer", "number", "string", "boolean")
"""The types that a value can be cast to."""

MOST_OPERATIONS: Final = 32

UNSIGNED: Final = "repair.signed"
"""The rule by which the result of a repair is refused although the checks might let it stand."""

_PROVEN: Final = frozenset({COMMUNITY_EVENTS, CONTRACTS_HISTORY})
"""The streams whose bodies carry a signature, or a manifest with its digest."""

_PROOFS: Final = frozenset({"digest", "signature", "signatures", "sig"})

_WORDS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a repair, at a JSON Pointer."""

    kind: Kind
    at: str
    value: Any = None  # of `set` any JSON value, of `cast` the type

    def payload(self) -> dict[str, Any]:
        """The operation as JSON."""
        told = {"op": self.kind, "path": self.at}
        return told if self.kind == "drop" else {**told, "value": self.value}


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record as it was refused."""

    stream: str
    id: str
    body: str | None

    @property
    def original(self) -> str:
        """The digest of the body as it landed."""
        return "blake3:" + blake3((self.body or "").encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class RepairedRecord:
    """A body after a repair, and the verdict on it."""

    body: str
    verdict: RecordVerdict

    @property
    def stands(self) -> bool:
        """Whether it may be admitted."""
        return self.verdict.rule is None


def require_operations(operations: Sequence[Operation]) -> None:
    """Raise `PipelineError` unless every operation is one that a repair may have."""
    if len(operations) > MOST_OPERATIONS:
        raise PipelineError(f"a repair has at most {MOST_OPERATIONS} operations")
    for each in operations:
        if each.kind not in get_args(Kind):
            raise PipelineError(f"there is no operation {str(each.kind)[:40]!r}")
        if each.kind == "cast" and each.value not in TYPES:
            raise PipelineError(
                f"there is no type {str(each.value)[:40]!r}",
                where=each.at,
                mend=f"name one of {', '.join(TYPES)}",
            )
        _steps(each.at)


def repair(
    record: RefusedRecord, operations: Sequence[Operation], manifests: Manifests = NO_MANIFESTS
) -> RepairedRecord:
    """A record after some operations, in their order, with the verdict of the checks.

    Raises PipelineError if an operation cannot be carried out, or the record may not be changed.
    """
    require_operations(operations)
    if record.body is None:
        raise PipelineError("the record has no body that could be repaired", where=record.id)
    if operations and record.stream in _PROVEN:
        raise PipelineError(
            f"records of {record.stream} are proven by signature or digest and cannot be changed",
            where=record.id,
            mend="admit it as it is, if it stands now; else its author writes it anew",
        )
    body = _changed(record, operations) if operations else record.body
    verdict = check(record.stream, record.id, body, manifests)
    if verdict.rule is None and record.stream == COMMUNITY_EVENTS and not _is_signed(body):
        told = "an event without its text has no signature that could be verified"
        verdict = verdict._replace(rule=UNSIGNED, reason=told)
    return RepairedRecord(body, verdict)


def _is_signed(body: str) -> bool:
    # The checks verified it, unless it is in the form for events whose text was left out.
    return "redacted" not in canonical.decode(body)


def _changed(record: RefusedRecord, operations: Sequence[Operation]) -> str:
    try:
        value = canonical.decode(record.body or "")
    except canonical.CanonicalError as error:
        raise PipelineError(
            f"the body is not JSON, and a repair changes members of JSON ({error.what})",
            where=record.id,
        ) from None
    if isinstance(value, dict) and "withheld" in value:
        raise PipelineError(
            "the body was withheld when it landed, so there is nothing to repair",
            where=record.id,
        )
    before = _proofs(value)
    for each in operations:
        _apply(value, each)
    if _proofs(value) != before:
        raise PipelineError(
            "digests and signatures cannot be repaired: they prove what was there",
            where=record.id,
        )
    try:
        written = canonical.encode(value).decode()
    except canonical.CanonicalError as error:
        raise PipelineError(f"the repaired body is not JSON ({error.what})") from None
    # What its schema does not describe would land as a stub, of which the checks say nothing.
    if record.stream in STREAMS and body_schema(record.stream).is_valid(value):
        return redact(record.stream, written)
    return written


def _proofs(value: Any) -> list[tuple[str, Any]]:
    """The members that say of something what it was, at any depth, with their paths."""
    found: list[tuple[str, Any]] = []
    waiting = [("", value)]
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, dict):
            for name, each in part.items():
                if name in _PROOFS or name.endswith("_digest"):
                    found.append((f"{path}/{name}", canonical.encode(each)))
                waiting.append((f"{path}/{name}", each))
        elif isinstance(part, list):
            waiting += ((f"{path}/{number}", each) for number, each in enumerate(part))
    return sorted(found)


def _apply(value: Any, operation: Operation) -> None:
    *parents, last = _steps(operation.at)
    place = value
    for step in parents:
        place = _member(place, step, operation.at)
    if operation.kind == "set":
        _put(place, last, operation.value, operation.at)
        return
    old = _member(place, last, operation.at)
    if operation.kind == "drop":
        del place[_index(place, last)]
    else:
        _put(place, last, _cast(old, operation), operation.at)


def _steps(pointer: str) -> list[str]:
    if not pointer.startswith("/") or len(pointer) > 512:
        raise PipelineError(
            f"{pointer[:80]!r} is not the place of a member", mend="write it such as /pending/0/1"
        )
    return [each.replace("~1", "/").replace("~0", "~") for each in pointer[1:].split("/")]


def _member(place: Any, step: str, pointer: str) -> Any:
    try:
        return place[_index(place, step)]
    except (KeyError, IndexError, TypeError, ValueError):
        raise _absent(pointer) from None


def _index(place: Any, step: str) -> Any:
    if not isinstance(place, list):
        return step
    if not (step.isascii() and step.isdecimal()) or len(step) > 9:
        raise ValueError(step)
    return int(step)


def _put(place: Any, step: str, value: Any, pointer: str) -> None:
    if isinstance(place, dict):
        place[step] = value
        return
    try:
        place[_index(place, step)] = value
    except (IndexError, TypeError, ValueError):
        raise _absent(pointer) from None


def _absent(pointer: str) -> PipelineError:
    return PipelineError("the body has no such member", where=pointer)


def _cast(old: Any, operation: Operation) -> Any:
    try:
        match operation.value, old:
            case "string", str():
                return old
            case "string", bool() | int() | float():
                return canonical.encode(old).decode()
            case "boolean", bool():
                return old
            case "boolean", str():
                return _WORDS[old]
            case (("integer" | "number"), bool()):
                pass
            case "integer", int():
                return old
            case "integer", float() if old.is_integer():
                return int(old)
            case "integer", str() if len(old) <= 17:
                return int(old)
            case "number", int() | float():
                return old
            case "number", str() if len(old) <= 64:
                found = canonical.decode(old)
                if isinstance(found, int | float) and not isinstance(found, bool):
                    return found
            case _:
                pass
    except (KeyError, ValueError, canonical.CanonicalError):
        pass
    raise PipelineError(
        f"the value cannot be cast to {operation.value} without a guess", where=operation.at
    )
