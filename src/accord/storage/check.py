"""The integrity check: is everything in the store what was written?

Reads only. A damaged file is a finding, never a traceback; its pointer leads to
`/table/key`, or is empty for the whole store. Knows which tables are sealed from the schema alone.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from sqlalchemy import Connection, Table, func, inspect, select
from sqlalchemy.exc import DBAPIError

from accord.kernel.finding import Finding, pointer
from accord.storage.errors import StoreError, explain, is_denied
from accord.storage.journal import Reach, reach
from accord.storage.migrate import State, state_of
from accord.storage.place import Place, Role, connect, locate
from accord.storage.schema import Schema
from accord.storage.sealing import is_intact, is_sealed, key_of

# Called with what is being done, how much of it is done, and how much there is.
Progress: TypeAlias = Callable[[str, int, int], None]

ROWS_AT_ONCE = 1000

_STATES = {
    State.EMPTY: "there are no tables; restore a backup, or start the station to create them",
    State.BEHIND: "the store is older than this version of Accord; start the station to migrate it",
}


@dataclass(frozen=True)
class Report:
    """What a check saw: how many sealed records it proved, and what it found."""

    store: str
    records: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Show nothing."""


def check(
    where: str | os.PathLike[str], schema: Schema, *, progress: Progress = no_progress
) -> Report:
    """Check the store of a plane.

    Raises:
        StoreError: There is no store to check, or it cannot be opened.
    """
    return check_place(locate(where, schema), schema, progress)


def exists(where: str | os.PathLike[str], schema: Schema) -> bool:
    """Whether the store of a plane has ever been opened here.

    Raises:
        StoreError: It cannot be told, as when the server is away.
    """
    place = locate(where, schema)
    if place.file is not None:
        return place.file.is_file()
    try:
        with connect(place, Role.INSPECT).connect() as connection:
            return inspect(connection).has_table("journal", schema=place.name)
    except DBAPIError as error:
        raise explain(error, place.label) from error


def check_place(place: Place, schema: Schema, progress: Progress) -> Report:
    """Check the store at a place; see `check`."""
    if place.file is not None and not place.file.is_file():
        raise StoreError("there is no store", where=place.label, mend="check the folder")
    inspection = _Inspection(place, schema, progress)
    try:
        with connect(place, Role.INSPECT).connect() as connection, connection.begin():
            findings = tuple(inspection.findings(connection))
    except DBAPIError as error:
        explained = explain(error, place.label)
        if place.file is None or is_denied(error):
            raise explained from error
        findings = (Finding("store.integrity", "", str(explained)),)
    return Report(place.label, inspection.records, findings)


class _Inspection:
    """One pass over a store; counts the records that it proved."""

    def __init__(self, place: Place, schema: Schema, progress: Progress) -> None:
        self._place = place
        self._schema = schema
        self._progress = progress
        self.records = 0

    def findings(self, connection: Connection) -> Iterator[Finding]:
        if self._place.file is not None:
            yield from self._guarded("", self._pages, connection)
        try:
            state = state_of(connection, self._place, self._schema)
        except StoreError as error:
            yield Finding("store.version", "", f"{error.what}; {error.mend}")
            return
        if state is not State.CURRENT:
            yield Finding(f"store.{state.value}", "", _STATES[state])
            return
        for table in self._schema.metadata.sorted_tables:
            if is_sealed(table):
                yield from self._guarded(
                    pointer(table.name), partial(self._seals, table), connection
                )
        yield from self._guarded("/journal", self._sequence, connection)

    def _guarded(
        self, where: str, rule: Callable[[Connection], Iterator[Finding]], connection: Connection
    ) -> Iterator[Finding]:
        try:
            yield from rule(connection)
        except DBAPIError as error:
            if error.connection_invalidated or is_denied(error):
                raise
            yield Finding("store.integrity", where, str(explain(error, self._place.label)))

    def _pages(self, connection: Connection) -> Iterator[Finding]:
        self._progress("pages", 0, 1)
        for (sentence,) in connection.exec_driver_sql("PRAGMA integrity_check"):
            if sentence != "ok":
                yield Finding("store.integrity", "", str(sentence))
        for row in connection.exec_driver_sql("PRAGMA foreign_key_check"):
            place = pointer(row[0], f"rowid={row[1]}")
            yield Finding("store.reference", place, f"no such row in {row[2]}")
        self._progress("pages", 1, 1)

    def _seals(self, table: Table, connection: Connection) -> Iterator[Finding]:
        total = connection.execute(select(func.count()).select_from(table)).scalar_one()
        rows = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(select(table))
        done = 0
        for part in rows.mappings().partitions():
            for row in part:
                if is_intact(table, row):
                    self.records += 1
                else:
                    place = pointer(table.name, key_of(table, row))
                    yield Finding("store.checksum", place, "the record is damaged")
            done += len(part)
            self._progress(table.name, done, total)

    def _sequence(self, connection: Connection) -> Iterator[Finding]:
        journal = self._schema.metadata.tables["journal"]
        promised = reach(connection)
        seen = select(
            journal.c.stream, func.count(), func.min(journal.c.seq), func.max(journal.c.seq)
        )
        kept = {
            row[0]: tuple(row[1:]) for row in connection.execute(seen.group_by(journal.c.stream))
        }
        for stream in sorted({*promised, *kept}):
            ends = promised.get(stream, Reach(0, 0))
            whole = (ends.head - ends.floor, ends.floor + 1, ends.head)
            # A stream of which everything was pruned has no entries.
            if kept.get(stream, (0, ends.head + 1, ends.head)) != whole:
                count, first, last = kept.get(stream, (0, 0, 0))
                yield Finding(
                    "store.sequence",
                    pointer("journal", f"stream={stream!r}"),
                    f"{count} entries from {first} to {last} "
                    f"where {ends.floor + 1} to {ends.head} belong",
                )
