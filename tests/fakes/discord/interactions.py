"""Interactions: what a user's command looks like, what became of it, and when its token ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

from tests.fakes.discord.messages import Draft, Message, MessageType
from tests.fakes.discord.world import Json, World, channel_permissions

if TYPE_CHECKING:
    from tests.fakes.discord.application import Application
    from tests.fakes.discord.channels import Channel
    from tests.fakes.discord.people import User


ANSWER_SECONDS = 3.0
TOKEN_SECONDS = 900.0
EPHEMERAL = 1 << 6
LOADING = 1 << 7


class InteractionType(IntEnum):
    """What a user did."""

    PING = 1
    APPLICATION_COMMAND = 2
    MESSAGE_COMPONENT = 3
    APPLICATION_COMMAND_AUTOCOMPLETE = 4
    MODAL_SUBMIT = 5


class CallbackType(IntEnum):
    """How a bot answers."""

    PONG = 1
    CHANNEL_MESSAGE_WITH_SOURCE = 4
    DEFERRED_CHANNEL_MESSAGE_WITH_SOURCE = 5
    DEFERRED_UPDATE_MESSAGE = 6
    UPDATE_MESSAGE = 7
    AUTOCOMPLETE_RESULT = 8
    MODAL = 9


class State(Enum):
    """What became of an interaction."""

    WAITING = "waiting"
    DEFERRED = "deferred"
    ANSWERED = "answered"
    FAILED = "failed"


@dataclass(eq=False, slots=True)
class Interaction:
    """A user's command on its way.

    Attributes:
        original: The first answer, once there is one; while it is deferred, the loading message.
        answers: Every message that answers it, the first one first.
    """

    id: str
    token: str = field(repr=False)
    user: "User"
    channel: "Channel"
    command: str
    made_at: float
    payload: Json = field(repr=False)
    state: State = State.WAITING
    original: Message | None = None
    answers: list[Message] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        """What the bot answered, in order."""
        loading = self.original if self.state is State.DEFERRED else None
        return [each.content for each in self.answers if each is not loading]


class Interactions:
    """Every interaction of the application, by its token."""

    def __init__(self, world: World, application: "Application") -> None:
        self._world = world
        self._application = application
        self._known: dict[str, Interaction] = {}

    def begin(
        self, user: "User", channel: "Channel", command: str, options: Sequence[Json]
    ) -> Interaction:
        """A user gives a command."""
        world, guild = self._world, channel.guild
        number, token = world.new_id(), world.secret(32)
        registered = self._application.command(command, guild.id if guild else None)
        payload: Json = {
            "id": number,
            "application_id": self._application.id,
            "type": int(InteractionType.APPLICATION_COMMAND),
            "token": token,
            "version": 1,
            "channel_id": channel.id,
            "channel": channel.json(),
            "app_permissions": str(int(channel_permissions(channel, world.bot_id))),
            "locale": "en-US",
            "entitlements": [],
            "attachment_size_limit": 10 * 1024 * 1024,
            "authorizing_integration_owners": {"0": guild.id if guild else "0"},
            "context": 0 if guild else 1,
            "data": {
                "id": registered["id"] if registered else world.new_id(),
                "name": command,
                "type": 1,
                "options": list(options),
            },
        }
        if guild is None:
            payload["user"] = user.json()
        else:
            has = str(int(channel_permissions(channel, user.id)))
            payload["guild_id"] = guild.id
            payload["guild"] = {"id": guild.id, "features": [], "locale": "en-US"}
            payload["guild_locale"] = "en-US"
            payload["member"] = {**guild.members[user.id].json(), "permissions": has}
        made = Interaction(number, token, user, channel, command, world.clock.now(), payload)
        self._known[token] = made
        return made

    def by_token(self, token: str) -> Interaction | None:
        """The interaction of a token that is still good."""
        found = self._known.get(token)
        if found is None or self._world.clock.now() - found.made_at >= TOKEN_SECONDS:
            return None
        return found

    def in_time(self, interaction: Interaction) -> bool:
        """Whether it can still be answered for the first time."""
        waited = self._world.clock.now() - interaction.made_at
        return interaction.state is State.WAITING and waited <= ANSWER_SECONDS

    def draft(self, interaction: Interaction, content: str, **details: Any) -> Draft:
        """A message of the bot that answers it."""
        user = interaction.user
        return Draft(
            self._world.bot,
            content,
            webhook_id=self._application.id,
            extra={
                "application_id": self._application.id,
                "interaction_metadata": {
                    "id": interaction.id,
                    "type": int(InteractionType.APPLICATION_COMMAND),
                    "user": user.json(),
                    "authorizing_integration_owners": {},
                },
            },
            **details,
        )

    def acknowledge(
        self, interaction: Interaction, kind: CallbackType, data: Mapping[str, Any]
    ) -> None:
        """Take the first answer, of which the form was checked."""
        flags = int(data.get("flags", 0)) & EPHEMERAL
        if kind is CallbackType.CHANNEL_MESSAGE_WITH_SOURCE:
            interaction.state = State.ANSWERED
        elif kind is CallbackType.DEFERRED_CHANNEL_MESSAGE_WITH_SOURCE:
            interaction.state = State.DEFERRED
            flags |= LOADING
        else:
            interaction.state = State.ANSWERED
            return
        interaction.original = interaction.channel.post(
            self.draft(
                interaction,
                str(data.get("content", "")),
                kind=MessageType.CHAT_INPUT_COMMAND,
                flags=flags,
            )
        )
        interaction.answers.append(interaction.original)
