"""The concierge in a station: let in like any agent, in a lobby for everybody."""

import pytest
from tests.concierge.concierge_bus import CID, ScriptedBus
from tests.concierge.conftest import CLOCK, Open

from accord.concierge.rules import replies
from accord.kernel.errors import AccordError
from accord.relay.connector import explain_event
from accord.station.agents import open_space
from accord.station.relay import operate_relay

QUESTION = "When is the tool shed open?"
SOURCES = f"Sources:\n1. tools ({CID})"


async def test_whoever_joins_the_lobby_gets_answers_there_and_in_direct_messages(
    open_house: Open,
) -> None:
    async with open_house(ScriptedBus()) as house:
        ann = await house.person("ann")
        bob = await house.person("bob")
        lobby = await house.lobby()
        assert (await ann.say(lobby, QUESTION, SOURCES))[-1].startswith("It is open on Saturdays.")
        assert (await bob.say(lobby, "/help", "about"))[-1] == replies.HELP
        assert (await bob.say(await bob.direct(), QUESTION, SOURCES))[-1].endswith(SOURCES)


async def test_it_is_an_ordinary_instance_that_survives_restarts(open_house: Open) -> None:
    bus = ScriptedBus()
    async with open_house(bus) as house:
        await house.person("ann")
        file = house.settings.home / "concierge" / "credentials.json"
        kept = file.read_bytes()
        assert file.stat().st_mode & 0o777 == 0o600
        async with operate_relay(house.settings, CLOCK, "test") as connector:
            (instance,) = await connector.control.instances()
            assert (instance.instance, instance.origin) == ("concierge", "enrolled")
    async with open_house(bus) as house:
        assert file.read_bytes() == kept
        carl = await house.person("carl")
        await carl.say(await house.lobby(), QUESTION, SOURCES)
        spaces = await house.admin.spaces()
        assert [each.name for each in spaces] == ["lobby"]
        assert [each.name for each in await house.admin.channels()] == ["concierge"]
        assert len(await house.admin.bots()) == 1


async def test_lobbies_are_called_like_their_agents_and_one_that_is_there_is_kept(
    open_house: Open,
) -> None:
    async with open_house(ScriptedBus(), webchat=False) as house:
        space = await house.admin.create_space("old")
        former = await house.admin.create_channel(space.id, "lobby")
        async with operate_relay(house.settings, CLOCK, "test") as connector:
            for agent, place in (("Clock.v2", "new"), ("keeper", "old")):
                folder = house.settings.home / agent
                await open_space(house.admin, connector.control, agent, place, folder)
                await open_space(house.admin, connector.control, agent, place, folder)
        assert {each.name for each in await house.admin.channels()} == {"clock-v2", former.name}


async def test_an_unlink_is_for_good(open_house: Open) -> None:
    bus = ScriptedBus()
    async with open_house(bus) as house:
        ann = await house.person("ann")
        await ann.say(await ann.direct(), "/unlink", "“concierge”.")
    async with open_house(bus) as house:
        bob = await house.person("bob")  # so that the lobby was looked after since
        async with operate_relay(house.settings, CLOCK, "test") as connector:
            assert await connector.control.unbind("webchat", ann.id) == 0
            assert await connector.control.unbind("webchat", bob.id) == 1


async def test_it_hears_nothing_in_spaces_of_other_tenants(open_house: Open) -> None:
    bus = ScriptedBus()
    async with open_house(bus) as house:
        kitchen = await house.admin.create_space("kitchen")
        general = await house.admin.create_channel(kitchen.id, "general")
        async with operate_relay(house.settings, CLOCK, "test") as connector:
            await connector.control.route("default", "webchat", kitchen.id)
            ann = await house.person("ann")
            invite = (await house.admin.invite(kitchen.id)).url.partition("#invite=")[2]
            await ann.ask("POST", "join", {"invite": invite})
            unheard = await ann.write(general.id, QUESTION)
            await ann.say(await house.lobby(), "/help", "about")
            told = await connector.store.read(lambda c: explain_event(c, unheard))
    assert told is not None
    assert told.recorded.decision.deliveries == ()
    assert not bus.asked


async def test_a_revoked_concierge_stays_away_until_it_is_pardoned(open_house: Open) -> None:
    bus = ScriptedBus()
    async with open_house(bus) as house:
        await house.part("ready")
        async with operate_relay(house.settings, CLOCK, "test") as connector:
            await connector.control.revoke("concierge")
        await house.part("disabled")
    async with open_house(bus) as house:
        assert "accord relay pardon concierge" in await house.part("revoked")
        async with operate_relay(house.settings, CLOCK, "test") as connector:
            await connector.control.pardon("concierge")
    async with open_house(bus) as house:
        await house.part("ready")
        ann = await house.person("ann")
        await ann.say(await house.lobby(), QUESTION, SOURCES)


async def test_a_station_without_a_web_chat_still_starts(open_house: Open) -> None:
    async with open_house(ScriptedBus(), webchat=False) as house:
        assert house.concierge.parts()[0].name == "gateway"


async def test_a_lobby_that_belongs_to_others_is_left_alone(open_house: Open) -> None:
    bus = ScriptedBus()
    async with open_house(bus, webchat=False) as house:
        space = await house.admin.create_space("lobby")
        async with operate_relay(house.settings, CLOCK, "test") as connector:
            await connector.control.route("default", "webchat", space.id)
    with pytest.RaisesGroup(AccordError):
        async with open_house(bus):
            pass


@pytest.mark.long
async def test_without_a_community_it_says_so(open_house: Open) -> None:
    async with open_house() as house:
        ann = await house.person("ann")
        shown = await ann.say(await house.lobby(), QUESTION, "community create.")
        assert "in no community yet" in shown[-1]
