"""What somebody does in the first minutes with a real station, its models and Spark included."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect
from tests.browsing import enter, join, say
from tests.console.test_console_in_a_browser import examine, shots
from typer.testing import CliRunner

from accord.cli import app
from accord.testing.browser import Chromium
from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

WHOLE = {
    "ACCORD_COMMUNITY__FOUND": "Our street",
    "ACCORD_AUTHORITY__ENABLED": "true",
    "ACCORD_CONCIERGE__ENABLED": "true",
    "ACCORD_COMMUNITY__PORT": "0",
    "ACCORD_PIPELINE__EXPORT_SECONDS": "1",
}
LADDERS = "A ladder must lean at an angle of four to one. Two people carry the long ladder.\n"
SLOW = 120_000.0
"""Milliseconds that a small model, or Spark, may take on a busy machine."""


@contextmanager
def station(home: Path) -> Iterator[str]:
    """A station as `accord up` starts it; gives the link into its console."""
    words = ("-m", "accord.cli", "up", "--json", "--port", "0", "--home", str(home))
    with python_child(*words, env=WHOLE) as child:
        told = json.loads(child.read_line())
        deadline = time.monotonic() + 60
        while httpx.get(f"{told['address']}/readyz").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield told["console"]
        child.terminate()
        assert child.wait() == 0


def invited(home: Path) -> str:
    words = ["relay", "chat", "invite", "--space", "lobby", "--home", str(home)]
    return CliRunner().invoke(app, words).stdout.strip()


async def go(page: Page, name: str) -> None:
    await page.get_by_role("link", name=name, exact=True).first.click()
    await expect(page.get_by_role("heading", level=1)).to_be_visible()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_the_first_minutes_of_a_newcomer(chromium: Chromium, tmp_path: Path) -> None:
    home, folder = tmp_path / "home", shots(tmp_path)
    (tmp_path / "Ladders.md").write_text(LADDERS)
    with station(home) as link:
        async with chromium.opened() as browser:
            page = await browser.new_page(viewport={"width": 1100, "height": 900})
            await page.goto(link)
            await page.get_by_role("button", name="Log in").click()
            await expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()
            await examine(page, "newcomer-home", folder)

            await go(page, "Files")
            await page.get_by_label("File", exact=True).set_input_files(tmp_path / "Ladders.md")
            await page.get_by_label("Licence").fill("CC0-1.0")
            await page.get_by_role("button", name="Add it", exact=True).click()
            await expect(page.get_by_role("status")).to_contain_text("Ladders is in library")
            await go(page, "Ask")
            await page.get_by_label("Question").fill("At what angle must a ladder lean?")
            await page.get_by_role("button", name="Ask", exact=True).click()
            cited = page.get_by_role("link", name="Ladders", exact=True)
            await expect(cited).to_be_visible(timeout=SLOW)
            await expect(page.locator(".answer")).to_contain_text(re.compile(r"\w"), timeout=SLOW)
            await examine(page, "newcomer-ask", folder)

            await go(page, "Market")
            await page.get_by_label("Title").fill("Ladder to lend")
            await page.get_by_role("button", name="Post it", exact=True).click()
            await page.get_by_label("Find by meaning").fill("something to climb with")
            await page.get_by_role("button", name="Find", exact=True).click()
            await expect(page.get_by_role("heading", name="Ladder to lend")).to_be_visible()
            await examine(page, "newcomer-market", folder)

            chat = await browser.new_page()
            await join(chat, await asyncio.to_thread(invited, home), "ann")
            await enter(chat, "# concierge")
            await chat.wait_for_timeout(1500)  # until the lobby has noticed who came in
            await say(chat, "At what angle must a ladder lean?")
            await expect(chat.get_by_text("Sources").first).to_be_visible(timeout=SLOW)
            await go(page, "Agents")
            await page.get_by_role("link", name=re.compile("Why: message of")).first.click()
            heading = page.get_by_role("heading", name="Delivered to concierge")
            await expect(heading).to_be_visible()
            await examine(page, "newcomer-why", folder)

            await go(page, "Contracts")
            await page.get_by_role("link", name="accord.community@v1 for bridge").click()
            await page.get_by_label("I have looked at what it changes").check()
            await page.get_by_role("button", name="Accept", exact=True).click()
            await expect(page.get_by_role("status")).to_contain_text("Accepted for bridge")

            await go(page, "Pipeline")
            await page.get_by_role("button", name="Run it now").click()
            came_to = page.get_by_label("What it came to")
            await expect(came_to).to_contain_text("Published version", timeout=2 * SLOW)
            await page.reload()
            await examine(page, "newcomer-pipeline", folder)
            await page.get_by_role("button", name="Make a report").click()
            made = page.locator("p", has_text=re.compile("report --out report.html, since"))
            await expect(made).to_contain_text("done", timeout=2 * SLOW)
            await page.goto(f"{link.partition('/login')[0]}/pipeline/report", timeout=SLOW)
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
            await page.screenshot(path=folder / "newcomer-report.png", full_page=True)
