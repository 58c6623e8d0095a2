"""Pages that are told when something has changed, and texts that are written from right to left."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
from tests.console.consoles import Browser, Opened, opened, served

from accord.console import PlaneHealth
from accord.console.pages import PAGES

POST = {"title": "Ladder", "category": "offer", "days": "7"}
LIVE = re.compile(r'data-live="([^"]+)"')
NEWS = "event: news"
HEBREW = "שלום עולם"
ARABIC = "مرحبا"


async def live(browser: Browser, slug: str) -> str:
    """The address at which a page hears of news."""
    found = LIVE.search((await browser.get(slug)).text)
    assert found is not None
    return found[1].replace("&amp;", "&")


@asynccontextmanager
async def listening(
    found: Opened, browser: Browser, path: str
) -> AsyncIterator[AsyncIterator[str]]:
    """What a page is told, on a real socket; signs of life are left out."""
    async with (
        served(found) as address,
        httpx.AsyncClient(cookies=browser.http.cookies, timeout=30) as http,
        http.stream("GET", address + path) as told,
    ):
        assert told.status_code == 200, await told.aread()

        async def events() -> AsyncIterator[str]:
            async for line in told.aiter_lines():
                if line.startswith("event:"):
                    yield line

        yield events()


async def post(found: Opened, title: str = "Ladder") -> None:
    async with found.inside() as other:
        await other.send("market/post", {**POST, "title": title})


@pytest.mark.parametrize("slug", ["market", ""])
async def test_a_page_is_told_of_what_others_do(tmp_path: Path, slug: str) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        path = await live(browser, slug)
        async with asyncio.timeout(30), listening(found, browser, path) as events:
            await post(found)
            assert await anext(events) == NEWS
            await post(found, "Saw")
            assert await anext(events) == NEWS


async def test_what_happened_before_the_page_listened_is_told_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        path = await live(browser, "market")
        await post(found)
        async with asyncio.timeout(30), listening(found, browser, path) as events:
            assert await anext(events) == NEWS


async def test_a_page_is_not_told_of_what_it_does_not_show(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        [community] = await found.parts.node.communities()
        path = await live(browser, "chat")
        await post(found)
        async with asyncio.timeout(30), listening(found, browser, path) as events:
            waiting = asyncio.ensure_future(anext(events))
            await post(found, "Saw")
            hosted = found.node.community(community["community_id"])
            numbers = hosted.changes.number
            data = {"manifest": dict(found.node.presence.manifest(hosted))}
            await found.node.act(community["community_id"], "node.manifest.updated", data)
            assert hosted.changes.number == numbers + 1
            assert not waiting.done()
            waiting.cancel()


async def test_home_is_told_when_a_plane_is_doing_otherwise(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        path = await live(browser, "")
        async with asyncio.timeout(30), listening(found, browser, path) as events:
            found.planes.append(PlaneHealth("relay", "failed", is_well=False, reason="no port"))
            assert await anext(events) == NEWS
            found.is_up = False
            assert await anext(events) == NEWS


async def test_a_page_hears_again_when_the_community_came_back(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        path = await live(browser, "market")
        await post(found)
        found.is_up = False
        async with asyncio.timeout(30), listening(found, browser, path) as events:
            found.is_up = True
            assert await anext(events) == NEWS


async def test_listening_does_not_keep_a_session_alive(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        path = await live(browser, "market")
        found.clock.later += 400
        # As browsers ask for events; a page that somebody loads would count.
        asked = {"accept": "text/event-stream"}
        async with served(found) as address, httpx.AsyncClient() as http:
            http.cookies = browser.http.cookies
            async with http.stream("GET", address + path, headers=asked) as told:
                assert told.status_code == 200
        found.clock.later += 400
        assert (await browser.get("")).status_code == 303


@pytest.mark.parametrize("after", ["", "x", "-1", "9" * 40])
async def test_news_after_no_number_are_refused(tmp_path: Path, after: str) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert (await browser.get(f"chat/live?after={after}")).status_code == 400


def test_no_page_asks_for_news_every_few_seconds() -> None:
    for each in (files("accord.console") / "templates").iterdir():
        assert 'hx-trigger="every' not in each.read_text(), each.name


class Directions(HTMLParser):
    """The texts of a page that are written from right to left, and whether each may be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, bool]] = []
        self.found: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("input", "textarea") and any(HEBREW in (value or "") for _, value in attrs):
            self.found.append((tag, dict(attrs).get("dir") == "auto"))
        if tag not in ("input", "meta", "link", "br"):
            self.open.append((tag, tag == "bdi" or dict(attrs).get("dir") == "auto"))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tag, is_free = self.open[-1] if self.open else ("", False)
        # A command is read as it is typed.
        if (HEBREW in data or ARABIC in data) and tag not in ("title", "code"):
            self.found.append((f"{tag}: {data.strip()[:60]}", is_free))


async def test_texts_of_people_take_their_own_direction(tmp_path: Path) -> None:
    async with opened(tmp_path / "home", name=HEBREW) as found, found.inside() as browser:
        other = await found.node.found(HEBREW, {})
        await browser.send("community", {"community": other["community_id"]})
        text = {"title": HEBREW, "body": HEBREW, "tags": ARABIC}
        await browser.send("market/post", {**POST, **text})
        document = {"file": ("water.md", HEBREW.encode(), "text/markdown")}
        await browser.send("files/add", {"corpus": "library", "title": HEBREW}, files=document)
        [cid] = found.parts.blobs.cids()
        refused = await browser.send("market/post", {**text, "days": "many"})
        paths = [*(page.slug for page in PAGES), f"files/document/{cid}", f"ask?q={HEBREW}"]
        pages = [refused.text, *[(await browser.get(path)).text for path in paths]]
        seen = Directions()
        for each in pages:
            seen.feed(re.sub(r'<p class="note".*?</p>', "", each))
        assert len(seen.found) > 20
        assert [what for what, is_free in seen.found if not is_free] == []


async def test_the_more_pages_are_open_the_longer_each_waits_after_news(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        path = await live(browser, "market")
        assert found.console.pause_seconds == 0.2
        async with (
            served(found) as address,
            httpx.AsyncClient(cookies=browser.http.cookies, timeout=30) as http,
            AsyncExitStack() as stack,
        ):
            for _ in range(5):
                told = await stack.enter_async_context(http.stream("GET", address + path))
                assert told.status_code == 200
            assert found.console.pause_seconds == 0.5
