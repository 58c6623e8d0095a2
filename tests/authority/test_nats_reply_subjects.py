"""Against a real server: nobody publishes through a reply subject what it may not publish itself.

A server does not check the reply subject of a message. Here sessions that are let in by the callout
name subjects that their grants do not, and have others answer there: JetStream, which answers
whatever it is asked, and a service that is in league with its caller.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.authority.nats_cases import (
    CLERK,
    SHOP,
    Dialled,
    System,
    dialled,
    running_system,
    until,
)

from accord.authority.nats import SystemKeys, connect, find_account_fault
from accord.fabric.link import subscribe_published
from accord.kernel.signing import SigningKey

MINE, WORK = "KV_acc_kv_carts", "JOBS_WORK"
EVIL = b'{"name":"KV_acc_kv_other","evil":true}'
STREAMS = {
    MINE: ["$KV.acc_kv_carts.>"],
    WORK: ["trellis.work.>"],
    "KV_acc_kv_other": ["$KV.acc_kv_other.>"],
    "OBJ_acc_obj_other": ["$O.acc_obj_other.>"],
    "trellis": ["events.>"],
    "JOBS": ["trellis.jobs.>"],
}
ASKED = {
    "a value that is got": (f"$JS.API.DIRECT.GET.{MINE}.$KV.acc_kv_carts.evil", b""),
    "a value that is found": (f"$JS.API.DIRECT.GET.{MINE}", b'{"seq":1}'),
    "a message that is got": (f"$JS.API.STREAM.MSG.GET.{MINE}", b'{"seq":1}'),
    "information on a bucket": (f"$JS.API.STREAM.INFO.{MINE}", b""),
    "information on a consumer": (f"$JS.API.CONSUMER.INFO.{WORK}.acc_jq_pack", b""),
    "a job that is pulled": (f"$JS.API.CONSUMER.MSG.NEXT.{WORK}.acc_jq_pack", b"1"),
    "the receipt of a value": ("$KV.acc_kv_carts.more", b"{}"),
    "the receipt of a job": ("trellis.work.shop.pack", EVIL),
    "the receipt of an event": ("events.v1.Shop.Sold", EVIL),
}
FORBIDDEN = (
    "$JS.API.STREAM.DELETE.KV_acc_kv_other",
    "$JS.API.STREAM.PURGE.KV_acc_kv_other",
    "$JS.API.STREAM.UPDATE.KV_acc_kv_other",
    "$JS.API.STREAM.CREATE.EVIL",
    "$JS.API.CONSUMER.DELETE.JOBS_WORK.acc_jq_other",
    "$JS.API.CONSUMER.MSG.NEXT.JOBS_WORK.acc_jq_other",
    "$KV.acc_kv_other.key",
    "$O.acc_obj_other.C.chunk",
    "events.v1.Stock.Moved",
    "trellis.jobs.stock.pack.1.cancelled",
    "trellis.work.stock.pack",
)


@dataclass
class Scene:
    system: System
    shop: Dialled
    own: Client
    answers: list[Msg] = field(default_factory=list)

    async def ask(self, subject: str, payload: Any = None) -> Any:
        """What JetStream tells the authority."""
        body = b"" if payload is None else json.dumps(payload).encode()
        return json.loads((await self.own.request(f"$JS.API.{subject}", body, timeout=5)).data)

    async def kept(self) -> dict[str, Any]:
        """Everything that is not the shop's, or that the shop cannot have come by honestly."""
        found = {
            each["config"]["name"]: (each["config"], each["state"])
            for each in (await self.ask("STREAM.LIST"))["streams"]
        }
        events = await self.ask("STREAM.INFO.trellis", {"subjects_filter": ">"})
        works = await self.ask(f"STREAM.INFO.{WORK}", {"subjects_filter": ">"})
        others = (await self.ask(f"CONSUMER.INFO.{WORK}.acc_jq_other"))["num_pending"]
        mine = (MINE, WORK, "trellis")
        return {
            "streams": sorted(found),
            "settings": {name: config for name, (config, _) in found.items()},
            "others": {name: state for name, (_, state) in found.items() if name not in mine},
            "events": sorted(events["state"].get("subjects", ())),
            "works": sorted(works["state"].get("subjects", ())),
            "pending": others,
        }

    async def send(self, asked: str, reply: str) -> None:
        """Ask for something that the shop may ask for, to be answered on a subject."""
        subject, body = ASKED[asked]
        await self.shop.client.publish(subject, body, reply=reply)

    async def answered(self, asked: str) -> Msg:
        """What comes for the same question in the shop's own inbox, after all else it asked."""
        before = len(self.answers)
        await self.send(asked, f"{self.shop.inbox}.answers")
        await until(lambda: len(self.answers) > before)
        return self.answers[-1]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    key = SigningKey.generate()
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(running_system(tmp_path / "nats"))
        system.authority.admit(key, SHOP)
        own = await connect("make streams", system.cluster, system.cluster.authority)
        stack.push_async_callback(own.close)
        shop = await stack.enter_async_context(dialled(system.cluster, key, SHOP))
        made = Scene(system, shop, own)
        for name, subjects in STREAMS.items():
            config = {"name": name, "subjects": subjects, "allow_direct": True}
            assert "error" not in await made.ask(f"STREAM.CREATE.{name}", config)
        for consumer, queue in (("acc_jq_pack", "shop.pack"), ("acc_jq_other", "stock.pack")):
            config = {
                "durable_name": consumer,
                "ack_policy": "explicit",
                "filter_subject": f"trellis.work.{queue}",
            }
            asked = {"stream_name": WORK, "config": config}
            assert "error" not in await made.ask(f"CONSUMER.CREATE.{WORK}.{consumer}", asked)

        async def answered(msg: Msg) -> None:
            made.answers.append(msg)

        await shop.client.subscribe(f"{shop.inbox}.answers", cb=answered)
        await shop.client.flush()
        for _ in range(3 * len(FORBIDDEN)):
            await shop.client.request("trellis.work.shop.pack", EVIL, timeout=5)
        await shop.client.request("$KV.acc_kv_carts.evil", EVIL, timeout=5)
        await own.request("$KV.acc_kv_other.key", b'{"good":true}', timeout=5)
        await own.request("trellis.work.stock.pack", b'{"good":true}', timeout=5)
        yield made


@pytest.mark.parametrize("asked", ASKED)
async def test_what_jetstream_answers_reaches_nothing_but_inboxes(scene: Scene, asked: str) -> None:
    """JetStream publishes nothing on behalf of a session, deletes nothing and stores nothing."""
    await scene.shop.client.request("events.v1.Shop.Sold", b"{}", timeout=5)
    before = await scene.kept()
    for subject in FORBIDDEN:
        await scene.send(asked, subject)
    assert (await scene.answered(asked)).data
    assert await scene.kept() == before
    assert scene.shop.complaints == []


async def test_what_comes_with_an_acknowledgement_reaches_nothing_but_inboxes(
    scene: Scene,
) -> None:
    """Who acknowledges a job may ask for the next one with it."""
    before = await scene.kept()
    for subject in FORBIDDEN:
        job = await scene.answered("a job that is pulled")
        await scene.shop.client.publish(job.reply, b"+NXT", reply=subject)
    await scene.answered("a job that is pulled")
    assert await scene.kept() == before


async def test_what_jetstream_answers_does_not_pass_for_what_was_published(scene: Scene) -> None:
    """A session that listens is sent it, but knows an answer from an event."""
    raw: list[Msg] = []
    heard: list[bytes] = []

    async def came(msg: Msg) -> None:
        raw.append(msg)

    async def take(msg: Msg) -> None:
        heard.append(msg.data)

    await scene.own.subscribe("events.v1.Stock.Moved", cb=came)
    await subscribe_published(scene.own, "events.v1.Stock.Moved", take)
    await scene.own.flush()
    for asked in ASKED:
        await scene.send(asked, "events.v1.Stock.Moved")
        await scene.answered(asked)
    await scene.own.publish("events.v1.Stock.Moved", b'{"moved":1}')
    await scene.own.publish("events.v1.Stock.Moved", EVIL, headers={"Nats-Msg-Id": "1"})
    await until(lambda: len(heard) == 2 and len(raw) == len(ASKED) + 2)
    assert heard == [b'{"moved":1}', EVIL]


@pytest.mark.parametrize("subject", [*FORBIDDEN, "rpc.v1.Stock.Secret", "$SYS.REQ.SERVER.PING"])
async def test_a_service_in_league_with_its_caller_answers_in_an_inbox_only(
    scene: Scene, subject: str
) -> None:
    key = SigningKey.generate()
    scene.system.authority.admit(key, CLERK)
    before = await scene.kept()
    questions = await scene.shop.client.subscribe("rpc.v1.Shop.Buy")
    await scene.shop.client.flush()
    async with dialled(scene.system.cluster, key, CLERK) as clerk:
        await clerk.client.publish("rpc.v1.Shop.Buy", b"{}", reply=subject)
        question = await questions.next_msg(5)
        assert question.reply == subject
        assert not await scene.shop.may_publish(question.reply)
        asking = asyncio.create_task(clerk.client.request("rpc.v1.Shop.Buy", b"{}", timeout=5))
        await (await questions.next_msg(5)).respond(b"sold")
        assert (await asking).data == b"sold"
    assert await scene.kept() == before


async def test_it_is_seen_whether_sessions_are_apart_from_jetstream(
    scene: Scene, tmp_path: Path
) -> None:
    cluster, trust = scene.system.cluster, SystemKeys.load_or_create(tmp_path / "nats" / "keys")
    assert cluster.system is not None
    watching = await connect("look", cluster, cluster.system)
    try:
        assert await find_account_fault(watching, cluster.account) is None
        assert "has JetStream enabled" in str(
            await find_account_fault(watching, trust.streams.public)
        )
        assert await find_account_fault(watching, trust.callout.public) is not None
    finally:
        await watching.close()


class Told:
    """A system that tells of two accounts, the second of which gives what a test says."""

    def __init__(self, *exports: tuple[str, str]) -> None:
        self.exports = [{"subject": subject, "response_type": kind} for subject, kind in exports]

    async def request(self, subject: str, **_: Any) -> Any:
        taken = [{"subject": "$JS.API.>", "type": "service", "account": "STREAMS"}]
        told = {"SESSIONS": {"imports": taken}, "STREAMS": {"exports": self.exports}}
        return Msg(Client(), data=json.dumps({"data": told[subject.split(".")[3]]}).encode())


async def test_a_second_export_is_a_way_around_the_first_and_is_seen() -> None:
    everything = (">", "Singleton")
    assert await find_account_fault(Told(everything), "SESSIONS") is None  # type: ignore[arg-type]
    for exports in ([], [(">", "Stream")], [everything, ("events.>", "Singleton")]):
        found = await find_account_fault(Told(*exports), "SESSIONS")  # type: ignore[arg-type]
        assert "exactly one export" in str(found)


async def test_who_handles_nothing_writes_into_no_inbox(scene: Scene) -> None:
    key = SigningKey.generate()
    scene.system.authority.admit(key, CLERK)
    async with dialled(scene.system.cluster, key, CLERK) as clerk:
        assert not await clerk.may_publish(f"{scene.shop.inbox}.answers")
        assert not await clerk.may_publish(f"{clerk.inbox}.answers")
