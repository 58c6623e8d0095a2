"""A person with a real browser does what the console is for, and every page is accessible."""

import os
import re
from importlib.resources import files
from pathlib import Path

from playwright.async_api import ConsoleMessage, Page, Request, expect
from tests.console.consoles import opened, served

from accord.console.pages import PAGES
from accord.console.sessions import Role
from accord.kernel.signing import SigningKey
from accord.testing.browser import Chromium

WATER = "Rain water from the roof must be boiled for five minutes before drinking.\n"


def shots(tmp_path: Path) -> Path:
    """Where pictures of the pages are kept."""
    folder = Path(os.environ.get("CONSOLE_SHOTS", tmp_path / "shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def examine(page: Page, name: str, folder: Path) -> None:
    """Keep a picture, and let axe find what would shut somebody out."""
    await page.screenshot(path=folder / f"{name}.png", full_page=True)
    await page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
    told = await page.evaluate("axe.run()")
    grave = [
        (each["id"], [node["html"] for node in each["nodes"]][:3])
        for each in told["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert grave == [], name


async def test_a_person_logs_in_asks_a_new_document_posts_and_invites(
    chromium: Chromium, tmp_path: Path
) -> None:
    folder = shots(tmp_path)
    (tmp_path / "Water.md").write_text(WATER)
    async with (
        opened(tmp_path / "home") as found,
        served(found) as address,
        chromium.opened() as browser,
    ):
        page = await browser.new_page()
        complaints: list[str] = []
        foreign: list[str] = []

        def listen(line: ConsoleMessage) -> None:
            if line.type == "error":
                complaints.append(line.text)

        def look(sent: Request) -> None:
            if not sent.url.startswith(f"{address}/console/"):
                foreign.append(sent.url)

        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", listen)
        page.on("request", look)
        await page.goto(f"{address}/console/login?link={found.tickets.link()}")
        await examine(page, "login", folder)
        await page.keyboard.press("Enter")  # the button has the focus
        await expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()

        await page.get_by_role("link", name="Files", exact=True).click()
        await page.get_by_label("File", exact=True).set_input_files(tmp_path / "Water.md")
        await page.get_by_label("Licence").fill("CC0-1.0")
        await page.get_by_role("button", name="Add it", exact=True).click()
        await expect(page.get_by_role("status")).to_contain_text("Water is in library")

        await page.get_by_role("link", name="Ask", exact=True).click()
        await page.get_by_label("Question").fill("How long must rain water be boiled?")
        await page.get_by_role("button", name="Ask", exact=True).click()
        await expect(page.locator(".answer")).to_contain_text("Boil it first")
        await expect(page.locator(".answer")).to_contain_text("<script>")
        await expect(page.get_by_role("heading", name="Sources")).to_be_visible()
        await examine(page, "ask-answered", folder)
        await page.get_by_role("link", name="Open passage 1 in Water").click()
        await expect(page.locator("mark")).to_contain_text("boiled for five minutes")
        await examine(page, "document", folder)

        await page.get_by_role("link", name="Market", exact=True).click()
        await page.get_by_label("Title").fill("Ladder to lend")
        await page.get_by_role("button", name="Post it", exact=True).click()
        await page.get_by_label("Find by meaning").fill("ladder")
        await page.get_by_role("button", name="Find", exact=True).click()
        await expect(page.get_by_role("heading", name="Ladder to lend")).to_be_visible()

        await page.get_by_role("link", name="Members", exact=True).click()
        await page.get_by_label("Id of their station").fill(SigningKey.generate().id)
        await page.get_by_role("button", name="Invite", exact=True).click()
        await expect(page.get_by_role("img", name="The link as a QR code")).to_be_visible()
        await examine(page, "invited", folder)

        log = found.parts.log_file
        assert log is not None
        log.parent.mkdir()
        log.write_text('{"event": "a plane starts", "level": "info", "timestamp": ""}\n')
        await page.get_by_role("link", name="Log", exact=True).click()
        with log.open("a") as more:
            more.write('{"event": "and lives", "level": "warning", "timestamp": ""}\n')
        await expect(page.get_by_role("log")).to_contain_text("and lives")
        assert complaints == []
        assert foreign == []


async def test_every_page_is_accessible_light_dark_and_on_a_phone(
    chromium: Chromium, tmp_path: Path
) -> None:
    folder = shots(tmp_path)
    async with (
        opened(tmp_path / "home") as found,
        served(found) as address,
        chromium.opened() as browser,
    ):
        page = await browser.new_page(viewport={"width": 1100, "height": 800})
        await page.goto(f"{address}/console/login?link={found.tickets.link()}")
        await page.get_by_role("button", name="Log in").click()
        for each in PAGES:
            await page.goto(f"{address}{each.path}")
            await expect(page.get_by_role("heading", level=1)).to_have_text(each.title)
            await examine(page, each.slug or "home", folder)
        await page.emulate_media(color_scheme="dark")
        await page.set_viewport_size({"width": 360, "height": 700})
        for each in PAGES:
            await page.goto(f"{address}{each.path}")
            await expect(page.get_by_role("heading", level=1)).to_have_text(each.title)
            await examine(page, f"{each.slug or 'home'}-phone", folder)
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= 360, each.title


async def test_an_open_page_shows_what_others_do_without_being_loaded_again(
    chromium: Chromium, tmp_path: Path
) -> None:
    async with (
        opened(tmp_path / "home") as found,
        served(found) as address,
        chromium.opened() as browser,
    ):
        page = await browser.new_page()
        asked: list[str] = []
        page.on("request", lambda sent: asked.append(sent.url))
        await page.goto(f"{address}/console/login?link={found.tickets.link()}")
        await page.get_by_role("button", name="Log in").click()
        async with page.expect_request("**/market/live?*"):
            await page.goto(f"{address}/console/market")
        await page.get_by_label("Title").fill("half written")
        before = asked.count(f"{address}/console/market")
        async with found.inside() as other:
            for title in ("Ladder", "Saw"):
                post = {"title": title, "category": "offer", "days": "7"}
                await other.send("market/post", post)
                await expect(page.get_by_role("heading", name=title)).to_be_visible()
        assert asked.count(f"{address}/console/market") <= before + 2  # nobody asks in vain
        await expect(page.get_by_label("Title")).to_have_value("half written")
        assert sum("market/live" in each for each in asked) == 1


async def test_after_until_stands_a_date_and_no_distance(
    chromium: Chromium, tmp_path: Path
) -> None:
    async with (
        opened(tmp_path / "home") as found,
        served(found) as address,
        chromium.opened() as browser,
    ):
        page = await browser.new_page(locale="en-GB")
        await page.goto(f"{address}/console/login?link={found.tickets.link()}")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()
        await page.goto(f"{address}/console/users")
        await page.get_by_label("Name").fill("anna")
        await page.get_by_role("button", name="Add, and make a login link").click()
        until = page.locator("time.date").first
        await expect(until).to_have_attribute("title", re.compile(r"UTC\)$"))
        told = await until.text_content()
        assert told is not None
        assert re.search(r"20[0-9]{2}", told), told
        assert not told.startswith("in "), told
        # Elsewhere times are distances, also in the language of the page.
        ends = page.locator("tbody tr time:not(.date)").last
        await expect(ends).to_have_text(re.compile(r"in \d+ \w+"))


async def test_who_logs_out_sees_the_button_whatever_the_height(
    chromium: Chromium, tmp_path: Path
) -> None:
    async with (
        opened(tmp_path / "home") as found,
        served(found) as address,
        chromium.opened() as browser,
    ):
        page = await browser.new_page()
        await page.goto(f"{address}/console/login?link={found.tickets.link()}")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()
        button = page.get_by_role("button", name="Log out")
        for width, height in ((1280, 800), (1280, 420), (800, 600), (390, 844), (320, 568)):
            await page.set_viewport_size({"width": width, "height": height})
            box = await button.bounding_box()
            assert box is not None
            assert box["x"] >= 0, (width, height)
            assert box["x"] + box["width"] <= width, (width, height)
            assert box["y"] + box["height"] <= height, (width, height)
            if width >= 960:
                # The last page of the list is reached by scrolling within the list.
                last = page.get_by_role("link", name="Log", exact=True)
                await last.scroll_into_view_if_needed()
                await expect(last).to_be_in_viewport()
        await page.set_viewport_size({"width": 1280, "height": 420})
        await examine(page, "low-window", shots(tmp_path))
        await button.click()
        await expect(page.get_by_text("To log in you need a one-time link.")).to_be_visible()


async def test_first_steps_that_one_user_hides_are_there_for_another(
    chromium: Chromium, tmp_path: Path
) -> None:
    async with (
        opened(tmp_path / "home") as found,
        served(found) as address,
        chromium.opened() as browser,
    ):
        assert found.parts.users is not None
        await found.parts.users.add("anna", Role.OPERATOR)
        page = await browser.new_page()
        steps = page.get_by_role("heading", name="First steps")

        async def log_in(user: str) -> None:
            await page.goto(f"{address}/console/login?link={found.tickets.link(user)}")
            await page.get_by_role("button", name="Log in").click()
            await expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()

        await log_in("anna")
        await page.get_by_role("button", name="Hide these steps").click()
        await page.reload()
        await expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()
        await expect(steps).to_be_hidden()
        await page.get_by_role("button", name="Log out").click()
        await log_in("")
        await expect(steps).to_be_visible()
