"""Two authorities on one PostgreSQL database, and everything that must happen only once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.authority.identities.conftest import READ, WRITE, House, notes, opened

from accord.authority.identities import ACTIVATE
from accord.authority.rules import AuthorityError, DeploymentKind
from accord.contracts import digest
from accord.contracts.session_proof import session_key
from accord.kernel import canonical
from accord.kernel.signing import SigningKey
from accord.testing import VirtualClock

Pair = tuple[House, House]


@pytest.fixture
async def pair(postgres_url: str, virtual_clock: VirtualClock) -> AsyncIterator[Pair]:
    async with (
        opened(postgres_url, virtual_clock) as one,
        opened(postgres_url, virtual_clock) as two,
    ):
        await one.offer(notes())
        await two.authority.catalog.refresh()
        yield one, two


async def once(*attempts: Any) -> Any:
    """What the only attempt that succeeded gave."""
    results = await asyncio.gather(*attempts, return_exceptions=True)
    done = [each for each in results if not isinstance(each, BaseException)]
    assert all(isinstance(each, AuthorityError) for each in results if each not in done), results
    assert len(done) == 1, results
    return done[0]


async def test_what_one_authority_begins_another_goes_on_with_and_nothing_happens_twice(
    pair: Pair, client: Any
) -> None:
    one, two = pair
    people = [each.identities.people for each in pair]
    await once(*(each.add("Ann", [READ, ACTIVATE]) for each in people))
    ann = await people[1].find("ann")
    secret, _ = await one.identities.login.link(ann.id)
    await once(*(each.identities.login.by_link(secret) for each in pair))
    key, app = SigningKey.generate(), client("Notes.List", "Notes.Add")
    login = await one.begin(key, app)
    address = await once(*(each.identities.login_flows.approve(login, ann) for each in pair))
    session = await two.bind(key, address)
    assert session == await one.authority.sessions.get(session_key(key))
    [kept] = await one.identities.consents.answers(ann.id)
    assert kept.digest == digest(app)
    await one.authority.deployments.create("sensors", DeploymentKind.DEVICE)
    sensor = client(kind="device", identity="sensor@v1")
    code, _ = await one.identities.devices.begin(
        session_key(SigningKey.generate()),
        "sensors",
        digest(sensor),
        canonical.encode(sensor),
        "Cellar",
    )
    await once(*(each.identities.devices.confirm(code, ann) for each in pair))
    assert len(await two.authority.deployments.instances("sensors")) == 1


async def test_sessions_hold_what_the_last_change_left_whoever_made_it(
    pair: Pair, client: Any
) -> None:
    one, two = pair
    ann = await one.person("Ann", READ)
    key = SigningKey.generate()
    await one.log_in(ann, key, client("Notes.List", "Notes.Add"))
    for _ in range(5):
        await asyncio.gather(
            one.identities.set_capabilities(ann.id, [READ, WRITE]),
            two.identities.set_capabilities(ann.id, [READ]),
        )
        left = (await one.identities.people.find("Ann")).capabilities
        assert await two.held(key) == left


async def test_whoever_is_shut_out_while_binding_is_out(pair: Pair, client: Any) -> None:
    one, two = pair
    ann = await one.person("Ann", READ)
    for _ in range(5):
        key = SigningKey.generate()
        await one.identities.set_disabled(ann.id, False)
        login = await one.begin(key, client("Notes.List"))
        address = await one.identities.login_flows.approve(login, ann)
        await asyncio.gather(
            one.bind(key, address),
            two.identities.set_disabled(ann.id, True),
            return_exceptions=True,
        )
        session = await one.authority.sessions.get(session_key(key))
        assert session is None or session.revoked_at is not None
