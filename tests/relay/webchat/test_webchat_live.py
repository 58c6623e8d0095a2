"""Pages hear what happens, and after an interruption what they missed."""

import asyncio

import httpx
import pytest
from tests.relay.webchat.conftest import Open, World

from accord.relay.platforms import webchat
from accord.relay.rules import Edit, Send, Typing


async def test_a_page_hears_messages_edits_and_typing(world: World) -> None:
    ann, bob = await world.join("ann"), await world.join("bob")
    async with bob.live() as live:
        await ann.ask("POST", f"chats/{world.general.id}/typing")
        heard = await live.next()
        assert heard == {
            "event": "typing",
            "chat": world.general.id,
            "author": {"id": ann.id, "name": "ann"},
        }
        said = await ann.say(world.general.id, "helo")
        assert await live.next() == {"event": "message", **said}
        edited = await ann.ask("PATCH", f"messages/{said['id']}", {"text": "hello"})
        assert await live.next() == {"event": "message", **edited}


async def test_a_page_resumes_after_the_last_number_that_it_heard(
    open_world: Open, both: str
) -> None:
    async with open_world(both) as world:
        ann, bob = await world.join("ann"), await world.join("bob")
        async with bob.live() as live:
            await ann.say(world.general.id, "one")
            assert (await live.next())["text"] == "one"
            number = live.last_id
        await ann.say(world.general.id, "two")
        await ann.say(world.general.id, "three")
        async with bob.live(after=0, last_id=number) as live:
            assert [(await live.next())["text"] for _ in range(2)] == ["two", "three"]


async def test_nothing_falls_between_the_overview_and_the_first_event(world: World) -> None:
    ann = await world.join("ann")
    seq = (await ann.ask("GET", "me"))["seq"]
    await ann.say(world.general.id, "between")
    async with ann.live(after=seq) as live:
        assert (await live.next())["text"] == "between"


async def test_a_channel_hears_how_many_replies_a_thread_has(world: World) -> None:
    ann, bob = await world.join("ann"), await world.join("bob")
    root = await ann.say(world.general.id, "root")
    thread = (await ann.ask("POST", f"messages/{root['id']}/thread"))["chat"]
    async with bob.live() as live:
        await ann.say(thread, "one")
        await world.platform.perform(Send(thread, "two"), "r1")
        counts: list[int] = []
        while counts[-1:] != [2]:
            heard = await live.next("message")
            if heard["id"] == root["id"]:
                counts.append(heard["thread"]["count"])


async def test_of_many_edits_that_were_missed_the_last_is_told(world: World) -> None:
    ann = await world.join("ann")
    seq = (await ann.ask("GET", "me"))["seq"]
    sent = await world.platform.perform(Send(world.general.id, "1"), "r1")
    for text in ("1 2", "1 2 3"):
        await world.platform.perform(Edit(world.general.id, sent.message_id or "", text), text)
    await ann.say(world.general.id, "end")
    async with ann.live(after=seq) as live:
        assert [(await live.next())["text"] for _ in range(2)] == ["1 2 3", "end"]


@pytest.mark.parametrize("after", [0, 10**12])
async def test_whoever_missed_too_much_is_told_to_look_anew(
    world: World, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webchat.feed, "KEPT_ENTRIES", 3)
    ann = await world.join("ann")
    for number in range(5):
        await ann.say(world.general.id, str(number))
    async with ann.live(after=after) as live:
        assert await live.next() == {"event": "reset"}
        await ann.say(world.general.id, "on")
        assert (await live.next())["text"] == "on"


async def test_what_another_process_says_is_heard_too(open_world: Open, both: str) -> None:
    async with open_world(both) as one, open_world(both) as two:
        ann = await one.join("ann")
        async with ann.live() as live:
            await two.platform.perform(Typing(one.general.id), "t")
            assert (await live.next("typing"))["author"]["name"] == "accord"
            await two.platform.perform(Send(one.general.id, "from afar"), "r1")
            assert (await live.next("message"))["text"] == "from afar"


async def test_a_page_that_logs_out_hears_nothing_more(world: World) -> None:
    ann, bob = await world.join("ann"), await world.join("bob")
    async with ann.live() as live:
        cookies = httpx.Cookies(ann.http.cookies)
        await ann.ask("POST", "logout")
        await bob.say(world.general.id, "secret")
        with pytest.raises(EOFError):
            await live.next()
    ann.http.cookies = cookies
    await ann.ask("GET", "me", expect=401)


async def test_a_user_has_a_few_pages_open_and_closed_ones_do_not_count(
    open_world: Open, where: str
) -> None:
    async with open_world(where, settings=webchat.WebChatSettings(streams_per_user=2)) as world:
        ann, bob = await world.join("ann"), await world.join("bob")
        async with ann.live(), ann.live():
            refused = await ann.http.get("events")
            assert refused.status_code == 429
            async with bob.live():
                pass
        async with asyncio.timeout(10):
            while True:
                async with ann.http.stream("GET", "events") as answer:
                    if answer.status_code == 200:
                        break
