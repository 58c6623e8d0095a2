"""The proof of a whole log: every signature, digest, place, verdict and snapshot, looked at again.

Reads only, as of one moment, a page at a time. Damage is a list of findings, never a traceback.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from accord.community.errors import CommunityError
from accord.community.fold import state_bytes
from accord.community.fold.vouching import read_snapshot
from accord.community.log import keeping, rows
from accord.community.log.keeping import Kept
from accord.community.log.log import Log
from accord.community.log.proving import prove
from accord.community.log.replaying import Replayed, replayed
from accord.community.log.rows import Judgement, Proven
from accord.community.log.tables import events
from accord.community.log.transfer import Progress, no_progress
from accord.kernel.finding import Finding, pointer

_TOLD: Final = 1000
_VERDICT: Final = "log.verdict"


@dataclass(frozen=True, slots=True)
class Audit:
    """What was looked at, and the first thousand things that are wrong."""

    events: int
    stubs: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is."""
        return not self.findings


async def verify_log(log: Log, *, progress: Progress = no_progress) -> Audit:
    """Look at everything in a log, while it is in use or not.

    Raises:
        StoreError: The store failed.
    """

    def look(connection: Connection) -> tuple[int, _Auditor]:
        auditor = _Auditor(connection, log.number, log.community_id)
        auditor.read_rows(progress)
        if not auditor.findings:
            # What is damaged cannot be folded, and would only be told again.
            auditor.fold()
        return rows.last_arrival(connection, log.number), auditor

    arrival, auditor = await log.store.read(look)
    state = await log.view(state_bytes)
    if any(finding.rule == _VERDICT for finding in auditor.findings):
        # A verdict follows its event within the moment: only what is found twice is wrong.
        before = set(auditor.findings)
        arrival, auditor = await log.store.read(look)
        state = await log.view(state_bytes)
        auditor.findings = [f for f in auditor.findings if f.rule != _VERDICT or f in before]
    # A log that has gone on meanwhile has another state, and rightly so.
    is_still = arrival == await log.store.read(lambda c: rows.last_arrival(c, log.number))
    if is_still and auditor.folded not in (None, state):
        auditor.tell(Finding("log.state", "", "the state in use is not what the events come to"))
    return Audit(auditor.events, auditor.stubs, tuple(auditor.findings))


class _Auditor:
    """One pass over a log; `folded` is the state that it came to, if it could be folded."""

    def __init__(self, connection: Connection, number: int, community_id: str) -> None:
        self._connection = connection
        self._number = number
        self._community_id = community_id
        self.events = 0
        self.stubs = 0
        self.folded: bytes | None = None
        self.findings: list[Finding] = []

    def read_rows(self, progress: Progress) -> None:
        """Prove every event anew, and hold its row against it."""
        query = select(events).where(events.c.community == self._number)
        for row in rows.rows(self._connection, query):
            if row.body is None:
                self.stubs += 1
            else:
                self.events += 1
                for finding in self._of_row(row):
                    self.tell(finding)
            if not (self.events + self.stubs) % rows.PAGE:
                progress(self.events + self.stubs)
        progress(self.events + self.stubs)

    def fold(self) -> None:
        """Fold everything anew, and hold verdicts and snapshots against it."""
        base = keeping.base(self._connection, self._number)
        whole = self._replayed(() if base is None else (base,))
        if whole is None:
            self.tell(Finding("log.fold", "", "the log lacks events from before its snapshot"))
            return
        self.folded = state_bytes(whole.replay.state)
        right = dict(whole.fallen)
        for written in rows.fallen(self._connection, self._number, whole.since):
            self._compare(written, right.pop(written.position.digest, None))
        for verdict in right.values():
            self._compare(Judgement(verdict.position, "accepted", None), verdict)
        for kept in keeping.every(self._connection, self._number):
            for finding in self._of_snapshot(kept):
                self.tell(finding)

    def _compare(self, written: Judgement, right: Judgement | None) -> None:
        if written != right:
            should = "accepted" if right is None else f"{right.status} ({right.rule})"
            message = f"it is {should}, and {written.status} is written"
            self.tell(Finding(_VERDICT, _place(written.position.digest), message))

    def _replayed(self, begin_with: Sequence[Kept]) -> Replayed | None:
        try:
            return replayed(
                self._connection, self._number, self._community_id, begin_with=begin_with
            )
        except CommunityError as error:
            self.tell(Finding("log.fold", "", f"the log cannot be folded: {error}"))
            return None

    def _of_row(self, row: Row[Any]) -> Iterator[Finding]:
        try:
            proven = prove(row.body.encode(), self._community_id)
        except CommunityError as error:
            yield Finding(f"log.{error.code.value}", _place(row.digest), str(error))
            return
        if proven.body != row.body:
            yield Finding("log.body", _place(row.digest), "the text is not canonical")
        for name, value in _columns(proven):
            if getattr(row, name) != value:
                yield Finding(
                    "log.column", _place(row.digest), f"the column {name} is not the event's"
                )

    def _of_snapshot(self, kept: Kept) -> Iterator[Finding]:
        where = pointer("snapshots", kept.lamport)
        resumed = self._replayed((kept,))
        if resumed is not None and state_bytes(resumed.replay.state) != self.folded:
            yield Finding("log.snapshot", where, "snapshot and tail are not the whole")
        if (signed := kept.signed(self._community_id)) is not None:
            try:
                read_snapshot(signed.encode(), self._community_id)
            except CommunityError as error:
                yield Finding("log.snapshot", where, str(error))

    def tell(self, finding: Finding) -> None:
        """Note what is wrong."""
        if len(self.findings) < _TOLD:
            self.findings.append(finding)


def _columns(proven: Proven) -> Iterator[tuple[str, object]]:
    event = proven.event
    for name in (
        "digest",
        "lamport",
        "event_id",
        "author",
        "author_seq",
        "prev",
        "event_type",
    ):
        yield name, getattr(event, name)
    yield "stage", rows.stage_of(event.event_type)


def _place(digest: bytes) -> str:
    return pointer("events", "blake3:" + digest.hex())
