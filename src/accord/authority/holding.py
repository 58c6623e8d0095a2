"""Sessions that others than instances hold: kept, replaced by their holder, revoked for good."""

import dataclasses

from sqlalchemy import Connection

from accord.authority.errors import AuthorityError, Code
from accord.authority.forms import check_key, legible
from accord.authority.history import Act
from accord.authority.ledger import Change, Ledger
from accord.authority.records import Session
from accord.authority.stored import deployments, sessions


class Holding:
    """Keeps sessions.

    Args:
        ledger: The store.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def put(self, session: Session) -> None:
        """Keep a session.

        Raises:
            AuthorityError: The key is none, or is that of an instance or of somebody else.
        """
        check_key(session.key)

        def work(connection: Connection, change: Change) -> AuthorityError | None:
            known = sessions.read(connection, session.key)
            is_other = known is not None and known.subject != session.subject
            if is_other or deployments.read_instance(connection, session.key) is not None:
                return AuthorityError(
                    Code.CONFLICT, "the key is somebody else's", mend="use a fresh key"
                )
            if known != session:
                sessions.write(connection, session)
                change.touch()
            return None

        await self._ledger.change(work)

    async def revoke(self, key: str, by: str) -> None:
        """End a session; one that was revoked stays as it is.

        Raises:
            AuthorityError: There is no such session.
        """

        def work(connection: Connection, change: Change) -> AuthorityError | None:
            known = sessions.read(connection, key)
            if known is None:
                return AuthorityError(
                    Code.NOT_FOUND,
                    "there is no such session",
                    where=legible(key[:80]),
                    mend="check the key",
                )
            if known.revoked_at is None:
                sessions.write(connection, dataclasses.replace(known, revoked_at=change.now))
                change.tell(Act("revoked", by, why=key))
            return None

        await self._ledger.change(work)
