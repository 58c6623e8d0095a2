"""Users and what they do: write, edit and delete messages, type, accept direct messages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.fakes.discord.messages import Attachment, Draft, Message
from tests.fakes.discord.world import Json, News, World, may_view, may_write

from accord.testing import HarnessError

if TYPE_CHECKING:
    from tests.fakes.discord.channels import Channel


@dataclass(eq=False, slots=True)
class User:
    """An account.

    Attributes:
        takes_dms: Whether bots may write to this user directly.
    """

    world: World = field(repr=False)
    id: str
    name: str
    is_bot: bool = False
    takes_dms: bool = True

    @property
    def mention(self) -> str:
        """How a message names this user."""
        return f"<@{self.id}>"

    def json(self) -> Json:
        """The user object."""
        made: Json = {
            "id": self.id,
            "username": self.name,
            "discriminator": "0",
            "global_name": None if self.is_bot else self.name.title(),
            "avatar": None,
            "public_flags": 0,
        }
        return {**made, "bot": True} if self.is_bot else made

    def write(
        self,
        channel: "Channel",
        text: str,
        *,
        reply_to: Message | None = None,
        mentions: Sequence["User"] = (),
        attachments: Sequence[Attachment] = (),
    ) -> Message:
        """Write a message; those in `mentions` whom the text does not name are named before it.

        Raises:
            HarnessError: This user may not write there.
        """
        if not may_write(channel, self.id):
            raise HarnessError(
                f"{self.name} may not write in #{channel.name}",
                mend="let the user join the guild, or change roles and overwrites",
            )
        named = [each.mention for each in mentions if each.mention not in text]
        content = " ".join([*named, text])
        return channel.post(Draft(self, content, reply_to=reply_to, attachments=tuple(attachments)))

    def edit(self, message: Message, text: str) -> None:
        """Change an own message."""
        if message.author is not self:
            raise HarnessError(f"{self.name} did not write message {message.id}")
        message.edit(text)

    def delete(self, message: Message) -> None:
        """Take a message back."""
        message.delete()

    def type_in(self, channel: "Channel") -> None:
        """Be seen typing."""
        if not may_view(channel, self.id):
            raise HarnessError(f"{self.name} does not see #{channel.name}")
        data: Json = {
            "channel_id": channel.id,
            "user_id": self.id,
            "timestamp": int(self.world.clock.now()),
        }
        if channel.guild is not None:
            data["guild_id"] = channel.guild.id
            data["member"] = channel.guild.members[self.id].json()
        self.world.tell(
            News("TYPING_START", data, guild=channel.guild, channel=channel, about=self.id)
        )
