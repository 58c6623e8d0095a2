"""What has to be done now and then: looking around, tidying up, and changing the key.

Owns the rhythm of the first two and the order of the third. Everything here can be stopped at any
point and begun again.
"""

import asyncio
from typing import Final

import structlog
from sqlalchemy import delete

from accord.relay.connector.control import enrolment
from accord.relay.connector.control.changes import Change
from accord.relay.connector.control.reencryption import left_behind, reencrypt
from accord.relay.connector.control.stored import StoreDirectory
from accord.relay.connector.control.tables import enrolments, link_codes, link_pending, link_talks
from accord.relay.errors import Code, RelayError
from accord.storage import StoreError

_log: Final = structlog.stdlib.get_logger(__name__)

_SECONDS: Final = 60.0


class Housekeeping:
    """Keeps the control half in order."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory

    async def run(self) -> None:
        """Look around often and tidy up now and then, until cancelled.

        An idle process learns of revocations elsewhere only by looking, so that this runs beside
        delivery in every one.
        """
        pause = self._directory.settings.freshness_seconds / 2
        while True:
            try:
                await self.tidy()
            except StoreError as error:
                _log.warning("expired entries could not be dropped", reason=error.what)
            for _ in range(max(1, int(_SECONDS / pause))):
                await asyncio.sleep(pause)
                await self._directory.look()

    async def tidy(self) -> None:
        """Drop what has expired: vault entries, codes, confirmations, talks, enrolment tokens."""
        await self._directory.vault.purge()
        await self._directory.ledger.change(_drop_expired)

    async def rotate_key(self) -> int:
        """Put a new key in the key file and encrypt everything under it; how much that was."""
        self._directory.keyring.rotate()
        return await reencrypt(self._directory.ledger, self._directory.keyring)

    async def forget_old_keys(self) -> None:
        """Drop older keys; only when every connector has been restarted since the rotation.

        Raises:
            RelayError: Something is still encrypted under one of them.
        """
        keyring = self._directory.keyring
        left = await self._directory.ledger.read(
            lambda connection: left_behind(connection, keyring)
        )
        if left:
            raise RelayError(
                Code.CONFLICT,
                f"{left} secrets are still encrypted under an older key",
                mend="restart the other connectors, then encrypt everything anew",
            )
        keyring.forget_old()


def _drop_expired(change: Change) -> None:
    connection, now = change.connection, change.now
    for table in (link_codes, link_pending):
        connection.execute(delete(table).where(table.c.expires_at <= now))
    connection.execute(delete(link_talks).where(link_talks.c.until <= now))
    connection.execute(
        delete(enrolments).where(enrolments.c.expires_at <= now - enrolment.REMEMBERED)
    )
