"""Finding pages, people, documents, posts and messages by their names."""

from pathlib import Path

from playwright.async_api import expect
from tests.console.consoles import opened, served
from tests.console.test_console_in_a_browser import examine, shots

from accord.console.pages.find import Hit, find
from accord.testing.browser import Chromium

PAGES = [Hit("page", "Members", "/m", "People"), Hit("page", "Market", "/k", "People")]
POSTS = [Hit("post", "Ladder to lend", "/l", "offer"), Hit("post", "A long ladder", "/g", "offer")]


def test_without_words_the_pages_are_listed_and_nothing_else() -> None:
    assert find("", [*POSTS, *PAGES]) == PAGES


def test_every_word_must_be_there_whatever_its_case() -> None:
    assert find("LADDER long", POSTS) == [POSTS[1]]
    assert find("ladder boat", POSTS) == []


def test_what_begins_with_the_words_comes_first() -> None:
    assert find("ladder", [POSTS[1], POSTS[0]]) == [POSTS[0], POSTS[1]]


def test_a_kind_narrows_what_is_found() -> None:
    assert find("page mar", [*POSTS, *PAGES]) == [PAGES[1]]


async def test_members_posts_and_forms_are_found_and_escaped(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await browser.get("market")
        await browser.send(
            "market/post", {"title": "<b>Ladder</b>", "category": "offer", "days": "1"}
        )
        told = (await browser.get("find?q=ladder")).text
        assert "&lt;b&gt;Ladder&lt;/b&gt;" in told
        assert "<b>Ladder" not in told
        assert "/console/members#invite" in (await browser.get("find?q=invite")).text


async def test_a_community_that_is_away_is_named_and_pages_are_still_found(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        found.is_up = False
        told = (await browser.get("find?q=market")).text
        assert "cannot be reached now: the community" in told
        assert 'href="/console/market"' in told


async def test_ctrl_k_opens_the_search_and_enter_goes_to_the_first_hit(
    chromium: Chromium, tmp_path: Path
) -> None:
    async with (
        opened(tmp_path / "home") as found,
        served(found) as address,
        chromium.opened() as browser,
    ):
        page = await browser.new_page()
        await page.goto(f"{address}/console/login?link={found.tickets.link()}")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="Needs attention").wait_for()
        await page.keyboard.press("Control+k")
        dialog = page.get_by_role("dialog", name="Find")
        await expect(dialog.get_by_role("link", name="Members")).to_be_visible()
        await examine(page, "palette", shots(tmp_path))
        await page.keyboard.type("invite")
        await expect(dialog.get_by_role("link")).to_have_count(1)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Invite somebody")).to_be_visible()


async def test_one_button_shows_the_commands_of_all_pages(
    chromium: Chromium, tmp_path: Path
) -> None:
    async with (
        opened(tmp_path / "home") as found,
        served(found) as address,
        chromium.opened() as browser,
    ):
        page = await browser.new_page()
        await page.goto(f"{address}/console/login?link={found.tickets.link()}")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="Needs attention").wait_for()
        await expect(page.locator(".command").first).to_be_hidden()
        await page.get_by_role("button", name="Show the commands").click()
        await expect(page.locator(".command").first).to_be_visible()
        await page.get_by_role("link", name="Market", exact=True).click()
        await expect(page.locator(".command").first).to_be_visible()
