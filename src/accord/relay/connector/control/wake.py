"""The wake poke: one GET without payload or signature to a sleeping instance (section 8).

Owns the cooldown, which holds across processes, and the repetition while something waits. A poke
tells nothing and proves nothing; that it failed is counted and otherwise of no consequence.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import httpx
import structlog
from sqlalchemy import Connection, select, update

from accord.kernel.clock import Clock
from accord.relay.connector.control.settings import ControlSettings
from accord.relay.connector.control.tables import instances, tenants
from accord.relay.connector.storing import Storage
from accord.relay.errors import RelayError
from accord.relay.outgoing import guarded_client
from accord.relay.outgoing.guard import Resolver, resolve
from accord.storage import StoreError

_log: Final = structlog.stdlib.get_logger(__name__)

_AT_ONCE: Final = 32


class Waker:
    """Pokes instances until nothing waits for them.

    Args:
        store: Where wake URLs and the last pokes are.
        settings: The cooldown, the time limit, and where pokes may go.
        clock: Where time comes from.
        is_empty: Whether nothing waits for an instance.
        resolver: How names become addresses.
        sleep: Waits; replaced in tests.
    """

    def __init__(
        self,
        store: Storage,
        settings: ControlSettings,
        clock: Clock,
        is_empty: Callable[[str], Awaitable[bool]],
        *,
        resolver: Resolver = resolve,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._is_empty = is_empty
        self._sleep = sleep
        self._client = guarded_client(
            settings.outgoing, resolver=resolver, seconds=settings.wake_timeout_seconds
        )
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._waking: dict[str, asyncio.Task[None]] = {}
        self.counts: Counter[str] = Counter()

    def wake(self, instance: str) -> None:
        """Begin to poke an instance, unless that is under way."""
        if instance not in self._waking:
            task = asyncio.create_task(self._wake(instance))
            self._waking[instance] = task
            task.add_done_callback(lambda _: self._waking.pop(instance, None))

    def forget(self, instance: str) -> None:
        """Poke an instance no more."""
        if task := self._waking.get(instance):
            task.cancel()

    async def close(self) -> None:
        """End all pokes."""
        tasks = list(self._waking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()

    async def _wake(self, instance: str) -> None:
        try:
            while True:
                url, wait = await self._due(instance)
                if url is not None:
                    async with self._slots:
                        await self._poke(instance, url)
                await self._sleep(wait)
                if await self._is_empty(instance):
                    return
        except StoreError as error:
            # Whoever finds the next event for this instance asks again.
            _log.warning("a wake poke had to be put off", instance=instance, reason=error.what)

    async def _due(self, instance: str) -> tuple[str | None, float]:
        """The URL to poke now, if the cooldown is over, and how long to wait for the next time.

        The cooldown is in the store, so that of several processes one is told to poke.
        """
        now = int(self._clock.now() * 1000)
        cooldown = int(self._settings.wake_seconds * 1000)

        def work(connection: Connection) -> tuple[str | None, float]:
            row = connection.execute(
                select(instances.c.wake_url, instances.c.woken_at)
                .join(tenants, tenants.c.tenant == instances.c.tenant)
                .where(
                    instances.c.instance == instance,
                    instances.c.revoked_at.is_(None),
                    tenants.c.suspended_at.is_(None),
                )
                .with_for_update(of=instances)
            ).first()
            if row is None or row.wake_url is None:
                return None, cooldown / 1000
            left = 0 if row.woken_at is None else row.woken_at + cooldown - now
            # A clock that was set back must not keep anybody asleep for longer.
            if 0 < left <= cooldown:
                return None, left / 1000
            connection.execute(
                update(instances).where(instances.c.instance == instance).values(woken_at=now)
            )
            return row.wake_url, cooldown / 1000

        return await self._store.write(work)

    async def _poke(self, instance: str, url: str) -> None:
        try:
            async with (
                asyncio.timeout(self._settings.wake_timeout_seconds),
                self._client.stream("GET", url) as response,
            ):
                outcome = f"status_{response.status_code // 100}xx"
        except RelayError as error:
            outcome = "refused"
            _log.warning("a wake poke was refused", instance=instance, rule=error.where)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, ValueError) as error:
            outcome = "failed"
            _log.info("a wake poke failed", instance=instance, error=type(error).__name__)
        self.counts[f"wake {outcome}"] += 1
