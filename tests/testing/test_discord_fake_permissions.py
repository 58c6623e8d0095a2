"""The fake computes permissions in the documented order, for every world that chance makes."""

import random

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.discord.channels import Channel, Overwrite
from tests.fakes.discord.guilds import Guild
from tests.fakes.discord.people import User
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.discord.world import (
    ALL,
    Permission,
    channel_permissions,
    guild_permissions,
    may_view,
    may_write,
)

from accord.testing import VirtualClock

VIEW, SEND, ADMIN = Permission.VIEW_CHANNEL, Permission.SEND_MESSAGES, Permission.ADMINISTRATOR
BITS = [VIEW, SEND, ADMIN, Permission.MANAGE_CHANNELS, Permission.SEND_MESSAGES_IN_THREADS]


def _world(seed: int) -> tuple[Guild, Channel, User, list[Overwrite]]:
    """A guild with roles, a member with some of them, and a channel with overwrites."""
    chance = random.Random(seed)

    def some() -> Permission:
        found = Permission.NONE
        for bit in BITS:
            if chance.random() < (0.1 if bit is ADMIN else 0.5):
                found |= bit
        return found

    fake = FakeDiscord(clock=VirtualClock())
    guild, user = fake.guild("g"), fake.user("u")
    guild.everyone.permissions = some()
    roles = [guild.role(f"r{number}", some()) for number in range(3)]
    guild.join(user, [each for each in roles if chance.random() < 0.5])
    if chance.random() < 0.1:
        guild.change_owner(user)
    whom = [guild.id, *(each.id for each in roles), user.id]
    overwrites = [Overwrite(each, some(), some()) for each in whom if chance.random() < 0.6]
    chance.shuffle(overwrites)
    return guild, guild.channel("c", overwrites=overwrites), user, overwrites


@given(st.integers(0, 2**32))
def test_each_bit_is_decided_by_the_last_rule_that_speaks_of_it(seed: int) -> None:
    guild, channel, user, overwrites = _world(seed)
    roles = guild.members[user.id].roles
    found = channel_permissions(channel, user.id)
    held = [guild.everyone.permissions, *(each.permissions for each in roles)]
    if guild.owner_id == user.id or any(ADMIN in each for each in held):
        assert found == ALL
        return
    by_id = {each.id: each for each in overwrites}
    for bit in BITS:
        has = any(bit in each for each in held)
        for group in ([guild.id], [each.id for each in roles], [user.id]):
            spoken = [by_id[each] for each in group if each in by_id]
            if any(bit in each.deny for each in spoken):
                has = False
            if any(bit in each.allow for each in spoken):
                has = True
        assert (bit in found) is has


@given(st.integers(0, 2**32))
def test_the_order_of_overwrites_and_roles_does_not_matter(seed: int) -> None:
    guild, channel, user, overwrites = _world(seed)
    before = channel_permissions(channel, user.id)
    channel.overwrites = {each.id: each for each in reversed(overwrites)}
    guild.members[user.id].roles.reverse()
    assert channel_permissions(channel, user.id) == before


@given(st.integers(0, 2**32))
def test_a_thread_asks_its_parent_and_its_own_bit_for_writing(seed: int) -> None:
    guild, channel, user, _ = _world(seed)
    thread = channel.thread("t", guild.members[guild.owner_id].user)
    found = channel_permissions(channel, user.id)
    assert channel_permissions(thread, user.id) == found
    assert may_view(thread, user.id) == (VIEW in found)
    assert may_write(thread, user.id) == (
        VIEW in found and Permission.SEND_MESSAGES_IN_THREADS in found
    )


def test_a_stranger_has_nothing_and_sees_nothing() -> None:
    fake = FakeDiscord(clock=VirtualClock())
    guild, stranger = fake.guild("g"), fake.user("s")
    channel = guild.channel("c", overwrites=[Overwrite(stranger.id, allow=VIEW)])
    assert guild_permissions(guild, stranger.id) == Permission.NONE
    assert not may_view(channel, stranger.id)
    assert not may_view(fake.dm(fake.user("other")), stranger.id)


def test_a_member_timed_out_keeps_their_eyes_only() -> None:
    clock = VirtualClock()
    fake = FakeDiscord(clock=clock)
    guild, user = fake.guild("g"), fake.user("u")
    guild.join(user)
    channel = guild.channel("c")
    guild.time_out(user, 60)
    assert may_view(channel, user.id)
    assert not may_write(channel, user.id)
    clock.advance(60)
    assert may_write(channel, user.id)
    guild.change_roles(user, [guild.role("admin", ADMIN)])
    guild.time_out(user, 60)
    assert may_write(channel, user.id)
