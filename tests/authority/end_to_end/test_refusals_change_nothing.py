"""What a service presents and may not have: the blocker by its name, and everything as it was."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from tests.authority.end_to_end.whole_system import (
    bootstrap,
    buyer,
    kept,
    managed,
    selling,
    settled,
    shop,
    signed,
    until,
)
from tests.fabric.fabric_station import Station, station

from accord.authority import revisions
from accord.authority.rules import DeploymentKind, NamePrefix, PlanState, physical_name
from accord.contracts import digest
from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey

KNOWN = "contracts"
"""A valid manifest that is presented becomes known by its digest, which allows nobody anything."""

PLANNED = {"plans", "revision", "history", "journal", "journal_heads"}


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Station]:
    async with station(tmp_path) as house:
        yield house


def now() -> int:
    return int(SystemClock().now())


async def present(
    house: Station, key: SigningKey, contract: Contract, **more: Any
) -> tuple[int, dict[str, Any]]:
    manifest = contract.manifest()
    body = signed(key, digest(manifest), now(), manifest=manifest) | more
    return await bootstrap(house.url, body)


async def newcomer(house: Station, name: str) -> SigningKey:
    await house.authority.deployments.create(name, DeploymentKind.SERVICE)
    return await house.instance(name, "one")


async def test_a_manifest_that_is_not_that_of_its_digest_changes_nothing(house: Station) -> None:
    key = await newcomer(house, "shops")
    before = await settled(house)
    _, answer = await present(house, key, shop(), manifest=shop("Shop.Count").manifest())
    assert answer["code"] == "digest_mismatch"
    assert await kept(house) == before


async def test_a_dependency_that_nobody_knows_changes_nothing(house: Station) -> None:
    key = await newcomer(house, "buyers")
    before = await settled(house)
    _, answer = await present(house, key, buyer())
    assert (answer["status"], answer["code"]) == ("blocked", "dependency_unknown")
    assert answer["findings"]
    assert without(await kept(house), KNOWN) == without(before, KNOWN)


async def test_a_subject_that_another_contract_owns_changes_nothing(house: Station) -> None:
    key = await house.deploy("shops", shop())
    thief = await newcomer(house, "thieves")
    stealing = Contract("thief@v1", display_name="Thief", description="Steals.")
    stealing.schema("Thing", {"type": "object"})
    stealing.rpc("Thief.Find", "Thing", "Thing", subject="rpc.v1.Shop.Find")
    async with selling(house, key, shop()).connect():
        before = await settled(house)
        _, answer = await present(house, thief, stealing)
        assert (answer["status"], answer["code"]) == ("refused", "subject_collision")
        # The shop beats meanwhile, which is for its offer alone.
        moving = (KNOWN, "offers")
        assert without(await kept(house), *moving) == without(before, *moving)


async def test_a_resource_that_is_in_the_way_changes_nothing_on_the_server(house: Station) -> None:
    """Another bucket has the very name, with a shape that cannot be made ours."""
    key = await newcomer(house, "shops")
    contract = shop()
    contract.kv("prices", "Thing", "What things cost.", history=4)
    contract.kv("stock", "Thing", "What there is.")
    assert (await present(house, key, contract))[1]["code"] == "authority_update_required"
    async with managed(house.server.cluster) as jetstream:
        name = f"KV_{physical_name(NamePrefix.KV, 'shops', 'shop@v1', 'prices')}"
        foreign = {"name": name, "subjects": ["foreign.>"], "storage": "file"}
        await jetstream.ask(f"STREAM.CREATE.{name}", foreign)
    before = await settled(house)
    plan, *_ = await house.authority.plans.all("shops", PlanState.PENDING)
    await house.authority.plans.accept(plan.id, "operator")

    async def is_told() -> bool:
        _, answer = await present(house, key, contract)
        return bool(answer["code"] == "resource_conflict")

    await until(is_told)
    after = await kept(house)
    assert after["streams"] == before["streams"]
    assert after["consumers"] == before["consumers"]
    assert after["offers"] == []


async def test_a_manifest_of_ten_megabytes_is_refused_before_it_is_read(house: Station) -> None:
    key = await newcomer(house, "shops")
    manifest = {**shop().manifest(), "description": "x" * 10_000_000}
    before = await settled(house)
    with structlog.testing.capture_logs() as logs:
        status, answer = await bootstrap(
            house.url, signed(key, digest(shop().manifest()), now(), manifest=manifest)
        )
    assert (status, answer["code"]) == (413, "too_large")
    assert [each["code"] for each in logs if each["event"] == "refused"] == ["too_large"]
    assert await kept(house) == before


async def test_whoever_presents_anothers_key_is_refused_and_told_of(house: Station) -> None:
    """The key is that of the shop, the signature is not."""
    key = await house.deploy("shops", shop())
    name, claimed = digest(shop().manifest()), session_key(key)
    before = await settled(house)
    at = now()
    forged = signed(SigningKey.generate(), name, at) | {"sessionKey": claimed}
    with structlog.testing.capture_logs() as logs:
        status, answer = await bootstrap(house.url, forged)
    assert (status, answer["status"], answer["code"]) == (401, "refused", "invalid_proof")
    told = [each for each in logs if each["event"] == "refused"]
    assert [(each["log_level"], each["code"], each["claimed"]) for each in told] == [
        ("warning", "invalid_proof", claimed)
    ]
    assert [each["session"] for each in told] == [None]
    old = signed(key, name, at - 3600)
    assert (await bootstrap(house.url, old))[1]["code"] == "expired_proof"
    assert await kept(house) == before


async def test_a_service_does_not_come_as_one_of_another_deployment(house: Station) -> None:
    """Its own key, and the contract of somebody else: what it asks for is its own deployment's."""
    await house.deploy("shops", shop())
    stranger = await newcomer(house, "strangers")
    unknown = SigningKey.generate()
    before = await settled(house)
    _, answer = await present(house, stranger, shop())
    assert answer["code"] == "authority_update_required"
    after = await kept(house)
    assert {name for name in after if after[name] != before[name]} == PLANNED
    assert (await present(house, unknown, shop()))[1]["code"] == "unknown_session"


async def test_what_is_no_request_is_no_fault(house: Station) -> None:
    before = await settled(house)
    async with httpx.AsyncClient() as http:
        for body in (b"", b"[]", b"{", b'{"a":1,"a":2}', b"\xff" * 100, b"[" * 100_000):
            answer = await http.post(f"{house.url}/bootstrap/v1", content=body)
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert await kept(house) == before


def without(tables: dict[str, list[str]], *names: str) -> dict[str, list[str]]:
    return {name: rows for name, rows in tables.items() if name not in names}


async def test_who_is_refused_stands_in_the_history_once_with_how_often(house: Station) -> None:
    stranger = SigningKey.generate()
    for _ in range(3):
        status, _ = await present(house, stranger, shop())
        assert status >= 400

    async def refused() -> list[Any]:
        told = await house.authority.revisions.history(limit=1000)
        return [step.act for step in told if step.act.act == "refused"]

    async def is_told() -> bool:
        return bool(await refused())

    revision = await house.authority.store.read(revisions.current)
    await until(is_told)
    assert [(each.by, each.why) for each in await refused()] == [
        (session_key(stranger), "unknown_session at /bootstrap/v1, 3 times")
    ]
    assert await house.authority.store.read(revisions.current) == revision
