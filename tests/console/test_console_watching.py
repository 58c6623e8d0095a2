"""Chat, Settings and Log, and what all pages have in common."""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import httpx
import pytest
from tests.console.consoles import EVIL, Opened, opened, served

from accord.community.errors import CommunityError
from accord.console import Piece, templates
from accord.console.page import event_parts
from accord.console.pages import PAGES, LogFilter, follow_log, latest_lines
from accord.kernel.signing import SigningKey


def write(found: Opened, *events: str, level: str = "info") -> None:
    file = found.parts.log_file
    assert file is not None
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as opened_file:
        for event in events:
            line = {"event": event, "level": level, "logger": "accord.x", "timestamp": "T", "n": 1}
            opened_file.write(json.dumps(line) + "\n")


async def test_every_page_answers_escapes_and_asks_nothing_of_anybody_else(tmp_path: Path) -> None:
    async with opened(tmp_path / "home", name=EVIL) as found, found.inside() as browser:
        write(found, EVIL)
        for page in PAGES:
            shown = await browser.get(page.slug)
            assert shown.status_code == 200, page.title
            assert EVIL not in shown.text
            assert not re.search(r'(?:src|href|action)="(?:https?:)?//', shown.text), page.title
            assert not re.search(r"<script(?! src=)|\son\w+=|style=", shown.text), page.title
            assert shown.text.count("<h1") == 1
            policy = shown.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert shown.headers["cache-control"] == "no-store"


async def test_every_page_wants_a_session(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.browser() as browser:
        for page in PAGES:
            paths = [page.slug, *(f"{page.slug}/{path}" for path in page.reads)]
            for path in paths:
                assert (await browser.get(path)).status_code in (303, 404), path
            for path in page.acts:
                place = f"{page.slug or 'home'}/{path}"
                sent = await browser.send(place, follow_redirects=False)
                assert sent.headers["location"] == "/console/login", place
        by_htmx = await browser.get("", headers={"hx-request": "true"})
        assert by_htmx.headers["hx-redirect"] == "/console/login"


async def test_a_page_that_looks_for_news_does_not_keep_its_session_alive(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        for _ in range(2):
            found.clock.later += 400
            await browser.get("", headers={"hx-request": "true"})
        assert (await browser.get("")).status_code == 303


async def test_files_of_the_console_are_served_and_no_others(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        page = (await browser.get("")).text
        for url in re.findall(r'(?:src|href)="/console/(static/[^"]+)"', page):
            got = await browser.get(url)
            assert got.status_code == 200
            tag = got.headers["etag"]
            assert (await browser.get(url, headers={"if-none-match": tag})).status_code == 304
        for path in ("static/../app.py", "static/%2e%2e/app.py", "static/", "nothing"):
            missing = await browser.get(path)
            assert missing.status_code == 404
            assert "default-src 'none'" in missing.headers["content-security-policy"]


def test_vendored_scripts_are_the_files_that_were_reviewed() -> None:
    digests = {each.name: hashlib.sha256(each.body).hexdigest() for each in templates.assets()}
    assert digests["htmx.js"] == "71ea67185bfa8c98c39d31717c6fce5d852370fcdfd129db4543774d3145c0de"
    assert digests["sse.js"] == "98a46496de0c3605fbffdce9167ba427bdd9553184f83f149c261891a92c0136"


async def test_without_htmx_pages_are_links_and_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("htmx.js", "sse.js"):
        monkeypatch.delitem(templates._FILES, name)
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        for page in PAGES:
            shown = (await browser.get(page.slug)).text
            assert "htmx.js" not in shown
            assert "sse-connect" not in shown


async def test_a_message_to_nobody_is_refused_and_an_empty_chat_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert "There is nobody else yet" in (await browser.get("chat")).text
        stranger = SigningKey.generate().id
        for form in ({}, {"recipient": "x", "body": "y"}, {"recipient": stranger, "body": EVIL}):
            refused = await browser.send("chat/send", form)
            assert 'role="alert"' in refused.text
            assert EVIL not in refused.text
        assert "0 marked as read." in (await browser.send("chat/read")).text


async def test_settings_say_where_and_how_to_change_them(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        shown = (await browser.get("settings")).text
        assert str(found.home / "accord.toml") in shown
        assert "ACCORD_X" in shown
        assert "accord config check" in shown


async def test_the_log_shows_its_latest_lines_filtered(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        write(found, "quiet", level="debug")
        write(found, "plane starts", "needle here")
        write(found, "it broke", level="error")
        shown = (await browser.get("log")).text
        assert "plane starts" in shown
        assert "quiet<" not in shown
        only = (await browser.get("log?level=error")).text
        assert "it broke" in only
        assert "plane starts" not in only
        assert "plane starts" not in (await browser.get("log?text=NEEDLE")).text
        assert (await browser.get("log?level=loud")).status_code == 400
        assert (await browser.get("log/live?after=x")).status_code == 400
        assert "community.created" in shown


async def test_a_log_is_followed_also_when_it_is_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text('{"event": "one", "level": "info"}\nbroken\n[1]\n{"event": "ha')
    lines, end = latest_lines(file, LogFilter(), 10)
    assert [each.event for each in lines] == ["one"]
    coming = follow_log(file, LogFilter(), end)
    with file.open("a") as more:
        more.write('lf", "level": "info"}\n')
    assert [each.event for each in await anext(coming)] == ["half"]
    file.write_text('{"event": "new", "level": "info"}\n')
    assert [each.event for each in await anext(coming)] == ["new"]


async def test_a_stream_ends_with_its_session_and_when_the_console_closes() -> None:
    closing = asyncio.Event()
    stands: Iterator[bool] = iter([True, True, False])

    async def endless() -> AsyncGenerator[Piece, None]:
        while True:
            yield Piece("tick")

    parts = [part async for part in event_parts(endless(), lambda: next(stands), closing)]
    assert parts == [b"event: tick\ndata: \n\n"] * 2

    async def silent() -> AsyncGenerator[Piece, None]:
        await asyncio.Event().wait()
        yield Piece("never")

    task = asyncio.create_task(anext(event_parts(silent(), lambda: True, closing)))
    await asyncio.sleep(0)
    closing.set()
    with pytest.raises(StopAsyncIteration):
        await task


async def test_readers_who_leave_take_their_streams_with_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        write(found, "a line")
        cookies = browser.http.cookies
        async with served(found) as address, httpx.AsyncClient(cookies=cookies) as http:
            for _ in range(12):
                async with http.stream("GET", f"{address}/console/log/live?after=0") as told_live:
                    assert told_live.status_code == 200
                    assert await anext(told_live.aiter_lines()) == "event: lines"
            async with asyncio.timeout(10):
                while found.console._streams:  # noqa: ASYNC110 - it only counts
                    await asyncio.sleep(0.01)
        assert [each for each in caplog.records if each.levelname == "ERROR"] == []


async def test_a_mistake_of_ours_does_not_look_like_an_answer(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found:
        found.is_up = False
        with pytest.raises(CommunityError, match="not up"):
            await found.parts.node.communities()
