"""Agents: who has enrolled, what became of each message and why, dead letters, tokens."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from tests.console.consoles import ADDRESS, EVIL, Browser, Opened, opened, served, with_parts
from tests.console.planes import Relay, buried, connected, relayed
from tests.fakes.outbox_rows import add_action
from tests.fakes.sockets import MemorySocket

from accord.console import PlaneHealth
from accord.console.pages import AgentQueue, agent_rows
from accord.kernel.clock import SystemClock
from accord.relay.connector import InstanceRecord
from accord.relay.platforms.webchat import WebChat, open_webchat


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[Relay]:
    async with relayed(tmp_path / "home") as opened_relay:
        yield opened_relay


async def dead(relay: Relay) -> list[int]:
    return sorted(each.seq for each in await relay.connector.delivery.dead_letters())


async def test_without_a_relay_the_page_says_so_and_nothing_can_be_done(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert "The relay is not part of this station." in (await browser.get("agents")).text
        found.planes.append(PlaneHealth("relay", "starting", is_well=True))
        assert "The relay is not up now." in (await browser.get("agents")).text
        for path in ("token", "revoke", "pardon", "replay", "drop", "retry", "forget"):
            given = {"hours": "1", "instance": "x", "sure": "yes", "letter": "all", "reply": "1"}
            refused = await browser.send(f"agents/{path}", given)
            assert refused.status_code == 503
            assert 'role="alert"' in refused.text
        assert (await browser.get("agents/live")).status_code == 503
        assert (await browser.get("agents/why?event=x")).status_code == 503


async def test_agents_are_shown_with_how_they_stand_and_what_waits(relay: Relay) -> None:
    async with relay.found.inside() as browser:
        assert "Nobody has enrolled yet" in (await browser.get("agents")).text
        bearer = await relay.enrol()
        assert ">not connected</span>" in (await browser.get("agents")).text
        await relay.write("ann", "one")
        await relay.write("ann", "two")
        waiting = (await browser.get("agents")).text
        assert re.search(r"<td>2</td><td>gw<br>", waiting)
        async with connected(relay, bearer):
            assert ">connected</span>" in (await browser.get("agents")).text
        assert "<strong>memory</strong> as bot" in waiting
        assert "private words" not in waiting


async def test_every_message_tells_who_got_it_and_why(relay: Relay) -> None:
    await relay.enrol()
    await relay.write("ann", "yes")
    await relay.write(EVIL, "no")
    async with relay.found.inside() as browser:
        shown = (await browser.get("agents")).text
        assert "<strong>echo</strong>: waits to be sent" in shown
        assert "<code>candidates.unlinked</code>" in shown
        assert EVIL not in shown
        why = (await browser.get("agents/why?event=yes")).text
        assert "Delivered to echo" in why
        for layer in ("origin", "tenant", "candidates", "authority", "visibility", "relevance"):
            assert f"<strong>{layer}</strong>" in why
        none = (await browser.get("agents/why?event=no")).text
        assert "Delivered to nobody" in none
        assert EVIL not in none
        link = re.search(r'href="/console/(agents/why\?event=[^"]+)"', shown)
        assert link is not None
        assert "Delivered to nobody" in (await browser.get(link[1])).text
        assert "Which message?" in (await browser.get("agents/why")).text


async def test_people_and_rooms_are_called_by_their_names_where_they_are_known(
    relay: Relay,
) -> None:
    await relay.enrol()
    relay.called.update({"ann": "Ann Miller", "c1": f"#kitchen {EVIL}", "bot": "helper"})
    await relay.write("ann", "yes")
    await relay.write("eve", "no")
    async with relay.found.inside() as browser:
        shown = (await browser.get("agents")).text
        assert '<bdi title="ann">Ann Miller</bdi>' in shown
        # Of somebody who is not linked, nothing is kept that could be shown.
        assert "somebody who is not linked" in shown
        assert ">eve<" not in shown
        assert '<bdi title="c1">#kitchen &lt;' in shown
        assert "<strong>memory</strong> as helper" in shown
        assert EVIL not in shown
        why = (await browser.get("agents/why?event=yes")).text
        assert "<bdi>Ann Miller</bdi> <small><code>ann</code></small>" in why


async def test_a_message_that_nobody_knows_is_refused(relay: Relay) -> None:
    async with relay.found.inside() as browser:
        for event in ("nothing", "%00", "x" * 3000, "%ff%fe", "<script>"):
            refused = await browser.get(f"agents/why?event={event}")
            assert refused.status_code == 404
            assert "nothing is known" in refused.text.lower()


async def test_deliveries_are_told_while_they_happen(relay: Relay) -> None:
    await relay.enrol()
    async with (
        relay.found.inside() as browser,
        served(relay.found) as address,
        httpx.AsyncClient(cookies=browser.http.cookies) as http,
        http.stream("GET", f"{address}/console/agents/live") as live,
    ):
        lines = live.aiter_lines()
        assert "No message came yet" in await told(lines)
        await relay.write("ann", "first")
        assert "waits to be sent" in await told(lines)
        await relay.connector.delivery.dead_letter("echo", "because")
        assert "a dead letter" in await told(lines)
        relay.is_up = False  # which ends it
        async with asyncio.timeout(20):
            assert not [line async for line in lines if line.startswith("event")]


async def told(lines: AsyncIterator[str]) -> str:
    """The next piece that is told."""
    said = ""
    async with asyncio.timeout(20):
        async for line in lines:
            if not line and "event: deliveries" in said:
                return said
            said += line + "\n"
    raise AssertionError("it ended")


async def test_dead_letters_are_delivered_again_or_forgotten(relay: Relay) -> None:
    await relay.enrol()
    await buried(relay, "a", "b", "c", "d")
    first, second, *rest = await dead(relay)
    async with relay.found.inside() as browser:
        shown = (await browser.get("agents")).text
        assert EVIL not in shown
        assert "too old" in shown
        assert "accord relay deadletters replay echo --all" in shown
        replayed = await letter(browser, "replay", str(first))
        assert "1 will be delivered to echo again." in replayed
        assert await dead(relay) == [second, *rest]
        assert "It is forgotten." in await letter(browser, "drop", str(second))
        assert await dead(relay) == rest
        for wrong in ("", str(first), "x", "-1", "9" * 400, "²"):
            assert 'role="alert"' in await letter(browser, "replay", wrong)
            assert 'role="alert"' in await letter(browser, "drop", wrong)
        assert await dead(relay) == rest
        assert "2 will be delivered" in await letter(browser, "replay", "all")
        assert await dead(relay) == []


async def test_replies_that_were_given_up_are_tried_again_or_forgotten(relay: Relay) -> None:
    await relay.enrol()
    store, delivery = relay.connector.store, relay.connector.delivery
    await store.write(lambda c: add_action(c, "r1", error=EVIL))
    await store.write(lambda c: add_action(c, "r2", state="refused"))
    held = {"state": "sending", "holder": "other", "held_until": 2**50, "ended_at": None}
    await store.write(lambda c: add_action(c, "r3", **held))
    first, second = sorted(each.number for each in await delivery.outbox(dead=True))
    async with relay.found.inside() as browser:
        shown = (await browser.get("agents")).text
        assert EVIL not in shown
        assert "private words" not in shown
        assert "refused: there was no answer" in shown
        assert "1 waits to be sent" in shown
        assert "Replies that could not be sent: 2" in (await browser.get("")).text
        for wrong in ("", "99", "x", "-1", "9" * 400, "²"):
            for act in ("retry", "forget"):
                refused = await browser.send(f"agents/{act}", {"reply": wrong})
                assert 'role="alert"' in refused.text
        done = await browser.send("agents/retry", {"reply": str(first)})
        assert "It will be tried again." in done.text
        done = await browser.send("agents/forget", {"reply": str(second)})
        assert "It is forgotten." in done.text
    assert await delivery.outbox(dead=True) == []


async def test_all_replies_that_were_given_up_are_tried_again_from_home(relay: Relay) -> None:
    await relay.enrol()
    store, delivery = relay.connector.store, relay.connector.delivery
    for name in ("r1", "r2", "r3"):
        await store.write(partial(add_action, request_id=name, error=EVIL))
    async with relay.found.inside() as browser:
        for page in ("", "agents"):
            shown = (await browser.get(page)).text
            assert re.search(r'name="reply" value="all">.*?Try all again', shown, re.DOTALL), page
            assert EVIL not in shown
            assert "it may be seen twice" in shown, page
        done = await browser.send("agents/retry", {"reply": "all", "back": "home"})
        assert "3 replies will be tried again." in done.text
        assert "Replies that could not be sent" not in done.text
        done = await browser.send("agents/retry", {"reply": "all"})
        assert "0 replies will be tried again." in done.text
    assert await delivery.outbox(dead=True) == []


async def letter(browser: Browser, act: str, number: str) -> str:
    return (await browser.send(f"agents/{act}", {"instance": "echo", "letter": number})).text


async def test_a_token_is_shown_once_and_lets_an_agent_enrol(relay: Relay) -> None:
    async with relay.found.inside() as browser:
        given = {"agent": "reader", "name": "Help", "tenant": "t1", "hours": "1"}
        shown = (await browser.send("agents/token", given)).text
        token = re.search(r'<code class="long">([^<]+)</code>', shown)
        assert token is not None
        again = (await browser.get("agents")).text
        assert token[1] not in again
        assert "reader of t1, until" in again
        await relay.connector.control.enrol(token[1], "gateway")
        assert "reader of t1, until" not in (await browser.get("agents")).text


async def test_a_token_that_cannot_be_is_refused(relay: Relay) -> None:
    async with relay.found.inside() as browser:
        for wrong in (
            {"hours": "0"},
            {"hours": "nan"},
            {"hours": "1e9"},
            {"hours": "x"},
            {"hours": "1", "agent": "x" * 5000},
            {"hours": "1", "tenant": "\0"},
        ):
            refused = await browser.send("agents/token", wrong)
            assert 'role="alert"' in refused.text, wrong
            assert "It is shown this one time" not in refused.text
        assert "Tokens that nobody has used yet" not in (await browser.get("agents")).text


def ended(socket: MemorySocket) -> tuple[int, str] | None:
    return socket.closed


async def test_an_agent_is_revoked_on_purpose_and_pardoned(relay: Relay) -> None:
    bearer = await relay.enrol()
    async with relay.found.inside() as browser, connected(relay, bearer) as socket:
        hasty = await browser.send("agents/revoke", {"instance": "echo"})
        assert "tick the box" in hasty.text
        assert ended(socket) is None
        done = await browser.send("agents/revoke", {"instance": "echo", "sure": "yes"})
        assert "echo is revoked." in done.text
        assert ended(socket) == (4401, "revoked")
        assert ">revoked</span>" in done.text
        pardoned = await browser.send("agents/pardon", {"instance": "echo"})
        assert "may enrol again" in pardoned.text
        for act in ("revoke", "pardon"):
            unknown = await browser.send(f"agents/{act}", {"instance": "nobody", "sure": "yes"})
            assert 'role="alert"' in unknown.text


def test_how_an_agent_stands_is_one_word() -> None:
    record = InstanceRecord(
        "echo", "t1", "gw", "Echo", "enrolled", "structured", None, 0, None, False, False
    )
    gone = replace(record, revoked_at=1)
    off = replace(record, suspended=True)
    for each, queue, connected_now, state, is_well in (
        (record, AgentQueue(3), frozenset({"echo"}), "connected", True),
        (record, AgentQueue(3, asleep=True), frozenset[str](), "asleep", True),
        (record, AgentQueue(3), frozenset[str](), "not connected", False),
        (gone, AgentQueue(3, asleep=True), frozenset[str](), "revoked", False),
        (off, AgentQueue(3), frozenset({"echo"}), "its tenant is switched off", False),
    ):
        [shown] = agent_rows([each], {"echo": queue}, connected_now)
        assert (shown.state, shown.is_well, shown.waiting) == (state, is_well, 3)
    [quiet] = agent_rows([record], {}, frozenset())
    assert quiet.waiting == 0


@asynccontextmanager
async def chatting(relay: Relay, folder: Path) -> AsyncIterator[tuple[Opened, WebChat]]:
    """The same console with a web chat behind it, which has one space."""
    async with open_webchat(folder, SystemClock()) as chat:
        await chat.admin.create_space("kitchen שלום")
        yield with_parts(relay.found, chat=lambda: chat.admin), chat


async def test_somebody_is_invited_to_the_web_chat_and_joins(relay: Relay, tmp_path: Path) -> None:
    async with chatting(relay, tmp_path / "chat") as (found, chat), found.inside() as browser:
        shown = (await browser.get("agents")).text
        assert "Nobody has joined yet" in shown
        (space,) = await chat.admin.spaces()
        made = await browser.send("agents/invite", {"space": space.id, "invite_hours": "2"})
        link = re.search(r"http://[^<]*/chat/#invite=([\w-]{43})", made.text)
        assert link is not None
        assert link[1] not in (await browser.get("agents")).text
        (pending,) = await chat.admin.pending()
        assert (pending.space_id, pending.is_manager) == (space.id, False)
        headers = {"x-accord-chat": "1"}
        transport = httpx.ASGITransport(Starlette(routes=chat.platforms[0].routes))
        async with httpx.AsyncClient(
            transport=transport, base_url=ADDRESS, headers=headers
        ) as guest:
            body = {"invite": link[1], "name": "Ann Lee"}
            assert (await guest.post("/chat/api/join", json=body)).status_code == 200
            (user,) = await chat.admin.users()
            await relay.enrol()
            await relay.connector.control.bind("echo", "webchat", user.id)
            page = (await browser.get("agents")).text
            assert '<strong dir="auto">Ann Lee</strong>' in page
            removed = await browser.send("agents/remove", {"user": user.id})
            assert "Ann Lee cannot come in any more." in removed.text
            assert (await guest.get("/chat/api/me")).status_code == 401
        caller = await relay.connector.control.principal("echo")
        bindings = (await relay.connector.control.status(caller))["bindings"]
        assert all(each["platform"] != "webchat" for each in bindings)


async def test_an_invitation_to_the_web_chat_is_withdrawn(relay: Relay, tmp_path: Path) -> None:
    async with chatting(relay, tmp_path / "chat") as (found, chat), found.inside() as browser:
        (space,) = await chat.admin.spaces()
        fields = {"space": space.id, "invite_hours": "2", "manager": "yes"}
        await browser.send("agents/invite", fields)
        assert "as a manager" in (await browser.get("agents")).text
        (pending,) = await chat.admin.pending()
        done = await browser.send("agents/withdraw", {"invite": pending.id})
        assert "Nobody can join by that invitation any more." in done.text
        assert await chat.admin.pending() == []
        again = await browser.send("agents/withdraw", {"invite": pending.id})
        assert "no such invitation" in again.text.lower()


@pytest.mark.parametrize(
    ("act", "fields"),
    [
        ("invite", {"space": "nowhere", "invite_hours": "1"}),
        ("invite", {"space": "", "invite_hours": "1"}),
        ("invite", {"space": "SPACE", "invite_hours": "for ever"}),
        ("withdraw", {"invite": "%"}),
        ("remove", {"user": "nobody"}),
    ],
)
async def test_nonsense_about_the_web_chat_is_refused_and_changes_nothing(
    relay: Relay, tmp_path: Path, act: str, fields: dict[str, str]
) -> None:
    async with chatting(relay, tmp_path / "chat") as (found, chat), found.inside() as browser:
        (space,) = await chat.admin.spaces()
        given = {name: space.id if text == "SPACE" else text for name, text in fields.items()}
        refused = await browser.send(f"agents/{act}", given)
        assert 'role="alert"' in refused.text
        assert await chat.admin.pending() == []


async def test_without_a_web_chat_nobody_is_invited(relay: Relay) -> None:
    async with relay.found.inside() as browser:
        assert "People in the web chat" not in (await browser.get("agents")).text
        refused = await browser.send("agents/invite", {"space": "x", "invite_hours": "1"})
        assert refused.status_code == 503
        assert "The web chat is not up" in refused.text
