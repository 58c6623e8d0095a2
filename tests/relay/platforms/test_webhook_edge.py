"""What a program posts to its webhook: signed, in time, of its form, and taken once."""

from base64 import b64encode
from typing import Any

import httpx
import orjson
import pytest
from tests.relay.platforms.hooked import Hook, hook, send

from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey, parse_id
from accord.relay.connector import InboundKind
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import webhook
from accord.storage import StoreError
from accord.testing import VirtualClock

BODY = b'{"chat_id":"c","user_id":"u","text":"hi"}'
OLD = "whsec_" + b64encode(b"o" * 32).decode()
NEW = "whsec_" + b64encode(b"n" * 32).decode()


def named(request: httpx.Request, **headers: str) -> httpx.Request:
    changed = httpx.Request("POST", request.url, content=request.content, headers=request.headers)
    for name, value in headers.items():
        changed.headers[f"webhook-{name}"] = value
    return changed


async def test_a_direct_message_is_handed_on_with_ids_of_its_own_webhook() -> None:
    async with hook() as world:
        answer = await world.service.write("ann", "hello", event_id="e1", user_name="Ann")
        assert (answer.status_code, answer.json()) == (200, {"id": "e1", "new": True})
        (taken,) = world.context.taken
        source = taken.event.source
        assert (taken.platform, taken.bot_id, taken.event_id) == ("webhook", "desk", "e1")
        assert (taken.route_key, taken.addressed, taken.author_is_bot) == ("desk", True, False)
        assert (source.chat_id, source.user_id, source.user_name) == ("desk/ann", "desk/ann", "Ann")
        assert (source.chat_type, source.scope_id, source.thread_id) == ("dm", None, None)


async def test_a_thread_in_a_group_names_its_chat_and_its_scope() -> None:
    async with hook() as world:
        await world.service.write(
            "ann",
            "/stop",
            chat_id="room/1",
            thread_id="t é",
            chat_type="group",
            message_id="m1",
            reply_to="m0",
            is_bot=True,
            addressed=True,
            media_urls=["https://a.example/x.png"],
            unknown={"is": "ignored"},
        )
        (taken,) = world.context.taken
        source = taken.event.source
        assert source.chat_id == source.thread_id == "desk/room%2F1/t %C3%A9"
        assert (source.parent_chat_id, source.chat_type) == ("desk/room%2F1", "thread")
        assert (source.scope_id, source.message_id) == ("desk", "m1")
        assert (taken.event.reply_to_message_id, taken.author_is_bot) == ("m0", True)
        assert taken.event.media_urls == ("https://a.example/x.png",)
        assert taken.kind is InboundKind.INTERRUPT


async def test_the_same_id_is_taken_once_and_answered_again() -> None:
    async with hook() as world:
        answers = [await world.service.write("ann", "once", event_id="e9") for _ in range(3)]
        assert [each.status_code for each in answers] == [200, 200, 200]
        assert [each.json()["new"] for each in answers] == [True, False, False]
        assert world.context.texts == ["once"]


async def test_what_is_unsigned_or_tampered_with_is_refused() -> None:
    async with hook() as world:
        right = world.service.signed(BODY, "e1")
        signature = right.headers["webhook-signature"]
        bare = httpx.Request("POST", right.url, content=BODY)
        for request in (
            bare,
            named(right, id=""),
            named(right, id="e2"),
            named(right, timestamp=str(int(right.headers["webhook-timestamp"]) + 1)),
            named(right, timestamp=""),
            named(right, signature=""),
            named(right, signature="v1,"),
            named(right, signature=signature.replace("v1,", "v1a,")),
            named(right, signature=signature.replace("v1,", "v2,")),
            named(right, signature="v1,!!! " * 40 + "v1,"),
            named(right, signature="v1,é"),
            httpx.Request("POST", right.url, content=BODY + b" ", headers=_webhook(right)),
        ):
            assert (await send(world.service, request)).status_code == 401
        several = named(right, signature=f"v0,x v1,AAAA {signature}")
        assert (await send(world.service, several)).status_code == 200


def _webhook(request: httpx.Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name.startswith("webhook")}


async def test_what_is_late_or_early_is_refused_although_it_is_signed() -> None:
    clock = VirtualClock()
    async with hook(clock) as world:
        now = int(clock.now())
        for away, status in ((300, 200), (-300, 200), (301, 400), (-301, 400)):
            request = world.service.signed(BODY, f"e{away}", timestamp=now - away)
            assert (await send(world.service, request)).status_code == status
        assert len(world.context.taken) == 2


async def test_a_body_of_another_form_is_refused() -> None:
    right: dict[str, Any] = {"chat_id": "c", "user_id": "u", "text": "hi"}
    wrong: list[bytes] = [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"chat_id":"c","user_id":"u","text":"\xff"}',
        b'{"chat_id":"c","chat_id":"d","user_id":"u","text":"hi"}',
        b'{"chat_id":"c","user_id":"u","text":"\\ud800"}',
        b"[" * 20_000,
        BODY.decode().encode("utf-16"),
    ]
    changes: list[dict[str, Any]] = [
        {"chat_id": ""},
        {"chat_id": 7},
        {"chat_id": "c" * 129},
        {"text": None},
        {"chat_type": "thread"},
        {"thread_id": "t"},
        {"thread_id": "t", "chat_type": "dm"},
        {"media_urls": ["file:///etc/passwd"]},
        {"media_urls": "https://a.example"},
        {"is_bot": "yes"},
    ]
    wrong += [orjson.dumps(right | change) for change in changes]
    wrong += [orjson.dumps({k: v for k, v in right.items() if k != name}) for name in right]
    async with hook() as world:
        for number, body in enumerate(wrong):
            answer = await send(world.service, world.service.signed(body, f"e{number}"))
            assert answer.status_code == 400, body[:60]
            assert answer.json()["error"] == "bad_request"
        large = world.service.signed(BODY + b" " * 70_000, "e")
        assert (await send(world.service, large)).status_code == 413
        long = world.service.signed(BODY, "e" * 257)
        assert (await send(world.service, long)).status_code == 400
        assert world.context.taken == []


async def test_what_was_not_taken_is_not_acknowledged() -> None:
    async with hook() as world:
        for trouble, status in (
            (RelayError(Code.UNAVAILABLE, "no"), 503),
            (StoreError("no"), 503),
            (RelayError(Code.CONFLICT, "no"), 503),
            (RelayError(Code.BAD_REQUEST, "never"), 400),
            (RelayError(Code.TOO_LARGE, "never"), 413),
        ):
            world.context.refusing = trouble
            assert (await world.service.write("ann", "later", event_id="e")).status_code == status
        world.context.refusing = None
        assert (await world.service.write("ann", "later", event_id="e")).status_code == 200
        assert world.context.texts == ["later"]


async def post_with(world: Hook, key: str) -> int:
    world.service._keys = webhook.read_keys(key, "secret")
    return (await world.service.write("ann", "hi")).status_code


async def test_keys_stand_side_by_side_while_one_replaces_another() -> None:
    pair = SigningKey.generate()
    public = "whpk_" + b64encode(parse_id(pair.id)).decode()
    private = "whsk_" + b64encode(pair.seed).decode()
    settings = webhook.WebhookSettings.model_validate(
        {"name": "desk", "secret": f"{NEW} {OLD}\n{public}"}
    )
    async with hook(secret=settings.secret) as world:
        assert await post_with(world, OLD) == 200
        assert await post_with(world, NEW) == 200
        assert await post_with(world, private) == 200
        assert await post_with(world, f"whsec_{b64encode(b'x' * 32).decode()} {OLD}") == 200
        assert await post_with(world, "whsec_" + b64encode(b"x" * 32).decode()) == 401
        assert await post_with(world, "whsk_" + b64encode(b"x" * 32).decode()) == 401
        for secret in (OLD, NEW):
            assert secret not in repr(world.platform)
            assert secret[6:] not in repr(webhook.read_keys(secret, "secret"))


@pytest.mark.parametrize(
    ("secret", "what"),
    [
        ("", "missing"),
        ("   ", "no key"),
        ("plain", "no key of Standard Webhooks"),
        ("whsec_!!!", "no key of Standard Webhooks"),
        ("whsec_" + b64encode(b"short").decode(), "no key of Standard Webhooks"),
        ("whpk_" + b64encode(b"x" * 31).decode(), "no key of Standard Webhooks"),
    ],
)
async def test_opening_needs_a_key(secret: str, what: str) -> None:
    settings = webhook.WebhookSettings.model_validate({"name": "desk", "secret": secret})
    with pytest.raises(RelayError, match=what) as refused:
        async with webhook.open_webhook(settings, SystemClock()):
            pass
    assert "secret" in str(refused.value.where)
