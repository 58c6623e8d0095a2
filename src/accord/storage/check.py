"""Integrity check of a store: pages, references, checksums of sealed tables, journal numbering.

Read-only. Damage is reported as a finding whose pointer is `/table/key`, or empty for the whole
store.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from sqlalchemy import Connection, Table, func, inspect, select
from sqlalchemy.exc import DBAPIError

from accord.kernel.canonical import pointer
from accord.kernel.errors import Finding
from accord.storage.errors import StoreError, explain, is_denied
from accord.storage.journal import StreamRange, is_intact, is_sealed, key_of, stream_ranges
from accord.storage.revisions import MigrationState, state_of
from accord.storage.store import Role, Schema, StoreLocation, connect, locate

# Called with what is being done, how much of it is done, and how much there is.
Progress: TypeAlias = Callable[[str, int, int], None]

ROWS_AT_ONCE = 1000

_STATES = {
    MigrationState.EMPTY: (
        "there are no tables; restore a backup, or start the station to create them"
    ),
    MigrationState.BEHIND: (
        "the store is older than this version of Accord; start the station to migrate it"
    ),
}


@dataclass(frozen=True)
class CheckReport:
    """The result of a check; `records` counts the sealed records that are intact."""

    store: str
    records: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Ignore progress."""


def check(
    where: str | os.PathLike[str], schema: Schema, *, progress: Progress = no_progress
) -> CheckReport:
    """Check the store of a plane; raise `StoreError` if it is missing or cannot be opened."""
    return check_location(locate(where, schema), schema, progress)


def exists(where: str | os.PathLike[str], schema: Schema) -> bool:
    """Whether the store of a plane was ever created; raise `StoreError` if that is unknown."""
    place = locate(where, schema)
    if place.file is not None:
        return place.file.is_file()
    try:
        with connect(place, Role.INSPECT).connect() as connection:
            return inspect(connection).has_table("journal", schema=place.name)
    except DBAPIError as error:
        raise explain(error, place.label) from error


def check_location(place: StoreLocation, schema: Schema, progress: Progress) -> CheckReport:
    """Check the store at a location; see `check`."""
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
    return CheckReport(place.label, inspection.records, findings)


@dataclass(slots=True)
class _Inspection:
    """One pass over a store."""

    place: StoreLocation
    schema: Schema
    progress: Progress
    records: int = 0

    def findings(self, connection: Connection) -> Iterator[Finding]:
        if self.place.file is not None:
            yield from self._guarded("", self._pages, connection)
        try:
            state = state_of(connection, self.place, self.schema)
        except StoreError as error:
            yield Finding("store.version", "", f"{error.what}; {error.mend}")
            return
        if state is not MigrationState.CURRENT:
            yield Finding(f"store.{state.value}", "", _STATES[state])
            return
        for table in self.schema.metadata.sorted_tables:
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
            yield Finding("store.integrity", where, str(explain(error, self.place.label)))

    def _pages(self, connection: Connection) -> Iterator[Finding]:
        self.progress("pages", 0, 1)
        for (sentence,) in connection.exec_driver_sql("PRAGMA integrity_check"):
            if sentence != "ok":
                yield Finding("store.integrity", "", str(sentence))
        for row in connection.exec_driver_sql("PRAGMA foreign_key_check"):
            place = pointer(row[0], f"rowid={row[1]}")
            yield Finding("store.reference", place, f"no such row in {row[2]}")
        self.progress("pages", 1, 1)

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
            self.progress(table.name, done, total)

    def _sequence(self, connection: Connection) -> Iterator[Finding]:
        journal = self.schema.metadata.tables["journal"]
        ranges = stream_ranges(connection)
        seen = select(
            journal.c.stream, func.count(), func.min(journal.c.seq), func.max(journal.c.seq)
        )
        stored = {
            row[0]: tuple(row[1:]) for row in connection.execute(seen.group_by(journal.c.stream))
        }
        for stream in sorted({*ranges, *stored}):
            ends = ranges.get(stream, StreamRange(0, 0))
            whole = (ends.head - ends.floor, ends.floor + 1, ends.head)
            # A stream of which everything was pruned has no entries.
            if stored.get(stream, (0, ends.head + 1, ends.head)) != whole:
                count, first, last = stored.get(stream, (0, 0, 0))
                yield Finding(
                    "store.sequence",
                    pointer("journal", f"stream={stream!r}"),
                    f"{count} entries from {first} to {last} "
                    f"where {ends.floor + 1} to {ends.head} belong",
                )
