"""The connector as a platform sees it, for tests of platforms: it keeps what it is handed.

What was taken is kept in order and taken once, as the connector does; it can be told to refuse.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from accord.relay.connector.platform import Fence, Inbound, PlatformState
from accord.relay.errors import Code, RelayError


@dataclass
class KeptContext:
    """A `PlatformContext` in memory.

    Attributes:
        taken: What was taken, in order, each event once.
        repeated: The ids of events that came again.
        remembered: Where to go on.
        standings: What the platform said of itself, in order: its state and, of trouble, why.
        stale: The scopes whose visibility may have changed.
        refusing: What taking an event raises while it is set.
    """

    fence: Fence | None = None
    taken: list[Inbound] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    remembered: dict[str, str] = field(default_factory=dict)
    standings: list[tuple[PlatformState, str]] = field(default_factory=list)
    stale: list[str | None] = field(default_factory=list)
    refusing: Exception | None = None
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _telling: "asyncio.Future[None] | None" = None

    @property
    def texts(self) -> list[str]:
        """The texts that were taken, in order."""
        return [each.event.text for each in self.taken]

    def ready(self) -> None:
        """The service is heard."""
        self.standings.append((PlatformState.READY, ""))
        self._tell()

    def troubled(self, error: RelayError) -> None:
        """Something is wrong."""
        self.standings.append((PlatformState.TROUBLED, str(error)))
        self._tell()

    async def ingest(self, inbound: Inbound) -> bool:
        """Take an event, once."""
        await asyncio.sleep(0)
        if self.refusing is not None:
            raise self.refusing
        seat = (inbound.platform, inbound.bot_id, inbound.event_id)
        if any((each.platform, each.bot_id, each.event_id) == seat for each in self.taken):
            self.repeated.append(inbound.event_id)
            return False
        self.taken.append(inbound)
        await self._told()
        return True

    def refuse(self, code: Code = Code.UNAVAILABLE) -> None:
        """Take nothing from now on."""
        self.refusing = RelayError(code, "the test says no")

    async def recall(self) -> Mapping[str, str]:
        """Where to go on."""
        return dict(self.remembered)

    async def remember(self, state: Mapping[str, str]) -> None:
        """Keep where to go on."""
        self.remembered = dict(state)
        await self._told()

    def visibility_changed(self, scope_id: str | None = None) -> None:
        """Keep which scope is stale."""
        self.stale.append(scope_id)
        self._tell()

    async def until(self, condition: Callable[[], bool], *, within: float = 20.0) -> None:
        """Wait until something holds that changes with what the platform does here."""
        async with asyncio.timeout(within), self._news:
            await self._news.wait_for(condition)

    def _tell(self) -> None:
        self._telling = asyncio.ensure_future(self._told())

    async def _told(self) -> None:
        async with self._news:
            self._news.notify_all()
