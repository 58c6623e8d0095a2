"""What was decided, in order: the table that operators read, and the stream that is exported.

Owns the words for acts, and which of them are steps in the life of a contract: those go to the
journal as `contracts.history`, in the same transaction. Nothing is ever read from here to decide
anything, and no manifest is looked up in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Connection, RowMapping, func, insert, select, tuple_

from accord.authority.forms import legible, remark
from accord.authority.records import Classification
from accord.authority.tables import history
from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.storage import Record, verify
from accord.storage.journal import append

STREAM: Final = "contracts.history"

Word = Literal[
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

_STEPS: Final = frozenset({"presented", "accepted", "rejected", "offered", "withdrawn", "expired"})


@dataclass(frozen=True, slots=True)
class Act:
    """Something that was decided.

    Attributes:
        act: What it was.
        by: Who decided it.
        previous: The digest that it took the place of.
        why: What whoever decided had to say.
        manifest: What was presented.
    """

    act: Word
    by: str
    deployment: str | None = None
    contract_id: str | None = None
    digest: str | None = None
    classification: Classification | None = None
    previous: str | None = None
    why: str | None = None
    manifest: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """An act with its place in history; `manifest` is not kept here."""

    revision: int
    place: int
    at: float
    act: Act

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


def next_place(connection: Connection, revision: int) -> int:
    """The place behind everything that is kept at a revision."""
    last = select(func.max(history.c.place)).where(history.c.revision == revision)
    found = connection.execute(last).scalar()
    return 0 if found is None else int(found) + 1


def tell(
    connection: Connection, revision: int, acts: Sequence[Act], now: float, *, first: int = 0
) -> None:
    """Keep what was decided at a revision, and tell the journal."""
    millis = int(now * 1000)
    rows, records = [], []
    for place, act in enumerate(acts, first):
        by = remark(act.by)
        rows.append(
            {
                "revision": revision,
                "place": place,
                "at": millis,
                "act": act.act,
                "deployment": act.deployment,
                "contract_id": act.contract_id,
                "digest": act.digest,
                "by": by,
                "classification": act.classification and act.classification.value,
                "previous": act.previous,
                "why": None if act.why is None else remark(act.why),
            }
        )
        if act.act in _STEPS:
            body = canonical.encode(
                {
                    "kind": act.act,
                    "at": format_time(now, millis=True),
                    "deployment": act.deployment,
                    "contract_id": act.contract_id,
                    "digest": act.digest,
                    "by": by,
                    "classification": act.classification and act.classification.value,
                    "previous": act.previous,
                    "manifest": act.manifest,
                }
            )
            identity = f"{revision}.{place}"
            records.append(Record(STREAM, identity, millis, "authority", body.decode()))
    if rows:
        connection.execute(insert(history), rows)
    if records:
        append(connection, records)


def read(
    connection: Connection, *, deployment: str | None = None, since: int = 0, limit: int = 1000
) -> list[Step]:
    """What was decided after a revision, the oldest first; of each revision all or nothing.

    Refusals stand at the revision at which they happened.

    Raises:
        StoreError: A row is damaged.
    """
    query = select(history).order_by(history.c.revision, history.c.place)
    if deployment is not None:
        query = query.where(history.c.deployment == legible(deployment))
    page = (query.where(history.c.revision > since) if since else query).limit(limit)
    rows = list(connection.execute(page).mappings())
    if len(rows) == limit:
        last = rows[-1]
        rest = query.where(history.c.revision == last["revision"], history.c.place > last["place"])
        rows += connection.execute(rest).mappings()
    return [_step(row) for row in rows]


def follow(connection: Connection, revision: int, place: int, limit: int = 1000) -> list[Step]:
    """What is kept behind a place at a revision, the oldest first; refusals are kept there, too.

    Raises:
        StoreError: A row is damaged.
    """
    behind = tuple_(history.c.revision, history.c.place) > (revision, place)
    query = select(history).where(behind).order_by(history.c.revision, history.c.place).limit(limit)
    return [_step(row) for row in connection.execute(query).mappings()]


def _step(row: RowMapping) -> Step:
    verify(history, row)
    classification = row["classification"]
    act = Act(
        row["act"],
        row["by"],
        row["deployment"],
        row["contract_id"],
        row["digest"],
        Classification(classification) if classification else None,
        row["previous"],
        row["why"],
    )
    return Step(row["revision"], row["place"], row["at"] / 1000, act)
