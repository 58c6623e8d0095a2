"""A person with a real browser looks after agents, plans, services and the pipeline."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect
from tests.console.consoles import EVIL, served, with_parts
from tests.console.planes import COUNTED, Bench, buried, connected, post, relayed, shop, town
from tests.console.test_console_in_a_browser import examine, shots
from tests.console.test_console_pipeline import published

from accord.authority.contracts import builtins
from accord.fabric import Service
from accord.fabric.jobs import GiveUpError, JobContext
from accord.testing.browser import Chromium

pytestmark = pytest.mark.slow


async def heard(page: Page, complaints: list[str]) -> None:
    """Note what the browser complains about."""
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)


async def test_a_person_sees_deliveries_and_brings_dead_letters_back(
    chromium: Chromium, tmp_path: Path
) -> None:
    folder = shots(tmp_path)
    complaints: list[str] = []
    async with (
        # Eve is linked to nobody, and would only be counted.
        relayed(tmp_path / "home", sample=1.0) as relay,
        served(relay.found) as address,
        chromium.opened() as browser,
    ):
        page = await browser.new_page(viewport={"width": 1100, "height": 900})
        await heard(page, complaints)
        bearer = await relay.enrol()
        await buried(relay, "a", "b")
        await page.goto(f"{address}/console/login?link={relay.found.tickets.link()}")
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("link", name="Agents", exact=True).click()
        await relay.write(f"eve {EVIL}", "live-one")
        await expect(page.get_by_text("candidates.unlinked")).to_be_visible()
        async with connected(relay, bearer):
            await page.reload()
            await expect(page.get_by_text("connected", exact=True)).to_be_visible()
            await examine(page, "agents-full", folder)
        await page.get_by_role("link", name="Why: message of ann").first.click()
        await expect(page.get_by_role("heading", name="Delivered to echo")).to_be_visible()
        await examine(page, "agents-why", folder)
        await page.get_by_role("link", name="All agents").click()
        await page.get_by_role("button", name="Deliver all of echo again").click()
        await expect(page.get_by_role("status")).to_contain_text("2 will be delivered")
        await page.get_by_label("Agent", exact=True).first.fill("reader")
        await page.get_by_role("button", name="Make a token").click()
        await expect(page.get_by_role("heading", name="A token for reader")).to_be_visible()
        await examine(page, "agents-token", folder)
        assert complaints == []


async def test_a_person_decides_on_plans_and_watches_a_run(
    chromium: Chromium, tmp_path: Path
) -> None:
    folder = shots(tmp_path)
    complaints: list[str] = []
    async with town(tmp_path / "home") as here, chromium.opened() as browser:
        begun = asyncio.Event()
        service = Service(post(), key=await here.deploy(post()), authority=here.url)

        @service.job("carry")
        async def carry(_context: JobContext, _payload: Any) -> Any:
            begun.set()
            raise GiveUpError("there is no such street")

        propose = here.running.operating.do
        await propose(
            "deploy", {"deployment": "shop", "manifest": shop(cache=True), "accept": True}
        )
        await propose("deploy", {"deployment": "shop", "manifest": shop(COUNTED)})
        refused = {"stream": "relay.inbound", "rule": "envelope.shape", "reason": "bad"}
        published(here.found.home, [{**refused, "records": 41}])
        bench = Bench(here.found, tmp_path / "bench")
        found = with_parts(here.found, children=bench.children)
        async with served(found) as address:
            page = await browser.new_page(viewport={"width": 1100, "height": 900})
            await heard(page, complaints)
            await page.goto(f"{address}/console/login?link={found.tickets.link()}")
            await page.get_by_role("button", name="Log in").click()
            await page.get_by_role("link", name="Contracts", exact=True).click()
            await examine(page, "contracts-full", folder)
            await page.get_by_role("link", name="shop@v1 for shop").click()
            await examine(page, "contracts-plan", folder)
            await page.get_by_role("link", name="what differs").click()
            await page.get_by_text("A payload that shows it").first.click()
            await examine(page, "contracts-diff", folder)
            await page.go_back()
            await page.get_by_label("I have looked at what it changes").check()
            await page.get_by_role("button", name="Accept", exact=True).click()
            await expect(page.get_by_role("status")).to_contain_text("Accepted for shop")
            [digest, *_] = [
                each["digest"]
                for each in (await propose("catalog", {}))["catalog"]["contracts"]
                if each["id"] in builtins()
            ]
            await page.goto(f"{address}/console/contracts/contract?digest={digest}")
            await examine(page, "contracts-contract", folder)

            for version in (shop(cache=True), shop(COUNTED)):
                await propose("registry/push", {"manifest": version, "by": "ci"})
            await page.get_by_role("link", name="Registry", exact=True).click()
            await examine(page, "registry-full", folder)
            await page.get_by_role("link", name="shop@v1").click()
            await expect(page.get_by_role("heading", name="not compatible")).to_be_visible()
            await examine(page, "registry-contract", folder)

            await page.get_by_role("link", name="Services", exact=True).click()
            await examine(page, "services-full", folder)
            await page.get_by_role("button", name="Admit it").click()
            async with service.connect() as session:
                await session.jobs("carry").submit({})
                await begun.wait()
            await page.get_by_role("link", name="All jobs").click()
            await expect(page.get_by_text("no such street")).to_be_visible()
            await examine(page, "services-jobs", folder)
            await page.get_by_role("button", name="Dismiss").click()
            await expect(page.get_by_role("status")).to_contain_text("is dismissed.")

            await page.get_by_role("link", name="Pipeline", exact=True).click()
            await page.get_by_role("button", name="Run it now").click()
            await expect(page.get_by_text("starting Spark")).to_be_visible()
            await examine(page, "pipeline-running", folder)
            bench.go()
            await expect(page.get_by_label("What it came to")).to_contain_text("Published version")
            await expect(page.get_by_role("heading", name="The last command")).to_be_visible()
            await page.get_by_text("Another policy").click()
            await page.get_by_label("Policy, as JSON").fill(json.dumps({"/relay/policy": []}))
            await page.get_by_role("button", name="Ask", exact=True).first.click()
            await expect(page.get_by_role("status")).to_contain_text("whatif policy")
            await examine(page, "pipeline-full", folder)
            await page.emulate_media(color_scheme="dark")
            await page.set_viewport_size({"width": 360, "height": 700})
            for path in ("agents", "contracts", "services", "pipeline"):
                await page.goto(f"{address}/console/{path}")
                await examine(page, f"{path}-full-phone", folder)
                width = await page.evaluate("document.documentElement.scrollWidth")
                assert width <= 360, path
        await bench.ended()
        assert complaints == []
