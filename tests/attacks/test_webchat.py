"""A guest of the web chat who pretends to be somebody else, or comes from many addresses."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select, update
from starlette.applications import Starlette

from accord.kernel.clock import SystemClock
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat import WebChat, open_webchat
from accord.relay.platforms.webchat.tables import accounts

Join = Callable[[str], Awaitable[httpx.Response]]


@pytest.fixture
async def chat(tmp_path: Path) -> AsyncIterator[WebChat]:
    async with open_webchat(str(tmp_path / "stores"), SystemClock()) as opened:
        await opened.admin.create_space("home")
        yield opened


def client(chat: WebChat, address: str) -> httpx.AsyncClient:
    """A browser at an address."""
    transport = httpx.ASGITransport(Starlette(routes=chat.platforms[0].routes), client=(address, 1))
    url = "http://chat.test"
    headers = {"x-accord-chat": "1", "origin": url}
    return httpx.AsyncClient(transport=transport, base_url=f"{url}/chat/api/", headers=headers)


@pytest.fixture
def join(chat: WebChat) -> Join:
    """Joins by an invitation under a name, each time from another address."""
    number = 0

    async def joined(name: str) -> httpx.Response:
        nonlocal number
        number += 1
        (space, *_) = await chat.admin.spaces()
        made = await chat.admin.invite(space.id)
        async with client(chat, f"192.0.2.{number}") as browser:
            body = {"invite": made.url.partition("#invite=")[2], "name": name}
            return await browser.post("join", json=body)

    return joined


LOOKALIKES = {
    "cyrillic": "\u0430nn1",
    "digit for letter": "annl",
    "capital i": "annI",
    "fullwidth": "\uff41nn1",
    "all capitals": "ANN1",
}


@pytest.mark.parametrize("name", LOOKALIKES.values(), ids=LOOKALIKES.keys())
async def test_nobody_is_called_like_somebody_else_to_the_eye(join: Join, name: str) -> None:
    assert (await join("ann1")).status_code == 200
    refused = await join(name)
    assert (refused.status_code, refused.json()["error"]) == (409, "conflict")


OFFICIAL = ["concierge", "Concierge", "CONCIERGE", "\u0441oncierge", "c\u043encierge", "conc1erge"]
OFFICIAL += ["concierge.", "concierge'", "con-cierge", "con.cierge", "concierge\u0332"]
OFFICIAL += ["operator", "\u041eperator", "system", "admin", "Support", "accord"]


@pytest.mark.parametrize("name", ["O\u2019Brien", "O\u02bcBrien", "0'Brien", "O'Brien."])
async def test_apostrophes_and_points_tell_nobody_apart(join: Join, name: str) -> None:
    assert (await join("O'Brien")).status_code == 200
    assert (await join(name)).status_code == 409


@pytest.mark.parametrize("name", OFFICIAL)
async def test_nobody_is_called_like_the_station_itself(join: Join, name: str) -> None:
    assert (await join(name)).status_code in (400, 409)


async def test_nobody_is_called_like_an_agent_that_has_a_space(chat: WebChat, join: Join) -> None:
    await chat.admin.create_space("librarian")
    assert (await join("librarian")).status_code == 409
    assert (await join("l\u0456br\u0430ri\u0430n")).status_code == 409
    assert (await join("library")).status_code == 200


async def test_no_bot_is_called_like_somebody(chat: WebChat, join: Join) -> None:
    assert (await join("ann1")).status_code == 200
    with pytest.raises(RelayError) as caught:
        await chat.admin.make_bot("\u0430nn1")
    assert caught.value.code is Code.CONFLICT


async def test_names_that_an_older_process_wrote_are_compared_too(
    chat: WebChat, join: Join
) -> None:
    assert (await join("ann1")).status_code == 200
    await chat.admin._changes.change(
        lambda change: change.connection.execute(update(accounts).values(look_key=None))
    )
    assert (await join("\u0430nn1")).status_code == 409
    names = await chat.admin._changes.read(
        lambda c: list(c.execute(select(accounts.c.name)).scalars())
    )
    assert "\u0430nn1" not in names


async def test_one_ipv6_network_has_the_tries_of_one_address(chat: WebChat) -> None:
    statuses = []
    for number in range(40):
        async with client(chat, f"2001:db8:1:2::{number:x}") as browser:
            statuses.append((await browser.post("login", json={"key": "guess"})).status_code)
    assert set(statuses[:5]) == {401}
    assert statuses[-1] == 429
    async with client(chat, "2001:db8:1:3::1") as neighbour:
        assert (await neighbour.post("login", json={"key": "guess"})).status_code == 401
