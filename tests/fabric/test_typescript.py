"""The TypeScript client against a whole authority and real services, in Node and in a browser."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from examples import shop
from playwright.async_api import expect
from tests.conformance.client_vectors import FILE
from tests.fabric.fabric_station import Station, station
from tests.fabric.typescript import stall
from tests.fabric.typescript_build import FABRIC, ROOT, Driver, Workshop

from accord.contracts.authoring import Contract
from accord.kernel import canonical
from accord.kernel.signing import SigningKey
from accord.testing.browser import Chromium
from accord.testing.processes import Child, python_child

PASSWORD = "correct horse battery"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("typescript")]


def shopper() -> Contract:
    contract = Contract("shopper@v1", display_name="Shopper", description="Buys.", kind="app")
    sells, counts = shop.service.contract.manifest(), stall.service.contract.manifest()
    contract.uses(
        "shop", "shop@v1", rpc=["Shop.Buy"], operations=["Shop.Show"], subscribe=["Shop.Sold"]
    )
    contract.uses(
        "stall", "stall@v1", rpc=counts["rpc"], operations=["Stall.Walk"], feeds=counts["feeds"]
    )
    contract.schema(
        "Prefs",
        {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]},
    )
    contract.state("prefs", "Prefs", kind="map")
    assert set(sells["rpc"]) == {"Shop.Buy"}
    return contract


@pytest.fixture(scope="module")
def workshop(npm: Path, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    made = Workshop(tmp_path_factory.mktemp("workshop") / "all", npm)
    made.lint(FABRIC / "src")
    services = (shop.service, stall.service)
    made.add([*(each.contract.manifest() for each in services), shopper().manifest()])
    made.programs("scenario.ts", "node.ts", "browser.ts", "app.ts")
    return made


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Station]:
    async with station(tmp_path) as house:
        yield house


@pytest.fixture(params=["node", "browser"])
async def perform(
    request: pytest.FixtureRequest, workshop: Workshop, chromium: Chromium
) -> AsyncIterator[Driver]:
    opened = workshop.in_node() if request.param == "node" else workshop.in_browser(chromium)
    async with opened as perform:
        yield perform


async def enter(perform: Driver, house: Station) -> None:
    """Log in: a person consents on the authority's page."""
    person = await house.identities.people.add("ada")
    begun = await perform("login", authority=house.url)
    assert begun["refused"] == "BootstrapError"
    login = await house.identities.login_flows.find(begun["login"]["id"])
    review = await house.identities.login_flows.review(login, person)
    assert not review.settled
    back = await house.identities.login_flows.approve(login, person)
    flow = parse_qs(urlsplit(back).query)["flowId"][0]
    assert len((await perform("bind", authority=house.url, flow=flow))["key"]) == 43


async def test_a_person_logs_in_and_agrees_or_refuses_by_clicks(
    house: Station, workshop: Workshop, chromium: Chromium
) -> None:
    person = await house.identities.people.add("ada")
    await house.identities.login.set_password(person.id, PASSWORD)
    async with (
        serving(house, shop.service, stall.service),
        workshop.served("app.ts") as port,
        chromium.opened() as browser,
    ):
        page = await browser.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        # Another host than the authority's, so that it is another origin and another site.
        app = f"http://localhost:{port}"
        await page.goto(f"{app}/?authority={quote(house.url)}")
        await expect(page.locator("output")).to_have_text(
            ["not in: BootstrapError"], timeout=30_000
        )
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_label("Name").fill("ada")
        await page.get_by_label("Password").fill("a wrong one")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator(".wrong")).to_be_visible()
        await page.get_by_label("Name").fill("ada")
        await page.get_by_label("Password").fill(PASSWORD)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("heading")).to_have_text("Let Shopper act for you?")
        await expect(page.get_by_text(f"It runs at {app}.")).to_be_visible()
        await page.get_by_role("button", name="Refuse").click()
        await page.wait_for_url(f"{app}/back?authError=consent_denied")
        await expect(page.locator("output")).to_have_text(
            ["refused: consent_denied", "not in: BootstrapError"], timeout=30_000
        )
        # The person is logged in at the authority, and is asked again.
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("button", name="Allow").click()
        await page.wait_for_url(f"{app}/back")
        bought = "{} left, the key is sealed, and true"
        await expect(page.locator("output")).to_have_text([bought.format(9)], timeout=30_000)
        # The browser keeps the key, so the session goes on without another login.
        await page.reload()
        await expect(page.locator("output")).to_have_text([bought.format(8)], timeout=30_000)
        (session,) = await house.authority.sessions.all(subject=person.id)
        assert session.origin == app
        assert complaints == []


@asynccontextmanager
async def stall_process(house: Station, key: SigningKey) -> AsyncIterator[Child]:
    program = "tests.fabric.typescript.stall"
    seed = canonical.encode_base64url(key.seed)
    with python_child("-m", program, house.url, seed, env={"PYTHONPATH": str(ROOT)}) as child:
        assert await line(child) == "ready"
        yield child


async def line(child: Child) -> str:
    """The next line of a process; meanwhile the authority answers in this one."""
    return await asyncio.to_thread(child.read_line)


@asynccontextmanager
async def serving(house: Station, *services: Any) -> AsyncIterator[None]:
    opened = []
    try:
        for service in services:
            name = service.contract.id.partition("@")[0]
            key = await house.deploy(name, service.contract)
            connected = service(key=key, authority=house.url).connect()
            await connected.__aenter__()
            opened.append(connected)
        yield
    finally:
        for connected in reversed(opened):
            await connected.__aexit__(None, None, None)


async def test_every_surface_is_called(house: Station, perform: Driver) -> None:
    async with serving(house, shop.service, stall.service):
        await enter(perform, house)
        await perform("listen")
        assert await perform("buy", name="ladder", count=2) == {"left": 8}
        assert await perform("heard") == {"count": 2, "name": "ladder"}
        errors = await perform("errors")
        assert errors["soldOut"]["left"] == 8
        assert errors["soldOut"]["message"] == "There is not enough of it"
        assert [issue["path"] for issue in errors["wrong"]][-1] == "/count"
        assert errors["remote"] == [
            {"path": "/name", "message": errors["remote"][0]["message"]},
        ]
        assert errors["forbidden"] == "UnauthorizedError"
        assert await perform("upload", size=600_000) == {"stored": 600_000, "answered": 600_000}
        assert await perform("state") == {
            "revision": True,
            "conflict": True,
            "entries": ["door: dark red"],
            "gone": True,
            "none": True,
        }
        assert await perform("feed") == [0, 1, 2]
        assert await perform("download") == {
            "size": len(stall.BYTES),
            "sum": sum(stall.BYTES),
        }
        once = await perform("bump", n=1, key="order-1")
        assert await perform("bump", n=1, key="order-1") == once
        assert (await perform("bump", n=1, key="order-2"))["n"] == once["n"] + 100
        kept = await perform("keys", n=1, key="order-1")
        assert kept == dict.fromkeys(("other", "wrong", "unkept", "same"), True)
        await perform("start")
        assert await perform("signal", n=4) == 1
        assert await perform("result") == {"output": {"n": 5}, "rising": True}
        cancelled = await perform("cancel")
        assert cancelled["state"] == "cancelled"
        assert (await perform("close"))["type"] == "UnavailableError"


async def test_a_killed_service_and_a_killed_server_come_back(
    house: Station, perform: Driver
) -> None:
    key = await house.deploy("stall", stall.service.contract)
    other = await house.instance("stall", "two")
    async with serving(house, shop.service):
        async with stall_process(house, key) as first:
            await enter(perform, house)
            await perform("listen")
            assert await perform("double", n=1) == {"n": 2}
            assert await perform("bump", n=1, key="order-1") == {"n": 101}
            assert await perform("bump", n=1, key="order-2") == {"n": 201}
            await perform("start")
            assert await line(first) == "begun"
            first.kill()
        # A request may still reach the killed instance, and is not answered then.
        asked = {"name": "Stall.Double", "payload": {"n": 1}}
        while (failed := (await perform("fail", **asked))["type"]) == "DeadlineError":
            pass
        assert failed == "UnavailableError"
        # Nobody is there; the client asks again until somebody is.
        repeated = asyncio.create_task(perform("bump", n=1, key="order-2"))
        later = asyncio.create_task(perform("bump", n=1, key="order-3"))
        async with stall_process(house, other) as second:
            # What the killed instance had answered is not done again; what it had not, is done now.
            assert await repeated == {"n": 201}
            assert await later == {"n": 101}
            # The operation of the killed instance is taken over, and ends here.
            assert await line(second) == "begun"
            await perform("signal", n=6)
            assert await perform("result") == {"output": {"n": 7}, "rising": True}
            pid = house.server.pid
            assert pid is not None
            asking = asyncio.create_task(perform("insist", n=21))
            os.kill(pid, signal.SIGKILL)
            assert (await asking)["answer"] == {"n": 42}
            assert (await perform("insist", n=4))["answer"] == {"n": 8}
        while True:
            try:
                assert await perform("buy", name="ladder", count=1) == {"left": 9}
                break
            except AssertionError:
                await asyncio.sleep(0.2)
        # The subscription came back with the connection.
        assert await perform("heard") == {"count": 1, "name": "ladder"}


def test_both_languages_give_the_answers_of_the_vectors(workshop: Workshop) -> None:
    workshop.programs("conformance.ts")
    vectors = json.loads(FILE.read_bytes())
    given = workshop.folder / "given.json"
    given.write_text(json.dumps(vectors["given"]))
    computed = json.loads(workshop.node("built/conformance.js", given))
    for kind, expected in vectors["answers"].items():
        assert computed[kind] == expected, kind


def test_typescript_gives_the_answers_of_other_implementations(
    vectors: Callable[[str], Any], workshop: Workshop
) -> None:
    jcs = vectors("canonical/jcs.json")["cases"]
    texts = vectors("contracts/canonical-json.json")
    proofs = vectors("contracts/auth-proof.json")
    assert jcs
    assert texts
    assert proofs
    workshop.programs("known_answers.ts")
    given = workshop.folder / "known.json"
    asked = {
        "texts": [case["input"] for case in jcs],
        "values": [case["input"] for case in texts],
        "proofs": proofs,
    }
    given.write_text(json.dumps(asked))
    computed = json.loads(workshop.node("built/known_answers.js", given))
    assert computed["texts"] == [case["output"] for case in jcs]
    # Half a surrogate pair is the one value that we refuse, as in Python.
    assert computed["values"] == [
        None if case["input"] == "\ud800" else case["canonical"] for case in texts
    ]
    assert computed["proofs"] == [
        {
            "sessionKey": case["sessionKey"],
            "login": case["oauthInit"]["sig"],
            "flow": case["flowBind"]["sig"],
            "connect": case["natsConnect"]["iatSig"],
            "token": case["natsConnect"]["runtimeToken"],
            "request": case["rpcProof"]["proof"],
        }
        for case in proofs
    ]
