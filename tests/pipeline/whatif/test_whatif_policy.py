"""`whatif policy` changes exactly what a live connector with that policy would decide otherwise."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.fakes.platform import MemoryChat, MemoryPlatform
from tests.fakes.tables import Line, silver

from accord.kernel import canonical, tokens
from accord.kernel.clock import SystemClock
from accord.pipeline.errors import PipelineError
from accord.pipeline.rules import streams
from accord.pipeline.tables import GivenTables
from accord.pipeline.whatif import read_policy, replay_decision, whatif_policy
from accord.relay.connector import RELAY, DeliveryLimits, Keyring, open_connector
from accord.relay.rules import (
    ChannelGrant,
    DecidedAgain,
    Facts,
    GateEvent,
    PolicyKey,
    PrincipalPolicy,
    PrincipalRule,
    RouteKey,
    TenantAccount,
    TenantChannel,
    Visibility,
    VisibilityKey,
    decide,
    from_record,
    to_record,
)
from accord.storage import journal, open_store

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from accord.relay.connector import Connector

CLOCK = SystemClock()
OWNERS = {"alpha": "ann", "beta": "ben", "gamma": "cy"}
IN_FORCE: dict[str, list[dict[str, Any]]] = {
    "/relay/policy": [{"platform": "memory", "instanceId": "gamma", "requireAddress": True}]
}
PROPOSED: dict[str, list[dict[str, Any]]] = {
    "/relay/policy": [
        {
            "platform": "memory",
            "instanceId": "beta",
            "requireAddress": True,
            "freeResponseScopes": ["c3"],
        },
        {
            "platform": "memory",
            "instanceId": "gamma",
            "requireAddress": False,
            "allowOtherBots": True,
        },
    ],
    "/manage/principal": [
        {
            "platform": "memory",
            "instanceId": "alpha",
            "policy": "allow-list",
            "allow": ["ben", "robot"],
        }
    ],
}
"""One agent becomes stricter, one opens up, one listens to fewer people."""


def happenings(seed: int, count: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "user_id": (user := chance.choice(["ann", "ben", "cy", "mallory", "robot", "bot"])),
            "chat_id": chance.choice(["c1", "c2", "c3", "c4", "t1", f"dm-{user}"]),
            "addressed": chance.random() < 0.4,
            "is_bot": user == "robot",
            "event_id": f"happening-{number}",
        }
        for number in range(count)
    ]


async def live(
    folder: Path, events: list[dict[str, Any]], policy: Mapping[str, list[dict[str, Any]]]
) -> list[Line]:
    """Let a real connector decide about events; what its journal says of them."""
    chat = MemoryChat()
    for name in ("c1", "c2", "c3"):
        chat.channel(name, scope_id="g1")
    chat.channel("c4", scope_id="g1", members=frozenset({"ann"}))
    chat.channel("t1", "thread", scope_id="g1", parent_id="c1")
    for user in ("ann", "ben", "cy", "mallory", "robot", "bot"):
        chat.channel(f"dm-{user}", "dm")
    async with (
        open_store(str(folder / "stores"), RELAY) as store,
        open_connector(
            store,
            Keyring.load(folder / "relay.key"),
            CLOCK,
            name="live",
            platforms=[MemoryPlatform(chat)],
            limits=DeliveryLimits(renew_seconds=0.2, sweep_seconds=0.1),
        ) as connector,
    ):
        secrets = await _settle(connector, chat)
        await _declare(connector, secrets, policy)
        for each in events:
            chat.write(text="a word", **each)
        names = {each["event_id"] for each in events}
        await _until(lambda: names <= set(chat.received))
        entries = await store.read(lambda c: journal.read(c, streams.RELAY_DECISIONS, limit=10_000))
        lines = [Line(entry.id, entry.recorded_at, entry.body) for entry in entries]
    return [line for line in lines if _event_id(line) in names]


async def _settle(connector: "Connector", chat: MemoryChat) -> dict[str, str]:
    """Three agents, each linked to its owner and with a channel; the secrets of their gateways."""
    control, secrets = connector.control, {}
    await control.route("t1", "memory", "g1")
    for number, (instance, owner) in enumerate(OWNERS.items()):
        minted = await control.mint_token("t1", instance)
        secrets[instance] = (await control.enrol(minted.token, f"gw-{instance}")).secret
        principal = await control.principal(instance)
        for said, text in enumerate((f"/link {(await control.link(principal)).code}", "yes"), 1):
            chat.write(owner, f"dm-{owner}", text)
            await _until(lambda: len(chat.said) >= 2 * number + said)  # noqa: B023 - awaited here
        await control.grant(instance, "memory", "g1", f"c{number + 1}", owner)
        await control.set_principal(principal, "memory", PrincipalPolicy.ANY, ())
    await control.grant("alpha", "memory", "g1", "c4", "ann")
    return secrets


async def _declare(
    connector: "Connector", secrets: dict[str, str], policy: Mapping[str, list[dict[str, Any]]]
) -> None:
    """Send the bodies of a policy to the routes that they are for, as their gateways would."""
    app = httpx.ASGITransport(Starlette(routes=list(connector.routes)))
    async with httpx.AsyncClient(transport=app, base_url="http://connector") as client:
        for route, bodies in policy.items():
            for body in bodies:
                instance = body["instanceId"]
                bearer = tokens.make(f"gw-{instance}", secrets[instance], CLOCK.now())
                answer = await client.post(
                    route, json=body, headers={"authorization": f"Bearer {bearer}"}
                )
                assert answer.status_code == 200, answer.text


async def _until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the chat tells nobody
            await asyncio.sleep(0.002)


def _event_id(line: Line) -> str:
    assert isinstance(line.body, str)
    return str(json.loads(line.body)["event"]["event_id"])


def _delivered(lines: list[Line]) -> set[tuple[str, str]]:
    found = set()
    for line in lines:
        recorded = from_record(json.loads(str(line.body)))
        found |= {(recorded.event.event_id, each) for each in recorded.decision.deliveries}
    return found


async def test_it_agrees_with_the_real_connector_on_the_same_events_message_by_message(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    events = happenings(7, 150)
    before = await live(tmp_path / "before", events, IN_FORCE)
    after = await live(tmp_path / "after", events, PROPOSED)
    policy = read_policy(canonical.encode(PROPOSED))

    really = {_event_id(line): from_record(json.loads(str(line.body))).decision for line in after}
    for line in before:
        recorded = from_record(json.loads(str(line.body)))
        assert replay_decision(recorded, policy) == really[recorded.event.event_id]

    more = _delivered(after) - _delivered(before)
    less = _delivered(before) - _delivered(after)
    assert more
    assert less
    tables = GivenTables(
        spark, {streams.RELAY_DECISIONS: silver(spark, streams.RELAY_DECISIONS, before)}
    )
    found = whatif_policy(tables, policy)
    assert (found.newly_delivered, found.newly_dropped) == (len(more), len(less))
    assert found.still_delivered == len(_delivered(before) & _delivered(after))
    assert (found.drifted, found.unreadable) == (0, 0)
    chats = {each["event_id"]: each["chat_id"] for each in events}
    moved = Counter((instance, chats[event], True) for event, instance in more)
    moved += Counter((instance, chats[event], False) for event, instance in less)
    told: Counter[tuple[str, str, bool]] = Counter()
    for each in found.changes:
        told[each.instance, each.chat_id, each.delivered] += each.messages
    assert told == moved
    assert {each.layer for each in found.changes} == {"authority", "relevance"}
    assert found.to_dict() == json.loads(json.dumps(found.to_dict()))
    text = found.text()
    assert "newly delivered" in text
    assert "It does not address the bot, as the instance demands." in text


def test_records_that_cannot_be_read_or_repeated_are_counted_apart(spark: "SparkSession") -> None:
    unreadable = Line("one", 1, {"version": 1, "event": 0, "facts": 0, "decision": 0})
    facts: dict[str, Any] = {
        "routes": [["chat", "g1", "t1"]],
        "bindings": [["t1", "chat", "ann", ["a1"]]],
        **{name: [] for name in ("dm_defaults", "grants", "principals", "relevance", "voices")},
        "visibility": [],
    }
    event = {
        "event_id": "e",
        "platform": "chat",
        "bot_id": "bot",
        "chat_id": "c1",
        "is_dm": False,
        "author": "ann",
        "scope_id": "g1",
        "author_is_bot": False,
        "addressed": False,
    }
    # Nobody knows whether Ann sees the channel, and yet the record says that she does.
    said = ["authority.owner", "visibility.visible", "relevance.owner"]
    decision = {
        "tenant": "t1",
        "verdicts": ["link.none", "origin.other", "tenant.routed", "candidates.found"],
        "candidates": [{"instance": "a1", "delivers": True, "verdicts": said}],
    }
    drifted = Line("two", 2, {"version": 1, "event": event, "facts": facts, "decision": decision})
    lines = silver(spark, streams.RELAY_DECISIONS, [unreadable, drifted])
    policy = read_policy('{"/relay/policy": [{"platform": "chat"}]}')
    found = whatif_policy(GivenTables(spark, {streams.RELAY_DECISIONS: lines}), policy)
    assert (found.unreadable, found.drifted, found.considered) == (1, 1, 0)
    assert "left out" in found.text()


def test_an_event_that_was_parked_counts_once_and_by_its_last_decision(
    spark: "SparkSession",
) -> None:
    known = Facts(
        routes={RouteKey("chat", "g1"): "t1"},
        bindings={
            TenantAccount("t1", "chat", "ann"): ("a1",),
            TenantAccount("t1", "chat", "ben"): ("a2",),
        },
        grants={TenantChannel("t1", "chat", "g1", "c1"): ChannelGrant("a2", "ben")},
        principals={PolicyKey("t1", "a2", "chat"): PrincipalRule(PrincipalPolicy.ANY)},
    )
    views = {VisibilityKey("chat", "g1", "c1", "ben"): Visibility.VISIBLE}
    seen = replace(known, visibility=views)
    event = GateEvent("e", "chat", "bot", "c1", False, "ann", "g1")
    again = DecidedAgain("one", "a2")
    lines = [
        Line("one", 1, to_record(event, known, decide(event, known))),
        Line("one.a2.0", 9, to_record(event, seen, decide(event, seen), again)),
    ]
    stored = silver(spark, streams.RELAY_DECISIONS, lines)
    policy = read_policy(
        '{"/relay/policy": [{"platform": "chat", "instanceId": "a2", "requireAddress": true}]}'
    )
    found = whatif_policy(GivenTables(spark, {streams.RELAY_DECISIONS: stored}), policy)
    assert (found.considered, found.newly_dropped, found.still_delivered) == (2, 1, 1)
    [change] = found.changes
    assert (change.instance, change.rule_before) == ("a2", "relevance.open")
    assert [each.id for each in change.samples] == ["one"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "strict JSON"),
        ("[]", "a list of bodies for each route"),
        ("{}", "a list of bodies for each route"),
        ('{"/relay/polcy": []}', "expected one of"),
        ('{"/relay/policy": {}}', "expected a list"),
        ('{"/relay/policy": [1]}', "expected an object"),
        ('{"/relay/policy": [{}]}', "platform is missing"),
        ('{"/relay/policy": [{"platform": 3}]}', "expected an id"),
        ('{"/relay/policy": [{"platform": "x", "requireAddress": "yes"}]}', "requireAddress"),
        ('{"/manage/principal": [{"platform": "x", "policy": "everyone"}]}', "owner-only"),
        ('{"/manage/principal": [{"platform": "x", "policy": []}]}', "owner-only"),
        ('{"/manage/principal": [{"platform": "x", "policy": "any", "allow": 1}]}', "allow"),
    ],
)
def test_a_file_that_is_no_policy_is_refused_with_its_place(text: str, what: str) -> None:
    with pytest.raises(PipelineError, match=what):
        read_policy(text)


def test_of_several_declarations_about_an_agent_the_last_counts() -> None:
    policy = read_policy(
        '{"/relay/policy": [{"platform": "p", "requireAddress": true},'
        ' {"platform": "p", "instanceId": "a", "allowOtherBots": true}]}'
    )
    from accord.relay.rules import Facts, PolicyKey

    one, other = PolicyKey("t", "a", "p"), PolicyKey("t", "b", "p")
    known = policy.applied(Facts(), [one, other, PolicyKey("t", "a", "q")]).relevance
    assert set(known) == {one, other}
    assert (known[one].require_address, known[one].allow_other_bots) == (False, True)
    assert known[other].require_address
