"""Keeps everything as it is desired: reconciles what changed at once, and all of it now and then.

Owns when to reconcile. One deployment that fails holds up no other; it is tried again with the next
look at everything, or when what it desires changes.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from accord.authority.errors import AuthorityError, Code
from accord.authority.reconcile.reconciler import Reconciler
from accord.authority.records import Deployment, MaterialState
from accord.kernel.errors import AccordError

_log = structlog.stdlib.get_logger(__name__)

EVERY_SECONDS: Final = 30.0
"""How long something that was changed on the server behind our back stays so."""

_RETRY_SECONDS: Final = 2.0


class Changes(Protocol):
    """Wakes those who follow what changes."""

    @property
    def count(self) -> int:
        """How much has changed so far."""
        ...

    async def after(self, count: int) -> int:
        """Wait until more has changed than that."""
        ...


class Roll(Protocol):
    """Which deployments there are."""

    @property
    def changes(self) -> Changes:
        """Fires when something changes."""
        ...

    async def deployment(self, deployment: str) -> Deployment:
        """One of them."""
        ...

    async def deployments(self) -> Sequence[Deployment]:
        """All of them."""
        ...

    async def reconciliations(self) -> Sequence[str]:
        """Those of which something is still to be made, or failed to be."""
        ...


class Repair:
    """Reconciles for as long as it runs.

    Args:
        reconciler: Does it.
        roll: Says for whom.
        seconds: How often everything is looked at.
    """

    def __init__(
        self, reconciler: Reconciler, roll: Roll, *, seconds: float = EVERY_SECONDS
    ) -> None:
        self._reconciler = reconciler
        self._roll = roll
        self._seconds = seconds
        self._failed: dict[str, int] = {}

    async def run(self) -> None:
        """Reconcile until cancelled."""
        is_due = True
        while True:
            count = self._roll.changes.count
            is_done = await self.look(everything=is_due)
            is_due = is_due and not is_done
            try:
                async with asyncio.timeout(self._seconds if is_done else _RETRY_SECONDS):
                    await self._roll.changes.after(count)
            except TimeoutError:
                is_due = True

    async def look(self, *, everything: bool) -> bool:
        """Reconcile what changed, or everything; whether server and store answered throughout."""
        try:
            if everything:
                await self._reconciler.prepare()
            for deployment in await self._due(everything=everything):
                await self._reconcile(deployment)
        except AccordError as error:
            _log.warning("reconciliation stopped", why=str(error))
            return False
        return True

    async def _reconcile(self, deployment: Deployment) -> None:
        try:
            record = await self._reconciler.reconcile(deployment.id)
        except AuthorityError as error:
            if error.code is Code.UNAVAILABLE:
                raise
            _log.warning("not reconciled", deployment=deployment.id, why=str(error))
            return
        if record.status is MaterialState.FAILED:
            self._failed[deployment.id] = record.version
        else:
            self._failed.pop(deployment.id, None)

    async def _due(self, *, everything: bool) -> Sequence[Deployment]:
        if everything:
            return await self._roll.deployments()
        changed = [await self._roll.deployment(each) for each in await self._roll.reconciliations()]
        return [each for each in changed if self._failed.get(each.id) != each.version]
