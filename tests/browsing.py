"""What a person does on the page of the web chat."""

import asyncio

from playwright.async_api import Page, expect


async def join(page: Page, url: str, name: str) -> None:
    await page.goto(url)
    await page.get_by_label("Name").fill(name)
    await page.get_by_role("button", name="Join").click()
    await page.get_by_role("button", name="I have kept it").click()


async def enter(page: Page, chat: str) -> None:
    await page.get_by_role("button", name=chat).click()
    await expect(page.locator("#room h1")).to_have_text(chat)


async def say(page: Page, text: str) -> None:
    """Write a message and send it, again and again until the page says that it was sent."""
    field = page.locator("#room textarea")
    await field.fill(text)
    while True:
        await field.press("Enter")
        try:
            await expect(field).to_have_value("", timeout=2000)
        except AssertionError:
            await asyncio.sleep(0.1)
        else:
            return
