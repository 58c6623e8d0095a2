"""The interface between the connector and its chat platforms.

A platform verifies what it receives, takes capabilities out of it, normalises it and passes an
`InboundEvent` to `ingest`; it does not decide who receives it. The event is durable when `ingest`
returns, and only then may the platform acknowledge it to its service.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import SecretStr

from accord.relay.errors import RelayError
from accord.relay.rules.frames import Action, Descriptor, Result
from accord.relay.rules.messages import InboundEvent
from accord.relay.rules.shards import Shard

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


@dataclass(frozen=True, slots=True)
class Fence:
    """An ownership of a platform's socket, checked in the transaction that stores its events."""

    lease: str
    holder: str
    epoch: int


class PlatformState(Enum):
    """The state of a bot's connection to its service, as this process sees it."""

    STARTING = "starting"
    READY = "ready"
    TROUBLED = "troubled"
    ELSEWHERE = "elsewhere"
    """Another process listens."""


@dataclass(frozen=True, slots=True)
class PlatformStatus:
    """The state of one bot; `reason` says what is wrong, or is empty."""

    platform: str
    bot_id: str
    state: PlatformState
    reason: str = ""


class PlatformContext(Protocol):
    """What the connector offers a running platform."""

    @property
    def fence(self) -> Fence | None:
        """The ownership under which it runs; None for webhooks, which need none."""
        ...

    def ready(self) -> None:
        """Report that the service is connected, at first and after each recovery."""
        ...

    def troubled(self, error: RelayError) -> None:
        """Report an error that the platform itself goes on trying to resolve."""
        ...

    async def ingest(self, inbound: InboundEvent) -> bool:
        """Take an event; returns, when it is on disk, whether it was new.

        A repeated event changes nothing. Events of one chat keep the order of the calls.

        Raises:
            RelayError: It was not taken: the ownership is lost, or the event is invalid.
            StoreError: It was not taken: the store failed.
        """
        ...

    async def recall(self) -> Mapping[str, str]:
        """The state that the platform's last owner stored, to resume from."""
        ...

    async def recall_others(self) -> Sequence[Mapping[str, str]]:
        """The state that other shards of the bot stored, also of an earlier number of shards."""
        ...

    async def take_turn(self, name: str, seconds: float) -> bool:
        """Be the only one of all connectors of the bot for some time; False if another is."""
        ...

    async def remember(self, state: Mapping[str, str]) -> None:
        """Store where to resume, after ingesting what came before it. Nothing secret.

        Raises:
            RelayError: The ownership is lost.
        """
        ...

    def paused(self, what: str, seconds: float) -> None:
        """Tell the bot's other connectors how long the service takes no more requests of a kind.

        `what` names the kind as the platform's own `pause` reads it. Nothing secret.
        """
        ...

    def visibility_changed(self, scope_id: str | None = None) -> None:
        """Roles or permissions changed in a scope, or may have while a session was lost."""
        ...


class Platform(Protocol):
    """A chat platform with one bot on it."""

    @property
    def name(self) -> str:
        """The platform's name, such as `discord`."""
        ...

    @property
    def bot_id(self) -> str:
        """The bot's own id on the platform."""
        ...

    @property
    def idempotent(self) -> bool:
        """Whether repeating an action under its key changes nothing; never for follow-ups."""
        ...

    @property
    def routes(self) -> Sequence["BaseRoute"]:
        """The webhooks that it answers; may be empty."""
        ...

    def descriptor(self) -> Descriptor:
        """What it can do."""
        ...

    def bind(self, context: PlatformContext) -> None:
        """Set the context for webhooks; called once in every process."""
        ...

    async def run(self, context: PlatformContext) -> None:
        """Listen until cancelled, in one connector process at a time.

        It calls `context.ready()` once it is connected. An exception is shown as its status, and
        it is run again after a growing delay; after `Code.UNAUTHORIZED` the delay is minutes.
        """
        ...

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Perform an action that the gate allowed; its text fits into one message.

        The key is unique to the action. An instance's key begins with its id and a slash; a key of
        the station's own has no slash. The capability is the credential of a follow-up.
        """
        ...

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a channel; None if unknown."""
        ...

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a channel; None if unknown."""
        ...


@runtime_checkable
class PlatformWithWindow(Protocol):
    """An idempotent platform that forgets keys."""

    @property
    def idempotent_seconds(self) -> float:
        """For how many seconds it recognises a key."""
        ...


@runtime_checkable
class PlatformWithShards(Protocol):
    """A platform whose bot is heard in several shards, by one or several connectors."""

    @property
    def only_shard(self) -> Shard | None:
        """The one shard that this process listens to, if an operator has chosen it."""
        ...

    async def shard_count(self) -> int:
        """How many shards there are to be; asked in one process, whose answer is for all."""
        ...

    async def run_shard(self, context: PlatformContext, shard: Shard) -> None:
        """Listen to a shard; as `Platform.run`."""
        ...


@runtime_checkable
class PlatformWithPauses(Protocol):
    """A platform whose rate limits hold for all connectors of its bot."""

    def pause(self, what: str, seconds: float) -> None:
        """Send no more requests of a kind for some time: another connector was told so."""
        ...


@runtime_checkable
class PlatformWithNames(Protocol):
    """A platform that knows the names of people and chats without a request."""

    async def names(self, ids: Collection[str]) -> Mapping[str, str]:
        """The names of those ids that it knows, bots among them; shown to operators only."""
        ...


@runtime_checkable
class PlatformWithCommands(Protocol):
    """A platform that shows people which commands an agent knows."""

    def begin_commands(self) -> None:
        """Forget all commands and show the menu anew: another process may have changed it."""

    def offer_commands(self, instance: str, manifest: Any) -> None:
        """Show an instance's commands instead of its earlier ones; the manifest is unchecked."""
        ...
