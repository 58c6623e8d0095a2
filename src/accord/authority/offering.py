"""Offers over time: connections, heartbeats, and the end of what is not heard of any more.

Nothing here creates an offer or changes what one offers (section 6.2).
"""

from collections.abc import Callable, Iterable
from typing import Literal

from sqlalchemy import Connection

from accord.authority.decisions.liveness import HEARTBEAT, LEASE, Liveness, heard, liveness, lost
from accord.authority.history import Act
from accord.authority.ledger import Change, Ledger
from accord.authority.records import Offer
from accord.authority.stored import offers


class Offering:
    """Keeps offers up with their connections.

    Args:
        ledger: The store.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def heartbeat(self, key: str, contract_id: str, digest: str) -> bool:
        """Refresh an accepted offer that fits; whether there is one."""

        def fits(offer: Offer) -> bool:
            return (offer.contract_id, offer.digest) == (contract_id, digest)

        return await self._hear(key, fits)

    async def connected(self, key: str, digest: str | None = None) -> bool:
        """Take note of a connection; whether anything is offered through it."""
        return await self._hear(key, lambda offer: digest in (None, offer.digest))

    async def disconnected(self, key: str, digest: str | None = None) -> None:
        """Take note that a connection ended: the grace window of its offers begins."""

        def work(connection: Connection, change: Change) -> None:
            for offer in offers.read_some(connection, instance=key):
                if offer.live and digest in (None, offer.digest):
                    offers.write(connection, lost(offer, change.now))

        await self._ledger.change(work)

    async def expire(self, now: float) -> int:
        """Drop what has expired, and say how many offers that were."""
        if not await self._ledger.read(lambda c: offers.read_some(c, expired_by=now)):
            return 0

        def work(connection: Connection, change: Change) -> int:
            # Read again: something may have been heard meanwhile.
            gone = offers.read_some(connection, expired_by=now)
            end(connection, change, gone, "authority", "expired")
            return len(gone)

        return await self._ledger.change(work)

    async def _hear(self, key: str, fits: Callable[[Offer], bool]) -> bool:
        now = self._ledger.clock.now()

        def fitting(connection: Connection) -> list[Offer]:
            return [
                offer
                for offer in offers.read_some(connection, instance=key)
                if fits(offer) and liveness(offer, now) is not Liveness.EXPIRED
            ]

        found = await self._ledger.read(fitting)
        # What was heard of just now need not be written again.
        if all(offer.live and offer.expires_at > now + LEASE - HEARTBEAT / 2 for offer in found):
            return bool(found)

        def work(connection: Connection, _change: Change) -> bool:
            current = fitting(connection)
            for offer in current:
                offers.write(connection, heard(offer, now))
            return bool(current)

        return await self._ledger.change(work)


def end(
    connection: Connection,
    change: Change,
    gone: Iterable[Offer],
    by: str,
    how: Literal["withdrawn", "expired"] = "withdrawn",
) -> None:
    """Drop offers within a unit of work, and tell of digests that nobody offers any more."""
    ended = list(gone)
    for offer in ended:
        offers.drop(connection, offer)
    for deployment, contract_id, digest in sorted(
        {(offer.deployment, offer.contract_id, offer.digest) for offer in ended}
    ):
        if not offers.is_offered(connection, deployment, contract_id, digest):
            change.tell(Act(how, by, deployment, contract_id, digest))
    if ended:
        change.touch()
