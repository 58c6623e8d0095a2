"""The page with a form for each surface of a contract, for whoever develops the service."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from accord.console.try_page import TryPage
from accord.contracts.authoring import Contract, Docs
from accord.fabric import Client, RemoteError, ValidationError


def manifest() -> dict[str, Any]:
    contract = Contract("shop@v1", display_name="<Shop>", description="Sells things.")
    item = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    contract.schema("Item", item)
    contract.rpc("Shop.Buy", "Item", "Item", docs=Docs("Buy <b>one</b>."))
    contract.feed("Shop.Watch", "Item", "Item")
    contract.event("Shop.Sold", "Item")
    contract.job("pack", "Item")
    return contract.manifest()


class Shop:
    """Stands in for a client of a running service, which other tests have."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def call(self, name: str, payload: Any, *, within: float) -> Any:
        self.asked.append((name, payload))
        if payload["name"] == "moon":
            raise RemoteError("SoldOut", "there is none", {"left": 0})
        if payload["name"] == "":
            raise ValidationError("no", issues=[{"path": "/name", "message": "too short"}])
        return {"name": payload["name"] + "!<script>"}

    async def feed(self, _name: str, payload: Any) -> AsyncIterator[Any]:
        for _ in range(50):
            yield payload


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def page(shop: Shop) -> TryPage:
    async def connect(work: Callable[[Client], Awaitable[Any]]) -> Any:
        return await work(shop)  # type: ignore[arg-type]

    return TryPage(manifest(), connect)


@pytest.fixture
async def browser(page: TryPage) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(page.application())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7071") as client:
        yield client


async def entered(browser: httpx.AsyncClient, page: TryPage) -> httpx.Response:
    return await browser.get(f"/?token={page.secret}", follow_redirects=True)


async def test_only_who_has_the_address_sees_and_calls(
    browser: httpx.AsyncClient, page: TryPage, shop: Shop
) -> None:
    for path in ("/", "/?token=", "/?token=wrong"):
        assert (await browser.get(path)).status_code == 403
    assert (await browser.post("/try/rpc/Shop.Buy", data={"name": "x"})).status_code == 403
    assert shop.asked == []
    shown = await entered(browser, page)
    assert shown.status_code == 200
    assert page.secret not in str(shown.url)
    cookie = (await browser.get(f"/?token={page.secret}")).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


async def test_a_ticket_opens_the_page_once(browser: httpx.AsyncClient, page: TryPage) -> None:
    first, second = page.ticket(), page.ticket()
    assert (await browser.get(f"/?token={first}")).status_code == 403
    opened = await browser.get(f"/?token={second}", follow_redirects=True)
    assert opened.status_code == 200
    assert second not in str(opened.url)
    browser.cookies.clear()
    assert (await browser.get(f"/?token={second}")).status_code == 403
    assert (await entered(browser, page)).status_code == 200


async def test_other_sites_and_other_names_are_refused(
    browser: httpx.AsyncClient, page: TryPage, shop: Shop
) -> None:
    await entered(browser, page)
    foreign = {"origin": "http://evil.example"}
    answer = await browser.post("/try/rpc/Shop.Buy", data={"name": "x"}, headers=foreign)
    assert answer.status_code == 403
    assert (await browser.get("/", headers={"host": "evil.example"})).status_code == 421
    assert shop.asked == []


async def test_the_page_shows_forms_and_escapes_everything(
    browser: httpx.AsyncClient, page: TryPage
) -> None:
    shown = await entered(browser, page)
    assert "&lt;Shop&gt;" in shown.text
    assert "Buy &lt;b&gt;one&lt;/b&gt;." in shown.text
    assert 'action="/try/rpc/Shop.Buy#rpc-shop-buy"' in shown.text
    assert 'name="name"' in shown.text
    assert "Shop.Sold" in shown.text
    assert "/try/events" not in shown.text
    policy = shown.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


async def test_a_call_shows_its_answer_and_an_error_its_type(
    browser: httpx.AsyncClient, page: TryPage, shop: Shop
) -> None:
    await entered(browser, page)
    answer = await browser.post("/try/rpc/Shop.Buy", data={"name": "ladder"})
    assert shop.asked == [("Shop.Buy", {"name": "ladder"})]
    assert "ladder!&lt;script&gt;" in answer.text
    assert 'value="ladder"' in answer.text
    refused = await browser.post("/try/rpc/Shop.Buy", data={"name": "moon"})
    assert "<strong>SoldOut</strong>" in refused.text
    invalid = await browser.post("/try/rpc/Shop.Buy", data={"name": ""})
    assert "too short" in invalid.text


async def test_the_first_items_of_a_feed_are_shown(
    browser: httpx.AsyncClient, page: TryPage
) -> None:
    await entered(browser, page)
    answer = await browser.post("/try/feeds/Shop.Watch", data={"name": "tick"})
    assert answer.text.count("&#34;tick&#34;") == 20


@pytest.mark.parametrize("path", ["rpc/Nothing", "events/Shop.Sold", "jobs/pack", "no/thing"])
async def test_what_cannot_be_called_is_refused(
    browser: httpx.AsyncClient, page: TryPage, path: str
) -> None:
    await entered(browser, page)
    assert (await browser.post(f"/try/{path}", data={"name": "x"})).status_code == 404
