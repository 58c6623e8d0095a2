"""Against a real server: who is let in, and what they may touch."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoServersError
from tests.authority.nats_cases import (
    CLERK,
    SHOP,
    STOCK,
    System,
    dialled,
    lonely,
    running_system,
    until,
)

from accord.authority.nats import connect
from accord.authority.rules import Code
from accord.contracts import digest
from accord.contracts.session_proof import connect_token, session_key
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey

NOT_TO_PUBLISH = (
    "rpc.v1.Stock.Secret",
    "rpc.v1.Shop.Buy",
    "rpc.v1.Nobody.Knows",
    "operations.v1.Stock.Fill",
    "operations.v1.Stock.Fill.control",
    "events.v1.Stock.Moved",
    "events.v1.Shop.Other",
    "feeds.v1.Stock.Live",
    "_INBOX.answer",
    "transfer.v1.upload.abcdefghijklmnop.1",
    "transfer.v1.download.abcdefghijklmnop.1",
    "$KV.acc_kv_other.key",
    "$O.acc_os_other.C.chunk",
    "$JS.API.INFO",
    "$JS.API.STREAM.CREATE.MINE",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.DELETE.KV_acc_kv_carts",
    "$JS.API.STREAM.PURGE.KV_acc_kv_carts",
    "$JS.API.STREAM.MSG.GET.KV_acc_kv_other",
    "$JS.API.DIRECT.GET.KV_acc_kv_other.$KV.acc_kv_other.key",
    "$JS.API.CONSUMER.CREATE.KV_acc_kv_carts",
    "$JS.API.CONSUMER.DURABLE.CREATE.trellis.mine",
    "$JS.API.CONSUMER.MSG.NEXT.JOBS_WORK.acc_jq_other",
    "$JS.API.CONSUMER.DELETE.JOBS_WORK.acc_jq_pack",
    "$JS.ACK.JOBS_WORK.acc_jq_other.1.1.1.1.1",
    "trellis.jobs.shop.other.created",
    "trellis.work.shop.other",
    "trellis.work.stock.pack",
    "$SYS.REQ.USER.AUTH",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.ACCOUNT.PING.CONNZ",
    "anything",
)
NOT_TO_SUBSCRIBE = (
    ">",
    "*",
    "rpc.>",
    "rpc.v1.Stock.Count",
    "rpc.v1.*.*",
    "operations.v1.Stock.Fill",
    "operations.v1.Stock.Fill.control",
    "events.>",
    "events.v1.Stock.*",
    "events.v1.Shop.Sold",
    "feeds.v1.Stock.Live",
    "_INBOX.>",
    "_INBOX.abcdefghijklmnop.>",
    "transfer.v1.upload.*.*",
    "transfer.v1.download.*.*",
    "$KV.acc_kv_carts.>",
    "$KV.>",
    "$O.>",
    "$JS.>",
    "$JS.API.>",
    "trellis.jobs.>",
    "trellis.work.shop.pack",
    "$SYS.>",
    "$SYS.ACCOUNT.*.CONNECT",
    "$SYS.REQ.USER.AUTH",
)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    async with running_system(tmp_path / "nats") as started:
        yield started


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.generate()


async def test_a_service_is_refused_every_subject_that_its_grants_do_not_name(
    system: System, key: SigningKey
) -> None:
    system.authority.admit(key, SHOP)
    async with dialled(system.cluster, key, SHOP) as shop:
        published = [each for each in NOT_TO_PUBLISH if await shop.may_publish(each)]
        subscribed = [each for each in NOT_TO_SUBSCRIBE if await shop.may_subscribe(each)]
    assert (published, subscribed) == ([], [])


async def test_a_service_may_touch_every_subject_that_its_grants_name(
    system: System, key: SigningKey
) -> None:
    system.authority.admit(key, SHOP)
    granted = await system.authority.grants(session_key(key), digest(SHOP))
    assert len(granted.publish) > 10
    async with dialled(system.cluster, key, SHOP) as shop:
        for subject in granted.publish:
            assert await shop.may_publish(subject.replace(">", "some.thing")), subject
        for subject in granted.subscribe:
            assert await shop.may_subscribe(subject), subject


async def test_a_session_without_grants_may_only_hear_its_own_inbox(
    system: System, key: SigningKey
) -> None:
    alone = lonely()
    system.authority.presented[digest(alone)] = alone
    system.authority.admit(key, alone)
    async with dialled(system.cluster, key, alone) as session:
        assert await session.may_subscribe(f"{session.inbox}.>")
        assert not any([await session.may_publish(each) for each in NOT_TO_PUBLISH])
        assert not any([await session.may_subscribe(each) for each in NOT_TO_SUBSCRIBE])


async def test_a_service_answers_in_the_inbox_of_who_asks(system: System, key: SigningKey) -> None:
    caller = SigningKey.generate()
    system.authority.admit(key, SHOP)
    system.authority.admit(caller, CLERK)
    async with (
        dialled(system.cluster, key, SHOP) as shop,
        dialled(system.cluster, caller, CLERK) as clerk,
    ):
        asked: list[str] = []

        async def sell(message: Any) -> None:
            asked.append(message.reply)
            await message.respond(b"sold")

        await shop.client.subscribe("rpc.v1.Shop.Buy", cb=sell)
        await shop.client.flush()
        answer = await clerk.client.request("rpc.v1.Shop.Buy", b"{}", timeout=5)
        assert answer.data == b"sold"
        assert asked[0].startswith(clerk.inbox)
        assert not await clerk.may_publish(asked[0])


async def test_the_owner_of_a_feed_answers_with_many_messages(
    system: System, key: SigningKey
) -> None:
    system.authority.admit(key, STOCK)
    own = await connect("ask", system.cluster, system.cluster.authority)
    async with dialled(system.cluster, key, STOCK) as stock:
        asked = await stock.client.subscribe("feeds.v1.Stock.Live")
        await stock.client.flush()
        frames = await own.subscribe("_INBOX.abc.frames")
        await own.publish("feeds.v1.Stock.Live", b"{}", reply="_INBOX.abc.frames")
        request = await asked.next_msg(5)
        for _ in range(20):
            await request.respond(b"frame")
        for _ in range(20):
            await frames.next_msg(5)
    await own.close()


@pytest.mark.parametrize("problem", ["forged", "expired", "another's key", "no token", "garbage"])
async def test_who_does_not_prove_itself_is_not_let_in(
    system: System, key: SigningKey, problem: str
) -> None:
    system.authority.admit(key, SHOP)
    now = int(SystemClock().now())
    good = json.loads(connect_token(key, digest(SHOP), now))
    token, code = {
        "forged": (json.dumps({**good, "contractDigest": digest(STOCK)}), Code.INVALID_PROOF),
        "expired": (connect_token(key, digest(SHOP), now - 60), Code.EXPIRED_PROOF),
        "another's key": (
            json.dumps(
                {
                    **json.loads(connect_token(SigningKey.generate(), digest(SHOP), now)),
                    "sessionKey": session_key(key),
                }
            ),
            Code.INVALID_PROOF,
        ),
        "no token": ("-", Code.BAD_REQUEST),
        "garbage": ('{"v":1', Code.BAD_REQUEST),
    }[problem]
    with pytest.raises(NoServersError):
        async with dialled(system.cluster, key, SHOP, token=token):
            pass
    refusal = system.authority.refusals[0]
    assert (refusal.code, refusal.key, refusal.host) == (code, None, "127.0.0.1")
    assert system.authority.here == []


async def test_a_token_lets_in_once(system: System, key: SigningKey) -> None:
    system.authority.admit(key, SHOP)
    token = connect_token(key, digest(SHOP), int(SystemClock().now()))
    async with dialled(system.cluster, key, SHOP, token=token) as first:
        assert first.client.is_connected
    with pytest.raises(NoServersError):
        async with dialled(system.cluster, key, SHOP, token=token):
            pass
    assert system.authority.refusals[0].code is Code.INVALID_PROOF


async def test_a_session_that_nobody_knows_is_not_let_in_and_told_of(
    system: System, key: SigningKey
) -> None:
    with pytest.raises(NoServersError):
        async with dialled(system.cluster, key, SHOP):
            pass
    refusal = system.authority.refusals[0]
    assert refusal.code is Code.UNKNOWN_SESSION
    assert (refusal.key, refusal.digest) == (session_key(key), digest(SHOP))


async def test_a_session_whose_required_use_leads_nowhere_is_not_let_in(
    system: System, key: SigningKey
) -> None:
    system.authority.admit(key, SHOP)
    del system.authority.active["stock@v1"]
    with pytest.raises(NoServersError):
        async with dialled(system.cluster, key, SHOP):
            pass
    assert system.authority.refusals[0].code is Code.FORBIDDEN
    assert "stock@v1" in system.authority.refusals[0].why


async def test_the_server_ends_a_session_when_its_time_is_over(
    system: System, key: SigningKey
) -> None:
    system.authority.admit(key, SHOP, expires_at=SystemClock().now() + 2)
    async with dialled(system.cluster, key, SHOP) as shop:
        assert shop.client.is_connected
        await until(lambda: shop.client.is_closed)


async def test_a_session_whose_time_is_over_is_not_let_in(system: System, key: SigningKey) -> None:
    system.authority.admit(key, SHOP, expires_at=SystemClock().now() - 1)
    with pytest.raises(NoServersError):
        async with dialled(system.cluster, key, SHOP):
            pass
    assert system.authority.refusals[0].code is Code.UNKNOWN_SESSION


async def test_only_servers_ask(system: System) -> None:
    complaints: list[str] = []

    async def complain(error: Exception) -> None:
        complaints.append(str(error))

    listener = await connect("ask", system.cluster, system.cluster.callout, error_cb=complain)
    await listener.publish("$SYS.REQ.USER.AUTH", b"nonsense")
    await listener.flush()
    await listener.close()
    assert "permissions violation" in complaints[0].lower()
    assert system.authority.refusals == []


async def test_questions_that_no_server_asks_change_nothing(
    system: System, key: SigningKey
) -> None:
    xkey = system.cluster.xkey
    assert xkey is not None
    for data, headers in (
        (b"", None),
        (b"\xff" * 100, {"Nats-Server-Xkey": "X"}),
        (xkey.seal(b"a.b.c", xkey.public), {"Nats-Server-Xkey": xkey.public}),
        (b"x" * 100_000, None),
    ):
        await system.callout._take(Msg(Client(), "$SYS.REQ.USER.AUTH", "", data, headers))
    await until(lambda: len(system.authority.refusals) == 4)
    system.authority.admit(key, SHOP)
    async with dialled(system.cluster, key, SHOP) as shop:
        assert shop.client.is_connected


async def test_many_come_in_at_once(system: System) -> None:
    keys = [SigningKey.generate() for _ in range(40)]
    for each in keys:
        system.authority.admit(each, SHOP)

    async def come(each: SigningKey) -> bool:
        async with dialled(system.cluster, each, SHOP) as session:
            return session.client.is_connected

    assert all(await asyncio.gather(*(come(each) for each in keys)))


async def test_the_sentinel_alone_may_do_nothing(system: System) -> None:
    """Nobody answers for it, so that the server lets it in nowhere."""
    client = Client()
    with pytest.raises((NatsError, OSError, TimeoutError)):
        await client.connect(
            list(system.cluster.urls),
            user_credentials=RawCredentials(system.cluster.sentinel.text),
            allow_reconnect=False,
            max_reconnect_attempts=0,
            connect_timeout=10,
            error_cb=_ignore,
        )
    await client.close()


async def _ignore(_: Exception) -> None:
    return
