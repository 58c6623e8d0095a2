"""Tells the network of every session that was revoked, whoever revoked it.

It follows the authority's history, so that it makes no difference whether the session itself, an
administrator or an operator ended it, here or through another process.
"""

import asyncio
from typing import Final

import structlog

from accord.authority.core import Authority
from accord.authority.history import Step
from accord.authority.services.announcing import Announcing
from accord.authority.stored import revisions
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError

_log = structlog.stdlib.get_logger(__name__)

_LOOK_BACK_SECONDS: Final = 60.0
_LOOK_BACK_REVISIONS: Final = 1000
_RETRY_SECONDS: Final = 1.0


class Revocations:
    """Announces revocations for as long as it runs.

    Args:
        authority: Whose history is followed.
        announcing: Tells the network.
        clock: Where the time comes from.
    """

    def __init__(self, authority: Authority, announcing: Announcing, clock: Clock) -> None:
        self._authority = authority
        self._announcing = announcing
        self._clock = clock

    async def run(self) -> None:
        """Announce until cancelled.

        What was revoked long before this began is not told again; what an authority that died may
        not have told any more, is.
        """
        oldest = self._clock.now() - _LOOK_BACK_SECONDS
        since: int | None = None
        while True:
            count = self._authority.changes.count
            try:
                if since is None:
                    since = max(0, await self._newest() - _LOOK_BACK_REVISIONS)
                steps = await self._authority.history(since=since)
                for step in steps:
                    await self._announce(step, oldest)
                    since = step.revision
            except AccordError as error:
                _log.warning("revocations are not told yet", why=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if not steps:
                await self._authority.changes.after(count)

    async def _newest(self) -> int:
        return await self._authority.store.read(revisions.current)

    async def _announce(self, step: Step, oldest: float) -> None:
        act = step.act
        if act.act == "revoked" and act.why is not None and step.at >= oldest:
            await self._announcing.revoked(act.why, act.by, step.at)
