"""The vault: capabilities found in payloads, which no gateway ever sees (sections 5 and 10).

Owns their keeping: encrypted, bound to tenant and instance, gone when their provider says so. A
value leaves only as a `SecretStr`, to the one who acts by it; no error, note or record shows it.
"""

from collections.abc import Sequence
from typing import Final

from pydantic import SecretStr
from sqlalchemy import Connection, delete, exists, insert, select

from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource
from accord.relay.connector.control.directory import Capability, Principal
from accord.relay.connector.control.keyring import Box, Keyring
from accord.relay.connector.control.tables import vault
from accord.relay.connector.storing import Storage

_INSERT: Final = insert(vault)


class StoreVault:
    """The vault in the relay's store."""

    def __init__(self, store: Storage, keyring: Keyring, clock: Clock) -> None:
        self._store = store
        self._keyring = keyring
        self._clock = clock
        self._ids = UlidSource(clock)

    def bind(self, connection: Connection, capabilities: Sequence[Capability]) -> None:
        """Keep capabilities, within a unit of work that may be run again."""
        if capabilities:
            connection.execute(_INSERT, [self._row(each) for each in capabilities])

    async def resolve(
        self,
        principal: Principal,
        *,
        session_key: str,
        kind: str,
        platform: str | None = None,
        scope_id: str | None = None,
        message_id: str | None = None,
    ) -> SecretStr | None:
        """The newest unexpired one under this key or alias that is the caller's, or None."""
        named = (session_key, kind, platform, scope_id, message_id)
        if any("\x00" in text for text in named if text):
            return None  # nothing is kept under such a name, and one engine refuses to look
        where = [
            vault.c.tenant == principal.tenant,
            vault.c.instance == principal.instance,
            (vault.c.session_key == session_key) | (vault.c.alias == session_key),
            vault.c.kind == kind,
            vault.c.expires_at > self._now(),
        ]
        for column, narrowed in (
            (vault.c.platform, platform),
            (vault.c.scope_id, scope_id),
            (vault.c.message_id, message_id),
        ):
            if narrowed is not None:
                where.append(column == narrowed)
        row = await self._store.read(
            lambda connection: connection.execute(
                select(vault.c.key_id, vault.c.box)
                .where(*where)
                .order_by(vault.c.created_at.desc(), vault.c.id.desc())
                .limit(1)
            ).first()
        )
        if row is None:
            return None
        context = _context(principal.tenant, principal.instance, kind)
        return SecretStr(self._keyring.open(Box(row.key_id, row.box), *context))

    async def purge(self) -> int:
        """Drop what has expired, and say how much that was."""
        now = self._now()
        return await self._store.write(
            lambda connection: (
                connection.execute(delete(vault).where(vault.c.expires_at <= now)).rowcount
            )
        )

    def _row(self, capability: Capability) -> dict[str, object]:
        box = self._keyring.close(
            capability.value.get_secret_value(),
            *_context(capability.tenant, capability.instance, capability.kind),
        )
        return {
            "id": self._ids.new(),
            "tenant": capability.tenant,
            "instance": capability.instance,
            "platform": capability.platform,
            "scope_id": capability.scope_id,
            "session_key": capability.session_key,
            "alias": capability.alias,
            "kind": capability.kind,
            "message_id": capability.message_id,
            "key_id": box.key_id,
            "box": box.data,
            "created_at": self._now(),
            "expires_at": capability.expires_at,
        }

    def _now(self) -> int:
        return int(self._clock.now() * 1000)


def is_empty(connection: Connection, instance: str, now: int) -> bool:
    """Whether nothing that still counts is kept for an instance."""
    return not connection.execute(
        select(exists().where(vault.c.instance == instance, vault.c.expires_at > now))
    ).scalar_one()


def _context(tenant: str, instance: str, kind: str) -> tuple[str, ...]:
    return "vault", tenant, instance, kind
