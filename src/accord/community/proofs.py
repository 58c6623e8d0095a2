"""Proving events: strict parsing, the right community, and every signature.

`ProverPool` does it in child processes; the work of a lost process is done in this one.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import IO, Any, Final, TypeAlias

import ormsgpack
import structlog

from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules.event import (
    MAX_AHEAD_SECONDS,
    parse_signed_event,
    read_stored_event,
    verify_event,
)
from accord.community.store import ProvenEvent
from accord.kernel.clock import parse_time

ProofOutcome: TypeAlias = ProvenEvent | CommunityError

_LENGTH: Final = 4


def prove_event(raw: bytes, community_id: str) -> ProvenEvent:
    """Parse an event strictly and verify all its signatures.

    Raises `bad_request` if it is malformed or of another community, else `invalid_signature`.
    """
    event, signed = parse_signed_event(raw)
    if event.community_id != community_id:
        raise bad_request("the event is of another community", where="/community_id")
    verify_event(event, signed)
    return ProvenEvent(event, _with_signature(signed, event.signature))


def prove_events(raws: Sequence[bytes], community_id: str) -> list[ProofOutcome]:
    """Prove many events independently."""
    found: list[ProofOutcome] = []
    for raw in raws:
        try:
            found.append(prove_event(raw, community_id))
        except CommunityError as error:
            found.append(error)
    return found


def too_early(outcome: ProofOutcome, now: float) -> CommunityError | None:
    """The refusal of an event that is dated in the future; None if it is not.

    A future date would extend what expires by its date, such as a post. The event is not lost:
    nodes that have it offer it again. A past date cannot be told from a long journey.
    """
    if isinstance(outcome, CommunityError) or (
        parse_time(outcome.event.wall_clock) <= now + MAX_AHEAD_SECONDS
    ):
        return None
    return CommunityError(
        Code.EXPIRED,
        "the event is dated in the future and is refused until then",
        where="/wall_clock",
        mend="set the clock of its author's machine",
    )


def serve_proofs(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Prove batches until there are no more: the main loop of a prover process."""
    while (request := _receive(requests)) is not None:
        community_id, raws = ormsgpack.unpackb(request)
        _send(
            answers, ormsgpack.packb([_packed(each) for each in prove_events(raws, community_id)])
        )


def ask_prover(
    requests: IO[bytes], answers: IO[bytes], raws: Sequence[bytes], community_id: str
) -> list[ProofOutcome] | None:
    """Have a prover process prove events; None if the process is gone."""
    try:
        _send(requests, ormsgpack.packb((community_id, list(raws))))
        answer = _receive(answers)
    except BrokenPipeError:
        return None
    return None if answer is None else [_unpacked(each) for each in ormsgpack.unpackb(answer)]


def _packed(outcome: ProofOutcome) -> tuple[str | bytes | None, ...]:
    if isinstance(outcome, ProvenEvent):
        return outcome.event.digest, outcome.body
    return outcome.code.value, outcome.what, outcome.where


def _unpacked(parts: Sequence[Any]) -> ProofOutcome:
    match parts:
        case [digest, body]:
            return ProvenEvent(read_stored_event(body, digest), body)
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
    """The event's canonical JSON: only `wall_clock` sorts after `signature`."""
    before, last, clock = signed.rpartition(b'"wall_clock":')
    return b"".join((before, b'"signature":"', signature.encode(), b'",', last, clock)).decode()


_log = structlog.stdlib.get_logger(__name__)

# Fewer are proven faster in this process than by messages to another.
_WORTHWHILE: Final = 8


class ProverPool:
    """A pool of prover processes, by default one per processor."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or os.cpu_count() or 1
        self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="prover")
        self._idle: SimpleQueue[_ProverProcess] = SimpleQueue()
        for _ in range(self.count):
            self._idle.put(_ProverProcess())

    async def prove(self, raws: Sequence[bytes], community_id: str) -> list[ProofOutcome]:
        """Prove events, split among the processes."""
        if len(raws) < _WORTHWHILE:
            return prove_events(raws, community_id)
        loop = asyncio.get_running_loop()
        size = max(_WORTHWHILE, -(-len(raws) // self.count))
        parts = await asyncio.gather(
            *(
                loop.run_in_executor(
                    self._threads, self._ask, raws[start : start + size], community_id
                )
                for start in range(0, len(raws), size)
            )
        )
        return [outcome for part in parts for outcome in part]

    def close(self) -> None:
        """End the processes after their current work."""
        self._threads.shutdown()
        for _ in range(self.count):
            self._idle.get().end()

    def _ask(self, raws: Sequence[bytes], community_id: str) -> list[ProofOutcome]:
        prover = self._idle.get()
        try:
            outcomes = prover.ask(raws, community_id)
        finally:
            self._idle.put(prover)
        return prove_events(raws, community_id) if outcomes is None else outcomes


class _ProverProcess:
    """One process. If it is lost, this process does its work and it is not restarted."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_lost = False

    def ask(self, raws: Sequence[bytes], community_id: str) -> list[ProofOutcome] | None:
        if self._is_lost:
            return None
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "accord.community.proofs"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,  # Ctrl-C reaches only this process, which then ends it
            )
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        outcomes = ask_prover(requests, answers, raws, community_id)
        if outcomes is None:
            self._is_lost = True
            _log.warning(
                "a signature worker process ended unexpectedly; its events are verified in "
                "the node's process"
            )
            self.end()
        return outcomes

    def end(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            # Leaving its block closes both pipes and waits for it.
            with contextlib.suppress(BrokenPipeError), process:
                pass


if __name__ == "__main__":
    serve_proofs(sys.stdin.buffer, sys.stdout.buffer)
