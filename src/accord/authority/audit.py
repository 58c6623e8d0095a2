"""The audit history: what was decided and what was refused, in order.

Steps in the life of a contract also go to the journal as `contracts.history`, in the same
transaction. Equal refusals within a few seconds are one entry with a count, so that refused callers
cannot fill the disk. No decision reads the history.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import structlog
from sqlalchemy import Connection, RowMapping, func, insert, select, tuple_

from accord.authority.rules.errors import Code
from accord.authority.rules.fields import clip_remark, storable
from accord.authority.rules.records import Classification
from accord.authority.tables import history
from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.storage import JournalRecord, StoreError, verify
from accord.storage.journal import append

_log = structlog.stdlib.get_logger(__name__)

STREAM: Final = "contracts.history"

AuditAction = Literal[
    "presented",
    "accepted",
    "rejected",
    "offered",
    "withdrawn",
    "expired",
    "created",
    "enabled",
    "disabled",
    "compatibility",
    "narrowed",
    "calls_granted",
    "described",
    "pushed",
    "registry_token_added",
    "registry_token_revoked",
    "instance_added",
    "instance_enabled",
    "instance_disabled",
    "instance_removed",
    "revoked",
    "refused",
    "reconciled",
    "person_added",
    "person_changed",
    "link_issued",
    "override_set",
    "override_dropped",
    "portal_set",
    "portal_dropped",
    "logged_in",
    "password_set",
    "consented",
    "declined",
    "withdrew",
    "device_refused",
]

_CONTRACT_STEPS: Final = frozenset(
    {"presented", "accepted", "rejected", "offered", "withdrawn", "expired"}
)


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Something that was decided; `manifest` is what was presented and goes to the journal only."""

    act: AuditAction
    by: str
    deployment: str | None = None
    contract_id: str | None = None
    digest: str | None = None
    classification: Classification | None = None
    previous: str | None = None
    why: str | None = None
    manifest: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An event with its position in the history, without its `manifest`."""

    revision: int
    place: int
    at: float
    act: AuditEvent

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "revision": self.revision,
            "at": format_time(self.at, millis=True),
            "act": self.act.act,
            "by": self.act.by,
            "deployment": self.act.deployment,
            "contractId": self.act.contract_id,
            "digest": self.act.digest,
            "classification": self.act.classification and self.act.classification.value,
            "previous": self.act.previous,
            "why": self.act.why,
        }


def next_position(connection: Connection, revision: int) -> int:
    """The first free place at a revision."""
    last = select(func.max(history.c.place)).where(history.c.revision == revision)
    found = connection.execute(last).scalar()
    return 0 if found is None else int(found) + 1


def append_events(
    connection: Connection, revision: int, acts: Sequence[AuditEvent], now: float, *, first: int = 0
) -> None:
    """Store the events of a revision, and append contract steps to the journal."""
    millis = int(now * 1000)
    rows, records = [], []
    for place, act in enumerate(acts, first):
        common = {
            "deployment": act.deployment,
            "contract_id": act.contract_id,
            "digest": act.digest,
            "by": clip_remark(act.by),
            "classification": act.classification and act.classification.value,
            "previous": act.previous,
        }
        why = None if act.why is None else clip_remark(act.why)
        at = {"revision": revision, "place": place, "at": millis}
        rows.append({**at, "act": act.act, "why": why, **common})
        if act.act in _CONTRACT_STEPS:
            body = {"kind": act.act, "at": format_time(now, millis=True), **common}
            text = canonical.encode({**body, "manifest": act.manifest}).decode()
            identity = f"{revision}.{place}"
            records.append(JournalRecord(STREAM, identity, millis, "authority", text))
    if rows:
        connection.execute(insert(history), rows)
    if records:
        append(connection, records)


def read_history(
    connection: Connection,
    *,
    deployment: str | None = None,
    contract_id: str | None = None,
    since: int = 0,
    limit: int = 1000,
) -> list[AuditEntry]:
    """Entries after a revision, the oldest first; each revision is returned whole.

    Refusals are stored at the revision that was current when they happened.
    """
    query = select(history).order_by(history.c.revision, history.c.place)
    if deployment is not None:
        query = query.where(history.c.deployment == storable(deployment))
    if contract_id is not None:
        query = query.where(history.c.contract_id == storable(contract_id))
    page = (query.where(history.c.revision > since) if since else query).limit(limit)
    rows = list(connection.execute(page).mappings())
    if len(rows) == limit:
        last = rows[-1]
        rest = query.where(history.c.revision == last["revision"], history.c.place > last["place"])
        rows += connection.execute(rest).mappings()
    return [_entry(row) for row in rows]


def read_after(
    connection: Connection, revision: int, place: int, limit: int = 1000
) -> list[AuditEntry]:
    """Entries after a revision and place, the oldest first, refusals included."""
    behind = tuple_(history.c.revision, history.c.place) > (revision, place)
    query = select(history).where(behind).order_by(history.c.revision, history.c.place).limit(limit)
    return [_entry(row) for row in connection.execute(query).mappings()]


def _entry(row: RowMapping) -> AuditEntry:
    verify(history, row)
    classification = row["classification"]
    act = AuditEvent(
        row["act"],
        row["by"],
        row["deployment"],
        row["contract_id"],
        row["digest"],
        Classification(classification) if classification else None,
        row["previous"],
        row["why"],
    )
    return AuditEntry(row["revision"], row["place"], row["at"] / 1000, act)


_GATHER_SECONDS: Final = 2.0
_MAX_DISTINCT: Final = 100


@dataclass(frozen=True, slots=True)
class AuditedRefusal:
    """Who was refused what; `where` is a path or `connect`, `who` a proved key or an address."""

    code: Code
    where: str
    who: str
    digest: str | None = None


class AuditSink(Protocol):
    """Stores audit events that change nothing; `RevisionStore` does."""

    async def note(self, acts: Sequence[AuditEvent]) -> None: ...  # noqa: D102


class RefusalLog:
    """Collects refusals, and writes them to the history every few seconds."""

    def __init__(self, history: AuditSink) -> None:
        self._history = history
        self._seen: Counter[AuditedRefusal] = Counter()
        self._others = 0

    def note(self, refused: AuditedRefusal) -> None:
        """Count a refusal."""
        if refused in self._seen or len(self._seen) < _MAX_DISTINCT:
            self._seen[refused] += 1
        else:
            self._others += 1

    async def run(self) -> None:
        """Write what was collected until cancelled, and once more at the end."""
        try:
            while True:
                await asyncio.sleep(_GATHER_SECONDS)
                await self.write()
        finally:
            await self.write()

    async def write(self) -> None:
        """Write what was collected; it is kept for later if the store fails."""
        if not self._seen:
            return
        seen, others = self._seen, self._others
        self._seen, self._others = Counter(), 0
        acts = [
            AuditEvent("refused", by=each.who, digest=each.digest, why=_sentence(each, count))
            for each, count in seen.items()
        ]
        if others:
            acts.append(AuditEvent("refused", by="others", why=f"{others} times more, from many"))
        try:
            await self._history.note(acts)
        except StoreError as error:
            _log.error("refusals could not be written", count=len(acts), why=error.what)
            self._seen, self._others = seen, others


def _sentence(refused: AuditedRefusal, count: int) -> str:
    times = "once" if count == 1 else f"{count} times"
    return f"{refused.code.value} at {refused.where}, {times}"
