"""Questions about a log: its entries, members and files, and a full verification.

The verification checks every signature, digest, position, verdict and snapshot again. It only
reads, from one database snapshot, page by page; damage is reported as findings.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Row, func, select

from accord.community import store
from accord.community.communities import HostedCommunity
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.intake import prove_event
from accord.community.log import EventLog, Progress, no_progress
from accord.community.log_state import ReplayedLog, replay_log
from accord.community.peers import Endpoint
from accord.community.rules.formats import Level
from accord.community.rules.snapshots import read_snapshot
from accord.community.rules.state import CommunityState, digest_of_state, state_bytes, state_object
from accord.community.rules.verdicts import VERDICTS, Status
from accord.community.store import (
    ProvenEvent,
    StoredSnapshot,
    StoredVerdict,
    events,
    in_total_order,
)
from accord.kernel import canonical
from accord.kernel.canonical import pointer
from accord.kernel.clock import parse_time
from accord.kernel.errors import Finding
from accord.kernel.identifiers import is_ulid

MAX_ENTRIES: Final = 1000
"""How many entries of a log are shown at once."""

_HASH: Final = re.compile(r"(?:blake3:)?([0-9a-f]{8,64})", re.ASCII)
_DIGEST_DIGITS: Final = 64
_SAME_NAME: Final = 10
_INVITE: Final = ("event_id", "invitee", "inviter", "level", "expires_at")


async def describe_community(hosted: HostedCommunity) -> dict[str, Any]:
    """A community with its state digest, which is equal on nodes that agree."""
    state = await hosted.log.view(state_object)
    counts = await hosted.log.store.read(lambda c: _counts(c, hosted.log.number))
    now = hosted.log.clock.now()
    levels = {each["node_id"]: each["level"] for each in state["members"]}
    invites = [
        each
        for each in state["invites"]
        if not each["redeemed"]
        and not each.get("withdrawn", False)
        and each["invitee"] not in levels
        and now <= parse_time(each["expires_at"])
    ]
    ids = [each["event_id"] for each in invites]
    called = await hosted.log.store.read(lambda c: _called(c, hosted.log.number, ids))
    return {
        **{name: state[name] for name in ("community_id", "name", "created_at", "policy")},
        "level": levels.get(hosted.log.key.id, Level.UNKNOWN.text),
        "members": len(state["members"]),
        "revoked": len(state["revoked"]),
        "head_lamport": hosted.log.head_lamport,
        "counts": counts,
        "equivocations": [
            {"author": each["author"], **each["equivocation"]}
            for each in state["authors"]
            if each["equivocation"] is not None
        ],
        "invites": [
            {
                **{name: each[name] for name in _INVITE},
                "display_name": called.get((each["event_id"], each["inviter"])),
            }
            for each in invites
        ],
        "state_digest": digest_of_state(canonical.encode(state)),
    }


async def list_members(hosted: HostedCommunity) -> list[dict[str, Any]]:
    """All members with their logged endpoints."""

    def look(state: CommunityState) -> list[dict[str, Any]]:
        known = state.content.manifests
        return [
            {
                **member,
                "endpoints": [
                    Endpoint(*each).url
                    for each in (known[node_id].endpoints if node_id in known else ())
                ],
            }
            for member in state.members()
            for node_id in [member["node_id"]]
        ]

    return await hosted.log.view(look)


async def describe_chain(hosted: HostedCommunity, node_id: str, seq: int | None) -> dict[str, Any]:
    """The head of a node's chain, or its event with number `seq`; `not_found` if there is none."""
    if seq == 0:
        return {"author_seq": 0, "hash": None}
    if seq is None:
        found = hosted.state.chains.get(node_id)
        return {
            "author_seq": 0 if found is None else found.head_seq,
            "hash": None if found is None else found.head_hash,
        }
    query = (
        select(events.c.digest)
        .where(
            events.c.community == hosted.log.number,
            events.c.author == node_id,
            events.c.author_seq == seq,
        )
        # Of two events with the same number the one with the smaller digest counts.
        .order_by(events.c.digest)
        .limit(1)
    )
    digest = await hosted.log.store.read(lambda c: c.execute(query).scalar_one_or_none())
    if digest is None:
        raise CommunityError(Code.NOT_FOUND, f"no event number {seq} of that node is known here")
    return {"author_seq": seq, "hash": "blake3:" + digest.hex()}


async def log_entries(
    hosted: HostedCommunity,
    *,
    limit: int,
    author: str | None = None,
    event_type: str | None = None,
    refused: bool = False,
) -> list[dict[str, Any]]:
    """The last entries of the log in total order, with verdicts; optionally filtered."""
    query = select(events).where(events.c.community == hosted.log.number)
    if author is not None:
        query = query.where(events.c.author == author)
    if event_type is not None:
        query = query.where(events.c.event_type == event_type)
    if refused:
        query = query.where(events.c.status != Status.ACCEPTED.value)
    query = query.order_by(
        events.c.lamport.desc(), events.c.event_id.desc(), events.c.digest.desc()
    ).limit(min(limit, MAX_ENTRIES))

    def read(connection: Connection) -> list[dict[str, Any]]:
        # One at a time: of a long body only its time is kept.
        found = connection.execution_options(yield_per=1).execute(query)
        return [_entry(row) for row in found]

    return (await hosted.log.store.read(read))[::-1]


async def describe_files(hosted: HostedCommunity, cids: Collection[str]) -> list[dict[str, Any]]:
    """Holders and documents of some files."""
    found: dict[str, dict[str, Any]] = {
        cid: {"cid": cid, "held_by": [], "documents": []} for cid in cids
    }

    def look(state: CommunityState) -> None:
        for cid, holder in state.content.files:
            if cid in found:
                found[cid]["held_by"].append(holder)
        for (corpus, cid), document in state.content.documents.items():
            if cid in found:
                entry = {"corpus": corpus, "title": document.title, "by": document.ingester}
                found[cid]["documents"].append(entry)

    await hosted.log.view(look)
    return list(found.values())


async def find_events(hosted: HostedCommunity, name: str) -> list[dict[str, Any]]:
    """The events that match a hash, the beginning of one, or an id, with their verdicts.

    Raises `bad_request` if `name` is malformed, `not_found` if nothing matches.
    """
    query = select(events).where(events.c.community == hosted.log.number)
    if is_ulid(name):
        query = query.where(events.c.event_id == name)
    elif match := _HASH.fullmatch(name):
        least, most = (match[1].ljust(_DIGEST_DIGITS, digit) for digit in "0f")
        query = query.where(
            events.c.digest >= bytes.fromhex(least), events.c.digest <= bytes.fromhex(most)
        )
    else:
        raise bad_request(
            f"{name[:80]!r} does not name an event",
            mend="give its id, or at least 8 digits of its hash",
        )
    found = await hosted.log.store.read(
        lambda c: [
            {**_entry(row), "event": None if row.body is None else orjson.loads(row.body)}
            for row in c.execute(in_total_order(query).limit(_SAME_NAME))
        ]
    )
    if not found:
        raise CommunityError(Code.NOT_FOUND, "no such event is known here", where=name)
    return found


def _called(
    connection: Connection, number: int, ids: Sequence[str]
) -> dict[tuple[str, str], str | None]:
    """The names that inviters proposed, by id and author of the invite."""
    query = select(events.c.event_id, events.c.author, events.c.body).where(
        events.c.community == number,
        events.c.event_id.in_(ids),
        events.c.event_type == "community.member.invited",
        events.c.body.is_not(None),
    )
    return {
        (row.event_id, row.author): orjson.loads(row.body)["data"].get("display_name")
        for row in connection.execute(query)
    }


def _counts(connection: Connection, number: int) -> dict[str, int]:
    query = (
        select(events.c.status, func.count())
        .where(events.c.community == number)
        .group_by(events.c.status)
    )
    found = {row[0]: row[1] for row in connection.execute(query)}
    return {status.value: found.get(status.value, 0) for status in Status}


def _entry(row: Row[Any]) -> dict[str, Any]:
    verdict = VERDICTS.get(row.rule or Status.ACCEPTED.value)
    return {
        "lamport": row.lamport,
        "event_id": row.event_id,
        "hash": "blake3:" + row.digest.hex(),
        "author": row.author,
        "author_seq": row.author_seq,
        "event_type": row.event_type,
        "wall_clock": None if row.body is None else orjson.loads(row.body)["wall_clock"],
        "status": row.status,
        "rule": row.rule,
        "reason": None if verdict is None else verdict.reason,
    }


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
