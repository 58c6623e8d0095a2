"""The main flows by the keyboard alone: no step needs a pointer, and the focus is always seen."""

from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect
from tests.console.consoles import opened, served
from tests.console.planes import COUNTED, ruled, shop
from tests.console.test_console_neighbours import join, reachable

from accord.testing.browser import Chromium

pytestmark = pytest.mark.slow

MOST_TABS = 80
PATIENCE = 30_000  # milliseconds; an answer is made anew
IS_FOCUSED = "each => each === document.activeElement"
IS_SEEN = "each => getComputedStyle(each).outlineStyle !== 'none'"


async def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until something has the focus, and see that it shows that."""
    await expect(wanted).to_be_visible()
    for _ in range(MOST_TABS):
        if await wanted.evaluate(IS_FOCUSED):
            assert await wanted.evaluate(IS_SEEN)
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"{wanted} is not reached by Tab")


async def log_in(page: Page, address: str, link: str) -> None:
    await page.goto(f"{address}/console/login?link={link}")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_be_visible()
    await expect(page.get_by_role("navigation", name="Pages")).to_be_visible()


async def follow(page: Page, name: str, title: str) -> None:
    """Open a page by its link in the navigation."""
    await tab_to(page, page.get_by_role("navigation").get_by_role("link", name=name, exact=True))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text(title)


async def test_a_question_is_asked_and_its_source_is_opened_by_keys(
    chromium: Chromium, tmp_path: Path
) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as setting:
        text = b"Rain water from the roof must be boiled for five minutes before drinking.\n"
        fields = {"corpus": "library", "title": "Water", "licence": "CC0-1.0"}
        await setting.get("files")
        await setting.send("files/add", fields, files={"file": ("w.md", text, "text/markdown")})
        async with served(found) as address, chromium.opened() as browser:
            page = await browser.new_page(viewport={"width": 1100, "height": 800})
            await log_in(page, address, found.tickets.link())
            await page.keyboard.press("Control+K")
            await page.keyboard.type("Ask")
            await expect(page.locator("#palette-found .hits a").first).to_contain_text("Ask")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", level=1)).to_have_text("Ask")
            await tab_to(page, page.get_by_label("Question"))
            await page.keyboard.type("How long must rain water be boiled?")
            await page.keyboard.press("Enter")
            await expect(page.locator(".answer")).to_contain_text("Boil it first", timeout=PATIENCE)
            source = page.get_by_role("link", name="Open passage 1 in Water")
            await expect(source).to_be_visible()
            await tab_to(page, source)
            await page.keyboard.press("Enter")
            await expect(page.locator("mark")).to_contain_text("boiled for five minutes")


async def test_a_member_is_written_to_by_keys(chromium: Chromium, tmp_path: Path) -> None:
    async with (
        opened(tmp_path / "anna") as anna,
        opened(tmp_path / "ben", founded=False) as ben,
        reachable(anna),
        reachable(ben),
        anna.inside() as annas,
        ben.inside() as bens,
    ):
        await join(anna, annas, ben, bens)
        async with served(ben) as address, chromium.opened() as browser:
            page = await browser.new_page(viewport={"width": 1100, "height": 800})
            await log_in(page, address, ben.tickets.link())
            await follow(page, "Chat", "Chat")
            await tab_to(page, page.get_by_label("Message", exact=True))
            await page.keyboard.type("The ladder is in the shed.")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("status").first).to_contain_text(
                "Delivered", timeout=PATIENCE
            )
        assert "The ladder is in the shed." in (await annas.get("chat")).text


async def test_a_plan_is_looked_at_and_accepted_by_keys(chromium: Chromium, tmp_path: Path) -> None:
    async with ruled(tmp_path / "home") as (found, running):
        do = running.operating.do
        await do("deploy", {"deployment": "shop", "manifest": shop(), "accept": True})
        await do("deploy", {"deployment": "shop", "manifest": shop(COUNTED)})
        async with served(found) as address, chromium.opened() as browser:
            page = await browser.new_page(viewport={"width": 1100, "height": 800})
            await log_in(page, address, found.tickets.link())
            await follow(page, "Contracts", "Contracts")
            await tab_to(page, page.get_by_role("link", name="shop@v1 for shop"))
            await page.keyboard.press("Enter")
            await tab_to(page, page.get_by_label("I have looked at what it changes"))
            await page.keyboard.press("Space")
            await tab_to(page, page.get_by_role("button", name="Accept", exact=True))
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("status").first).to_contain_text("Accepted for shop")
        assert (await do("plans/list", {"state": "pending"}))["plans"] == []
