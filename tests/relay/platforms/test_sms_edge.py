"""What Twilio posts: taken once when it is really Twilio's, and refused otherwise."""

import hashlib
from urllib.parse import urlencode

import httpx
from tests.relay.platforms.hooked import ANN, Sms, send, sms

from accord.relay.connector import InboundKind
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.sms import sign
from accord.relay.rules import MessageType
from accord.storage import StoreError


def signed(world: Sms, body: bytes, url: str = "", **headers: str) -> httpx.Request:
    url = url or world.service.hook_url
    content_type = "application/x-www-form-urlencoded"
    return httpx.Request(
        "POST", url, content=body, headers={"content-type": content_type} | headers
    )


async def test_a_text_message_is_handed_on_and_answered_with_empty_twiml() -> None:
    async with sms() as world:
        answer = await world.service.write(ANN, "hello 👋 & more", sid="SM1")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/xml")
        assert answer.text.endswith("<Response/>")
        (taken,) = world.context.taken
        source = taken.event.source
        assert (taken.platform, taken.bot_id, taken.event_id) == ("sms", "+15005550006", "SM1")
        assert (source.chat_id, source.user_id, source.chat_type) == (ANN, ANN, "dm")
        assert (source.scope_id, taken.event.message_id) == (None, "SM1")
        assert (taken.event.text, taken.addressed) == ("hello 👋 & more", True)
        assert taken.author_is_bot is False


async def test_a_replayed_message_is_taken_once_and_answered_again() -> None:
    async with sms() as world:
        for _ in range(3):
            assert (await world.service.write(ANN, "once", sid="SM7")).status_code == 200
        assert world.context.texts == ["once"]
        assert world.context.repeated == ["SM7", "SM7"]


async def test_stop_is_handed_on_like_any_word_and_a_slash_stop_interrupts() -> None:
    async with sms() as world:
        await world.service.write(ANN, "STOP")
        await world.service.write(ANN, " /Stop ")
        assert [each.kind for each in world.context.taken] == [
            InboundKind.MESSAGE,
            InboundKind.INTERRUPT,
        ]


async def test_media_are_references() -> None:
    urls = ["https://api.twilio.com/media/ME1", "https://api.twilio.com/media/ME2"]
    kinds = {
        "image/jpeg": MessageType.PHOTO,
        "video/mp4": MessageType.VIDEO,
        "audio/amr": MessageType.AUDIO,
        "text/vcard": MessageType.DOCUMENT,
        "": MessageType.DOCUMENT,
    }
    async with sms() as world:
        for kind, expected in kinds.items():
            await world.service.write(ANN, "", media=[(url, kind) for url in urls])
            taken = world.context.taken[-1]
            assert taken.event.media_urls == tuple(urls)
            assert taken.event.message_type is expected
        await world.service.write(ANN, "", media=[("javascript:alert(1)", "image/png")])
        assert world.context.taken[-1].event.media_urls == ()


async def test_the_query_of_the_configured_url_is_part_of_what_is_signed() -> None:
    async with sms() as world:
        url = world.service.hook_url + "?from=a%20b&x=%C3%A9"
        form = {"MessageSid": "SM2", "From": ANN, "To": world.service.number, "Body": "hi"}
        form["AccountSid"] = world.service.account_sid
        assert (await world.service.post(url, form)).status_code == 200
        other = httpx.Request(
            "POST",
            world.service.hook_url + "?from=b",
            content=urlencode(form).encode(),
            headers={
                "x-twilio-signature": sign(
                    url, {k: [v] for k, v in form.items()}, "twilio-test-token"
                )
            },
        )
        assert (await send(world.service, other)).status_code == 401
        assert world.context.texts == ["hi"]


async def test_what_is_unsigned_or_tampered_with_is_refused_and_not_taken() -> None:
    async with sms() as world:
        body = urlencode({"MessageSid": "SM1", "From": ANN, "Body": "evil"}).encode()
        right = sign(world.service.hook_url, {"MessageSid": ["SM1"]}, "twilio-test-token")
        for headers in ({}, {"x-twilio-signature": ""}, {"x-twilio-signature": right}):
            answer = await send(world.service, signed(world, body, **headers))
            assert answer.status_code == 401
            assert answer.json()["error"] == "unauthorized"
        latin = signed(world, body)
        latin.headers["x-twilio-signature"] = "é"
        assert (await send(world.service, latin)).status_code == 401
        world.service.token = "another"
        assert (await world.service.write(ANN, "evil")).status_code == 401
        assert world.context.taken == []


async def test_what_is_oversized_or_wrongly_encoded_is_refused() -> None:
    async with sms() as world:
        for body, status in (
            (b"Body=" + b"a" * 70_000, 413),
            (b"Body=%ff%fe", 400),
            ("Body=é".encode(), 400),
            (b"&".join(b"a%d=1" % number for number in range(300)), 400),
            (b"\x00\xff", 400),
            (b"", 401),
        ):
            answer = await send(world.service, signed(world, body, **{"x-twilio-signature": "x"}))
            assert answer.status_code == status, body[:20]
        assert world.context.taken == []


async def test_a_signed_message_to_somebody_else_is_refused() -> None:
    async with sms() as world:
        form = {"MessageSid": "SM1", "From": ANN, "To": "+15005550001", "Body": "hi"}
        form["AccountSid"] = world.service.account_sid
        assert (await world.service.post(world.service.hook_url, form)).status_code == 400
        assert (await world.service.post(world.service.hook_url, {"Body": "hi"})).status_code == 400
        assert world.context.taken == []


async def test_the_number_does_not_hear_itself() -> None:
    async with sms() as world:
        assert (await world.service.write(world.service.number, "echo")).status_code == 200
        assert world.context.taken == []


async def test_what_could_not_be_stored_is_not_acknowledged() -> None:
    async with sms() as world:
        for trouble in (
            RelayError(Code.UNAVAILABLE, "no"),
            RelayError(Code.CONFLICT, "no"),
            StoreError("no"),
        ):
            world.context.refusing = trouble
            assert (await world.service.write(ANN, "later", sid="SM9")).status_code == 503
        world.context.refusing = None
        assert (await world.service.write(ANN, "later", sid="SM9")).status_code == 200
        assert world.context.texts == ["later"]


async def test_what_can_never_be_stored_is_skipped() -> None:
    async with sms() as world:
        world.context.refusing = RelayError(Code.BAD_REQUEST, "never")
        assert (await world.service.write(ANN, "odd")).status_code == 200
        assert world.context.taken == []


async def test_json_is_proven_by_the_hash_of_its_body() -> None:
    async with sms() as world:
        service = world.service
        body = (
            f'{{"MessageSid":"SM3","AccountSid":"{service.account_sid}","From":"{ANN}",'
            f'"To":"{service.number}","Body":"by json"}}'
        ).encode()
        url = f"{service.hook_url}?bodySHA256={hashlib.sha256(body).hexdigest()}"
        headers = {
            "content-type": "application/json",
            "x-twilio-signature": sign(url, {}, service.token),
        }
        for content, status in ((body + b" ", 401), (body, 200)):
            request = httpx.Request("POST", url, content=content, headers=headers)
            assert (await send(service, request)).status_code == status
        plain = {
            "content-type": "application/json",
            "x-twilio-signature": sign(service.hook_url, {}, service.token),
        }
        unhashed = httpx.Request("POST", service.hook_url, content=body, headers=plain)
        assert (await send(service, unhashed)).status_code == 401
        assert world.context.texts == ["by json"]


async def test_a_message_that_did_not_arrive_is_counted_when_twilio_says_so() -> None:
    async with sms() as world:
        url = world.service.hook_url + "/status"
        for status in ("sent", "delivered", "undelivered", "failed"):
            form = {"MessageSid": "SM5", "MessageStatus": status, "ErrorCode": "30003"}
            assert (await world.service.post(url, form)).status_code == 204
        assert world.platform.counts["undelivered"] == 2
        unsigned = httpx.Request("POST", url, content=b"MessageStatus=failed")
        assert (await send(world.service, unsigned)).status_code == 401
        assert world.platform.counts["undelivered"] == 2
