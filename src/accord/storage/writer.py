"""Group commit: one thread that writes, one transaction for everything that waits.

Owns the order of writes and the promise that an awaited write returns after its commit is on
disk. Work of many callers shares a transaction without savepoints; when one unit fails, all are
rolled back and each is run again in a transaction of its own, so that it fails alone. Never
retries a commit: when that fails nobody is acknowledged.
"""

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from accord.storage.errors import StoreError, explain, is_lost
from accord.storage.figures import Figures
from accord.storage.place import in_transaction

# Runs the items of several callers and gives one result for each, in order.
Work: TypeAlias = Callable[[Connection, Sequence[Any]], Sequence[Any]]

# How many units may wait or run before callers are held back.
_WAITING = 4096
# About how many units share a transaction; bounds what is run again when one fails.
_GROUP = 512


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    work: Work
    item: Any
    future: asyncio.Future[Any]


class _UnitFailedError(Exception):
    """A unit raised, or spoiled the transaction; nothing was committed."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


class Writer:
    """The single writer of a store; made and used on one event loop."""

    def __init__(self, engine: Engine, label: str, figures: Figures) -> None:
        self._engine = engine
        self._label = label
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(_WAITING)
        self._fresh: list[_Unit] = []
        # An empty list asks the thread to end.
        self._handed: queue.SimpleQueue[list[_Unit]] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=f"writer {label}", daemon=True)
        self._thread.start()

    async def submit(self, work: Work, item: Any) -> Any:
        """Run one unit and return its result after the commit.

        A caller cancelled before its unit starts leaves no trace; later, it may be committed.
        """
        async with self._slots:
            if self._closed:
                raise StoreError("the store is closed", where=self._label)
            unit = _Unit(work, item, self._loop.create_future())
            self._fresh.append(unit)
            if len(self._fresh) == 1:
                # At the end of this turn of the loop, so that all its units share a commit.
                self._loop.call_soon(self._hand_over)
            return await unit.future

    async def close(self) -> None:
        """Refuse new work, finish what was accepted and end the thread."""
        self._closed = True
        self._hand_over()
        self._handed.put([])
        await asyncio.to_thread(self._thread.join)

    def _hand_over(self) -> None:
        for start in range(0, len(self._fresh), _GROUP):
            self._handed.put(self._fresh[start : start + _GROUP])
        self._fresh = []

    def _serve(self) -> None:
        while units := self._take():
            # Whoever gave up while waiting has not started yet.
            if wanted := [unit for unit in units if not unit.future.cancelled()]:
                self._settle(wanted)

    def _take(self) -> list[_Unit]:
        units = self._handed.get()
        while units and len(units) < _GROUP:
            try:
                more = self._handed.get_nowait()
            except queue.Empty:
                break
            if not more:
                self._handed.put(more)
                break
            units = units + more
        return units

    def _settle(self, units: list[_Unit]) -> None:
        try:
            results = self._commit(units)
        except _UnitFailedError as failure:
            if len(units) > 1:
                for unit in units:
                    self._settle([unit])
            else:
                self._answer(units, error=explain(failure.cause, self._label))
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
            self._answer(units, error=explain(error, self._label))
        else:
            self._answer(units, results)

    def _commit(self, units: list[_Unit]) -> list[Any]:
        try:
            return self._transact(units)
        except _UnitFailedError as failure:
            if not is_lost(failure.cause):
                raise
        # The connection broke before anything was committed, as after a restart of the server:
        # on a new one the units may be run again.
        try:
            return self._transact(units)
        except _UnitFailedError as failure:
            raise failure.cause if is_lost(failure.cause) else failure from failure.cause

    def _transact(self, units: list[_Unit]) -> list[Any]:
        results: list[Any] = []
        began = time.monotonic()
        with self._engine.connect() as connection:
            connection.begin()
            try:
                for work, same in itertools.groupby(units, key=lambda unit: unit.work):
                    results += work(connection, [unit.item for unit in same])
            except BaseException as error:
                raise _UnitFailedError(error) from error
            if not in_transaction(connection):
                raise _UnitFailedError(
                    StoreError(
                        "a unit of work went on after the database had ended its transaction",
                        where=self._label,
                        mend="let errors of the database leave the unit",
                    )
                )
            try:
                connection.commit()
            except BaseException as error:
                lost = is_lost(error)
                connection.invalidate()  # it may still be in the transaction
                if lost:
                    raise StoreError(
                        "the connection broke during the commit, so its outcome is unknown",
                        where=self._label,
                        mend="repeat it with the same ids, which writes nothing twice",
                    ) from error
                if isinstance(error, IntegrityError):
                    # A deferred constraint: refused for sure, and the fault of one unit.
                    raise _UnitFailedError(error) from error
                raise
        self._figures.commits.add(time.monotonic() - began)
        self._figures.units += len(units)
        return results

    def _answer(
        self, units: list[_Unit], results: Sequence[Any] = (), error: BaseException | None = None
    ) -> None:
        if isinstance(error, StoreError):
            self._figures.failures += len(units)
        if isinstance(error, StopIteration):
            error = RuntimeError("a unit of work raised StopIteration")  # no future can carry it

        def deliver() -> None:
            for unit, result in itertools.zip_longest(units, results):
                if unit.future.done():
                    continue  # cancelled meanwhile
                if error is None:
                    unit.future.set_result(result)
                else:
                    unit.future.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(deliver)
        except RuntimeError:
            return  # the loop was closed before the store: nobody waits for an answer
