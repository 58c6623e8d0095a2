"""Showing the agents' commands on Discord, in the background.

Owns when they are published: a little after the last change, and only where there is one. Trouble
is logged and tried again; it is nobody else's.
"""

import asyncio
from typing import Any, Final

import structlog

from accord.relay.errors import RelayError
from accord.relay.platforms.discord import manifests
from accord.relay.platforms.discord.buckets import Route
from accord.relay.platforms.discord.manifests import Command
from accord.relay.platforms.discord.rest import Rest

_MOST_INSTANCES: Final = 1_000
# Agents come back one by one after a restart; each must not take away the others' for a moment.
_SETTLING_SECONDS: Final = 2.0
_FIRST_PAUSE: Final = 5.0
_LONGEST_PAUSE: Final = 300.0
_PATIENCE: Final = 60.0
_log = structlog.stdlib.get_logger(__name__)


class Publisher:
    """Publishes what instances offer.

    Args:
        application_id: The application that has the commands.
        rest: The API.
    """

    def __init__(self, application_id: str, rest: Rest) -> None:
        self._route = Route.of("PUT", "/applications/{}/commands", application_id)
        self._rest = rest
        self._offers: dict[str, list[Command]] = {}
        self._published: list[Command] | None = None
        self._task: asyncio.Task[None] | None = None

    def offer(self, instance: str, manifest: Any) -> None:
        """Take an instance's commands in place of those that it offered before."""
        if not isinstance(manifest, list):
            _log.warning("a manifest of commands is no list", instance=instance)
            return
        if instance not in self._offers and len(self._offers) >= _MOST_INSTANCES:
            _log.warning("too many instances offer commands", instance=instance)
            return
        self._offers[instance] = manifests.read(manifest)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._publish())

    async def close(self) -> None:
        """End what runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _publish(self) -> None:
        pause = _FIRST_PAUSE
        await asyncio.sleep(_SETTLING_SECONDS)
        while (wanted := manifests.merged(self._offers)) != self._published:
            if await self._put(wanted):
                self._published = wanted
                pause = _FIRST_PAUSE
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _put(self, wanted: list[Command]) -> bool:
        """Publish a list; whether that is done with, because it was taken or never will be."""
        try:
            answer = await self._rest.ask(self._route, wanted, patience=_PATIENCE, repeats=1)
        except RelayError as error:
            _log.warning("commands could not be published", reason=error.what)
            return False
        if answer.ok:
            _log.info("commands published", count=len(wanted))
        else:
            _log.warning("discord refuses the commands", status=answer.status, code=answer.code)
        return True
