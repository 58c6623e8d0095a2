"""What is known in memory, by name, and how it is forgotten when it changes.

Owns the rule that nothing stale is kept: a value that was being read while something was touched is
answered but not remembered. It knows nothing about what the values mean.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import Connection

from accord.kernel.clock import Clock
from accord.relay.connector.control.changes import Changed, Entity, Ledger, read_since

T = TypeVar("T")

_MOST: Final = 200_000
_NEVER: Final = float("-inf")
# How many values one read fetches, so that several readers share the work.
_TOGETHER: Final = 100

Wanted: TypeAlias = tuple[Callable[[Connection], Any], "asyncio.Future[Any]"]


class Cache:
    """Values by entity, kept until the entity is touched here or elsewhere.

    Args:
        ledger: Where changes are made and read.
        clock: Where time comes from.
        seconds: How old the knowledge of other processes' changes may be.
        revoked: Told of each instance that was revoked, here or elsewhere.
        stopped: Reads which instances are revoked, for when too much was missed to know.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        seconds: float,
        revoked: Callable[[str], None],
        stopped: Callable[[Connection], Iterable[str]],
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._seconds = seconds
        self._revoked = revoked
        self._stopped = stopped
        self._known: dict[Entity, Any] = {}
        self._seen = -1
        self._looked = _NEVER
        self._hints = 0
        self._wanted: list[Wanted] = []
        self._reading: set[asyncio.Task[None]] = set()
        self._under_way: tuple[int, asyncio.Task[None]] | None = None
        self.generation = 0
        ledger.listen(self._changed_here)

    async def get(
        self, entity: Entity, load: Callable[[Connection], T], *, keep_missing: bool = True
    ) -> T:
        """What is known of an entity, read by `load` where it is not in memory.

        Args:
            entity: Its name.
            load: Reads it.
            keep_missing: Whether to remember that it does not exist; not where anybody may ask.
        """
        try:
            known: T = self._known[entity]
        except KeyError:
            pass
        else:
            return known
        generation = self.generation
        value = await self._read(load)
        if generation == self.generation and (keep_missing or value is not None):
            if len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
            self._known[entity] = value
        return value

    def _read(self, load: Callable[[Connection], T]) -> "asyncio.Future[T]":
        """Read a value together with all others that are wanted in this turn of the loop."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._wanted.append((load, answer))
        if len(self._wanted) == 1:
            loop.call_soon(self._begin_reading)
        return answer

    def _begin_reading(self) -> None:
        wanted, self._wanted = self._wanted, []
        for start in range(0, len(wanted), _TOGETHER):
            task = asyncio.create_task(self._read_all(wanted[start : start + _TOGETHER]))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)

    async def _read_all(self, wanted: list[Wanted]) -> None:
        try:
            values = await self._ledger.read(lambda c: [load(c) for load, _ in wanted])
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever asked must hear of it
            if len(wanted) > 1:
                for each in wanted:
                    await self._read_all([each])
            elif not wanted[0][1].done():
                wanted[0][1].set_exception(error)
            return
        for (_, answer), value in zip(wanted, values, strict=True):
            if not answer.done():
                answer.set_result(value)

    @property
    def is_fresh(self) -> bool:
        """Whether changes of other processes were looked for lately enough."""
        return self._clock.monotonic() - self._looked < self._seconds

    @property
    def is_hinted(self) -> bool:
        """Whether there was a hint, and nobody has looked since."""
        return self._looked == _NEVER

    async def refresh(self) -> None:
        """Look for changes of other processes, and forget what they touched.

        Whoever asks while somebody looks waits for the same look, unless there was a hint since it
        began: a thousand gateways that dial at once must not look a thousand times.

        Raises:
            StoreError: The store failed.
        """
        if self._under_way is None or self._under_way[0] != self._hints:
            task = asyncio.create_task(self._look())
            self._under_way = (self._hints, task)
            task.add_done_callback(self._looked_around)
        await asyncio.shield(self._under_way[1])

    async def close(self) -> None:
        """Wait for what is under way."""
        looking = [] if self._under_way is None else [self._under_way[1]]
        await asyncio.gather(*looking, *self._reading, return_exceptions=True)

    async def _look(self) -> None:
        """Forget what others touched.

        Where it is not known what was touched, as at the first look, everything is forgotten and
        each stopped instance is told of again: a process that died while it told is made up for.
        """
        now, hints, seen = self._clock.monotonic(), self._hints, self._seen

        def look(connection: Connection) -> tuple[int, Iterable[Entity], bool]:
            version, touched = read_since(connection, seen)
            if touched is not None:
                return version, touched, True
            return version, [("revoked", each) for each in self._stopped(connection)], False

        version, touched, is_all_known = await self._ledger.read(look)
        if hints == self._hints:  # else what the hint was about may have been missed
            self._looked = max(self._looked, now)
        if version <= self._seen:
            return  # somebody else has looked meanwhile
        self._seen = version
        if not is_all_known:
            self._known.clear()
        self._forget(touched)

    def _looked_around(self, task: "asyncio.Task[None]") -> None:
        if self._under_way is not None and self._under_way[1] is task:
            self._under_way = None
        if not task.cancelled():
            task.exception()  # whoever waits is told; nobody may be waiting any more

    def disturb(self) -> None:
        """Let nothing that is being read or put together right now be kept."""
        self.generation += 1

    def hint(self) -> None:
        """Look again before the next answer."""
        self._hints += 1
        self._looked = _NEVER

    def _changed_here(self, changed: Changed) -> None:
        if self._seen == changed.first - 1:
            self._seen = changed.last
        self._forget(changed.entities)

    def _forget(self, touched: Iterable[Entity]) -> None:
        self.generation += 1
        for entity in touched:
            if entity[0] == "revoked":
                self._revoked(entity[1])
            else:
                self._known.pop(entity, None)
