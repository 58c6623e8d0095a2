"""Callers that lie, within a whole system: the typed error, a word in the log, nothing done."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.authority.end_to_end.whole_system import buyer, managed, shop
from tests.fabric.fabric_station import Station, station

from accord.authority.nats import connect
from accord.contracts.session_proof import session_key
from accord.fabric import (
    DeadlineError,
    FabricError,
    Request,
    Service,
    Session,
    UnauthorizedError,
    ValidationError,
)
from accord.fabric.rules import proofs
from accord.kernel import canonical
from accord.kernel.signing import SigningKey

SUBJECT = "rpc.v1.Shop.Find"
BODY = canonical.encode({"id": "1"})
Headers = dict[str, str]


@dataclass
class Scene:
    """A shop, a buyer, and everything that the shop was asked."""

    house: Station
    caller: Session
    served: list[Any] = field(default_factory=list)
    answer: Callable[[Any], Any] = lambda payload: payload

    async def ask(self, headers: Headers, data: bytes = BODY, within: float = 5) -> Any:
        return await self.caller.link.inbox.ask(SUBJECT, data, headers, within)

    def signed(self, **more: Any) -> Headers:
        link = self.caller.link
        arguments: dict[str, Any] = {
            "key": link.key,
            "session": link.session,
            "subject": SUBJECT,
            "payload": BODY,
            "iat": int(link.clock.now()),
            "request_id": link.ids.new(),
        }
        return proofs.sign(**(arguments | more))


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with station(tmp_path) as house, AsyncExitStack() as stack:
        service = Service(shop(), key=await house.deploy("shops", shop()), authority=house.url)

        @service.rpc("Shop.Find")
        async def find(_request: Request, payload: Any) -> Any:
            made.served.append(payload)
            return made.answer(payload)

        await stack.enter_async_context(service.connect())
        calling = Service(buyer(), key=await house.deploy("buyers", buyer()), authority=house.url)
        made = Scene(house, await stack.enter_async_context(calling.connect()))
        yield made


def refusals(logs: list[Any]) -> list[str]:
    return [each["why"] for each in logs if each["event"] == "a request was refused"]


async def test_proofs_that_are_forged_expired_or_replayed_are_refused_and_told_of(
    scene: Scene,
) -> None:
    now = int(scene.caller.link.clock.now())
    good = scene.signed()
    assert (await scene.ask(good)).data == BODY
    lies = {
        "came before": good,
        "is not that of the session": scene.signed() | {proofs.PROOF: good[proofs.PROOF]},
        "for this request": scene.signed(key=SigningKey.generate()),
        "not of the last": scene.signed(iat=now - 3600),
        "of the last 30": scene.signed(iat=now + 3600),
        f"{proofs.IAT} is missing or malformed": scene.signed() | {proofs.IAT: "soon"},
        f"{proofs.REQUEST_ID} is missing": scene.signed() | {proofs.REQUEST_ID: ""},
    }
    for why, headers in lies.items():
        with structlog.testing.capture_logs() as logs:
            answer = await scene.ask(headers)
        assert answer.headers["status"] == "error"
        assert canonical.decode(answer.data)["type"] == "UnauthorizedError"
        assert [each for each in refusals(logs) if why in each], (why, logs)
    assert scene.served == [{"id": "1"}]


async def test_nobody_speaks_for_another_session(scene: Scene) -> None:
    """Named as somebody else, the answer would go to that one's inbox, where we cannot listen."""
    other = SigningKey.generate()
    headers = scene.signed(session=session_key(other)) | {proofs.SESSION: session_key(other)}
    with structlog.testing.capture_logs() as logs, pytest.raises(DeadlineError):
        await scene.ask(headers, within=0.5)
    assert refusals(logs) == ["the reply subject lies outside the inbox of the session"]
    assert scene.served == []


async def test_no_answer_goes_outside_the_callers_inbox(scene: Scene) -> None:
    """A service that answered anywhere would publish there for whoever asks."""
    cluster, link = scene.house.server.cluster, scene.caller.link
    watching = await connect("look", cluster, cluster.authority)
    heard: list[str] = []
    try:
        for reply in ("events.v1.Shop.Sold", "_INBOX.somebody.1", f"{link.prefix}x.1"):

            async def hear(msg: Any) -> None:
                heard.append(msg.subject)

            await watching.subscribe(reply, cb=hear)
            await watching.flush()
            with structlog.testing.capture_logs() as logs:
                await link.nats.publish(SUBJECT, BODY, reply, scene.signed())
                assert (await scene.ask(scene.signed())).data == BODY
            assert refusals(logs) == ["the reply subject lies outside the inbox of the session"]
            await watching.flush()
    finally:
        await watching.close()
    assert heard == []
    assert scene.served == [{"id": "1"}] * 3


async def test_payloads_that_break_the_schema_are_refused_on_either_side(scene: Scene) -> None:
    client = scene.caller.client(shop())
    with pytest.raises(ValidationError):
        await client.call("Shop.Find", {"id": 1})
    for data in (b"", b"{", b"[]", b'{"id":1}', b'{"id":"1","id":"2"}', b"[" * 100_000):
        answer = await scene.ask(scene.signed(payload=data), data)
        assert canonical.decode(answer.data)["type"] == "ValidationError"
    assert scene.served == []
    scene.answer = lambda _payload: {"id": 1}
    with pytest.raises(FabricError) as broken:
        await client.call("Shop.Find", {"id": "1"})
    assert not isinstance(broken.value, UnauthorizedError | DeadlineError)
    scene.answer = lambda payload: payload
    assert await client.call("Shop.Find", {"id": "1"}) == {"id": "1"}


async def test_what_was_refused_left_nothing_in_jetstream(scene: Scene) -> None:
    """A caller has no way into the streams but by what its contract declares."""
    link = scene.caller.link
    refused: list[str] = []
    async with managed(scene.house.server.cluster) as jetstream:
        before = (await jetstream.ask("STREAM.INFO.trellis"))["state"]["last_seq"]
        for subject in ("events.v1.Shop.Sold", "$JS.API.STREAM.DELETE.trellis", "$KV.acc_state.a"):
            try:
                await link.inbox.ask(subject, b"{}", {}, 5)
            except UnauthorizedError as error:
                refused.append(error.where or "")
        await asyncio.sleep(0)
        after = (await jetstream.ask("STREAM.INFO.trellis"))["state"]["last_seq"]
    assert len(refused) == 3
    assert after - before <= 2  # heartbeats of the two services
