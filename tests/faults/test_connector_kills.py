"""Two connectors with real Redis and PostgreSQL, killed at random under load.

Nothing that was acknowledged to a platform is lost, no agent is told twice what it acknowledged,
and each conversation keeps its order, whoever dies and whenever.
"""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from tests.faults.two_connectors import (
    PROGRAM,
    Agent,
    Connectors,
    Database,
    Person,
    Program,
    Service,
    until,
)

from accord.kernel.clock import SystemClock
from accord.relay.connector import RELAY, Keyring, open_connector
from accord.relay.gateway import GatewayState
from accord.relay.platforms.webchat import open_admin
from accord.storage import open_store
from accord.testing.browser import Chromium
from accord.testing.servers import Server

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
CHATS = ("c1", "c2", "c3")
OWNERS = {"alpha": "ann", "beta": "bob"}
# Whoever owns the platform at first, the owner is one of the first two to be killed.
FATE = 2


async def write_on(service: Service, chance: random.Random) -> None:
    while True:
        service.write(chance.choice(list(OWNERS.values())), chance.choice(CHATS))
        await asyncio.sleep(0.02)


async def killed(where: str, redis: str, folder: Path, kills: int, chromium: Chromium) -> None:
    chance, fate = random.Random(), random.Random(FATE)
    service, database = Service(), Database(where)
    keyring = Keyring.load(folder / "relay.key")
    async with (
        open_store(where, RELAY) as store,
        open_connector(store, keyring, CLOCK, name="operator", serve=False) as office,
        open_admin(where, CLOCK) as admin,
    ):
        secrets = {}
        for instance, owner in OWNERS.items():
            token = await office.control.mint_token("t1", instance)
            made = await office.control.enrol(token.token, f"gw-{instance}")
            secrets[instance] = made.secret
            await office.control.bind(instance, "polled", owner)
        await office.control.route("t1", "polled", "g1")
        space = await admin.create_space("home")
        general = await admin.create_channel(space.id, "general")
        await office.control.route("t1", "webchat", space.id)
        invite = (await admin.invite(space.id)).url.partition("#invite=")[2]

        with ExitStack() as children:
            async with AsyncExitStack() as opened:
                await opened.enter_async_context(service.served())
                words = [PROGRAM, where, redis, str(folder / "relay.key"), service.url]
                connectors = Connectors(lambda _, port, name: [*words, port, name], children)
                await asyncio.gather(connectors.start(0), connectors.start(1))

                def ports() -> int:
                    return int(chance.choice(connectors.ports))

                program = Program("cat", general.id, ports)
                opened.push_async_callback(program.close)
                joined = await program.ask("join", {"invite": invite, "name": "cat"})
                await office.control.bind("alpha", "webchat", joined["me"]["id"])
                browser = await opened.enter_async_context(chromium.opened())
                person = Person("dan", await browser.new_page())
                another = (await admin.invite(space.id)).url.partition("#invite=")[2]
                await person.join(f"http://127.0.0.1:{connectors.ports[0]}", another)
                await office.control.bind("alpha", "webchat", person.id)
                agents = [Agent(each, secret, database, ports) for each, secret in secrets.items()]
                running = [asyncio.create_task(agent.gateway.run()) for agent in agents]
                for agent in agents:
                    await agent.gateway.reached(GatewayState.RUNNING)
                load = [
                    asyncio.create_task(write_on(service, chance)),
                    asyncio.create_task(program.post_on()),
                    asyncio.create_task(person.post_on()),
                ]

                def count() -> int:
                    return sum(agent.count for agent in agents)

                takeovers = []
                for _ in range(kills):
                    more = count() + fate.randrange(10, 100)
                    await until(lambda more=more: count() >= more, lambda: (count(), service))  # type: ignore[misc]
                    victim = fate.randrange(2)
                    holder, epoch, died = await database.lease()
                    await connectors.kill(victim)
                    is_owner = holder == connectors.names[victim]
                    starting = asyncio.create_task(connectors.start(victim))
                    if is_owner:
                        takeovers.append(await database.taken_over(epoch) - died)
                    await starting
                assert takeovers, "no owner was killed"
                for task in load:
                    task.cancel()
                await asyncio.gather(*load, return_exceptions=True)

                def lacking() -> dict[tuple[str, str], int]:
                    heard = {place: n for agent in agents for place, n in agent.heard.items()}
                    wanted = {**service.written}
                    wanted |= {(each.name, general.id): each.sent for each in (program, person)}
                    counted = {place: len(heard.get(place, ())) for place in wanted}
                    return {place: n for place, n in counted.items() if n < wanted[place]}

                # However much has piled up: it comes, as long as something comes.
                while lacking() or service.waiting:
                    heard, left = count(), len(service.waiting)
                    await until(
                        lambda heard=heard, left=left: (  # type: ignore[misc]
                            count() > heard or len(service.waiting) != left or not lacking()
                        ),
                        lacking,
                    )
                for agent in agents:
                    agent.gateway.stop()
                await asyncio.gather(*running)

        chatting = {program.name: program.sent, person.name: person.sent}
        assert all(chatting.values())
        for agent in agents:
            assert agent.again == [], "told again though it was acknowledged for good"
            for place, numbers in agent.heard.items():
                expected = chatting.get(place[0], service.written[place])
                assert numbers[:expected] == list(range(expected)), place
                assert len(numbers) - expected <= (place[0] in chatting), "more than was written"
        answers = Counter(service.said.values())
        assert answers
        assert max(answers.values()) == 1, "an answer was given twice"
        for instance in OWNERS:
            assert await office.delivery.dead_letters(instance) == []
        shown = ", ".join(f"{seconds:.1f}" for seconds in takeovers)
        print(
            f"\n{kills} kills, {count()} events ({person.sent} typed), {len(answers)} answers; "
            f"the platform was taken over after {shown} seconds"
        )


async def test_nothing_acknowledged_is_lost_when_either_connector_is_killed(
    postgres_url: str, redis: Server, tmp_path: Path, chromium: Chromium
) -> None:
    await killed(postgres_url, redis.url, tmp_path, 3, chromium)


@pytest.mark.long
async def test_nothing_acknowledged_is_lost_over_thirty_kills(
    postgres_url: str, redis: Server, tmp_path: Path, chromium: Chromium
) -> None:
    await killed(postgres_url, redis.url, tmp_path, 30, chromium)
