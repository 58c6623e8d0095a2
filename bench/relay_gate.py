"""The gate beside the same conditions without reasons, and the wire beside its libraries."""

from collections.abc import Callable, Iterator
from functools import partial

import orjson

from accord.relay.rules import (
    ChannelGrant,
    DmDefault,
    Facts,
    GateEvent,
    PlatformAccount,
    PolicyKey,
    PrincipalPolicy,
    PrincipalRule,
    RelevancePolicy,
    RouteKey,
    TenantAccount,
    TenantChannel,
    Visibility,
    VisibilityKey,
    decide,
    frames,
    messages,
    splitting,
    to_record,
)
from bench.figure import Figure
from bench.measure import rates

GOAL = 100_000
"""Decisions a second that the gate must reach."""

PEOPLE, CHANNELS = 1_000, 100


def run() -> Iterator[Figure]:
    """Measure every part."""
    facts = community()
    bare = partial(bare_conditions, facts=facts)
    cases = {
        "owner in a shared channel": event("u1", "c1"),
        "addressed, channel held": event("u2", "c1", addressed=True),
        "chatter, dropped": event("u2", "c1"),
        "direct message": GateEvent("e", "discord", "bot", "d1", True, "u1"),
        "unlinked author": event("stranger", "c1"),
    }
    mixed = list(cases.values())
    for name, each in cases.items():
        ours, theirs = rates(partial(decide, each, facts), partial(bare, each))
        yield Figure(f"decide: {name}", "calls/s", ours, theirs, "conditions without reasons")
    rate, _ = rates(partial(_all, partial(decide, facts=facts), mixed), partial(_all, bare, mixed))
    yield Figure(
        "decide: all of these in turn", "calls/s", rate * len(mixed), GOAL, "the goal", 1.0
    )
    one = cases["addressed, channel held"]
    decision = decide(one, facts)
    ours, theirs = rates(partial(to_record, one, facts, decision), partial(decide, one, facts))
    yield Figure("to_record", "calls/s", ours, theirs, "deciding it")
    yield from wires()


def wires() -> Iterator[Figure]:
    """Reading and writing the frame of a message, and cutting a long text."""
    source = messages.SessionSource("discord", "c1", "group", user_id="u1", scope_id="g1")
    frame = frames.Inbound(
        messages.MessageEvent("hello there " * 10, source, message_id="m1"), "b1"
    )
    line = frames.write_frame(frame)
    ours, theirs = rates(partial(frames.read_frame, line), partial(orjson.loads, line))
    yield Figure("read_frame of a message", "calls/s", ours, theirs, "orjson.loads")
    written = orjson.loads(line)
    ours, theirs = rates(partial(frames.write_frame, frame), partial(orjson.dumps, written))
    yield Figure("write_frame of a message", "calls/s", ours, theirs, "orjson.dumps")
    text = (
        "A line of words, some of them long.\n" * 20 + "```py\n" + "x = 1\n" * 40 + "```\n"
    ) * 20
    ours, theirs = rates(partial(splitting.split_text, text, 2000, "utf16"), partial(slices, text))
    size = len(text) / 1e6
    yield Figure("split", "MB/s", ours * size, theirs * size, "cutting at every 2000")


def community() -> Facts:
    """A tenant with a thousand people, each with an agent, and a hundred channels."""
    people = [f"u{number}" for number in range(PEOPLE)]
    channels = [f"c{number}" for number in range(CHANNELS)]
    holders = {channel: f"i{number * 7 % PEOPLE}" for number, channel in enumerate(channels)}
    return Facts(
        {RouteKey("discord", "g1"): "t1"},
        {TenantAccount("t1", "discord", user): ("i" + user[1:],) for user in people},
        {PlatformAccount("discord", user): DmDefault("t1", "i" + user[1:]) for user in people},
        {
            TenantChannel("t1", "discord", "g1", channel): ChannelGrant(holder, "u" + holder[1:])
            for channel, holder in holders.items()
        },
        {
            PolicyKey("t1", holder, "discord"): PrincipalRule(PrincipalPolicy.ANY)
            for holder in holders.values()
        },
        {
            VisibilityKey("discord", "g1", channel, user): Visibility.VISIBLE
            for channel in channels
            for user in people[:100]
        },
        {
            PolicyKey("t1", holder, "discord"): RelevancePolicy(require_address=True)
            for holder in holders.values()
        },
        {PlatformAccount("discord", "bot"): frozenset(holders.values())},
    )


def event(author: str, channel: str, *, addressed: bool = False) -> GateEvent:
    """A message in a channel."""
    return GateEvent("e", "discord", "bot", channel, False, author, "g1", addressed=addressed)


def bare_conditions(event: GateEvent, facts: Facts) -> list[str]:
    """The least that decides the same here: plain tuples, no verdicts, nothing caught."""
    author, platform = event.author, event.platform
    if event.link is not None or author is None or author == event.bot_id:
        return []
    if event.is_dm:
        home = facts.dm_defaults.get((platform, author))  # type: ignore[call-overload]
        return [] if home is None else [home[1]]
    scope, chat = event.scope_id, event.chat_id
    tenant = facts.routes.get((platform, scope or chat))  # type: ignore[call-overload]
    bound = facts.bindings.get((tenant, platform, author))  # type: ignore[call-overload]
    if not bound:
        return []
    seen = facts.visibility.get((platform, scope, chat, author))  # type: ignore[call-overload]
    received = list(bound) if seen is Visibility.VISIBLE else []
    grant = facts.grants.get((tenant, platform, scope, chat))  # type: ignore[call-overload]
    if grant is None or grant[0] in bound:
        return received
    seat = (tenant, grant[0], platform)
    policy = facts.relevance.get(seat)  # type: ignore[call-overload]
    if policy is not None and policy.require_address and not event.addressed:
        return received
    if facts.principals[seat][0] is not PrincipalPolicy.ANY:  # type: ignore[index]
        return received
    if facts.visibility.get((platform, scope, chat, grant[1])) is Visibility.VISIBLE:  # type: ignore[call-overload]
        received.append(grant[0])
    return received


def slices(text: str) -> list[str]:
    """The text cut anywhere."""
    return [text[start : start + 2000] for start in range(0, len(text), 2000)]


def _all(call: Callable[[GateEvent], object], events: list[GateEvent]) -> None:
    for each in events:
        call(each)
