"""The wake poke: one GET without payload or signature to a sleeping instance.

The cooldown holds across processes; a poke is repeated while something waits.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import httpx
import structlog
from sqlalchemy import Connection, select, update

from accord.kernel.clock import Clock
from accord.relay.connector.settings import ControlSettings
from accord.relay.connector.store import Storage, is_queue_empty
from accord.relay.connector.tables import instances, tenants
from accord.storage import StoreError
from accord.web.outgoing import OutgoingError, Resolver, guarded_client, resolve

_log: Final = structlog.stdlib.get_logger(__name__)


class Waker:
    """Pokes instances until nothing waits for them; tests replace `sleep`."""

    def __init__(
        self,
        store: Storage,
        settings: ControlSettings,
        clock: Clock,
        *,
        resolver: Resolver = resolve,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._client = guarded_client(
            settings.outgoing, resolver=resolver, seconds=settings.wake_timeout_seconds
        )
        self._slots = asyncio.Semaphore(settings.wakes_at_once)
        self._waking: dict[str, asyncio.Task[None]] = {}
        self.counts: Counter[str] = Counter()

    def wake(self, instance: str) -> None:
        """Start to poke an instance, unless that is under way."""
        if instance not in self._waking:
            task = asyncio.create_task(self._wake(instance))
            self._waking[instance] = task
            task.add_done_callback(lambda _: self._waking.pop(instance, None))

    def forget(self, instance: str) -> None:
        """Stop poking an instance."""
        if task := self._waking.get(instance):
            task.cancel()

    async def close(self) -> None:
        """Stop all pokes."""
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
                if await self._store.read(partial(is_queue_empty, instance=instance)):
                    return
        except StoreError as error:
            # The next event for this instance, or the retention, starts it again.
            _log.warning("a wake poke was postponed", instance=instance, reason=error.what)

    async def _due(self, instance: str) -> tuple[str | None, float]:
        """The URL to poke now, if the cooldown is over, and the seconds until the next time.

        The cooldown is in the store, so that only one of several processes pokes.
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
            # A clock that was set back must not prolong the cooldown.
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
        except OutgoingError as error:
            outcome = "refused"
            _log.warning("a wake poke was refused", instance=instance, rule=error.where)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, ValueError) as error:
            outcome = "failed"
            _log.info("a wake poke failed", instance=instance, error=type(error).__name__)
        self.counts[f"wake {outcome}"] += 1
