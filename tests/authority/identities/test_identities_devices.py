"""How a device becomes an instance by a person's word, and where custom pages stand."""

from typing import Any

import pytest

from accord.authority.identities import ACTIVATE, ConsentAnswer, PortalKind
from accord.authority.rules import AuthorityError, Code, DeploymentKind
from accord.authority.tables import activations
from accord.contracts import digest
from accord.contracts.session_proof import session_key
from accord.kernel import canonical
from accord.kernel.signing import SigningKey


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.from_seed(bytes(range(32)))


@pytest.fixture
async def sensors(house: Any, client: Any) -> dict[str, Any]:
    """The contract of a device, whose deployment is there."""
    await house.authority.deployments.create("sensors", DeploymentKind.DEVICE)
    contract: dict[str, Any] = client(kind="device", identity="sensor@v1")
    return contract


async def begin(house: Any, key: SigningKey, contract: Any, **given: str) -> str:
    code, _ = await house.identities.devices.begin(
        session_key(key),
        given.get("deployment", "sensors"),
        digest(contract),
        canonical.encode(contract),
        given.get("name", "Cellar"),
    )
    return str(code)


async def refused(awaitable: Any, code: Code) -> None:
    with pytest.raises(AuthorityError) as caught:
        await awaitable
    assert caught.value.code is code


async def test_a_person_confirms_a_device_by_its_code(
    house: Any, sensors: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann", ACTIVATE)
    code = await begin(house, key, sensors)
    assert len(code) == 9
    devices = house.identities.devices
    waiting = await devices.find(code.lower().replace("0", "o"), ann)
    assert (waiting.name, waiting.deployment) == ("Cellar", "sensors")
    made = await devices.confirm(code, ann)
    assert (made.key, made.deployment) == (session_key(key), "sensors")
    assert [each.key for each in await house.authority.deployments.instances("sensors")] == [
        made.key
    ]
    [kept] = await house.identities.consents.answers(ann.id)
    assert (kept.answer, kept.anchor, kept.digest) == (
        ConsentAnswer.ACCEPTED,
        session_key(key),
        digest(sensors),
    )
    await refused(devices.confirm(code, ann), Code.NOT_FOUND)


async def test_only_who_may_activate_devices_learns_about_one(
    house: Any, sensors: Any, key: SigningKey
) -> None:
    bob = await house.person("Bob")
    code = await begin(house, key, sensors)
    for ask in (house.identities.devices.find, house.identities.devices.confirm):
        await refused(ask(code, bob), Code.FORBIDDEN)
        await refused(ask("WRONG", bob), Code.FORBIDDEN)
    await refused(house.identities.devices.refuse(code, bob), Code.FORBIDDEN)
    assert await house.authority.deployments.instances("sensors") == []


async def test_a_code_ends_when_it_is_refused_replaced_or_too_old(
    house: Any, sensors: Any, key: SigningKey
) -> None:
    ann = await house.person("Ann", ACTIVATE)
    devices = house.identities.devices
    first = await begin(house, key, sensors)
    second = await begin(house, key, sensors)
    await refused(devices.find(first, ann), Code.NOT_FOUND)
    await devices.refuse(second, ann)
    await refused(devices.find(second, ann), Code.NOT_FOUND)
    third = await begin(house, key, sensors)
    house.clock.advance(900)
    await refused(devices.confirm(third, ann), Code.NOT_FOUND)
    for wrong in ("", "x" * 1000, "\ud800", "a\0"):
        await refused(devices.find(wrong, ann), Code.NOT_FOUND)
    assert await house.authority.deployments.instances("sensors") == []


async def test_a_device_asks_only_a_deployment_of_devices_with_a_device_contract(
    house: Any, client: Any, sensors: Any, key: SigningKey
) -> None:
    await refused(begin(house, key, sensors, deployment="notes"), Code.NOT_FOUND)
    await refused(begin(house, key, sensors, deployment="nowhere"), Code.NOT_FOUND)
    await refused(begin(house, key, client(kind="app")), Code.NOT_FOUND)
    await refused(begin(house, key, sensors, name="a\nb"), Code.BAD_REQUEST)
    rows = await house.authority.store.read(lambda c: c.execute(activations.select()).all())
    assert rows == []


async def test_the_store_does_not_tell_a_code(house: Any, sensors: Any, key: SigningKey) -> None:
    code = await begin(house, key, sensors)
    rows = await house.authority.store.read(lambda c: c.execute(activations.select()).all())
    assert code.replace("-", "") not in repr(rows)


async def test_the_nearest_custom_page_is_chosen(house: Any) -> None:
    portals = house.identities.portals
    login = PortalKind.LOGIN
    assert await portals.route(login, "desk@v1", "https://app.example") is None
    await portals.set(login, "*", "https://all.example/")
    await portals.set(login, "https://app.example", "https://origin.example/")
    assert await portals.route(login, "desk@v1", "https://app.example") == (
        "https://origin.example/"
    )
    await portals.set(login, "desk@v1", "https://desk.example/")
    assert await portals.route(login, "desk@v1", "https://app.example") == "https://desk.example/"
    assert await portals.route(PortalKind.DEVICE, "desk@v1") is None
    assert len(await portals.all()) == 3
    assert await portals.drop(login, "desk@v1")
    assert not await portals.drop(login, "desk@v1")
    await refused(portals.set(login, "x", "javascript:alert(1)"), Code.BAD_REQUEST)
