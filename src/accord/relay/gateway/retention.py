"""Retention of a gateway's store: deletes what ended long ago, if the clock can be trusted."""

import copy
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Text, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from accord.kernel.clock import Clock
from accord.relay.rules.retention import ClockTerms, ClockVerdict, ClockWatch
from accord.storage import Store

_log = structlog.stdlib.get_logger(__name__)
_NAME: Final = "retention"


def passes_table(metadata: MetaData) -> Table:
    """When old rows were last deleted, in milliseconds by the wall clock."""
    return Table(
        "retention_passes",
        metadata,
        Column("name", Text, primary_key=True),
        Column("passed_at", BigInteger, nullable=False),
    )


@dataclass(eq=False, repr=False)
class GatewayRetention:
    """Deletes what ended more than `keep` seconds ago.

    `ended` are the columns that say when, in milliseconds, each with a condition for its rows.
    """

    store: Store
    clock: Clock
    passes: Table
    ended: tuple[tuple["Column[Any]", Any], ...]
    keep: float
    downtime: float
    _watch: ClockWatch = field(default_factory=ClockWatch)

    async def prune(self) -> None:
        """Delete what is too old, unless the clock is not trusted; raises StoreError."""
        now, monotonic = self.clock.now(), self.clock.monotonic()

        def work(connection: Connection) -> tuple[ClockVerdict, float | None]:
            verdict = self._judge(self._watch, connection, now, monotonic)
            if not verdict.trusted:
                return verdict, None
            oldest = int((now - self.keep) * 1000)
            for column, is_over in self.ended:
                connection.execute(delete(column.table).where(column < oldest, is_over))
            if verdict.passed_at is None:
                return verdict, None
            return verdict, self._put(connection, verdict.passed_at)

        verdict, stored = await self.store.write(work)
        if stored is not None:
            self._watch.stored(stored, monotonic)
        if not self._watch.is_new(verdict):
            return
        if verdict.trusted:
            _log.info("retention goes on", rule=verdict.rule.value, reason=verdict.sentence)
        else:
            _log.warning(
                "retention waits",
                rule=verdict.rule.value,
                reason=verdict.sentence,
                mend="`accord relay gateway retention confirm` if the clock is right",
            )

    async def status(self) -> tuple[float | None, ClockVerdict]:
        """When old rows were last deleted, and whether the next pass would delete any."""
        now, monotonic = self.clock.now(), self.clock.monotonic()

        def work(connection: Connection) -> tuple[float | None, ClockVerdict]:
            watch = copy.copy(self._watch)
            return self._read(connection), self._judge(watch, connection, now, monotonic)

        return await self.store.read(work)

    async def confirm(self) -> None:
        """Take what the clock says for right."""
        await self.store.write(lambda c: self._put(c, self.clock.now()))

    def _judge(
        self, watch: ClockWatch, connection: Connection, now: float, monotonic: float
    ) -> ClockVerdict:
        terms = ClockTerms(0.0, self.downtime, may_sleep=True)
        return watch.judge(self._read(connection), now, monotonic, terms)

    def _read(self, connection: Connection) -> float | None:
        query = select(self.passes.c.passed_at).where(self.passes.c.name == _NAME)
        found = connection.execute(query).scalar()
        return None if found is None else found / 1000

    def _put(self, connection: Connection, passed_at: float) -> float:
        millis = int(passed_at * 1000)
        dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
        row = dialect.insert(self.passes).values(name=_NAME, passed_at=millis)
        later = {"passed_at": row.excluded.passed_at}
        connection.execute(
            row.on_conflict_do_update(index_elements=[self.passes.c.name], set_=later)
        )
        return millis / 1000
