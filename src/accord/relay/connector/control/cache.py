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


class Cache:
    """Values by entity, kept until the entity is touched here or elsewhere.

    Args:
        ledger: Where changes are made and read.
        clock: Where time comes from.
        seconds: How old the knowledge of other processes' changes may be.
        revoked: Told of each instance that was revoked, here or elsewhere.
        missed: Told when so much was missed that any instance may have been revoked.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        seconds: float,
        revoked: Callable[[str], None],
        missed: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._seconds = seconds
        self._revoked = revoked
        self._missed = missed
        self._known: dict[Entity, Any] = {}
        self._seen = -1
        self._looked = -1e9
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

    async def refresh(self) -> None:
        """Look for changes of other processes, and forget what they touched."""
        now = self._clock.monotonic()
        seen = self._seen
        version, touched = await self._ledger.read(lambda connection: read_since(connection, seen))
        self._looked = max(self._looked, now)
        if version <= self._seen:
            return  # somebody else has looked meanwhile
        first = self._seen < 0
        self._seen = version
        if first:
            self._forget_all()
        elif touched is None:
            self._forget_all()
            self._missed()
        else:
            self._forget(touched)

    def disturb(self) -> None:
        """Let nothing that is being read or put together right now be kept."""
        self.generation += 1

    def hint(self) -> None:
        """Look again before the next answer."""
        self._looked = -1e9

    def _changed_here(self, changed: Changed) -> None:
        if self._seen == changed.first - 1:
            self._seen = changed.last
        self._forget(changed.entities)

    def _forget_all(self) -> None:
        self.generation += 1
        self._known.clear()

    def _forget(self, touched: Iterable[Entity]) -> None:
        self.generation += 1
        for entity in touched:
            if entity[0] == "revoked":
                self._revoked(entity[1])
            else:
                self._known.pop(entity, None)
