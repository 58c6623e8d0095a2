"""Channels, direct messages and threads, what was said in them, and how they change."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from tests.fakes.discord.messages import Draft, Message
from tests.fakes.discord.world import Json, News, Permission, World, may_view

from accord.testing import HarnessError

if TYPE_CHECKING:
    from tests.fakes.discord.guilds import Guild, Role
    from tests.fakes.discord.people import User


class ChannelType(IntEnum):
    """The kinds of channel."""

    GUILD_TEXT = 0
    DM = 1
    GUILD_VOICE = 2
    GROUP_DM = 3
    GUILD_CATEGORY = 4
    GUILD_ANNOUNCEMENT = 5
    ANNOUNCEMENT_THREAD = 10
    PUBLIC_THREAD = 11
    PRIVATE_THREAD = 12
    GUILD_FORUM = 15


_THREADS = (
    ChannelType.ANNOUNCEMENT_THREAD,
    ChannelType.PUBLIC_THREAD,
    ChannelType.PRIVATE_THREAD,
)
_MUTE = (ChannelType.GUILD_CATEGORY, ChannelType.GUILD_FORUM)


@dataclass(eq=False, slots=True)
class Overwrite:
    """What a channel gives to or takes from one role (kind 0) or one member (kind 1), by id."""

    id: str
    allow: Permission = Permission.NONE
    deny: Permission = Permission.NONE
    kind: int = 0

    def json(self) -> Json:
        """The overwrite object."""
        return {
            "id": self.id,
            "type": self.kind,
            "allow": str(int(self.allow)),
            "deny": str(int(self.deny)),
        }


@dataclass(eq=False, slots=True)
class Channel:
    """A place to talk."""

    world: World = field(repr=False)
    id: str
    name: str
    kind: ChannelType
    guild: "Guild | None" = field(default=None, repr=False)
    parent: "Channel | None" = field(default=None, repr=False)
    overwrites: dict[str, Overwrite] = field(default_factory=dict, repr=False)
    recipients: dict[str, "User"] = field(default_factory=dict, repr=False)
    messages: dict[str, Message] = field(default_factory=dict, repr=False)
    thread_members: dict[str, str] = field(default_factory=dict, repr=False)
    """Who joined a thread, and when."""
    owner_id: str | None = None
    archived: bool = False
    locked: bool = False
    last_message_id: str | None = None

    @property
    def is_thread(self) -> bool:
        """Whether it hangs on another channel."""
        return self.kind in _THREADS

    @property
    def is_private_thread(self) -> bool:
        """Whether only those in it see it."""
        return self.kind is ChannelType.PRIVATE_THREAD

    @property
    def takes_messages(self) -> bool:
        """Whether anything can be said in it at all."""
        return self.kind not in _MUTE

    def post(self, draft: Draft) -> Message:
        """Put a message here and let the gateway know; whoever posts has checked permissions."""
        made = Message(
            self,
            self.world.new_id(),
            draft,
            self.world.timestamp(),
            [draft.content],
            embeds=list(draft.embeds),
            components=list(draft.components),
            flags=draft.flags,
        )
        for each in draft.attachments:
            number = self.world.new_id()
            made.files.append(
                {
                    "id": number,
                    "filename": each.filename,
                    "content_type": each.content_type,
                    "size": each.size,
                    "url": f"https://cdn.discordapp.com/attachments/{self.id}/{number}/{each.filename}",
                    "proxy_url": f"https://media.discordapp.net/attachments/{self.id}/{number}/{each.filename}",
                }
            )
        made.mark_mentions(draft.allowed, is_loud=draft.is_loud)
        if self.archived:
            self.archive(archived=False)
        if self.is_thread and draft.author.id not in self.thread_members:
            self.add_to_thread(draft.author)
        self.messages[made.id] = made
        self.last_message_id = made.id
        made.tell("MESSAGE_CREATE", made.event_json())
        return made

    def overwrite(
        self,
        whom: "Role | User",
        *,
        allow: Permission = Permission.NONE,
        deny: Permission = Permission.NONE,
    ) -> None:
        """Give to or take from a role or a member, here only."""
        kind = 0 if self.guild is not None and whom.id in self.guild.roles else 1
        self._change_overwrites({**self.overwrites, whom.id: Overwrite(whom.id, allow, deny, kind)})

    def clear_overwrite(self, whom: "Role | User") -> None:
        """Treat a role or a member as the guild does."""
        kept = {name: each for name, each in self.overwrites.items() if name != whom.id}
        self._change_overwrites(kept)

    def _change_overwrites(self, overwrites: dict[str, Overwrite]) -> None:
        bot = self.world.bot_id
        saw = may_view(self, bot)
        self.overwrites = overwrites
        self.tell("CHANNEL_UPDATE", self.json())
        if self.guild is not None and may_view(self, bot) and not saw:
            threads = [t for t in self.guild.threads if t.parent is self and may_view(t, bot)]
            own = [each for each in threads if bot in each.thread_members]
            data: Json = {
                "guild_id": self.guild.id,
                "channel_ids": [self.id],
                "threads": [each.json() for each in threads],
                "members": [each.thread_member_json(bot) for each in own],
            }
            self.tell("THREAD_LIST_SYNC", data)

    def rename(self, name: str) -> None:
        """Have another name."""
        self.name = name
        self.tell("THREAD_UPDATE" if self.is_thread else "CHANNEL_UPDATE", self.json())

    def delete(self) -> None:
        """Be gone, with everything in it."""
        for each in list(self.world.channels.values()):
            if each.is_thread and each.parent is self:
                each.delete()
        if self.is_thread:
            data = {name: self.json().get(name) for name in ("id", "guild_id", "parent_id", "type")}
            self.tell("THREAD_DELETE", data)
        else:
            self.tell("CHANNEL_DELETE", self.json())
        del self.world.channels[self.id]

    def thread(
        self,
        name: str,
        owner: "User",
        *,
        private: bool = False,
        members: Sequence["User"] = (),
        on: Message | None = None,
    ) -> "Channel":
        """Open a thread here; one that hangs on a message has the message's id."""
        if self.guild is None or self.is_thread:
            raise HarnessError("a thread needs a channel of a guild")
        kind = ChannelType.PRIVATE_THREAD if private else ChannelType.PUBLIC_THREAD
        number = self.world.new_id() if on is None else on.id
        made = Channel(self.world, number, name, kind, self.guild, self, owner_id=owner.id)
        for each in (owner, *members):
            made.thread_members[each.id] = self.world.timestamp()
        self.world.channels[made.id] = made
        if may_view(made, self.world.bot_id):
            made.tell("THREAD_CREATE", {**made.json(), "newly_created": True})
        return made

    def add_to_thread(self, user: "User") -> None:
        """Let a user into this thread."""
        self.thread_members[user.id] = self.world.timestamp()
        if user is self.world.bot:
            self.tell("THREAD_CREATE", {**self.json(), "member": self.thread_member_json(user.id)})
        self._members_changed([user.id], [])

    def remove_from_thread(self, user: "User") -> None:
        """Put a user out of this thread."""
        if self.thread_members.pop(user.id, None) is not None:
            self._members_changed([], [user.id])

    def archive(self, *, archived: bool = True, locked: bool = False) -> None:
        """Put this thread away, or take it out again."""
        self.archived, self.locked = archived, locked
        self.tell("THREAD_UPDATE", self.json())

    def thread_member_json(self, user_id: str) -> Json:
        """The thread member object."""
        return {
            "id": self.id,
            "user_id": user_id,
            "join_timestamp": self.thread_members[user_id],
            "flags": 0,
        }

    def bare_json(self) -> Json:
        """The channel object as it stands inside of its guild."""
        return {name: value for name, value in self.json().items() if name != "guild_id"}

    def json(self) -> Json:
        """The channel object."""
        made: Json = {
            "id": self.id,
            "type": int(self.kind),
            "last_message_id": self.last_message_id,
        }
        if self.guild is None:
            others = [u for u in self.recipients.values() if u.id != self.world.bot_id]
            return {**made, "flags": 0, "recipients": [each.json() for each in others]}
        made |= {
            "guild_id": self.guild.id,
            "name": self.name,
            "parent_id": None if self.parent is None else self.parent.id,
            "flags": 0,
        }
        if not self.is_thread:
            return made | {
                "position": 0,
                "topic": None,
                "nsfw": False,
                "rate_limit_per_user": 0,
                "permission_overwrites": [each.json() for each in self.overwrites.values()],
            }
        return made | {
            "owner_id": self.owner_id,
            "message_count": len(self.messages),
            "member_count": min(len(self.thread_members), 50),
            "total_message_sent": len(self.messages),
            "thread_metadata": {
                "archived": self.archived,
                "auto_archive_duration": 4320,
                "archive_timestamp": self.world.timestamp(),
                "locked": self.locked,
            }
            | ({"invitable": True} if self.is_private_thread else {}),
        }

    def tell(self, name: str, data: Json) -> None:
        """Let the gateway know of a change."""
        self.world.tell(News(name, data, self.guild, self))

    def _members_changed(self, added: list[str], removed: list[str]) -> None:
        assert self.guild is not None
        data: Json = {
            "id": self.id,
            "guild_id": self.guild.id,
            "member_count": min(len(self.thread_members), 50),
            "added_members": [self.thread_member_json(each) for each in added],
            "removed_member_ids": removed,
        }
        self.world.tell(
            News("THREAD_MEMBERS_UPDATE", data, self.guild, self, about=(added + removed)[0])
        )
