"""A person with a real browser asks the tables, and sees versions and jobs as they went."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect
from tests.console.consoles import served
from tests.console.planes import COUNTED, post, shop, town
from tests.console.test_console_in_a_browser import examine, shots
from tests.console.test_console_registry import buyer
from tests.console.test_console_tables import NOON, release

from accord.fabric import Service
from accord.fabric.jobs import GiveUpError, JobContext
from accord.testing.browser import Chromium

pytestmark = pytest.mark.slow

QUESTION = "SELECT day, sum(messages) AS messages FROM traffic GROUP BY day ORDER BY day"


async def test_tables_versions_and_jobs_are_looked_at(chromium: Chromium, tmp_path: Path) -> None:
    folder = shots(tmp_path)
    complaints: list[str] = []
    async with town(tmp_path / "home") as here, chromium.opened() as browser:
        do, begun = here.running.operating.do, asyncio.Event()
        service = Service(post(), key=await here.deploy(post()), authority=here.url)

        @service.job("carry")
        async def carry(_context: JobContext, _payload: Any) -> Any:
            begun.set()
            raise GiveUpError("there is no such street")

        for version in (shop(), shop(cache=True), shop(COUNTED)):
            await do("registry/push", {"manifest": version, "by": "ci"})
        await do("deploy", {"deployment": "shop", "manifest": shop(), "accept": True})
        await do("deploy", {"deployment": "buyer", "manifest": buyer(), "accept": True})
        days = [{"day": f"2026-11-{n:02}", "messages": 7 * n % 23} for n in range(1, 19)]
        member = {"node_id": "n", "display_name": "Anna", "at_ms": NOON}
        release(here.found.home, traffic=days * 4, members=[member])
        async with served(here.found) as address:
            page = await browser.new_page(viewport={"width": 1100, "height": 900})
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on(
                "console",
                lambda line: complaints.append(line.text) if line.type == "error" else None,
            )
            await page.goto(f"{address}/console/login?link={here.found.tickets.link()}")
            await page.get_by_role("button", name="Log in").click()
            await page.get_by_role("link", name="Tables", exact=True).click()
            await examine(page, "tables-full", folder)
            await page.get_by_role("link", name="members", exact=True).click()
            await examine(page, "tables-table", folder)
            await page.get_by_label("Question, in DuckDB's SQL").fill(QUESTION)
            await page.get_by_role("button", name="Ask", exact=True).click()
            await expect(page.get_by_text("Rows 1 to 18, and no more")).to_be_visible()
            await page.get_by_role("button", name="Draw").click()
            await expect(page.locator("p", has_text="messages by day: 18 values")).to_be_visible()
            await examine(page, "tables-query", folder)
            asked = page.url
            async with page.expect_download() as told:
                await page.get_by_role("link", name="Download all as CSV").click()
            file = await (await told.value).path()
            assert file.read_text().splitlines()[0] == "day,messages"

            await page.goto(f"{address}/console/registry/contract?id=shop@v1")
            await page.get_by_role("link", name="may fail for").click()
            await expect(page.get_by_role("heading", name="not compatible")).to_be_visible()
            await examine(page, "registry-graph", folder)
            await page.goto(f"{address}/console/services")
            await page.get_by_role("button", name="Admit it").click()
            async with service.connect() as session:
                await session.jobs("carry").submit({})
                await begun.wait()
            await page.get_by_role("link", name="All jobs").click()
            await expect(page.get_by_text("no such street")).to_be_visible()
            await page.get_by_role("link", name="What happened to").click()
            await expect(page.get_by_text("Failed for good")).to_be_visible()
            await examine(page, "services-job", folder)
            job = page.url

            await page.emulate_media(color_scheme="dark")
            await page.set_viewport_size({"width": 360, "height": 700})
            for name, url in (
                ("tables", f"{address}/console/tables"),
                ("tables-table", f"{address}/console/tables/table?name=members"),
                ("tables-query", asked),
                ("registry-graph", f"{address}/console/registry/contract?id=shop@v1"),
                ("services-job", job),
            ):
                await page.goto(url)
                await examine(page, f"{name}-phone", folder)
                width = await page.evaluate("document.documentElement.scrollWidth")
                assert width <= 360, name
        assert complaints == []
