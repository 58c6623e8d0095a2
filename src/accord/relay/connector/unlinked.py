"""Messages of people who are not linked: counted by the hour, not recorded one by one.

The counts of an hour that has ended go to the journal `relay.unlinked`. Neither holds anything that
a person chose: no account, no chat, no text.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Connection, RowMapping, delete
from sqlalchemy.dialects import postgresql, sqlite

from accord.kernel.identifiers import UlidSource
from accord.relay.connector.tables import unlinked_counts
from accord.relay.rules.gate import Decision
from accord.storage import JournalRecord, journal

UNLINKED_STREAM: Final = "relay.unlinked"
HOUR_MS: Final = 3_600_000


class UnlinkedCount(NamedTuple):
    """Why a message reached nobody, and through which bot it came; '' for no tenant or instance."""

    platform: str
    bot_id: str
    tenant: str
    instance: str
    rule: str

    @classmethod
    def of(cls, platform: str, bot_id: str, decision: Decision) -> "UnlinkedCount":
        """What is counted of a decision by which nobody receives a message."""
        refusal = decision.refusal
        assert refusal is not None
        first = decision.candidates[0].instance if decision.candidates else ""
        return cls(platform, bot_id, decision.tenant or "", first, refusal.rule)


def _add(dialect: Any) -> Any:
    row = dialect.insert(unlinked_counts)
    more = {"messages": unlinked_counts.c.messages + row.excluded.messages}
    return row.on_conflict_do_update(index_elements=list(unlinked_counts.primary_key), set_=more)


_ADD: Final = {"postgresql": _add(postgresql), "sqlite": _add(sqlite)}


def count(connection: Connection, now: int, counted: Iterable[UnlinkedCount]) -> None:
    """Count messages in the hour of `now`, in milliseconds."""
    hour = now - now % HOUR_MS
    # In order, so that two processes never wait for each other's rows.
    rows = [
        {**each._asdict(), "hour": hour, "messages": messages}
        for each, messages in sorted(Counter(counted).items())
    ]
    if rows:
        connection.execute(_ADD[connection.dialect.name], rows)


def journal_ended_hours(connection: Connection, now: int, source: str, ids: UlidSource) -> int:
    """Move the counts of hours that have ended to the journal; how many records that makes."""
    ended = delete(unlinked_counts).where(unlinked_counts.c.hour < now - now % HOUR_MS)
    rows = sorted(connection.execute(ended.returning(*unlinked_counts.c)).mappings(), key=_order)
    records = [
        JournalRecord(UNLINKED_STREAM, ids.new(), now, source, orjson.dumps(_body(row)).decode())
        for row in rows
    ]
    if records:
        journal.append(connection, records)
    return len(records)


def _order(row: RowMapping) -> tuple[Any, ...]:
    return tuple(row[column.name] for column in unlinked_counts.primary_key)


def _body(row: RowMapping) -> dict[str, Any]:
    named = {str(name): value for name, value in row.items()}
    return named | {name: named[name] or None for name in ("tenant", "instance")}
