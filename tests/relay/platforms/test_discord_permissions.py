"""What people may do in channels, against the documentation's own pseudocode."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.platforms import discord

GUILD, OWNER, ADA = "100", "1", "2"
ROLES = ["201", "202", "203"]
VIEW, MANAGE, ADMIN = (
    discord.Permission.VIEW_CHANNEL,
    discord.Permission.MANAGE_CHANNELS,
    discord.Permission.ADMINISTRATOR,
)
SEND = 1 << 11

bits = st.builds(
    lambda chosen, more: sum({int(each) for each in chosen}) | more & ~int(ADMIN),
    st.lists(
        st.sampled_from([ADMIN, VIEW, MANAGE, SEND, discord.Permission.MANAGE_THREADS]), max_size=4
    ),
    st.integers(0, 2**50 - 1),
)
ordinary = bits.map(lambda each: each & ~int(ADMIN))
overwrites = st.builds(discord.Overwrite, ordinary, ordinary)
guilds = st.builds(
    lambda given: discord.Guild(GUILD, OWNER, given),
    st.fixed_dictionaries({GUILD: ordinary}, optional=dict.fromkeys(ROLES, bits)),
)
members = st.builds(
    lambda who, roles: discord.GuildMember(who, tuple(roles)),
    st.sampled_from([OWNER, ADA]),
    st.lists(st.sampled_from(ROLES), unique=True),
)
channels = st.builds(
    lambda roles, people: discord.GuildChannel("300", 0, GUILD, None, roles, people),
    st.dictionaries(st.sampled_from([GUILD, *ROLES]), overwrites),
    st.dictionaries(st.sampled_from([OWNER, ADA]), overwrites),
)


@dataclass
class Documented:
    """The two functions of the documentation, line by line."""

    guild: discord.Guild
    member: discord.GuildMember

    def base(self) -> int:
        if self.member.user_id == self.guild.owner_id:
            return discord.ALL
        permissions = self.guild.roles[self.guild.id]
        for role in self.member.roles:
            if role in self.guild.roles:
                permissions |= self.guild.roles[role]
        if permissions & ADMIN == ADMIN:
            return discord.ALL
        return permissions

    def overwritten(self, channel: discord.GuildChannel) -> int:
        base = self.base()
        if base & ADMIN == ADMIN:
            return discord.ALL
        permissions = base
        everyone = channel.role_overwrites.get(self.guild.id)
        if everyone:
            permissions &= ~everyone.deny
            permissions |= everyone.allow
        allow = 0
        deny = 0
        for role in self.member.roles:
            found = channel.role_overwrites.get(role)
            if found:
                allow |= found.allow
                deny |= found.deny
        permissions &= ~deny
        permissions |= allow
        own = channel.member_overwrites.get(self.member.user_id)
        if own:
            permissions &= ~own.deny
            permissions |= own.allow
        return permissions


@given(members, guilds, channels)
def test_permissions_are_those_of_the_documented_algorithm(
    member: discord.GuildMember, guild: discord.Guild, channel: discord.GuildChannel
) -> None:
    documented = Documented(guild, member)
    expected = documented.overwritten(channel)
    assert discord.guild_permissions(member, guild) == documented.base()
    # Without the permission to see a channel there is none in it.
    assert discord.channel_permissions(member, guild, channel, 0.0) == (
        expected if expected & VIEW else 0
    )


@given(members, guilds, channels)
def test_owners_and_administrators_can_do_everything_in_every_channel(
    member: discord.GuildMember, guild: discord.Guild, channel: discord.GuildChannel
) -> None:
    granted = guild.roles[GUILD]
    for role in member.roles:
        granted |= guild.roles.get(role, 0)
    is_above = member.user_id == OWNER or bool(granted & ADMIN)
    assert (discord.channel_permissions(member, guild, channel, 0.0) == discord.ALL) is is_above


@given(members, guilds, channels, st.booleans())
def test_a_public_thread_is_like_its_parent_and_a_private_one_is_for_those_in_it(
    member: discord.GuildMember, guild: discord.Guild, parent: discord.GuildChannel, joined: bool
) -> None:
    inherited = discord.channel_permissions(member, guild, parent, 0.0)
    for kind in (10, 11):
        thread = discord.GuildChannel("400", kind, GUILD, "300")
        assert (
            discord.thread_permissions(member, guild, thread, parent, joined=joined, now=0.0)
            == inherited
        )
    private = discord.GuildChannel("400", 12, GUILD, "300")
    may = joined or bool(inherited & discord.Permission.MANAGE_THREADS)
    expected = inherited if may else 0
    assert (
        discord.thread_permissions(member, guild, private, parent, joined=joined, now=0.0)
        == expected
    )


@given(members, guilds, channels)
def test_whoever_is_timed_out_can_only_look_until_it_has_passed(
    member: discord.GuildMember, guild: discord.Guild, channel: discord.GuildChannel
) -> None:
    silenced = discord.GuildMember(member.user_id, member.roles, silenced_until=50.0)
    before = discord.channel_permissions(silenced, guild, channel, 49.0)
    whole = discord.channel_permissions(member, guild, channel, 49.0)
    looking = VIEW | discord.Permission.READ_MESSAGE_HISTORY
    assert before == (discord.ALL if whole == discord.ALL else whole & looking)
    assert discord.channel_permissions(silenced, guild, channel, 50.0) == whole


def test_an_allowing_role_wins_over_a_denying_one_and_a_member_over_both() -> None:
    guild = discord.Guild(GUILD, OWNER, {GUILD: int(VIEW), "201": 0, "202": 0})
    ada = discord.GuildMember(ADA, ("201", "202"))
    roles = {"201": discord.Overwrite(deny=int(VIEW)), "202": discord.Overwrite(allow=int(VIEW))}
    assert (
        discord.channel_permissions(
            ada, guild, discord.GuildChannel("3", 0, GUILD, None, roles), 0.0
        )
        & VIEW
    )
    own = {ADA: discord.Overwrite(deny=int(VIEW))}
    assert not discord.channel_permissions(
        ada, guild, discord.GuildChannel("3", 0, GUILD, None, roles, own), 0.0
    )


def test_what_is_written_beside_a_voice_channel_is_for_those_who_may_connect() -> None:
    guild = discord.Guild(GUILD, OWNER, {GUILD: int(VIEW | discord.Permission.CONNECT)})
    voice = discord.GuildChannel("3", 2, GUILD)
    closed = discord.GuildChannel(
        "3", 2, GUILD, None, {GUILD: discord.Overwrite(deny=int(discord.Permission.CONNECT))}
    )
    assert discord.channel_permissions(discord.GuildMember(ADA), guild, voice, 0.0) & VIEW
    assert not discord.channel_permissions(discord.GuildMember(ADA), guild, closed, 0.0) & VIEW


def test_the_apis_descriptions_are_read() -> None:
    guild = discord.read_guild(
        {"id": GUILD, "owner_id": OWNER, "roles": [{"id": GUILD, "permissions": "1024"}]}
    )
    assert guild == discord.Guild(GUILD, OWNER, {GUILD: 1024})
    member = discord.read_member(
        ADA, {"roles": ["201"], "communication_disabled_until": "1970-01-01T00:01:00+00:00"}
    )
    assert member == discord.GuildMember(ADA, ("201",), 60.0)
    overwrite = {"id": "201", "type": 0, "allow": "8", "deny": "16"}
    channel = discord.read_channel(
        {
            "id": "3",
            "type": 0,
            "guild_id": GUILD,
            "permission_overwrites": [overwrite, {**overwrite, "id": ADA, "type": 1}],
        }
    )
    assert channel is not None
    assert channel.role_overwrites == {"201": discord.Overwrite(16, 8)}
    assert channel.member_overwrites == {ADA: discord.Overwrite(16, 8)}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"id": GUILD, "owner_id": OWNER, "roles": [{"id": GUILD}]},
        {"id": GUILD, "owner_id": OWNER, "roles": [{"id": GUILD, "permissions": "-1"}]},
        {"id": GUILD, "owner_id": OWNER, "roles": [{"id": GUILD, "permissions": "9" * 5000}]},
        {"id": GUILD, "owner_id": OWNER, "roles": [{"id": GUILD, "permissions": 8}]},
    ],
)
def test_from_a_guild_that_cannot_be_read_nothing_is_concluded(value: Any) -> None:
    assert discord.read_guild(value) is None


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "type", "roles", "guild_id", "permission_overwrites", "allow"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_nonsense_is_read_as_nothing_and_never_fails(value: Any) -> None:
    for found in (
        discord.read_guild(value),
        discord.read_member(ADA, value),
        discord.read_channel(value),
    ):
        assert found is None or isinstance(
            found, discord.Guild | discord.GuildMember | discord.GuildChannel
        )
