"""The permissions that the platform computes and those of the fake, which were written apart."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.discord.channels import Overwrite
from tests.fakes.discord.guilds import Role
from tests.fakes.discord.people import User
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.discord.world import Permission, may_view

from accord.relay.platforms.discord.rules import permissions as ours
from accord.testing import VirtualClock

NAMED = [
    Permission.ADMINISTRATOR,
    Permission.MANAGE_CHANNELS,
    Permission.VIEW_CHANNEL,
    Permission.READ_MESSAGE_HISTORY,
    Permission.MANAGE_THREADS,
]
sets = st.lists(st.sampled_from(NAMED), max_size=3).map(
    lambda chosen: Permission(sum({int(each) for each in chosen}))
)
overwritten = sets.map(lambda each: each & ~Permission.ADMINISTRATOR)


@given(st.data())
def test_two_computations_agree_about_who_sees_what(data: Any) -> None:
    draw = data.draw
    clock = VirtualClock()
    fake = FakeDiscord(clock=clock)
    guild, ada = fake.guild("Harbour"), fake.user("ada")
    guild.everyone.change(draw(sets))
    roles = [guild.role(f"r{number}", draw(sets)) for number in range(3)]
    guild.join(ada, [role for role in roles if draw(st.booleans())])
    if draw(st.booleans()):
        guild.change_owner(ada)
    if draw(st.booleans()):
        guild.time_out(ada, 60)
    channel = guild.channel("general")
    subjects: list[Role | User] = [guild.everyone, *roles, ada]
    for subject in subjects:
        if draw(st.booleans()):
            allow, deny = draw(overwritten), draw(overwritten)
            channel.overwrites[subject.id] = Overwrite(
                subject.id, allow, deny & ~allow, int(isinstance(subject, User))
            )
    private = draw(st.booleans())
    joined = draw(st.booleans())
    thread = channel.thread("t", fake.bot, private=private, members=[ada] if joined else [])

    # What the API says of them is all that the platform has.
    described = ours.read_guild(guild.json())
    member = ours.read_member(ada.id, guild.members[ada.id].json())
    around, inside = ours.read_channel(channel.json()), ours.read_channel(thread.json())
    assert described is not None
    assert member is not None
    assert around is not None
    assert inside is not None
    now = clock.now()
    seen = ours.channel_permissions(member, described, around, now)
    assert bool(seen & ours.Permission.VIEW_CHANNEL) is may_view(channel, ada.id)
    within = ours.thread_permissions(member, described, inside, around, joined=joined, now=now)
    assert bool(within & ours.Permission.VIEW_CHANNEL) is may_view(thread, ada.id)
