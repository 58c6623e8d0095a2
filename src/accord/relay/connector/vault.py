"""The vault: capabilities found in payloads, encrypted, which no gateway ever gets.

Each is bound to tenant and instance and expires when its provider says so. Values are returned only
as `SecretStr`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import SecretStr
from sqlalchemy import Connection, delete, exists, insert, or_, select

from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource
from accord.relay.connector.keyring import Box, Keyring
from accord.relay.connector.registry import Principal
from accord.relay.connector.store import Storage
from accord.relay.connector.tables import bindings, grants, vault


@dataclass(frozen=True, slots=True)
class Capability:
    """A credential found in a payload, to be stored for an instance that receives the event."""

    tenant: str
    instance: str
    platform: str
    # '' where the chat has no scope.
    scope_id: str
    # The key that the instance's gateway will name, in its dialect.
    session_key: str
    # Such as `discord.interaction_token`.
    kind: str
    value: SecretStr
    # The provider's own expiry, in milliseconds since the epoch.
    expires_at: int
    # The message that carried it, by which a follow-up may select it.
    message_id: str | None = None
    # A second key that the gateway may name instead, as for interactions.
    alias: str | None = None
    author: str | None = None
    chat_id: str | None = None
    # The channel, where `chat_id` is a thread.
    parent_id: str | None = None


_INSERT: Final = insert(vault)
_OWNED: Final = bindings.alias()
# Null authors were written by an older version; such entries last for minutes.
_IS_VALID: Final = or_(
    vault.c.author.is_(None),
    exists().where(
        bindings.c.tenant == vault.c.tenant,
        bindings.c.platform == vault.c.platform,
        bindings.c.user_id == vault.c.author,
        bindings.c.instance == vault.c.instance,
    ),
    exists().where(
        grants.c.platform == vault.c.platform,
        grants.c.scope_id == vault.c.scope_id,
        or_(grants.c.channel_id == vault.c.chat_id, grants.c.channel_id == vault.c.parent_id),
        grants.c.instance == vault.c.instance,
        exists().where(
            _OWNED.c.tenant == grants.c.tenant,
            _OWNED.c.platform == grants.c.platform,
            _OWNED.c.user_id == grants.c.owner,
            _OWNED.c.instance == grants.c.instance,
        ),
    ),
)


class Vault:
    """Encrypted capabilities in the relay's store."""

    def __init__(self, store: Storage, keyring: Keyring, clock: Clock) -> None:
        self._store = store
        self._keyring = keyring
        self._clock = clock
        self._ids = UlidSource(clock)

    def bind(self, connection: Connection, capabilities: Sequence[Capability]) -> None:
        """Store capabilities, within a unit of work that may be run again."""
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
        """The newest unexpired capability under this key or alias that is the caller's, or None.

        It ends with the link of its author, or with the grant of the channel that it came from.
        `message_id` selects one; `platform` and `scope_id` narrow where they are known.
        """
        named = (session_key, kind, platform, scope_id, message_id)
        if any("\x00" in text for text in named if text):
            return None  # such names are never stored, and PostgreSQL refuses them
        where = [
            vault.c.tenant == principal.tenant,
            vault.c.instance == principal.instance,
            (vault.c.session_key == session_key) | (vault.c.alias == session_key),
            vault.c.kind == kind,
            vault.c.expires_at > self._now(),
            _IS_VALID,
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
        """Delete what has expired; how many entries that were."""
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
            "author": capability.author,
            "chat_id": capability.chat_id,
            "parent_id": capability.parent_id,
        }

    def _now(self) -> int:
        return int(self._clock.now() * 1000)


def is_empty(connection: Connection, instance: str, now: int) -> bool:
    """Whether nothing unexpired is stored for an instance."""
    return not connection.execute(
        select(exists().where(vault.c.instance == instance, vault.c.expires_at > now))
    ).scalar_one()


def _context(tenant: str, instance: str, kind: str) -> tuple[str, ...]:
    return "vault", tenant, instance, kind
