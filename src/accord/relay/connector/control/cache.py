"""What is known in memory, by name, and how it is forgotten when it changes.

Owns the rule that nothing stale is kept: a value that was being read while something was touched is
answered but not remembered. It knows nothing about what the values mean.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from sqlalchemy import Connection

from accord.kernel.clock import Clock
from accord.relay.connector.control.changes import Changed, Entity, Ledger, read_since

T = TypeVar("T")

_MOST: Final = 200_000
_NEVER: Final = float("-inf")


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
        value = await self._ledger.read(load)
        if generation == self.generation and (keep_missing or value is not None):
            if len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
            self._known[entity] = value
        return value

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
