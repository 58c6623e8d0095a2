"""What a chat platform is to the connector: one interface for all of them.

Owns the values that cross it. A platform verifies at its edge, takes capabilities out of what it
received, normalises, and hands on an `Inbound`; it decides nothing about who receives it. What it
has handed on is durable when `ingest` returns, and only then may it tell the platform so.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import SecretStr

from accord.relay.errors import RelayError
from accord.relay.wire.actions import Action, Result
from accord.relay.wire.descriptor import Descriptor
from accord.relay.wire.event import MessageEvent
from accord.relay.wire.passthrough import PassthroughForward

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


class InboundKind(Enum):
    """What was received."""

    MESSAGE = "inbound"
    PASSTHROUGH = "passthrough"
    INTERRUPT = "interrupt"


@dataclass(frozen=True, slots=True)
class Found:
    """A capability that a payload carried: it goes to the vault and nowhere else.

    Attributes:
        kind: What it is, such as `discord.interaction_token`: the platform's name, a dot, and what
            the platform calls it. A follow-up names the kind, and by it the platform.
        value: The credential. It is shown by nothing.
        expires_at: The provider's own expiry, in milliseconds since the epoch.
    """

    kind: str
    value: SecretStr
    expires_at: int


@dataclass(frozen=True, slots=True)
class Inbound:
    """Something that a platform received, normalised and free of capabilities.

    Attributes:
        platform: The platform's name.
        bot_id: The bot that saw it; it says nothing about the tenant.
        event_id: The platform's own id of the event, by which it is taken once.
        event: What a gateway will see. Of a passthrough, the message that it amounts to.
        kind: A message, a forwarded request, or a user's wish to stop the running turn.
        forward: The request, where the kind is a passthrough.
        author_is_bot: Whether a bot or webhook wrote it. It is never on the wire.
        addressed: Whether it mentions the bot or replies to it.
        route_key: The discriminator of a webhook: its path or subdomain.
        found: The capabilities that it carried.
    """

    platform: str
    bot_id: str
    event_id: str
    event: MessageEvent
    kind: InboundKind = InboundKind.MESSAGE
    forward: PassthroughForward | None = None
    author_is_bot: bool = False
    addressed: bool = False
    route_key: str | None = None
    found: tuple[Found, ...] = ()


@dataclass(frozen=True, slots=True)
class Fence:
    """Who owns a platform's socket: checked in the transaction that stores what came over it."""

    lease: str
    holder: str
    epoch: int


class PlatformState(Enum):
    """How a bot stands with its service, as this process sees it."""

    STARTING = "starting"
    READY = "ready"
    TROUBLED = "troubled"
    ELSEWHERE = "elsewhere"
    """Another process listens."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How one bot stands with its service.

    Attributes:
        reason: What is wrong, as a sentence; empty where nothing is.
    """

    platform: str
    bot_id: str
    state: PlatformState
    reason: str = ""


class PlatformContext(Protocol):
    """What the connector offers a running platform."""

    @property
    def fence(self) -> Fence | None:
        """Under which ownership it runs; None for what needs none, such as webhooks."""
        ...

    def ready(self) -> None:
        """The service is heard: said once it is, and again after trouble has passed."""
        ...

    def troubled(self, error: RelayError) -> None:
        """Something is wrong that the platform itself goes on trying to mend."""
        ...

    async def ingest(self, inbound: Inbound) -> bool:
        """Take an event; returns when it is on disk. Taking it again changes nothing.

        Calls for one chat are taken in the order in which they were made.

        Returns:
            Whether it was new.

        Raises:
            RelayError: It was not taken: the ownership is lost, or the event cannot be kept.
            StoreError: It was not taken: the store failed.
        """
        ...

    async def recall(self) -> Mapping[str, str]:
        """What the platform's last owner remembered, to go on where it stopped."""
        ...

    async def remember(self, state: Mapping[str, str]) -> None:
        """Keep where to go on: for what was ingested before. Nothing secret.

        Raises:
            RelayError: The ownership is lost.
        """
        ...

    def visibility_changed(self, scope_id: str | None = None) -> None:
        """Roles or permissions changed in a scope, or a session was lost and they may have."""
        ...


class Platform(Protocol):
    """A chat platform with one bot on it."""

    @property
    def name(self) -> str:
        """The platform's name, such as `discord`."""
        ...

    @property
    def bot_id(self) -> str:
        """The bot's own id there."""
        ...

    @property
    def idempotent(self) -> bool:
        """Whether an action that is repeated under its key changes nothing; no follow-up is."""
        ...

    @property
    def routes(self) -> Sequence["BaseRoute"]:
        """Webhooks that it answers; may be empty."""
        ...

    def descriptor(self) -> Descriptor:
        """What it can do."""
        ...

    def bind(self, context: PlatformContext) -> None:
        """Get to know the connector, once and in every process: for what webhooks bring."""
        ...

    async def run(self, context: PlatformContext) -> None:
        """Listen until cancelled. One connector process at a time does so.

        It says `context.ready()` once it hears the service. What it raises is shown as its
        standing, and it is run again after a delay that grows; one that the service refuses
        (`Code.UNAUTHORIZED`) is tried again seldom, until somebody mends it.
        """
        ...

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Do what an agent asked for and the gate allowed.

        Args:
            action: What to do; texts fit into one message.
            idempotency_key: Unlike that of any other action; passed on where the platform has such
                a thing. Of what an instance asked for it begins with its id and a slash; what the
                station says by itself has no slash in it.
            capability: What a follow-up acts by.
        """
        ...

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a channel; None where that cannot be said."""
        ...

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a channel; None where that cannot be said."""
        ...


@runtime_checkable
class Naming(Protocol):
    """A platform that knows what people and chats are called without asking anybody."""

    async def names(self, ids: Collection[str]) -> Mapping[str, str]:
        """What those are called whom it knows, bots among them; for the operator's eyes."""
        ...


@runtime_checkable
class Commanded(Protocol):
    """A platform that shows people which commands an agent knows."""

    def offer_commands(self, instance: str, manifest: Any) -> None:
        """Show an instance's commands, soon; what it offered before is replaced.

        Args:
            instance: Whose they are.
            manifest: As the gateway wrote it in its hello; nothing about it is sure.
        """
        ...
