"""A person with a real browser talks to an agent behind a gateway."""

from pathlib import Path

from playwright.async_api import expect
from tests.browsing import enter, join, say
from tests.relay.webchat.test_webchat_end_to_end import connector, echo_agent

from accord.testing.browser import Chromium


async def test_a_person_joins_links_an_account_and_reads_a_streamed_answer(
    chromium: Chromium, tmp_path: Path
) -> None:
    async with (
        connector(str(tmp_path), tmp_path / "relay.key") as whole,
        echo_agent(whole),
        chromium.opened() as browser,
    ):
        invite = (await whole.chat.admin.invite(whole.space.id)).url.partition("#")[2]
        code = (await whole.control.link(await whole.control.principal("echo"))).code
        page = await browser.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await join(page, f"{whole.url}/chat/#{invite}", "ann")
        await expect(page.locator("#me")).to_have_text("ann")
        said = page.locator("#room .messages .text")

        await enter(page, "@accord")
        await say(page, f"/link {code}")
        await expect(said.last).to_contain_text("or no to cancel.")
        await say(page, "yes")
        await expect(said.last).to_contain_text("to undo it.")

        await enter(page, "# general")
        await say(page, "@accord one **two** three")
        await expect(said.last).to_have_text("you said: @accord one two three")
        await expect(page.locator("#room .author").last).to_have_text("echo")
        await expect(page.locator("#room .badge").last).to_have_text("bot @accord")
        await expect(page.locator("#room .messages .text strong")).to_have_text(["two", "two"])

        await say(page, "@accord <img src=x onerror=alert(1)>")
        await expect(said.last).to_have_text("you said: @accord <img src=x onerror=alert(1)>")
        assert await page.locator("#room img").count() == 0

        await page.reload()
        await enter(page, "# general")
        await expect(said).to_have_count(4)
        assert complaints == []


async def test_texts_and_names_take_their_own_direction(chromium: Chromium, tmp_path: Path) -> None:
    async with (
        connector(str(tmp_path), tmp_path / "relay.key") as whole,
        chromium.opened() as browser,
    ):
        invite = (await whole.chat.admin.invite(whole.space.id)).url.partition("#")[2]
        page = await browser.new_page()
        await join(page, f"{whole.url}/chat/#{invite}", "דוד לוי")
        await expect(page.locator("#me")).to_have_text("דוד לוי")
        await enter(page, "# general")
        await page.locator("#room textarea").fill("שלום לכולם")
        await expect(page.locator("#room textarea")).to_have_css("direction", "rtl")
        await say(page, "שלום **לכולם**, Accord!")
        said = page.locator("#room .messages .text p")
        await expect(said.last).to_have_css("direction", "rtl")
        await expect(page.locator("#room .author").last).to_have_css("direction", "rtl")
        await say(page, "hello everybody")
        await expect(said).to_have_count(2)
        await expect(said.last).to_have_css("direction", "ltr")
