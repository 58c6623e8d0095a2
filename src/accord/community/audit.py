"""Verify a whole log: check every signature, digest, position, verdict and snapshot again.

Only reads, from one database snapshot, page by page. Damage is reported as findings.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from accord.community import store
from accord.community.errors import CommunityError
from accord.community.log import EventLog, Progress, no_progress
from accord.community.log_state import ReplayedLog, replay_log
from accord.community.proofs import prove_event
from accord.community.rules.snapshots import read_snapshot
from accord.community.rules.state import state_bytes
from accord.community.store import ProvenEvent, StoredSnapshot, StoredVerdict
from accord.community.tables import events
from accord.kernel.finding import Finding, pointer

_TOLD: Final = 1000
_VERDICT: Final = "log.verdict"


@dataclass(frozen=True, slots=True)
class LogAudit:
    """Counts of what was checked, and the first thousand findings."""

    events: int
    stubs: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


async def verify_log(log: EventLog, *, progress: Progress = no_progress) -> LogAudit:
    """Check everything in a log, which may be in use meanwhile."""

    def look(connection: Connection) -> tuple[int, _Auditor]:
        auditor = _Auditor(connection, log.number, log.community_id)
        auditor.read_rows(progress)
        if not auditor.findings:
            # Damaged events cannot be folded and are reported already.
            auditor.fold()
        return store.last_arrival(connection, log.number), auditor

    arrival, auditor = await log.store.read(look)
    state = await log.view(state_bytes)
    if any(finding.rule == _VERDICT for finding in auditor.findings):
        # A verdict is written shortly after its event: only what is wrong twice counts.
        before = set(auditor.findings)
        arrival, auditor = await log.store.read(look)
        state = await log.view(state_bytes)
        auditor.findings = [f for f in auditor.findings if f.rule != _VERDICT or f in before]
    # A log that has changed meanwhile has another state.
    is_still = arrival == await log.store.read(lambda c: store.last_arrival(c, log.number))
    if is_still and auditor.folded not in (None, state):
        auditor.add(
            Finding("log.state", "", "the state in use differs from the fold of the events")
        )
    return LogAudit(auditor.events, auditor.stubs, tuple(auditor.findings))


class _Auditor:
    """One pass over a log; `folded` is the resulting state, if the log could be folded."""

    def __init__(self, connection: Connection, number: int, community_id: str) -> None:
        self._connection = connection
        self._number = number
        self._community_id = community_id
        self.events = 0
        self.stubs = 0
        self.folded: bytes | None = None
        self.findings: list[Finding] = []

    def read_rows(self, progress: Progress) -> None:
        """Prove every event again, and compare its row with it."""
        query = select(events).where(events.c.community == self._number)
        for row in store.read_rows(self._connection, query):
            if row.body is None:
                self.stubs += 1
            else:
                self.events += 1
                for finding in self._of_row(row):
                    self.add(finding)
            if not (self.events + self.stubs) % store.PAGE:
                progress(self.events + self.stubs)
        progress(self.events + self.stubs)

    def fold(self) -> None:
        """Fold everything again, and compare verdicts and snapshots with the result."""
        base = store.base_snapshot(self._connection, self._number)
        whole = self._replayed(() if base is None else (base,))
        if whole is None:
            self.add(Finding("log.fold", "", "the log lacks events from before its snapshot"))
            return
        self.folded = state_bytes(whole.replay.state)
        right = dict(whole.not_accepted)
        for written in store.refused_events(self._connection, self._number, whole.since):
            self._compare(written, right.pop(written.position.digest, None))
        for verdict in right.values():
            self._compare(StoredVerdict(verdict.position, "accepted", None), verdict)
        for kept in store.all_snapshots(self._connection, self._number):
            for finding in self._of_snapshot(kept):
                self.add(finding)

    def _compare(self, written: StoredVerdict, right: StoredVerdict | None) -> None:
        if written != right:
            should = "accepted" if right is None else f"{right.status} ({right.rule})"
            message = f"it is {should}, and {written.status} is written"
            self.add(Finding(_VERDICT, _place(written.position.digest), message))

    def _replayed(self, begin_with: Sequence[StoredSnapshot]) -> ReplayedLog | None:
        try:
            return replay_log(
                self._connection, self._number, self._community_id, begin_with=begin_with
            )
        except CommunityError as error:
            self.add(Finding("log.fold", "", f"the log cannot be folded: {error}"))
            return None

    def _of_row(self, row: Row[Any]) -> Iterator[Finding]:
        try:
            proven = prove_event(row.body.encode(), self._community_id)
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

    def _of_snapshot(self, kept: StoredSnapshot) -> Iterator[Finding]:
        where = pointer("snapshots", kept.lamport)
        resumed = self._replayed((kept,))
        if resumed is not None and state_bytes(resumed.replay.state) != self.folded:
            yield Finding(
                "log.snapshot",
                where,
                "the snapshot and the events after it do not give the folded state",
            )
        if (signed := kept.signed(self._community_id)) is not None:
            try:
                read_snapshot(signed.encode(), self._community_id)
            except CommunityError as error:
                yield Finding("log.snapshot", where, str(error))

    def add(self, finding: Finding) -> None:
        if len(self.findings) < _TOLD:
            self.findings.append(finding)


def _columns(proven: ProvenEvent) -> Iterator[tuple[str, object]]:
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
    yield "stage", store.stage_of(event.event_type)


def _place(digest: bytes) -> str:
    return pointer("events", "blake3:" + digest.hex())
