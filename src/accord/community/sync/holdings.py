"""What a log holds, as reconciliation sees it: an index in memory, and bodies from the store.

Owns keeping the index in step with the log. It never verifies anything: what arrives goes to the
log first, and only what the log took is held.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from accord.community.log import Log, News
from accord.community.log.holding import bodies, items
from accord.community.reconcile import Body, Fetch, Index, Item

T = TypeVar("T")


class Holdings:
    """The holdings of one log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._index = Index()
        self._arrived: list[Item] = []
        self._end = log.subscribe(self._take)

    async def load(self) -> None:
        """Read what the log holds already."""
        number = self.log.number
        self._index = await self.log.store.read(lambda c: Index(items(c, number)))

    def close(self) -> None:
        """Follow the log no more."""
        self._end()

    def index(self) -> Index:
        """The index as of now, apart from what arrives later."""
        self._index.insert(self._arrived)
        self._arrived = []
        return self._index.snapshot()

    async def with_bodies(self, work: Callable[[Fetch], T]) -> T:
        """Run a step of reconciliation beside the event loop, with bodies from the store."""

        def run(connection: Connection) -> T:
            def fetch(wanted: Sequence[Item]) -> Iterator[Body | None]:
                return bodies(connection, self.log.number, wanted)

            return work(fetch)

        return await self.log.store.read(run)

    def _take(self, news: News) -> None:
        self._arrived += news.arrived
