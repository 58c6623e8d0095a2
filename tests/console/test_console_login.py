"""Who comes into the console, by which way, and for how long."""

import asyncio
import re
from pathlib import Path

import httpx
from tests.console.consoles import ADDRESS, Opened, opened, with_parts, with_url

from accord.console import Tickets
from accord.console.sessions import COOKIE, LINK_SECONDS
from accord.kernel.clock import SystemClock


async def test_a_link_is_shown_with_a_button_and_works_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.browser() as browser:
        link = found.tickets.link()
        for _ in range(2):  # a preview of the link consumes nothing
            shown = await browser.http.get(f"/console/login?link={link}")
            assert "Log in</button>" in shown.text
            assert link in shown.text
        entered = await browser.log_in(link)
        assert (entered.status_code, entered.headers["location"]) == (303, "/console/")
        assert (await browser.get("")).status_code == 200
        again = await browser.log_in(link)
        assert again.status_code == 403
        assert "used already" in again.text


async def test_a_link_runs_out_and_a_made_up_one_opens_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.browser() as browser:
        late = found.tickets.link()
        found.clock.later = LINK_SECONDS + 1
        much = b"--x\r\n" + b"x" * 300_000
        kind = {"content-type": "multipart/form-data; boundary=x"}
        refused = await browser.http.post("/console/login", content=much, headers=kind)
        assert refused.status_code == 413
        for link in (late, "", "x" * 43, "../../keys/device.ed25519", "é" * 43, "x" * 100_000):
            assert (await browser.log_in(link)).status_code == 403
        assert (await browser.get("")).headers["location"] == "/console/login"


async def test_two_who_redeem_one_link_at_once_are_one_session(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.browser() as a, found.browser() as b:
        link = found.tickets.link()
        both = await asyncio.gather(a.log_in(link), b.log_in(link))
        assert sorted(each.status_code for each in both) == [303, 403]


async def test_links_can_be_made_by_several_at_once(tmp_path: Path) -> None:
    tickets = Tickets(tmp_path / "console", SystemClock())
    made = await asyncio.gather(*(asyncio.to_thread(tickets.link) for _ in range(40)))
    assert len({tickets.redeem(each) for each in made}) == 40


async def test_only_digests_are_kept_for_their_owner_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        waiting = found.tickets.link()
        secrets = [waiting, browser.http.cookies[COOKIE]]
        files = [each for each in (found.home / "console").rglob("*") if each.is_file()]
        assert len(files) == 2
        for each in files:
            assert not each.stat().st_mode & 0o077
            assert not any(secret in each.name + each.read_text() for secret in secrets)


async def test_the_cookie_is_for_this_site_and_no_script(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found:
        async with found.browser() as browser:
            cookie = (await browser.log_in(found.tickets.link())).headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "secure" not in cookie
        safe = with_url(found, "https://station.example")
        async with safe.browser() as browser:
            entered = await browser.http.post(
                "/console/login",
                data={"link": found.tickets.link()},
                headers={"host": "station.example", "origin": "https://station.example"},
            )
        assert "; secure" in entered.headers["set-cookie"].lower()


async def test_a_session_that_lies_idle_ends_and_can_change_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        found.clock.later += 601
        assert (await browser.get("")).headers["location"] == "/console/login"
        sent = await browser.send("home/found", {"name": "Late"}, follow_redirects=False)
        assert sent.headers["location"] == "/console/login"
        assert len(await found.parts.node.communities()) == 1


async def test_a_session_in_use_lasts_until_its_time_and_no_longer(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        for _ in range(7):
            found.clock.later += 500
            assert (await browser.get("")).status_code == 200
        found.clock.later += 101
        assert (await browser.get("")).headers["location"] == "/console/login"


async def test_logging_out_ends_the_session_also_for_a_copied_cookie(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        cookie = browser.http.cookies[COOKIE]
        await browser.send("logout")
        copied = httpx.Cookies()
        copied.set(COOKIE, cookie, path="/console")
        browser.http.cookies = copied
        assert (await browser.get("")).headers["location"] == "/console/login"


async def test_sessions_outlive_a_restart_and_are_not_kept_without_end(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        for _ in range(120):
            found.tickets.redeem(found.tickets.link())
            found.clock.later += 0.01
        kept = list((found.home / "console" / "sessions").iterdir())
        assert len(kept) == 100
        assert (await browser.get("")).status_code == 303  # the oldest had to go
        secret = found.tickets.redeem(found.tickets.link())
        assert with_url(found, "").tickets.session(secret) is not None


async def _founds(found: Opened, **headers: str) -> int:
    """The status of an otherwise good form that is sent with other headers."""
    async with found.inside() as browser:
        answer = await browser.send(
            "home/found", {"name": "Another"}, headers=headers, follow_redirects=False
        )
    return answer.status_code


async def test_a_form_from_another_site_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found:
        assert await _founds(found, origin="https://evil.example") == 403
        assert await _founds(found, origin="null") == 403
        assert await _founds(found, origin="http://[") == 403
        assert await _founds(found, origin="http://127.0.0.1:7071") == 403
        assert await _founds(found, **{"sec-fetch-site": "cross-site"}) == 403
        assert await _founds(found, **{"sec-fetch-site": "same-site"}) == 403
        assert len(await found.parts.node.communities()) == 1
        assert await _founds(found, origin=ADDRESS, **{"sec-fetch-site": "same-origin"}) == 303
        assert len(await found.parts.node.communities()) == 2


async def test_a_form_without_its_sessions_token_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        async with found.inside() as other:
            stolen = other.csrf
        for token in ("", "0" * 64, stolen, "é"):
            refused = await browser.send("home/found", {"name": "Another", "csrf": token})
            assert refused.status_code == 403
            assert "nothing was done" in refused.text
        assert len(await found.parts.node.communities()) == 1
        by_header = await browser.send(
            "home/found", {"name": "Another", "csrf": ""}, headers={"x-csrf-token": browser.csrf}
        )
        assert by_header.status_code == 200


async def test_a_name_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    theirs = ("evil.example", "evil.example:7070", "127.0.0.1.evil.example", "localhost.", "")
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        for host in (*theirs, "a" * 900):
            refused = await browser.http.get("/console/", headers={"host": host})
            assert refused.status_code == 421
            assert "Our street" not in refused.text
        for host in ("localhost:7070", "127.0.0.1", "[::1]:7070", "LOCALHOST"):
            assert (await browser.http.get("/console/", headers={"host": host})).status_code == 200


async def test_an_operator_sees_the_sessions_and_ends_one(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as one, found.inside() as two:
        shown = (await one.get("users")).text
        assert shown.count("End the session") == 2
        ids = re.findall(r'name="session" value="([0-9a-f]+)"', shown)
        mine = re.findall(r"(console [0-9a-f]{8}) <span", shown)
        [other] = [each for each in ids if f"console {each[:8]}" not in mine]
        assert "has ended" in (await one.send("users/end", {"session": other})).text
        assert (await two.get("settings")).status_code == 303
        assert (await one.get("settings")).status_code == 200
        for wrong in (other, "../links/x", "*", ""):
            refused = await one.send("users/end", {"session": wrong})
            assert refused.status_code in (400, 404)


async def test_the_audit_is_filtered_by_plane_and_words(tmp_path: Path) -> None:
    acts = [
        {"at": "2026-01-01T00:00:00Z", "what": what, "plane": plane, "who": "ann"}
        | {"about": "x", "why": "", "result": "done"}
        for plane, what in (("relay", "token.minted"), ("authority", "plan.accepted"))
    ]

    async def audit(_most: int) -> list[dict[str, str]]:
        return acts

    async with (
        opened(tmp_path / "home") as found,
        with_parts(found, audit=audit).inside() as browser,
    ):
        for query, shown in (
            ("", ("token.minted", "plan.accepted")),
            ("plane=relay", ("token.minted",)),
            ("about=Plan+ann", ("plan.accepted",)),
            ("about=nobody", ()),
        ):
            page = (await browser.get(f"log?{query}")).text
            names = [each["what"] for each in acts if each["what"] in page]
            assert sorted(names) == sorted(shown), query
