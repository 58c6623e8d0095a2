"""Every page with much to show, on a phone and on a desk: nothing is cut off, nothing hides."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect
from tests.console.consoles import Opened, served, with_parts
from tests.console.planes import COUNTED, buried, proposed, relayed, ruling, shop
from tests.console.test_console_pipeline import published

from accord.console import PlaneHealth
from accord.console.pages import PAGES
from accord.testing.browser import Chromium

pytestmark = pytest.mark.slow

LONG = "01ARZ3NDEKTSV4RRFFQ69G5FAV" * 3
WITH_TABLES = {*("files", "members", "agents", "contracts", "registry", "pipeline", "log")}

# A cell is cut off where it reaches out of the region that its table scrolls in, or holds more
# than it shows.
CUT_OFF = """() => [...document.querySelectorAll("th, td")].filter((cell) => {
  const { left, right, width } = cell.getBoundingClientRect();
  if (!width) return false;
  const region = cell.closest(".wide").getBoundingClientRect();
  return left < region.left - 1 || right > region.right + 1
    || cell.scrollWidth > cell.clientWidth + 1;
}).map((cell) => cell.textContent.trim())"""

# What a cell of a table that has just arrived is known as when it is first painted.
ARRIVING = """() => new Promise((tell) => {
  const table = document.createElement("table");
  table.innerHTML = "<thead><tr><th>Day<tbody><tr><td>Monday";
  document.querySelector("main").append(table);
  requestAnimationFrame(() => tell(table.querySelector("td").getAttribute("role")));
})"""


@asynccontextmanager
async def furnished(home: Path) -> AsyncIterator[tuple[Opened, list[str]]]:
    """A console whose every table has rows, and the pages below its pages."""
    async with relayed(home) as relay, ruling(relay.found) as (found, running):
        acts = [
            {"at": "2026-01-01T00:00:00Z", "what": "community.member.invited", "plane": "relay"}
            | {"who": LONG, "about": f"in {LONG}, by {LONG}", "why": LONG, "result": "refused"}
        ]

        async def audit(_most: int) -> list[dict[str, Any]]:
            return acts

        found = with_parts(found, audit=audit)
        found.planes.append(
            PlaneHealth(
                "relay",
                "ready",
                True,
                parts=(PlaneHealth(f"memory {LONG}", "troubled", False, LONG),),
            )
        )
        await relay.enrol()
        await buried(relay, f"letter-{LONG}")
        await relay.write(LONG, "unheard")
        await running.operating.do(
            "deploy", {"deployment": "shop", "manifest": shop(), "accept": True}
        )
        for version in (shop(), shop(COUNTED)):
            said = {"manifest": version, "by": LONG, "note": LONG}
            await running.operating.do("registry/push", said)
        plan = await proposed(running, shop(COUNTED, cache=True))
        published(home, [{"stream": "x", "rule": "envelope.shape", "reason": LONG, "records": 1}])
        async with found.inside() as browser:
            given = {"corpus": "library", "title": LONG}
            file = {"file": ("water.md", b"Rain water must be boiled.", "text/markdown")}
            await browser.send("files/add", given, files=file)
        [cid] = found.parts.blobs.cids()
        below = [
            "agents/why?event=unheard",
            f"files/document/{cid}",
            "services/jobs",
            f"contracts/plan?id={plan['id']}",
            f"contracts/contract?digest={plan['digest']}",
            "registry/contract?id=shop@v1",
        ]
        yield found, below


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
async def test_no_page_scrolls_sideways_and_no_cell_of_a_table_is_cut_off(
    chromium: Chromium, tmp_path: Path, width: int, height: int
) -> None:
    async with (
        furnished(tmp_path / "home") as (found, below),
        served(found) as address,
        chromium.opened() as browser,
    ):
        page = await browser.new_page(viewport={"width": width, "height": height})
        await page.goto(f"{address}/console/login?link={found.tickets.link()}")
        await page.get_by_role("button", name="Log in").click()
        shown = set()
        for place in [*(each.slug for each in PAGES), *below]:
            await page.goto(f"{address}/console/{place}")
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
            if await page.locator("table.told td:visible").count():
                shown.add(place or "home")
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, place
            assert await page.evaluate(CUT_OFF) == [], place
        assert shown >= WITH_TABLES
        assert await page.evaluate(ARRIVING) == "cell"
