"""What WeCom posts: opened when it is signed, sealed for us and in time, and taken once."""

import httpx
from tests.relay.platforms.hooked import Wecom, send, wecom

from accord.relay.errors import Code, RelayError
from accord.relay.platforms.wecom import BizMsgCrypt
from accord.relay.rules import MessageType
from accord.testing import VirtualClock

CORP = "ww0123456789"


def changed(request: httpx.Request, **query: str) -> httpx.Request:
    url = request.url.copy_merge_params(query)
    return httpx.Request("POST", url, content=request.content)


async def test_a_url_is_verified_by_opening_what_wecom_sealed() -> None:
    async with wecom() as world:
        answer = await world.service.verify_url("7231947292")
        assert (answer.status_code, answer.text) == (200, "7231947292")
        refused = await send(world.service, httpx.Request("GET", world.service.hook_url))
        assert refused.status_code == 401


async def test_a_message_is_handed_on_with_ids_that_carry_the_corporation() -> None:
    async with wecom() as world:
        answer = await world.service.write("zhangsan", "你好 <&>", message_id="42")
        assert (answer.status_code, answer.content) == (200, b"")
        (taken,) = world.context.taken
        source = taken.event.source
        assert (taken.platform, taken.bot_id, taken.event_id) == ("wecom", f"{CORP}:1000002", "42")
        assert (source.chat_id, source.user_id) == (f"{CORP}/zhangsan", f"{CORP}/zhangsan")
        assert (source.user_name, source.chat_type, source.scope_id) == ("zhangsan", "dm", None)
        assert (taken.event.text, taken.addressed) == ("你好 <&>", True)


async def test_a_message_that_comes_again_is_taken_once() -> None:
    async with wecom() as world:
        for _ in range(3):
            assert (await world.service.write("li", "once", message_id="9")).status_code == 200
        assert world.context.texts == ["once"]


async def test_every_kind_of_message_is_what_it_amounts_to() -> None:
    async with wecom() as world:
        for fields, text, kind, media in (
            (
                {"MsgType": "image", "PicUrl": "https://p.example/1", "MediaId": "M1"},
                "",
                MessageType.PHOTO,
                ("https://p.example/1",),
            ),
            ({"MsgType": "voice", "MediaId": "M2"}, "", MessageType.VOICE, ("wecom:media/M2",)),
            ({"MsgType": "video", "MediaId": "M3"}, "", MessageType.VIDEO, ("wecom:media/M3",)),
            (
                {"MsgType": "location", "Label": "Quay 1", "Location_X": "1.5", "Location_Y": "2"},
                "Quay 1 1.5 2",
                MessageType.LOCATION,
                (),
            ),
            (
                {"MsgType": "link", "Title": "News", "Url": "https://n.example"},
                "News\nhttps://n.example",
                MessageType.TEXT,
                (),
            ),
        ):
            name = f"{len(world.context.taken)}"
            await world.service.post("li", fields | {"MsgId": name})
            event = world.context.taken[-1].event
            assert (event.text, event.message_type, event.media_urls) == (text, kind, media)


async def test_a_chosen_menu_entry_is_a_command_and_other_events_are_no_messages() -> None:
    clock = VirtualClock()
    async with wecom(clock) as world:
        click = {"MsgType": "event", "Event": "click", "EventKey": "report"}
        await world.service.post("li", click)
        await world.service.post("li", click)
        clock.advance(1)
        await world.service.post("li", click)
        for kind in ("subscribe", "enter_agent", "LOCATION"):
            event = {"MsgType": "event", "Event": kind, "EventKey": ""}
            assert (await world.service.post("li", event)).status_code == 200
        assert (await world.service.post("li", {"MsgType": "future"})).status_code == 200
        assert [each.event.text for each in world.context.taken] == ["report", "report"]
        assert world.context.taken[0].event.message_type is MessageType.COMMAND
        assert len(world.context.repeated) == 1


async def test_what_is_unsigned_or_tampered_with_is_refused() -> None:
    async with wecom() as world:
        right = world.service.sealed(b"<xml><FromUserName>li</FromUserName></xml>")
        other = world.service.sealed(b"<xml><FromUserName>mallory</FromUserName></xml>")
        for request in (
            httpx.Request("POST", world.service.hook_url, content=right.content),
            changed(right, msg_signature=""),
            changed(right, msg_signature="é"),
            changed(right, nonce="1"),
            changed(right, timestamp="1"),
            httpx.Request("POST", right.url, content=other.content),
        ):
            assert (await send(world.service, request)).status_code == 401
        assert world.context.taken == []


async def test_what_is_sealed_for_another_receiver_is_refused() -> None:
    async with wecom() as world:
        ours = world.service.crypt
        world.service.crypt = BizMsgCrypt(ours.token, ours.key, "ww-another")
        assert (await world.service.write("li", "hi")).status_code == 401
        world.service.crypt = BizMsgCrypt(ours.token, bytes(32), ours.receiver)
        assert (await world.service.write("li", "hi")).status_code == 400
        assert world.context.taken == []


async def test_what_is_late_or_early_is_refused() -> None:
    clock = VirtualClock()
    async with wecom(clock) as world:
        message = b"<xml><FromUserName>li</FromUserName><MsgType>text</MsgType></xml>"
        now = int(clock.now())
        for away, status in ((0, 200), (300, 200), (-300, 200), (301, 400), (-301, 400)):
            request = world.service.sealed(message, timestamp=now - away)
            assert (await send(world.service, request)).status_code == status, away


async def outside(world: Wecom, body: bytes) -> int:
    return (
        await send(world.service, httpx.Request("POST", world.service.hook_url, content=body))
    ).status_code


async def test_no_xml_does_harm() -> None:
    bomb = (
        b'<!DOCTYPE xml [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><xml><Encrypt>&b;</Encrypt></xml>'
    )
    leak = (
        b'<!DOCTYPE xml [<!ENTITY a SYSTEM "file:///etc/passwd">]><xml><Encrypt>&a;</Encrypt></xml>'
    )
    async with wecom() as world:
        for body, status in (
            (bomb, 400),
            (leak, 400),
            (b"<!DOCTYPE xml><xml/>", 400),
            (b"<xml><Encrypt>&undefined;</Encrypt></xml>", 400),
            (b"", 400),
            (b"{}", 400),
            (b"<xml>", 400),
            (b"<html/>", 400),
            (b"<xml>" + b"<a>" * 10_000, 400),
            (b"<xml>" + b"<a/>" * 5_000 + b"</xml>", 400),
            (b"<xml><Encrypt>1</Encrypt><Encrypt>2</Encrypt></xml>", 400),
            ('<?xml version="1.0" encoding="utf-16"?><xml/>'.encode("utf-16"), 400),
            ("<xml/>".encode("utf-16-be"), 400),
            (b"<xml><Encrypt>\xff\xfe</Encrypt></xml>", 400),
            (b"<xml>" + b"a" * 70_000 + b"</xml>", 413),
            (b"<xml><Encrypt>x</Encrypt></xml>", 401),
        ):
            assert await outside(world, body) == status, body[:40]
        for inner in (
            bomb,
            leak,
            b"",
            b"no xml",
            b"<xml/>",
            b"<xml><FromUserName>a</FromUserName></xml>",
        ):
            assert (await send(world.service, world.service.sealed(inner))).status_code == 400
        assert world.context.taken == []


async def test_a_message_for_another_application_is_refused_and_everybody_is_nobody() -> None:
    async with wecom() as world:
        other = (
            b"<xml><FromUserName>li</FromUserName><MsgType>text</MsgType><AgentID>7</AgentID></xml>"
        )
        assert (await send(world.service, world.service.sealed(other))).status_code == 400
        await world.service.write("@all", "hi")
        await world.service.write("a|b", "hi")
        assert world.context.taken == []


async def test_what_could_not_be_stored_is_not_acknowledged() -> None:
    async with wecom() as world:
        world.context.refusing = RelayError(Code.UNAVAILABLE, "no")
        assert (await world.service.write("li", "later", message_id="5")).status_code == 503
        world.context.refusing = RelayError(Code.BAD_REQUEST, "never")
        assert (await world.service.write("li", "odd")).status_code == 200
        world.context.refusing = None
        assert (await world.service.write("li", "later", message_id="5")).status_code == 200
        assert world.context.texts == ["later"]
