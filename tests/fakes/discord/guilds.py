"""Guilds, their roles and their members, and how these change."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.fakes.discord.channels import Channel, ChannelType, Overwrite
from tests.fakes.discord.world import EVERYONE, Json, News, Permission, World, may_view

from accord.testing import HarnessError

if TYPE_CHECKING:
    from tests.fakes.discord.people import User


@dataclass(eq=False, slots=True)
class Role:
    """A set of permissions that members wear; @everyone has the id of its guild."""

    guild: "Guild" = field(repr=False)
    id: str
    name: str
    permissions: Permission
    position: int = 0

    @property
    def mention(self) -> str:
        """How a message names this role."""
        return f"<@&{self.id}>"

    def json(self) -> Json:
        """The role object."""
        return {
            "id": self.id,
            "name": self.name,
            "color": 0,
            "hoist": False,
            "position": self.position,
            "permissions": str(int(self.permissions)),
            "managed": False,
            "mentionable": True,
            "flags": 0,
        }

    def change(self, permissions: Permission) -> None:
        """Mean something else from now on."""
        self.permissions = permissions
        self.guild.tell("GUILD_ROLE_UPDATE", {"role": self.json()})


@dataclass(eq=False, slots=True)
class Member:
    """A user in a guild."""

    guild: "Guild" = field(repr=False)
    user: "User"
    joined_at: str
    roles: list[Role] = field(default_factory=list)
    nick: str | None = None
    timed_out_until: float = 0.0

    @property
    def is_timed_out(self) -> bool:
        """Whether a moderator has taken the word from them."""
        return self.timed_out_until > self.guild.world.clock.now()

    def bare_json(self) -> Json:
        """The member object without its user."""
        left = self.timed_out_until - self.guild.world.clock.now()
        return {
            "nick": self.nick,
            "avatar": None,
            "roles": [each.id for each in self.roles],
            "joined_at": self.joined_at,
            "premium_since": None,
            "deaf": False,
            "mute": False,
            "flags": 0,
            "pending": False,
            "communication_disabled_until": (
                self.guild.world.timestamp(left) if self.is_timed_out else None
            ),
        }

    def json(self) -> Json:
        """The member object."""
        return {"user": self.user.json(), **self.bare_json()}


@dataclass(eq=False, slots=True)
class Guild:
    """A server, as its users call it."""

    world: World = field(repr=False)
    id: str
    name: str
    owner_id: str
    roles: dict[str, Role] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)

    @property
    def everyone(self) -> Role:
        """The role that every member has."""
        return self.roles[self.id]

    @property
    def channels(self) -> list[Channel]:
        """Its channels, threads not among them, oldest first."""
        return [each for each in self._own() if not each.is_thread]

    @property
    def threads(self) -> list[Channel]:
        """Its active threads, oldest first."""
        return [each for each in self._own() if each.is_thread and not each.archived]

    def _own(self) -> list[Channel]:
        return [each for each in self.world.channels.values() if each.guild is self]

    def role(self, name: str, permissions: Permission = Permission.NONE) -> Role:
        """Make a role."""
        made = Role(self, self.world.new_id(), name, permissions, len(self.roles))
        self.roles[made.id] = made
        self.tell("GUILD_ROLE_CREATE", {"role": made.json()})
        return made

    def delete_role(self, role: Role) -> None:
        """Take a role from everybody, and away."""
        del self.roles[role.id]
        for member in self.members.values():
            member.roles = [each for each in member.roles if each is not role]
        self.tell("GUILD_ROLE_DELETE", {"role_id": role.id})

    def join(self, user: "User", roles: Sequence[Role] = (), nick: str | None = None) -> Member:
        """Let a user in; for the bot, it is a guild that it has not seen before."""
        made = Member(self, user, self.world.timestamp(), list(roles), nick)
        self.members[user.id] = made
        if user is self.world.bot:
            self.world.tell(News("GUILD_CREATE", self.event_json(), self))
        else:
            self.tell("GUILD_MEMBER_ADD", made.json(), about=user.id)
        return made

    def leave(self, user: "User") -> None:
        """Let a user go, or put them out."""
        self._member(user)
        if user is self.world.bot:
            # Told while the bot is in, as nobody outside is told anything.
            self.world.tell(News("GUILD_DELETE", {"id": self.id}, self))
            del self.members[user.id]
        else:
            del self.members[user.id]
            self.tell("GUILD_MEMBER_REMOVE", {"user": user.json()}, about=user.id)

    def change_roles(self, user: "User", roles: Sequence[Role]) -> None:
        """Give a member these roles and no others."""
        member = self._member(user)
        member.roles = list(roles)
        self.tell("GUILD_MEMBER_UPDATE", member.json(), about=user.id)

    def time_out(self, user: "User", seconds: float) -> None:
        """Take the word from a member for a while."""
        member = self._member(user)
        member.timed_out_until = self.world.clock.now() + seconds
        self.tell("GUILD_MEMBER_UPDATE", member.json(), about=user.id)

    def change_owner(self, user: "User") -> None:
        """Give the guild to a member."""
        self.owner_id = self._member(user).user.id
        self.world.tell(News("GUILD_UPDATE", self.json(), self))

    def fall_out(self) -> None:
        """Be unavailable for a while, as during an outage of the service."""
        self.world.tell(News("GUILD_DELETE", {"id": self.id, "unavailable": True}, self))

    def come_back(self) -> None:
        """Be available again."""
        self.world.tell(News("GUILD_CREATE", self.event_json(), self))

    def channel(
        self,
        name: str,
        kind: ChannelType = ChannelType.GUILD_TEXT,
        *,
        parent: Channel | None = None,
        overwrites: Sequence[Overwrite] = (),
        private: bool = False,
    ) -> Channel:
        """Open a channel; a private one is seen by those alone whom an overwrite lets in."""
        made = Channel(self.world, self.world.new_id(), name, kind, self, parent)
        if private:
            made.overwrites[self.id] = Overwrite(self.id, deny=Permission.VIEW_CHANNEL)
        made.overwrites.update((each.id, each) for each in overwrites)
        for each in made.overwrites.values():
            each.kind = 0 if each.id in self.roles else 1
        self.world.channels[made.id] = made
        made.tell("CHANNEL_CREATE", made.json())
        return made

    def json(self) -> Json:
        """The guild object as REST gives it."""
        return {
            "id": self.id,
            "name": self.name,
            "icon": None,
            "owner_id": self.owner_id,
            "roles": [each.json() for each in self.roles.values()],
            "emojis": [],
            "features": [],
            "verification_level": 0,
            "default_message_notifications": 0,
            "explicit_content_filter": 0,
            "mfa_level": 0,
            "afk_timeout": 300,
            "system_channel_id": None,
            "preferred_locale": "en-US",
            "premium_tier": 0,
            "nsfw_level": 0,
        }

    def event_json(self) -> Json:
        """The guild object as GUILD_CREATE gives it, with every member; intents cut it down."""
        bot = self.world.bot_id
        return {
            **self.json(),
            "joined_at": self.members[bot].joined_at,
            "large": False,
            "unavailable": False,
            "member_count": len(self.members),
            "members": [each.json() for each in self.members.values()],
            "channels": [each.bare_json() for each in self.channels],
            "threads": [each.bare_json() for each in self.threads if may_view(each, bot)],
            "voice_states": [],
            "presences": [],
            "stage_instances": [],
            "guild_scheduled_events": [],
        }

    def tell(self, name: str, data: Json, about: str | None = None) -> None:
        """Let the gateway know of a change."""
        self.world.tell(News(name, {"guild_id": self.id, **data}, self, about=about))

    def _member(self, user: "User") -> Member:
        if user.id not in self.members:
            raise HarnessError(
                f"{user.name} is not in the guild {self.name}", mend="let the user join first"
            )
        return self.members[user.id]


def new_guild(world: World, name: str, owner: "User") -> Guild:
    """Found a guild with its owner in it; the bot is let in by `join`."""
    made = Guild(world, world.new_id(), name, owner.id)
    made.roles[made.id] = Role(made, made.id, "@everyone", EVERYONE)
    made.members[owner.id] = Member(made, owner, world.timestamp())
    world.guilds[made.id] = made
    return made
