"""What a stranger or another site may try on the console."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.console.consoles import opened, served

from accord.console import page
from accord.console.sessions import COOKIE
from accord.station import listener
from accord.web.incoming import BodyLimits

SOCKETS = 40
LOGIN = (
    "POST /console/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n"
    "Content-Type: application/x-www-form-urlencoded\r\n\r\nlink="
)


async def held(address: str, head: str) -> bytes:
    """What a sender gets who begins a body and never ends it, until the socket is closed."""
    place = urlsplit(address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(head.encode())
        return await reader.read()
    finally:
        writer.close()


async def dripped(address: str, head: str) -> bytes:
    """The same of one who goes on and on, a byte at a time, also after the answer."""
    place = urlsplit(address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    told = asyncio.create_task(reader.read())
    try:
        writer.write(head.encode())
        while not told.done():
            writer.write(b"x")
            await asyncio.wait({told}, timeout=0.02)
        return told.result()
    except ConnectionError:
        return b"closed"
    finally:
        told.cancel()
        writer.close()


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every limit of time pass at once."""
    monkeypatch.setattr(page, "_TEXTS", BodyLimits(256 * 1024, seconds=0.1))
    monkeypatch.setattr(page, "_WITH_FILES", BodyLimits(1 << 20, seconds=0.1, rate=1 << 20))
    monkeypatch.setattr(listener, "_REST_SECONDS", 0.1)


async def test_strangers_do_not_hold_sockets_by_bodies_that_never_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    async with opened(tmp_path / "home") as found, served(found) as address, asyncio.timeout(60):
        answers = await asyncio.gather(*(held(address, LOGIN) for _ in range(SOCKETS)))
        assert all(each.startswith(b"HTTP/1.1 408 ") for each in answers)
        assert b"did not arrive in time" in answers[0]


async def test_a_body_that_trickles_on_after_its_answer_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    endless = LOGIN.replace("Content-Length: 1000", "Content-Length: 200000")
    elsewhere = endless.replace("Host: 127.0.0.1", "Host: evil.example")  # never looked into
    nowhere = endless.replace("/console/login", "/console/nowhere")
    async with opened(tmp_path / "home") as found, served(found) as address, asyncio.timeout(60):
        for head in (endless, elsewhere, nowhere):
            assert await dripped(address, head)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data"])
async def test_forms_of_somebody_inside_have_a_deadline_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    hurry(monkeypatch)
    async with (
        opened(tmp_path / "home") as found,
        found.inside() as browser,
        served(found) as address,
        asyncio.timeout(60),
    ):
        head = (
            "POST /console/files/add HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n"
            f"Cookie: {COOKIE}={browser.http.cookies[COOKIE]}\r\n"
            f"Content-Type: {kind}; boundary=x\r\n\r\n--x\r\n"
        )
        assert (await held(address, head)).startswith(b"HTTP/1.1 408 ")
        assert found.parts.blobs.cids() == []


async def test_a_connection_serves_on_when_a_refused_body_came_to_its_end(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, served(found) as address, asyncio.timeout(60):
        place = urlsplit(address)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        head = LOGIN.replace("Host: 127.0.0.1", "Host: evil.example")
        writer.write(head.encode())
        assert b" 421 " in await reader.readuntil(b"</html>")
        writer.write(b"x" * 995)
        writer.write(b"GET /console/login HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"</html>")
        writer.close()
