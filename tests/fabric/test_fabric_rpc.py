"""RPC over a real server: signed, resolved, validated, answered; and everything that is refused."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.fabric.fabric_network import Sessions, connected, graph, linked

from accord.fabric import (
    DeadlineError,
    FabricError,
    Link,
    NotFoundError,
    RemoteError,
    Request,
    Server,
    Terms,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
)
from accord.fabric.rules import proofs
from accord.fabric.server import call
from accord.kernel.signing import SigningKey
from accord.testing.servers import Server as Process

TERMS = Terms(graph())
FIND = TERMS.rpc["User.Find"]
OPEN = TERMS.rpc["User.Open"]


class World:
    """A server, a caller that is known to it, and what the handlers saw."""

    def __init__(self, link: Link, server: Server, sessions: Sessions) -> None:
        self.link = link
        self.server = server
        self.sessions = sessions
        self.seen: list[Request] = []
        self.answer: Any = {"id": "1"}
        self.raises: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def handle(self, request: Request, _payload: Any) -> Any:
        self.seen.append(request)
        await self.gate.wait()
        if self.raises is not None:
            raise self.raises
        return self.answer


@pytest.fixture
async def world(nats: Process) -> AsyncIterator[World]:
    key, sessions = SigningKey.generate(), Sessions()
    sessions.admit(key)
    async with connected(nats.url) as connection, linked(nats.url, key) as link:
        server = Server(connection, TERMS, sessions.resolve, deadline=0.5)
        world = World(link, server, sessions)
        server.rpc("User.Find")(world.handle)
        server.rpc("User.Open")(world.handle)
        async with server:
            yield world


async def test_a_call_is_answered_and_the_handler_knows_its_caller(world: World) -> None:
    assert await call(world.link, FIND, {"id": "7"}) == {"id": "1"}
    (request,) = world.seen
    assert request.caller == world.link.session
    assert request.who.subject == "app"


async def test_many_calls_at_once_are_each_answered_and_ask_the_authority_once(
    world: World,
) -> None:
    answers = await asyncio.gather(*(call(world.link, FIND, {"id": "7"}) for _ in range(50)))
    assert answers == [{"id": "1"}] * 50
    assert world.sessions.asked == 1


async def test_a_request_that_breaks_the_contract_is_not_sent(world: World) -> None:
    with pytest.raises(ValidationError) as caught:
        await call(world.link, FIND, {"name": "x"})
    assert caught.value.issues[0]["path"] == ""
    assert not world.seen


async def test_a_service_refuses_what_a_careless_caller_sends(world: World) -> None:
    for body in (b'{"name":1}', b"{", b"", b'{"id":"1","id":"2"}', b"\xff"):
        with pytest.raises(ValidationError) as caught:
            await world.link.request(FIND.subject, body)
        assert caught.value.id is not None
    assert not world.seen


async def test_an_answer_that_breaks_the_contract_is_the_services_fault(world: World) -> None:
    for answer in ({"name": 1}, object(), float("nan"), None):
        world.answer = answer
        with pytest.raises(FabricError, match="does not keep the contract") as caught:
            await call(world.link, FIND, {"id": "7"})
        assert caught.value.type == "UnexpectedError"


async def test_a_caller_refuses_an_answer_that_breaks_the_contract(
    world: World, nats: Process
) -> None:
    async with connected(nats.url) as rogue:

        async def answer(msg: Any) -> None:
            await rogue.publish(msg.reply, b'{"id":7}')

        await rogue.subscribe("rpc.v1.Rogue", cb=answer)
        await rogue.flush()
        terms = Terms(_renamed("rpc.v1.Rogue"))
        with pytest.raises(ValidationError, match="the answer"):
            await call(world.link, terms.rpc["User.Open"], {"id": "7"})


def _renamed(subject: str) -> dict[str, Any]:
    manifest = graph().manifest()
    manifest["rpc"]["User.Open"]["subject"] = subject
    return manifest


async def test_a_session_that_is_nobodys_is_refused(world: World, nats: Process) -> None:
    async with linked(nats.url) as stranger:
        with pytest.raises(UnauthorizedError, match="nobody"):
            await call(stranger, OPEN, {"id": "7"})
    assert not world.seen


async def test_a_caller_without_the_capability_learns_which_is_missing(
    world: World, nats: Process
) -> None:
    key = SigningKey.generate()
    world.sessions.admit(key, ())
    async with linked(nats.url, key) as link:
        assert await call(link, OPEN, {"id": "7"}) == {"id": "1"}
        with pytest.raises(UnauthorizedError, match="graph::users") as caught:
            await call(link, FIND, {"id": "7"})
    assert caught.value.context == {"missing": ["graph::users.read"]}
    assert len(world.seen) == 1


async def test_a_revoked_session_is_refused_once_it_is_forgotten(world: World) -> None:
    await call(world.link, FIND, {"id": "7"})
    world.sessions.known.clear()
    await call(world.link, FIND, {"id": "7"})
    world.server.callers.forget(world.link.session)
    with pytest.raises(UnauthorizedError):
        await call(world.link, FIND, {"id": "7"})


@pytest.mark.parametrize(
    "change",
    [
        {proofs.PROOF: "A" * 86},
        {proofs.PROOF: "not base64!"},
        {proofs.REQUEST_ID: "another"},
        {proofs.IAT: "1"},
        {proofs.IAT: "99999999999999999999"},
        {proofs.IAT: "-1"},
        {proofs.REQUEST_ID: ""},
    ],
)
async def test_a_forged_or_old_proof_is_refused(world: World, change: dict[str, str]) -> None:
    data = b'{"id":"7"}'
    headers = world.link.signed(FIND.subject, data) | change
    msg = await world.link.inbox.ask(FIND.subject, data, headers, 5)
    assert msg.headers == {"status": "error"}
    assert b'"UnauthorizedError"' in msg.data
    assert not world.seen


async def test_another_body_or_subject_under_the_same_proof_is_refused(world: World) -> None:
    data = b'{"id":"7"}'
    headers = world.link.signed(FIND.subject, data)
    for subject, body in ((FIND.subject, b'{"id":"8"}'), (OPEN.subject, data)):
        msg = await world.link.inbox.ask(subject, body, headers, 5)
        assert b"the proof is not" in msg.data
    assert not world.seen


async def test_a_replay_is_refused(world: World) -> None:
    data = b'{"id":"7"}'
    headers = world.link.signed(FIND.subject, data)
    first = await world.link.inbox.ask(FIND.subject, data, headers, 5)
    again = await world.link.inbox.ask(FIND.subject, data, headers, 5)
    assert first.data == b'{"id":"1"}'
    assert b"came before" in again.data
    assert len(world.seen) == 1


async def test_a_reply_subject_outside_the_callers_inbox_gets_no_word(
    world: World, nats: Process
) -> None:
    async with connected(nats.url) as spy:
        heard = await spy.subscribe(">")
        await spy.flush()
        data = b'{"id":"7"}'
        for reply in ("events.v1.User.Changed.7", "_INBOX.another.1", world.link.prefix):
            headers = world.link.signed(FIND.subject, data)
            await world.link.nats.publish(FIND.subject, data, reply, headers)
        await call(world.link, FIND, {"id": "7"})
        await spy.flush()
        subjects = []
        while heard.pending_msgs:
            subjects.append((await heard.next_msg()).subject)
    assert not {"events.v1.User.Changed.7", "_INBOX.another.1", world.link.prefix} & set(subjects)
    assert len(world.seen) == 1


async def test_a_declared_error_arrives_with_everything_it_carries(world: World) -> None:
    world.raises = RemoteError("Missing", "no such user", {"userId": "7"})
    with pytest.raises(RemoteError, match="no such user") as caught:
        await call(world.link, FIND, {"id": "7"})
    assert caught.value.type == "Missing"
    assert caught.value.body["userId"] == "7"


async def test_a_known_error_arrives_as_its_type(world: World) -> None:
    world.raises = NotFoundError("no such user", mend="look elsewhere")
    with pytest.raises(NotFoundError, match="no such user; look elsewhere"):
        await call(world.link, FIND, {"id": "7"})


async def test_a_handler_that_breaks_tells_nothing_of_its_insides(world: World) -> None:
    world.raises = RuntimeError("the password is hunter2")
    with pytest.raises(FabricError, match="failed to answer") as caught:
        await call(world.link, FIND, {"id": "7"})
    assert "hunter2" not in str(caught.value.body)
    world.raises = None
    assert await call(world.link, FIND, {"id": "7"}) == {"id": "1"}


async def test_a_handler_that_takes_too_long_is_ended(world: World) -> None:
    world.gate.clear()
    with pytest.raises(DeadlineError, match="took too long"):
        await call(world.link, FIND, {"id": "7"})


async def test_a_caller_does_not_wait_for_ever(world: World) -> None:
    world.gate.clear()
    with pytest.raises(DeadlineError, match="no answer came within"):
        await call(world.link, FIND, {"id": "7"}, within=0.05)
    assert not world.link.inbox._waiting


async def test_where_nobody_listens_a_caller_learns_at_once(nats: Process) -> None:
    terms = Terms(_renamed("rpc.v1.Nobody.Home"))
    async with linked(nats.url) as link:
        with pytest.raises(UnavailableError, match="nobody answers"):
            await call(link, terms.rpc["User.Open"], {"id": "7"})


async def test_a_request_larger_than_the_server_carries_is_refused(world: World) -> None:
    with pytest.raises(ValidationError, match="more than the server carries"):
        await call(world.link, FIND, {"id": "x" * 2_000_000})
    world.answer = {"id": "x" * 2_000_000}
    with pytest.raises(FabricError, match="more than the server carries"):
        await call(world.link, FIND, {"id": "7"})


async def test_a_server_that_ends_finishes_what_came_in(nats: Process) -> None:
    key, sessions = SigningKey.generate(), Sessions()
    sessions.admit(key)
    entered, release = asyncio.Event(), asyncio.Event()
    async with connected(nats.url) as connection, linked(nats.url, key) as link:
        server = Server(connection, TERMS, sessions.resolve)

        @server.rpc("User.Open")
        async def slow(_request: Request, payload: Any) -> Any:
            entered.set()
            await release.wait()
            return payload

        async with server:
            asking = asyncio.create_task(call(link, OPEN, {"id": "7"}))
            await entered.wait()
            asyncio.get_running_loop().call_later(0.05, release.set)
        assert await asking == {"id": "7"}
        with pytest.raises(UnavailableError):
            await call(link, OPEN, {"id": "7"})


async def test_two_instances_share_the_work(world: World, nats: Process) -> None:
    async with connected(nats.url) as connection:
        other = World(world.link, Server(connection, TERMS, world.sessions.resolve), Sessions())
        other.server.rpc("User.Find")(other.handle)
        async with other.server:
            for _ in range(40):
                await call(world.link, FIND, {"id": "7"})
    assert len(world.seen) + len(other.seen) == 40
    assert world.seen
    assert other.seen


async def test_a_call_belongs_to_the_trace_of_the_call_before_it(world: World) -> None:
    inner: list[Request] = []

    async def ask_on(request: Request, payload: Any) -> Any:
        inner.append(request)
        return await call(world.link, OPEN, payload)

    world.server._rpc["User.Find"] = ask_on
    await world.server.dispatcher.drain()
    async with world.server:
        await call(world.link, FIND, {"id": "7"})
    assert inner[0].trace.id == world.seen[0].trace.id


async def test_more_calls_than_are_worked_on_at_once_wait_their_turn(nats: Process) -> None:
    key, sessions = SigningKey.generate(), Sessions()
    sessions.admit(key)
    at_once, most = 0, 0
    async with connected(nats.url) as connection, linked(nats.url, key) as link:
        server = Server(connection, TERMS, sessions.resolve, most=3)

        @server.rpc("User.Open")
        async def count(_request: Request, payload: Any) -> Any:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.001)
            at_once -= 1
            return payload

        async with server:
            asked = [{"id": str(number)} for number in range(60)]
            assert await asyncio.gather(*(call(link, OPEN, each) for each in asked)) == asked
    assert most == 3
