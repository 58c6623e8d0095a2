"""Messages: how they are made out of a draft, what they look like, how they change."""

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from tests.fakes.discord.world import Json, News

if TYPE_CHECKING:
    from tests.fakes.discord.channels import Channel
    from tests.fakes.discord.people import User


_USERS = re.compile(r"<@!?(\d{1,20})>")
_ROLES = re.compile(r"<@&(\d{1,20})>")
_EVERYONE = re.compile(r"@(?:everyone|here)\b")


class MessageType(IntEnum):
    """The kinds of message that the fake makes."""

    DEFAULT = 0
    RECIPIENT_ADD = 1
    USER_JOIN = 7
    THREAD_CREATED = 18
    REPLY = 19
    CHAT_INPUT_COMMAND = 20


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file beside a message."""

    filename: str
    content_type: str = "application/octet-stream"
    size: int = 1


@dataclass(frozen=True, slots=True)
class Allowed:
    """Whom a message may notify: the allowed mentions of the service, read and checked."""

    everyone: bool = True
    all_users: bool = True
    all_roles: bool = True
    users: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    replied_user: bool = True


@dataclass(frozen=True, slots=True)
class Draft:
    """What somebody wants to say.

    Attributes:
        is_loud: Whether the author may notify everybody at once.
        webhook_id: The application or webhook by which it is said, if it is.
        extra: Members that only some messages have.
    """

    author: "User"
    content: str
    reply_to: "Message | None" = None
    allowed: Allowed = Allowed()
    attachments: tuple[Attachment, ...] = ()
    embeds: tuple[Json, ...] = ()
    components: tuple[Json, ...] = ()
    nonce: str | int | None = None
    kind: MessageType = MessageType.DEFAULT
    flags: int = 0
    tts: bool = False
    is_loud: bool = False
    webhook_id: str | None = None
    extra: Json = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Message:
    """A message as it stands; `texts` has every text that it ever had."""

    channel: "Channel" = field(repr=False)
    id: str
    draft: Draft
    made_at: str
    texts: list[str]
    mentions: tuple["User", ...] = ()
    mention_roles: tuple[str, ...] = ()
    mention_everyone: bool = False
    edited_at: str | None = None
    files: list[Json] = field(default_factory=list)
    embeds: list[Json] = field(default_factory=list)
    components: list[Json] = field(default_factory=list)
    flags: int = 0

    @property
    def author(self) -> "User":
        """Who wrote it."""
        return self.draft.author

    @property
    def content(self) -> str:
        """Its text now."""
        return self.texts[-1]

    def json(self, *, nested: bool = True) -> Json:
        """The message object as REST gives it; the one it refers to is told without its own."""
        draft, reply = self.draft, self.draft.reply_to
        made: Json = {
            "id": self.id,
            "channel_id": self.channel.id,
            "author": self.author.json(),
            "content": self.content,
            "timestamp": self.made_at,
            "edited_timestamp": self.edited_at,
            "tts": draft.tts,
            "mention_everyone": self.mention_everyone,
            "mentions": [each.json() for each in self.mentions],
            "mention_roles": list(self.mention_roles),
            "attachments": list(self.files),
            "embeds": list(self.embeds),
            "components": list(self.components),
            "pinned": False,
            "type": int(draft.kind if reply is None else MessageType.REPLY),
            "flags": self.flags,
            **draft.extra,
        }
        if draft.nonce is not None:
            made["nonce"] = draft.nonce
        if draft.webhook_id is not None:
            made["webhook_id"] = draft.webhook_id
        if reply is not None:
            made["message_reference"] = reply.reference()
            if nested:
                stands = reply.id in reply.channel.messages
                made["referenced_message"] = reply.json(nested=False) if stands else None
        if thread := self.channel.world.channels.get(self.id):
            made["thread"] = thread.json()
        return made

    def event_json(self) -> Json:
        """The message object as the gateway gives it: with its guild and memberships."""
        made, guild = self.json(), self.channel.guild
        if guild is None:
            return made
        made["guild_id"] = guild.id
        if self.draft.webhook_id is None and self.author.id in guild.members:
            made["member"] = guild.members[self.author.id].bare_json()
        for each in made["mentions"]:
            if each["id"] in guild.members:
                each["member"] = guild.members[each["id"]].bare_json()
        return made

    def reference(self) -> Json:
        """How another message refers to it."""
        made: Json = {"type": 0, "message_id": self.id, "channel_id": self.channel.id}
        return made if self.channel.guild is None else {**made, "guild_id": self.channel.guild.id}

    def mark_mentions(self, allowed: Allowed, *, is_loud: bool) -> None:
        """Work out whom the text notifies."""
        world, guild = self.channel.world, self.channel.guild
        users = {
            each: world.users[each]
            for each in _USERS.findall(self.content)
            if each in world.users and (allowed.all_users or each in allowed.users)
        }
        reply = self.draft.reply_to
        if reply is not None and allowed.replied_user and reply.author is not self.author:
            users.setdefault(reply.author.id, reply.author)
        self.mentions = tuple(users.values())
        self.mention_roles = tuple(
            dict.fromkeys(
                each
                for each in _ROLES.findall(self.content)
                if guild is not None
                and each in guild.roles
                and (allowed.all_roles or each in allowed.roles)
            )
        )
        loud = bool(_EVERYONE.search(self.content))
        self.mention_everyone = guild is not None and loud and is_loud and allowed.everyone

    def edit(self, text: str, allowed: Allowed | None = None) -> None:
        """Have another text from now on."""
        world = self.channel.world
        self.texts.append(text)
        self.edited_at = world.timestamp()
        self.mark_mentions(allowed or self.draft.allowed, is_loud=self.draft.is_loud)
        self.tell("MESSAGE_UPDATE", self.event_json())

    def unfurl(self, url: str = "https://example.org/") -> None:
        """Get a preview of a link in it: an update in which nobody edited anything."""
        self.embeds.append({"type": "link", "url": url, "title": "A page"})
        self.tell("MESSAGE_UPDATE", self.event_json())

    def delete(self) -> None:
        """Be gone."""
        if self.channel.messages.pop(self.id, None) is None:
            return
        data: Json = {"id": self.id, "channel_id": self.channel.id}
        if self.channel.guild is not None:
            data["guild_id"] = self.channel.guild.id
        self.tell("MESSAGE_DELETE", data)

    def tell(self, name: str, data: Json) -> None:
        """Let the gateway know of a change."""
        self.channel.world.tell(
            News(name, data, self.channel.guild, self.channel, about=self.author.id)
        )
