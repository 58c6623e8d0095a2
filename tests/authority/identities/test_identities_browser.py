"""A login in a real browser, whose rules about forms, cookies and policies are its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from playwright.async_api import expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from tests.authority.identities.conftest import PASSWORD, READ

from accord.contracts import digest
from accord.contracts.session_proof import flow_message, login_message, prove, session_key
from accord.kernel.signing import SigningKey
from accord.station import listener
from accord.testing.browser import Chromium


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[int]:
    """Serve an application on a free port of loopback."""
    with listener.bind("127.0.0.1", 0) as bound:
        server = listener.Listener(app)
        serving = asyncio.create_task(server.serve([bound]))
        await server.serving.wait()
        try:
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


async def back(request: Request) -> Response:
    return PlainTextResponse(f"back with {request.query_params.get('flowId')}")


async def test_a_person_logs_in_agrees_and_is_sent_back_to_the_app(
    chromium: Chromium, web: Any, client: Any
) -> None:
    ann = await web.house.person("Ann", READ)
    await web.house.identities.login.set_password(ann.id, PASSWORD)
    key, manifest = SigningKey.generate(), client("Notes.List")
    async with (
        listening(web.app) as authority,
        listening(Starlette(routes=[Route("/back", back)])) as page_of_app,
        chromium.opened() as browser,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{authority}") as http,
    ):
        # Another host than the authority's, so that it is another origin and another site.
        redirect_to = f"http://localhost:{page_of_app}/back"
        begun = await http.post(
            "/auth/v1/logins",
            json={
                "sessionKey": session_key(key),
                "redirectTo": redirect_to,
                "contractDigest": digest(manifest),
                "manifest": manifest,
                "sig": prove(key, login_message(redirect_to)),
            },
        )
        page = await browser.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        await page.goto(begun.json()["loginUrl"])
        await page.get_by_label("Name").fill("Ann")
        await page.get_by_label("Password").fill(PASSWORD)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("heading")).to_have_text("Let Desk <b> act for you?")
        colour = await page.get_by_role("button", name="Allow").evaluate(
            "button => getComputedStyle(button).backgroundColor"
        )
        assert colour == "rgb(47, 111, 79)"
        await page.get_by_role("button", name="Allow").click()
        await page.wait_for_url(f"{redirect_to}?flowId=*")
        flow = (await page.inner_text("body")).removeprefix("back with ")
        bound = await http.post(
            f"/auth/v1/flows/{flow}/bind",
            json={"sessionKey": session_key(key), "sig": prove(key, flow_message(flow))},
        )
        assert bound.status_code == 200
        assert [each for each in complaints if "favicon" not in each] == []
