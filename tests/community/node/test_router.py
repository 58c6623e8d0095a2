"""Calls find their node: over real sockets, with nodes that fail, lie and dawdle."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from accord.community.bars import BarredNodes
from accord.community.bus import Call, Frame
from accord.community.client import Client, LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.rules import Level, Misconduct, RetryPolicy, RoutePolicy, read_descriptor
from accord.community.settings import RoutingSettings

FORM = {
    "name": "experimental.add",
    "version": "1.0",
    "stability": "experimental",
    "trust": "member",
    "idempotent": True,
    "request_schema": {"type": "object"},
    "response_schema": {
        "type": "object",
        "required": ["output"],
        "properties": {"output": {"type": "object", "required": ["sum"]}},
    },
}
ADD = read_descriptor(FORM)
PAY = read_descriptor({**FORM, "name": "experimental.pay", "idempotent": False})
COUNT_FORM = {
    "name": "experimental.count",
    "version": "1.0",
    "stability": "experimental",
    "trust": "member",
    "idempotent": True,
    "request_schema": {"type": "object"},
    "stream_schema": {
        "type": "object",
        "properties": {"data": {"type": "object", "maxProperties": 1}},
    },
}
COUNT = read_descriptor(COUNT_FORM)
FORMS = {ADD.schema_hash: FORM, COUNT.schema_hash: COUNT_FORM}
PATIENT = RoutingSettings(
    first_seconds=20, silence_seconds=20, look_seconds=0.5, hedge_seconds=0, max_frames=100
)
IMPATIENT = replace(PATIENT, first_seconds=1, silence_seconds=1)


class Server:
    """What a node does when it is called; `faults` come first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.callers: list[str] = []
        self.faults: list[Any] = []
        self.ended = 0
        self.gate: asyncio.Event | None = None

    async def add(self, call: Call) -> Mapping[str, Any]:
        self.callers.append(call.caller)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.faults:
                fault = self.faults.pop(0)
                if isinstance(fault, CommunityError):
                    raise fault
                return dict(fault)
            return {"output": {"sum": 3, "by": self.name}}
        finally:
            self.ended += 1

    async def count(self, call: Call) -> AsyncIterator[Frame]:
        self.callers.append(call.caller)
        try:
            upto = call.body["input"]["upto"]
            number = 0
            while upto is None or number < upto:
                if self.faults and self.faults[0] == number:
                    self.faults.pop(0)
                    raise CommunityError(Code.INTERNAL_ERROR, "it broke")
                yield Frame("number", {"number": number})
                number += 1
                if self.gate is not None:
                    await self.gate.wait()
            yield Frame("done", {"by": self.name})
        finally:
            self.ended += 1


class Town:
    """An asking node, and others that serve."""

    def __init__(self, street: Any, asker: Any, community: str) -> None:
        self.street, self.asker, self.community = street, asker, community
        self.servers: dict[str, Server] = {}
        self.houses: dict[str, Any] = {}

    @property
    def router(self) -> Any:
        return self.asker.node.router

    async def serve(self, *names: str, level: str = "trusted") -> list[Server]:
        for name in names:
            house = await self.street.house(name)
            await self.street.admit(self.asker, house, self.community, level)
            server = self.servers[name] = Server(name)
            self.houses[name] = house
            registry = house.node.bus.registry
            registry.register(ADD, server.add)
            registry.register(PAY, server.add)
            registry.register(COUNT, server.count)
        needs = self.needs("experimental.add")
        await self.router.explain(self.community, needs)
        while looking := tuple(self.router.links._looking.values()):
            await asyncio.gather(*looking)
        await self.router.explain(self.community, needs)
        return [self.servers[name] for name in names]

    def needs(self, capability: str) -> Any:
        return self.router.needs(capability, "1.0", {}, {})

    def order(self, capability: str = "experimental.add") -> list[str]:
        routes = self.router.routes(self.community, self.needs(capability))
        return [each.name for each in routes if each.usable]

    def why(self, name: str, capability: str = "experimental.add") -> str:
        routes = self.router.routes(self.community, self.needs(capability))
        return str(next(each.reasons[0].rule for each in routes if each.name == name))

    async def add(self, capability: str = "experimental.add", **how: Any) -> Any:
        answer = await self.router.call(self.community, capability, {}, {"a": 1}, **how)
        return answer["output"]["by"]

    async def count(self, upto: int | None, seen: list[Any] | None = None) -> list[Any]:
        """Every frame of a stream; they are put into `seen` as they come."""
        frames = self.router.stream(self.community, "experimental.count", {}, {"upto": upto})
        seen = [] if seen is None else seen
        async with aclosing(frames) as closing:
            async for frame in closing:
                seen.append(frame.data)
        return seen


@pytest.fixture
async def town(street: Any) -> Town:
    return await made_town(street, PATIENT)


async def made_town(street: Any, settings: RoutingSettings) -> Town:
    asker = await street.house("asker", routing=settings)
    asker.node.router.learn(FORMS)
    return Town(street, asker, await street.found(asker))


async def refused(work: Any) -> CommunityError:
    with pytest.raises(CommunityError) as error:
        await work
    return error.value


def barred(town: Town) -> list[Misconduct]:
    bars = town.router.bars.current(town.street.clock.now())
    return [each.kind for each in bars]


async def test_a_call_reaches_the_node_that_offers_it_in_the_name_of_the_asker(town: Town) -> None:
    (server,) = await town.serve("one")
    assert await town.add() == "one"
    assert server.callers == [town.asker.id]
    assert await town.count(2) == [{"number": 0}, {"number": 1}, {"by": "one"}]
    assert (await refused(town.add("experimental.nothing"))).code is Code.NOT_FOUND


async def test_own_clients_are_routed_by_their_node_and_others_are_not(town: Town) -> None:
    (server,) = await town.serve("one")
    asker = town.asker
    transport = LocalTransport(asker.node.application())
    async with Client(
        "http://node",
        asker.key,
        town.community,
        asker.id,
        transport=transport,
        routed=True,
        clock=asker.clock,
    ) as own:
        assert (await own.call("experimental.add", {}, {}))["output"]["by"] == "one"
        frames = [frame.event async for frame in own.stream("experimental.count", {}, {"upto": 1})]
        assert frames == ["number", "done"]
        routes = await own.post("/node/v1/routes", {"capability": "experimental.add"})
        assert routes["routes"][0]["name"] == "one"
    async with Client(
        asker.url,
        town.houses["one"].key,
        town.community,
        asker.id,
        routed=True,
        clock=asker.clock,
    ) as stranger:
        error = await refused(stranger.call("experimental.add", {}, {}))
    assert error.code is Code.NOT_FOUND
    assert len(server.callers) == 2


async def test_a_call_goes_to_the_next_node_when_one_fails(town: Town) -> None:
    one, two = await town.serve("one", "two")
    first = town.servers[town.order()[0]]
    second = two if first is one else one
    first.faults = [CommunityError(Code.INTERNAL_ERROR, "broken")]
    assert await town.add() == second.name
    first.faults = [CommunityError(Code.CAPACITY_EXCEEDED, "full")]
    second.faults = [CommunityError(Code.CAPACITY_EXCEEDED, "full")]
    error = await refused(town.add())
    assert error.code is Code.CAPACITY_EXCEEDED
    assert [each["error"] for each in error.details["tried"]] == ["capacity_exceeded"] * 2


async def test_what_may_not_be_repeated_is_not_and_the_error_names_other_nodes(town: Town) -> None:
    await town.serve("one", "two")
    first, second = town.order("experimental.pay")
    town.servers[first].faults = [CommunityError(Code.INTERNAL_ERROR, "broken")]
    error = await refused(town.add("experimental.pay"))
    assert error.code is Code.INTERNAL_ERROR
    assert first in error.what
    assert error.details["alt_nodes"] == [town.houses[second].id]
    assert town.servers[second].callers == []


async def test_what_the_caller_did_wrong_is_told_at_once(town: Town) -> None:
    one, two = await town.serve("one", "two")
    for server in (one, two):
        server.faults = [CommunityError(Code.BAD_REQUEST, "no such sum")]
    assert (await refused(town.add())).code is Code.BAD_REQUEST
    assert len(one.callers) + len(two.callers) == 1
    assert barred(town) == []


async def test_another_node_takes_over_a_stream_only_before_its_first_frame(town: Town) -> None:
    await town.serve("one", "two")
    first, second = town.order("experimental.count")
    town.servers[first].faults = [0]
    assert await town.count(2) == [{"number": 0}, {"number": 1}, {"by": second}]
    first, _ = town.order("experimental.count")
    town.servers[first].faults = [1]
    seen: list[Any] = []
    error = await refused(town.count(3, seen))
    assert seen == [{"number": 0}]
    assert first in str(error)
    assert error.details["alt_nodes"]


async def test_a_node_that_went_away_is_left_alone_until_it_shows_itself(town: Town) -> None:
    await town.serve("one", "two")
    first, second = town.order()
    house = town.houses[first]
    # It has moved: nobody listens at its old address.
    peer = town.asker.node.book.peer(town.community, house.id)
    town.router.links._drop((town.community, house.id))
    moved = {"transport": "http", "host": "127.0.0.1", "port": 9}
    object.__setattr__(peer, "endpoints", (type(peer.endpoints[0])(**moved),))
    logged = town.asker.in_(town.community).state.content.manifests
    logged[house.id] = logged[house.id]._replace(endpoints=())
    assert await town.add() == second
    assert town.order() == [second]
    assert town.why(first) == "route.lost"


@pytest.mark.parametrize("fault", [{"output": {}}, {"output": 5}, {"nothing": 1}])
async def test_garbage_is_not_passed_on_and_its_node_is_barred(
    town: Town, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accord.community.bus import calls

    await town.serve("one", "two")
    first, second = town.order()
    town.servers[first].faults = [fault]
    monkeypatch.setattr(calls, "_kept_schema", lambda _offer, produced: produced)
    assert await town.add() == second
    assert barred(town) == [Misconduct.GARBAGE]
    assert town.order() == [second]
    assert town.order("experimental.count") == [second]  # all that it offers
    kept = BarredNodes(town.router.bars.file, 10)
    kept.load(town.street.clock.now())
    assert [each.node_id for each in kept.current(town.street.clock.now())] == [
        town.houses[first].id
    ]


async def test_an_answer_that_another_has_signed_is_garbage(town: Town) -> None:
    await town.serve("one", "two")
    first, second = town.order()
    signer = town.houses[first].node.bus._calls.signer
    signer._key = town.street.key("mallory")
    assert await town.add() == second
    assert barred(town) == [Misconduct.GARBAGE]


async def test_an_endless_stream_is_cut_and_ended_on_its_node(town: Town) -> None:
    (server,) = await town.serve("one")
    seen: list[Any] = []
    assert "longer than it may be" in (await refused(town.count(None, seen))).what
    assert len(seen) == 100
    assert barred(town) == [Misconduct.ENDLESS]
    while not server.ended:  # noqa: ASYNC110 - the node has no event for it
        await asyncio.sleep(0.001)
    error = await refused(town.add())
    assert error.code is Code.NOT_FOUND


async def test_a_slow_node_is_given_up_and_another_answers(street: Any) -> None:
    town = await made_town(street, IMPATIENT)
    await town.serve("one", "two")
    first, second = town.order()
    town.servers[first].gate = asyncio.Event()
    assert await town.add() == second
    assert barred(town) == [Misconduct.SLOW]
    assert town.order() == [second]
    assert first in town.order("experimental.count")  # only what was slow


async def test_a_stream_that_falls_silent_ends_with_an_error(street: Any) -> None:
    town = await made_town(street, IMPATIENT)
    (server,) = await town.serve("one")
    server.gate = asyncio.Event()
    error = await refused(town.count(3))
    assert error.code is Code.TIMEOUT
    assert barred(town) == [Misconduct.SLOW]


async def test_a_bar_ends_and_is_forgotten(town: Town) -> None:
    await town.serve("one")
    now = town.street.clock.now()
    town.router.bars.add(town.houses["one"].id, "experimental.add", Misconduct.SLOW, now)
    assert town.order() == []
    assert town.router.bars.forget(town.houses["one"].id)
    assert town.order() == ["one"]
    bars = BarredNodes(town.asker.node.folders.home / "bars.json", most=2)
    for number in range(5):
        bars.add(town.street.key(str(number)).id, "x", Misconduct.LIE, now + number)
    assert len(bars.current(now + 5)) == 2
    assert bars.current(now + 86_400) == []


async def test_a_damaged_memory_of_bad_nodes_is_ignored(town: Town) -> None:
    file = town.asker.node.folders.home / "bars.json"
    for content in (b"", b"{}", b"[]", b'{"bars": [{"node_id": 5}]}', b"\xff"):
        file.write_bytes(content)
        bars = BarredNodes(file, most=2)
        bars.load(town.street.clock.now())
        assert bars.current(town.street.clock.now()) == []


async def test_a_short_call_is_sent_to_a_second_node_when_the_first_takes_long(
    street: Any,
) -> None:
    town = await made_town(street, RoutingSettings(hedge_seconds=0.05, first_seconds=30))
    await town.serve("one", "two")
    first, second = town.order()
    gate = town.servers[first].gate = asyncio.Event()
    assert await town.add() == second
    gate.set()
    assert len(town.servers[first].callers) == 1
    assert barred(town) == []


async def test_leaving_a_stream_ends_it_on_the_serving_node(town: Town) -> None:
    (server,) = await town.serve("one")
    async with aclosing(
        town.router.stream(town.community, "experimental.count", {}, {"upto": None})
    ) as frames:
        await anext(frames)
    while not server.ended:  # noqa: ASYNC110 - the node has no event for it
        await asyncio.sleep(0.001)
    assert barred(town) == []
    assert town.router._running == 0


async def test_the_time_of_the_caller_ends_a_call_without_blaming_a_node(town: Town) -> None:
    (server,) = await town.serve("one")
    server.gate = asyncio.Event()
    error = await refused(town.add(seconds=0.05))
    assert error.code is Code.TIMEOUT


async def test_a_manifest_that_changes_in_the_middle_of_a_call_changes_the_next(
    town: Town,
) -> None:
    (server,) = await town.serve("one")
    registry = town.houses["one"].node.bus.registry
    frames = town.router.stream(town.community, "experimental.count", {}, {"upto": 3})
    async with aclosing(frames) as closing:
        first = await anext(closing)
        registry.deregister("experimental.count@1.0")
        rest = [frame.data async for frame in closing]
    assert [first.data, *rest] == [{"number": 0}, {"number": 1}, {"number": 2}, {"by": "one"}]
    assert (await refused(town.count(1))).code is Code.NOT_FOUND
    assert len(server.callers) == 1


async def test_calls_stay_here_where_the_owner_wants_that(street: Any) -> None:
    town = await made_town(street, RoutingSettings(enabled=False))
    (server,) = await town.serve("one")
    assert (await refused(town.add())).code is Code.NOT_FOUND
    assert server.callers == []


async def test_only_nodes_that_are_trusted_enough_are_given_calls(street: Any) -> None:
    policy = RoutePolicy(least_level=Level.TRUSTED)
    town = await made_town(street, RoutingSettings(policy=policy))
    await town.serve("stranger", level="member")
    assert (await refused(town.add())).code is Code.NOT_FOUND
    await town.serve("friend", level="trusted")
    assert await town.add() == "friend"


async def test_a_full_node_names_others_that_may_serve_the_call(town: Town) -> None:
    await town.serve("one", "two")
    one, two = town.houses["one"], town.houses["two"]
    await one.node.sync(town.community)
    await one.node.router.explain(town.community, town.needs("experimental.add"))
    offer = one.node.bus.registry.serving("experimental.add", None)
    offer.in_hand = offer.max_concurrent
    async with town.asker.client(town.community, one) as client:
        error = await refused(client.call("experimental.add", {}, {}, retry=RetryPolicy(1)))
    assert error.code is Code.CAPACITY_EXCEEDED
    assert error.details["alt_nodes"] == [two.id]
    offer.in_hand = 0


async def test_the_number_of_routed_calls_is_bounded(street: Any) -> None:
    town = await made_town(street, RoutingSettings(max_concurrent=1, first_seconds=30))
    (server,) = await town.serve("one")
    server.gate = asyncio.Event()
    running = asyncio.create_task(town.add())
    while not server.callers:  # noqa: ASYNC110 - the node has no event for it
        await asyncio.sleep(0.001)
    assert (await refused(town.add())).code is Code.CAPACITY_EXCEEDED
    server.gate.set()
    assert await running == "one"


async def test_metrics_tell_what_was_routed(town: Town) -> None:
    await town.serve("one", "two")
    town.servers[town.order()[0]].faults = [CommunityError(Code.INTERNAL_ERROR, "broken")]
    await town.add()
    told = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in town.asker.node.collect()
        for sample in metric.samples
    }
    assert told["accord_route_calls_total", "experimental.add", "remote"] == 1
    assert told["accord_route_retries_total", "experimental.add"] == 1
    assert told["accord_route_running",] == 0
