"""The two interfaces between the halves of the connector.

`Directory` is what delivery asks of control, `ConnectorHandle` what control asks of delivery. Owns
the values that cross between them and nothing that does anything.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from pydantic import SecretStr
from sqlalchemy import Connection

from accord.relay.connector.platform import Inbound
from accord.relay.errors import Code, RelayError
from accord.relay.gate.facts import Facts
from accord.relay.wire.closing import Reason

Dialect: TypeAlias = Literal["hermes", "scoped"]

_REASONS: Final = {Code.EXPIRED: Reason.EXPIRED, Code.FORBIDDEN: Reason.REVOKED}


def close_reason(error: RelayError) -> Reason:
    """What a refused upgrade's close says: expired, revoked or unauthorized."""
    return _REASONS.get(error.code, Reason.UNAUTHORIZED)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a caller is, by the stored record of the gateway that it proved to be.

    Attributes:
        tenant: The tenant of the record.
        instance: The agent.
        gateway_id: The gateway that speaks for it.
        via: By what it was proved: the gateway's own secret, or a managed token.
    """

    tenant: str
    instance: str
    gateway_id: str
    via: Literal["secret", "managed"]


@dataclass(frozen=True, slots=True)
class LinkReply:
    """An account-link message was consumed: it is never routed.

    Attributes:
        text: What the bot answers in the same chat; empty for silence.
        rule: The id of the rule that decided, for the journal.
    """

    text: str
    rule: str


@dataclass(frozen=True, slots=True)
class Capability:
    """A credential found in a payload, on its way into the vault.

    Attributes:
        tenant: Whose it becomes.
        instance: Which agent's it becomes; the event was delivered to it.
        platform: Where it came from.
        scope_id: The scope of the chat; '' where there is none.
        session_key: The key that this instance's gateway will name, in its dialect.
        alias: A second key that it may name instead, as for interactions.
        kind: What it is, such as `discord.interaction_token`.
        message_id: The event that carried it, by which a follow-up may select it.
        value: The credential. It is shown by nothing.
        expires_at: The provider's own expiry, in milliseconds since the epoch.
    """

    tenant: str
    instance: str
    platform: str
    scope_id: str
    session_key: str
    kind: str
    value: SecretStr
    expires_at: int
    message_id: str | None = None
    alias: str | None = None


class Vault(Protocol):
    """Where capabilities are kept, encrypted."""

    def bind(self, connection: Connection, capabilities: Sequence[Capability]) -> None:
        """Keep capabilities, within a unit of work that may be run again."""
        ...

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
        """The newest unexpired one under this key or alias that is the caller's, or None.

        `message_id` selects one; `platform` and `scope_id` narrow where they are known.
        """
        ...


class Directory(Protocol):
    """What delivery asks of control. Facts come from memory; see `facts`."""

    @property
    def vault(self) -> Vault:
        """Where capabilities are kept."""
        ...

    async def authenticate(self, bearer: str | None) -> Principal:
        """Who dials `/relay`, by its upgrade token (without the word `Bearer`).

        Raises:
            RelayError: `close_reason` of it says how to close the socket.
            StoreError: The store failed, so that nothing is known.
        """
        ...

    async def facts(self, inbound: Inbound) -> Facts:
        """What the gate goes by for this event, from memory wherever possible.

        Raises:
            StoreError: What is not in memory could not be read.
        """
        ...

    async def held_scopes(self, instance: str, platform: str, channel_id: str) -> tuple[str, ...]:
        """In which scopes an instance holds a channel of this id; '' where there is no scope."""
        ...

    async def front(self, principal: Principal, platform: str, bot_id: str) -> None:
        """Remember through which bot an instance speaks, as its hello says."""
        ...

    async def session_dialect(self, instance: str) -> Dialect:
        """In which dialect this instance's session keys are written."""
        ...

    async def choose_dialect(
        self, instance: str, dialect: Dialect, buffer_is_empty: Callable[[Connection], bool]
    ) -> bool:
        """Take the dialect of a hello; False when it differs and buffer or vault are not empty.

        Args:
            instance: The instance that said hello.
            dialect: What it said; `hermes` where it said nothing.
            buffer_is_empty: Asked within the transaction that changes it.
        """
        ...

    async def wake(self, instance: str) -> None:
        """Poke a sleeping instance; cheap, never fails, at most once per cooldown.

        While `ConnectorHandle.is_empty` says no it is poked again each cooldown.
        """
        ...

    async def consume_link_dm(self, inbound: Inbound) -> LinkReply | None:
        """Handle an account-link message; None when it is an ordinary one.

        To be asked before any layer of the gate. What is consumed is not routed.
        """
        ...

    def flush_visibility(self, platform: str, scope_id: str | None = None) -> None:
        """Forget who can see what: after a role or permission event or a lost session."""
        ...

    def hint(self) -> None:
        """Another process has changed something: look before the next answer."""
        ...

    def on_change(self, callback: Callable[[], None]) -> None:
        """Be told after each change made here, to hint the others by the relay bus."""
        ...

    def on_revoked(self, callback: Callable[[str], Awaitable[None]]) -> None:
        """Be told of each instance that was revoked, here or elsewhere."""
        ...


class ConnectorHandle(Protocol):
    """What control asks of delivery; revocations it tells by `Directory.on_revoked`."""

    async def is_empty(self, instance: str) -> bool:
        """Whether nothing waits for the instance."""
        ...
