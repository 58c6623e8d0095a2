"""Proof that an event is what it says: read strictly, of this community, every signature checked.

Owns the one function that every event passes on its way into a log, and the messages between this
process and a prover's: a length, then MessagePack. Nothing is stored here.
"""

from collections.abc import Sequence
from typing import IO, Any, Final, TypeAlias

import ormsgpack

from accord.community.envelope import parse_signed, stored, verify
from accord.community.errors import Code, CommunityError
from accord.community.log.rows import Proven

Outcome: TypeAlias = Proven | CommunityError

_LENGTH: Final = 4


def prove(raw: bytes, community_id: str) -> Proven:
    """Read an event strictly and check every signature in it.

    Raises:
        CommunityError: It is malformed or of another community (`bad_request`), or a signature
            does not fit (`invalid_signature`).
    """
    event, signed = parse_signed(raw)
    if event.community_id != community_id:
        raise CommunityError(
            Code.BAD_REQUEST, "the event is of another community", where="/community_id"
        )
    verify(event, signed)
    return Proven(event, _with_signature(signed, event.signature))


def prove_each(raws: Sequence[bytes], community_id: str) -> list[Outcome]:
    """Prove many; one that fails hinders no other."""
    found: list[Outcome] = []
    for raw in raws:
        try:
            found.append(prove(raw, community_id))
        except CommunityError as error:
            found.append(error)
    return found


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Prove what comes until nothing more does: all that a prover's process does."""
    while (request := _receive(requests)) is not None:
        community_id, raws = ormsgpack.unpackb(request)
        _send(answers, ormsgpack.packb([_packed(each) for each in prove_each(raws, community_id)]))


def ask(
    requests: IO[bytes], answers: IO[bytes], raws: Sequence[bytes], community_id: str
) -> list[Outcome] | None:
    """Let a prover's process prove events; None when it is gone."""
    try:
        _send(requests, ormsgpack.packb((community_id, list(raws))))
        answer = _receive(answers)
    except BrokenPipeError:
        return None
    return None if answer is None else [_unpacked(each) for each in ormsgpack.unpackb(answer)]


def _packed(outcome: Outcome) -> tuple[str | bytes | None, ...]:
    if isinstance(outcome, Proven):
        return outcome.event.digest, outcome.body
    return outcome.code.value, outcome.what, outcome.where


def _unpacked(parts: Sequence[Any]) -> Outcome:
    match parts:
        case [digest, body]:
            return Proven(stored(body, digest), body)
        case [code, what, where]:
            return CommunityError(Code(code), what, where=where)
    raise AssertionError(parts)


def _send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(len(message).to_bytes(_LENGTH))
    pipe.write(message)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    length = int.from_bytes(pipe.read(_LENGTH))
    message = pipe.read(length)
    return message if length and len(message) == length else None


def _with_signature(signed: bytes, signature: str) -> str:
    """The whole event's canonical JSON: only `wall_clock` sorts behind `signature`."""
    before, last, clock = signed.rpartition(b'"wall_clock":')
    return b"".join((before, b'"signature":"', signature.encode(), b'",', last, clock)).decode()
