"""What holds for every event and all facts, in small worlds whose ids collide on purpose."""

import dataclasses
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.errors import RelayError
from accord.relay.rules import (
    GATE_RULES,
    Aliases,
    ChannelGrant,
    DmDefault,
    Facts,
    GateEvent,
    LinkCommand,
    OpenKey,
    OpenPlace,
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
    from_record,
    narrow_facts,
    to_record,
    with_aliases,
)

tenants = st.sampled_from(["t1", "t2"])
platforms = st.sampled_from(["discord", "web"])
users = st.sampled_from(["ann", "bob", "bot"])
instances = st.sampled_from(["i1", "i2"])
scopes = st.sampled_from([None, "s1", "s2"])
chats = st.sampled_from(["c1", "c2", "s1"])
seats = st.builds(PolicyKey, tenants, instances, platforms)
some_instances = st.lists(instances, max_size=2, unique=True)

events = st.builds(
    GateEvent,
    event_id=st.just("e"),
    platform=platforms,
    bot_id=st.sampled_from(["bot", "other-bot"]),
    chat_id=chats,
    is_dm=st.booleans(),
    author=st.none() | users,
    scope_id=scopes,
    parent_chat_id=st.none() | chats,
    author_is_bot=st.booleans(),
    addressed=st.booleans(),
    hook=st.none() | st.just("/hook"),
    link=st.none() | st.none() | st.none() | st.sampled_from(LinkCommand),
)
facts = st.builds(
    Facts,
    routes=st.dictionaries(
        st.builds(RouteKey, platforms, st.sampled_from(["s1", "s2", "c1", "c2", "/hook"])), tenants
    ),
    bindings=st.dictionaries(
        st.builds(TenantAccount, tenants, platforms, users), some_instances.map(tuple)
    ),
    dm_defaults=st.dictionaries(
        st.builds(PlatformAccount, platforms, users), st.builds(DmDefault, tenants, instances)
    ),
    grants=st.dictionaries(
        st.builds(TenantChannel, tenants, platforms, scopes, chats),
        st.builds(ChannelGrant, instances, st.none() | users),
    ),
    principals=st.dictionaries(
        seats, st.builds(PrincipalRule, st.sampled_from(PrincipalPolicy), st.frozensets(users))
    ),
    visibility=st.dictionaries(
        st.builds(VisibilityKey, platforms, scopes, chats, users),
        st.sampled_from(Visibility),
        min_size=4,
    ),
    relevance=st.dictionaries(
        seats, st.builds(RelevancePolicy, st.booleans(), st.frozensets(chats), st.booleans())
    ),
    voices=st.dictionaries(
        st.builds(PlatformAccount, platforms, users), some_instances.map(frozenset)
    ),
    shared=st.frozensets(st.builds(RouteKey, platforms, st.sampled_from(["s1", "s2", "c1"]))),
    open=st.dictionaries(
        st.builds(
            OpenKey, platforms, st.sampled_from(["", "s1"]), st.sampled_from(["", "c1", "c2"])
        ),
        st.builds(OpenPlace, tenants, instances),
    ),
    limited=st.frozensets(st.builds(PlatformAccount, platforms, users)),
)


def delivered(event: GateEvent, known: Facts) -> set[tuple[str, str]]:
    """The specification once more, as plainly as it can be said."""
    if event.link or event.author is None or event.author == event.bot_id:
        return set()
    account = PlatformAccount(event.platform, event.author)
    key = event.hook or event.scope_id or event.chat_id
    tenant = known.routes.get(RouteKey(event.platform, key))
    home = known.dm_defaults.get(account)
    is_shared = RouteKey(event.platform, key) in known.shared
    is_bot = event.author_is_bot or account in known.voices
    opened = None if is_bot else _open(event, known, None if is_shared else tenant)
    by_author = event.is_dm or (not event.hook and (is_shared or tenant is None))
    if by_author:
        if event.is_dm and home and tenant not in (None, home.tenant) and not is_shared:
            return set()
        if home is None and opened is None:
            return set()
        tenant = home.tenant if home is not None else opened.tenant if opened else None
    if tenant is None:
        return set()
    bound = set(known.bindings.get(TenantAccount(tenant, event.platform, event.author), ()))
    if by_author:
        bound &= {home.instance} if home is not None else set()
    received = set()
    if not bound and opened is not None and opened.tenant == tenant:
        policy = known.relevance.get(
            PolicyKey(tenant, opened.instance, event.platform), RelevancePolicy()
        )
        is_free = bool({event.chat_id, event.parent_chat_id} & policy.free_response_scopes)
        wanted = event.is_dm or event.addressed or is_free
        if wanted and account not in known.limited:
            received.add((tenant, opened.instance))
    for instance in ("i1", "i2"):
        seat = PolicyKey(tenant, instance, event.platform)
        is_owner = instance in bound
        grant = _grant(event, known, tenant)
        holds = grant is not None and grant.instance == instance and not event.is_dm
        if event.is_dm:
            authorized = is_owner and home is not None and home.instance == instance
        else:
            principal = known.principals.get(seat, PrincipalRule())
            admits = principal.policy is PrincipalPolicy.ANY or (
                principal.policy is PrincipalPolicy.ALLOW_LIST and event.author in principal.allow
            )
            authorized = is_owner or (holds and admits and bool(bound))
        authorized = authorized and instance not in known.voices.get(account, ())
        viewer = event.author if is_owner else grant.owner if grant else None
        if viewer and not is_owner:
            owned = known.bindings.get(TenantAccount(tenant, event.platform, viewer), ())
            viewer = viewer if instance in owned else None
        view = VisibilityKey(event.platform, event.scope_id, event.chat_id, viewer or "")
        seen = known.visibility.get(view)
        visible = event.is_dm or seen is Visibility.VISIBLE
        wrote = viewer == event.author and not event.hook
        visible = visible or (wrote and seen is not Visibility.HIDDEN)
        policy = known.relevance.get(seat, RelevancePolicy())
        is_free = bool({event.chat_id, event.parent_chat_id} & policy.free_response_scopes)
        is_addressed = not policy.require_address or event.addressed or is_free
        relevant = is_owner or (is_addressed and (policy.allow_other_bots or not is_bot))
        if authorized and visible and relevant:
            received.add((tenant, instance))
    return received


def _open(event: GateEvent, known: Facts, tenant: str | None) -> OpenPlace | None:
    if event.hook:
        return None
    scope = event.scope_id or ""
    places = [(scope, event.chat_id), (scope, event.parent_chat_id), (scope, "")]
    for at, channel in [("", "")] if event.is_dm else places:
        if channel is None or (not event.is_dm and not at and not channel):
            continue
        found = known.open.get(OpenKey(event.platform, at, channel))
        if found is not None and tenant in (None, found.tenant):
            return found
    return None


def _grant(event: GateEvent, known: Facts, tenant: str) -> ChannelGrant | None:
    for channel in (event.chat_id, event.parent_chat_id or event.chat_id):
        found = known.grants.get(TenantChannel(tenant, event.platform, event.scope_id, channel))
        if found is not None:
            return found
    return None


@given(events, facts)
def test_delivered_is_exactly_what_is_authorized_visible_and_relevant(
    event: GateEvent, known: Facts
) -> None:
    decision = decide(event, known)
    received = {(str(decision.tenant), instance) for instance in decision.deliveries}
    assert received == delivered(event, known)
    assert len(decision.deliveries) == len(received)


def test_the_same_holds_in_many_dense_worlds() -> None:
    count = {True: 0, False: 0}
    spoken: set[str] = set()
    for seed in range(20_000):
        event, known = dense_world(random.Random(seed))
        decision = decide(event, known)
        received = {(str(decision.tenant), instance) for instance in decision.deliveries}
        assert received == delivered(event, known), seed
        spoken.update(verdict.rule for verdict in decision.verdicts)
        for candidate in decision.candidates:
            count[candidate.delivers] += 1
            spoken.update(verdict.rule for verdict in candidate.verdicts)
    assert min(count.values()) > 1000
    # The last is said only of events that were parked.
    speaking = {rule for rule in GATE_RULES if not rule.startswith("egress.")} - {"candidates.gone"}
    assert spoken == speaking


def dense_world(chance: random.Random) -> tuple[GateEvent, Facts]:
    """A world in which most of what could be known is, so that deep layers are reached."""
    pick = chance.choice

    def maybe() -> bool:
        return chance.random() < 0.6

    event = GateEvent(
        "e",
        "web",
        "bot",
        pick("cd"),
        maybe() and maybe(),
        pick(["ann", "bob", "crow", "bot", None]),
        pick([None, "s", "s"]),
        pick([None, "c", "d"]),
        not maybe(),
        maybe(),
        None,
        LinkCommand.UNLINK if chance.random() < 0.05 else None,
    )
    people, places = ("ann", "bob", "crow"), (None, "s")
    homes = [(tenant, instance) for tenant in ("t1", "t2") for instance in ("i1", "i2")]
    known = Facts(
        {RouteKey("web", key): pick(["t1", "t1", "t2"]) for key in "scd" if maybe()},
        {
            TenantAccount(tenant, "web", who): tuple(each for each in ("i1", "i2") if maybe())
            for tenant in ("t1", "t2")
            for who in people
            if maybe()
        },
        {PlatformAccount("web", who): DmDefault(*pick(homes)) for who in people if maybe()},
        {
            TenantChannel(tenant, "web", scope, chat): ChannelGrant(
                pick(["i1", "i2"]), pick([*people, None])
            )
            for tenant in ("t1", "t2")
            for scope in places
            for chat in "cd"
            if maybe()
        },
        {
            PolicyKey(*home, "web"): PrincipalRule(
                pick(list(PrincipalPolicy)), frozenset({pick(people)})
            )
            for home in homes
            if maybe()
        },
        {
            VisibilityKey("web", scope, chat, who): pick([Visibility.VISIBLE, *Visibility])
            for scope in places
            for chat in "cd"
            for who in people
            if maybe()
        },
        {
            PolicyKey(*home, "web"): RelevancePolicy(maybe(), frozenset({pick("cd")}), maybe())
            for home in homes
            if maybe()
        },
        {PlatformAccount("web", "crow"): frozenset({pick(["i1", "i2"])})} if maybe() else {},
        frozenset(RouteKey("web", key) for key in "scd" if not maybe()),
        {
            OpenKey("web", *place): OpenPlace(*pick(homes))
            for place in (("", ""), ("s", ""), ("s", "c"), ("", "d"))
            if not maybe()
        },
        frozenset({PlatformAccount("web", pick(people))} if not maybe() else ()),
    )
    return event, known


@given(events, facts)
def test_every_layer_has_its_say(event: GateEvent, known: Facts) -> None:
    decision = decide(event, known)
    layers = [verdict.layer.value for verdict in decision.verdicts]
    assert layers == ["link", "origin", "tenant", "candidates"]
    for candidate in decision.candidates:
        said = [verdict.layer.value for verdict in candidate.verdicts]
        assert said == ["authority", "visibility", "relevance"]
        assert candidate.delivers == all(verdict.passed for verdict in candidate.verdicts)
    assert bool(decision.candidates) == all(verdict.passed for verdict in decision.verdicts)
    assert decision.wakes == decision.deliveries


@given(events, facts, facts)
def test_nothing_of_another_tenant_changes_or_receives_anything(
    event: GateEvent, known: Facts, other: Facts
) -> None:
    tenant = decide(event, known).tenant
    mine = dataclasses.replace(
        known,
        bindings={key: found for key, found in known.bindings.items() if key.tenant == tenant},
        grants={key: found for key, found in known.grants.items() if key.tenant == tenant},
        principals={key: found for key, found in known.principals.items() if key.tenant == tenant},
        relevance={key: found for key, found in known.relevance.items() if key.tenant == tenant},
    )
    strange = dataclasses.replace(
        known,
        bindings={**_others(other.bindings, tenant), **mine.bindings},
        grants={**_others(other.grants, tenant), **mine.grants},
        principals={**_others(other.principals, tenant), **mine.principals},
        relevance={**_others(other.relevance, tenant), **mine.relevance},
    )
    assert decide(event, mine) == decide(event, known) == decide(event, strange)


def _others(known: Mapping[Any, Any], tenant: str | None) -> dict[Any, Any]:
    return {key: found for key, found in known.items() if key.tenant != tenant}


@given(events, facts, st.sampled_from(["other", "bot", ""]))
def test_the_bot_that_saw_it_does_not_choose_the_tenant(
    event: GateEvent, known: Facts, bot: str
) -> None:
    seen_by_another = dataclasses.replace(event, bot_id=bot)
    if event.author not in (event.bot_id, bot):
        assert decide(seen_by_another, known) == decide(event, known)


class Broken(Mapping[Any, Any]):
    """A mapping that fails like a source of facts may."""

    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError


NAMES = [field.name for field in dataclasses.fields(Facts)]


@given(events, facts, st.sets(st.sampled_from(NAMES), min_size=1))
def test_whatever_fails_never_delivers_more(
    event: GateEvent, known: Facts, broken: set[str]
) -> None:
    failures: dict[str, Any] = {name: Broken() for name in broken}
    failing = dataclasses.replace(known, **failures)
    decision = decide(event, failing)
    assert set(decision.deliveries) <= {each for _, each in delivered(event, known)}
    verdicts = list(decision.verdicts)
    verdicts += [verdict for each in decision.candidates for verdict in each.verdicts]
    assert not any(verdict.passed for verdict in verdicts if verdict.rule == "gate.error")


@given(events, facts)
def test_a_record_carries_all_that_the_decision_was_made_from(
    event: GateEvent, known: Facts
) -> None:
    decision = decide(event, known)
    record = json.loads(json.dumps(to_record(event, known, decision)))
    read = from_record(record)
    assert tuple(read) == (event, narrow_facts(event, known), decision, None)
    assert decide(read.event, read.facts) == decision


def test_a_record_of_a_failure_tells_the_failure() -> None:
    event, known = dense_world(random.Random(1))
    event = dataclasses.replace(event, link=None, is_dm=False, author="ann")
    decision = decide(event, dataclasses.replace(known, routes=Broken()))
    read = from_record(to_record(event, known, decision))
    assert read.decision == decision
    assert read.decision.verdicts[2].rule == "gate.error"
    assert "RuntimeError" in read.decision.verdicts[2].sentence


def test_a_record_stays_small_whatever_lists_there_are() -> None:
    event, known = dense_world(random.Random(1))
    event = dataclasses.replace(event, link=None, is_dm=False, author="ann")
    many = frozenset(str(number) for number in range(10_000))
    seats = {PolicyKey(tenant, each, "web") for tenant in ("t1", "t2") for each in ("i1", "i2")}
    known = dataclasses.replace(
        known,
        routes={RouteKey("web", key): "t1" for key in "scd"},
        bindings={TenantAccount("t1", "web", "ann"): ("i1", "i2")},
        principals=dict.fromkeys(seats, PrincipalRule(PrincipalPolicy.ALLOW_LIST, many)),
        relevance=dict.fromkeys(seats, RelevancePolicy(True, many)),
        voices={PlatformAccount("web", who): many for who in ("ann", "bob", "crow")},
    )
    decision = decide(event, known)
    assert len(decision.candidates) == 2
    assert len(json.dumps(to_record(event, known, decision))) < 4000


@given(events, facts, st.data())
def test_a_damaged_record_is_refused_or_read(event: GateEvent, known: Facts, data: Any) -> None:
    record = to_record(event, known, decide(event, known))
    target: Any = record
    while True:
        keys = sorted(target) if isinstance(target, dict) else range(len(target))
        key = data.draw(st.sampled_from(list(keys)))
        if not isinstance(target[key], dict | list) or not target[key] or data.draw(st.booleans()):
            break
        target = target[key]
    target[key] = data.draw(st.sampled_from([None, 7, "x", [], {}, [[]], ["x"], {"x": 1}]))
    try:
        read = from_record(record)
    except RelayError:
        return
    decide(read.event, read.facts)


@pytest.mark.parametrize("record", [None, [], {}, {"version": 2}, {"version": 1}])
def test_what_is_no_record_is_refused(record: Any) -> None:
    with pytest.raises(RelayError):
        from_record(record)


@given(events, facts)
def test_an_event_under_other_names_is_decided_the_same(event: GateEvent, known: Facts) -> None:
    is_person = event.author is not None and event.author != event.bot_id
    chats = {each: f"~{each}" for each in (event.chat_id, event.parent_chat_id) if each}
    aliases = Aliases("~author" if is_person else event.author, "~e", chats)
    renamed, others = with_aliases(event, known, aliases)
    decision = decide(event, known)
    assert decide(renamed, others) == decision
    record = json.loads(json.dumps(to_record(renamed, others, decision)))
    again = from_record(record)
    assert decide(again.event, again.facts) == again.decision == decision
    if is_person:
        assert json.dumps(event.author) not in json.dumps([record["event"], record["facts"]])
