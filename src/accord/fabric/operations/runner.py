"""Running operations: each under a lease, to its end, by whichever instance is there.

Owns the handlers' tasks, what becomes of their results, signals and cancellation on their way to
them, and taking over from instances that ended. Knows nothing of callers and their rights.
"""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from accord.fabric.errors import ConflictError, FabricError, UnavailableError
from accord.fabric.kv import Lease
from accord.fabric.link import Link
from accord.fabric.operations.attempt import Attempt, LostError, Served, Upload, travelling
from accord.fabric.operations.ledger import Ledger
from accord.fabric.operations.record import MAX_ATTEMPTS, Record
from accord.kernel.errors import AccordError
from accord.kernel.ulid import milliseconds

LEASE_SECONDS: Final = 15.0
"""For how long an instance may be silent before another one takes its operations over."""

KEEP_SECONDS: Final = 7 * 24 * 3600.0
"""For how long the record of an operation can be asked for, counted from its start."""

_FORGET_EVERY: Final = 3600.0

_log = structlog.stdlib.get_logger(__name__)


class Runner:
    """Runs the operations of one instance.

    Args:
        link: The instance's link.
        ledger: Where operations are kept.
        lease: For how many seconds an instance may be silent.
        most: How many operations run here at once.
    """

    def __init__(
        self, link: Link, ledger: Ledger, *, lease: float = LEASE_SECONDS, most: int = 1000
    ) -> None:
        self._link = link
        self._ledger = ledger
        self._lease = lease
        self._most = most
        self._served: dict[str, Served] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._sweeping: asyncio.Task[None] | None = None

    def serve(self, served: Served) -> None:
        """Run operations of a name from now on."""
        self._served[served.name] = served

    def open(self) -> None:
        """Begin to look after operations that nobody runs any more."""
        self._sweeping = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Stop what runs here; other instances take it over at once."""
        tasks = [*self._running.values()]
        if self._sweeping is not None:
            tasks.append(self._sweeping)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def start(self, record: Record, upload: Upload | None = None) -> Record:
        """Keep a new operation and run it; one that was started before stays as it is.

        Raises:
            UnavailableError: As many run here as may.
            ConflictError: The id is somebody else's operation.
        """
        if len(self._running) >= self._most:
            raise UnavailableError(f"{self._most} operations run here already", mend="try later")
        # The lease comes first: a record without one would be nobody's.
        lease = await self._ledger.lease(record.id, self._lease)
        if lease is None:
            found = await self._ledger.load(record.id)
            if found is None:
                raise UnavailableError("it is being started", mend="ask again")
            if found.session != record.session:
                raise ConflictError("another operation has this id")
            return found
        try:
            kept = await self._ledger.create(record)
        except FabricError:
            await lease.release()
            raise
        if kept is not record:
            await lease.hand_over()
        else:
            self._spawn(record, lease, upload)
        return kept

    def _spawn(self, record: Record, lease: Lease, upload: Upload | None = None) -> None:
        task = asyncio.create_task(self._run(record, lease, upload))
        self._running[record.id] = task
        task.add_done_callback(lambda _: self._running.pop(record.id, None))

    async def _run(self, record: Record, lease: Lease, upload: Upload | None) -> None:
        """One attempt from its lease to its end; nothing escapes but cancellation."""
        served = self._served[record.operation]
        run = Attempt(self._link, self._ledger, served, record, lease)
        try:
            async with lease.kept():
                await run.to_its_end(upload)
            await self._ledger.forget(record.id, record=False)
            await lease.release()
        except LostError:
            if run.has_ended:
                with suppress(FabricError):
                    await self._ledger.forget(record.id, record=False)
                    await lease.release()
        except asyncio.CancelledError:
            with suppress(FabricError):
                await lease.hand_over()
            raise
        except FabricError as error:
            _log.warning("an operation is left to others", operation=record.id, why=str(error))

    async def _sweep(self) -> None:
        """Take over what nobody runs any more, and forget what is old; for ever."""
        loop = asyncio.get_running_loop()
        forgotten = loop.time() - _FORGET_EVERY
        while True:
            try:
                await self._take_over()
                if loop.time() - forgotten >= _FORGET_EVERY:
                    forgotten = loop.time()
                    await self._forget_old()
            except AccordError as error:
                _log.warning("operations could not be looked after", why=str(error))
            await asyncio.sleep(self._lease / 3)

    async def _take_over(self) -> None:
        now = await self._ledger.server_time()
        for identity in await self._ledger.leased():
            if identity in self._running or len(self._running) >= self._most:
                continue
            if await self._ledger.is_run(identity, self._lease, now):
                continue
            record = await self._ledger.load(identity)
            if record is not None and record.operation not in self._served:
                continue
            lease = await self._ledger.lease(identity, self._lease, now)
            if lease is not None:
                await self._resume(identity, lease)

    async def _resume(self, identity: str, lease: Lease) -> None:
        at = self._link.clock.now()

        def again(record: Record) -> Record | None:
            if record.state.has_ended:
                return None
            if record.attempt >= MAX_ATTEMPTS:
                why = f"its instance ended {record.attempt} times in the middle of it"
                return record.failed(travelling(self._link, UnavailableError(why)), at)
            return record.begun_again()

        record = await self._ledger.change(identity, again)
        if record is None or record.state.has_ended:
            await lease.release()
        else:
            _log.info("an operation is taken over", operation=identity, attempt=record.attempt)
            self._spawn(record, lease)

    async def _forget_old(self) -> None:
        oldest = (self._link.clock.now() - KEEP_SECONDS) * 1000
        leased = set(await self._ledger.leased())
        for identity in await self._ledger.kept():
            if identity not in leased and milliseconds(identity) < oldest:
                await self._ledger.forget(identity)
