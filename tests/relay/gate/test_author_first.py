"""Many tenants in one place: the author decides, an open instance serves the others."""

import dataclasses
import random
from typing import Any

from accord.relay.rules import (
    ChannelGrant,
    DmDefault,
    Facts,
    GateEvent,
    GateOutcome,
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
    to_record,
)

MESSAGE = GateEvent("e1", "discord", "bot", "c1", False, "ann", "s1", addressed=True)
# Ann and Bob are of two tenants, and write in a guild that belongs to neither.
KNOWN = Facts(
    bindings={
        TenantAccount("t1", "discord", "ann"): ("i-ann",),
        TenantAccount("t2", "discord", "bob"): ("i-bob",),
    },
    dm_defaults={
        PlatformAccount("discord", "ann"): DmDefault("t1", "i-ann"),
        PlatformAccount("discord", "bob"): DmDefault("t2", "i-bob"),
    },
)
OPEN = {OpenKey("discord", "s1", ""): OpenPlace("t3", "i-open")}
SHARED = frozenset({RouteKey("discord", "s1")})


def told(event: GateEvent, facts: Facts) -> list[str]:
    decision = decide(event, facts)
    said = [*decision.verdicts, *(v for each in decision.candidates for v in each.verdicts)]
    return [verdict.rule for verdict in said]


def message(**changes: Any) -> GateEvent:
    return dataclasses.replace(MESSAGE, **changes)


def knowing(**changes: Any) -> Facts:
    return dataclasses.replace(KNOWN, **changes)


def test_each_author_reaches_only_their_own_agent_in_one_guild() -> None:
    for facts in (KNOWN, knowing(routes={RouteKey("discord", "s1"): "t9"}, shared=SHARED)):
        ann, bob = decide(MESSAGE, facts), decide(message(author="bob"), facts)
        assert (ann.tenant, ann.deliveries) == ("t1", ("i-ann",))
        assert (bob.tenant, bob.deliveries) == ("t2", ("i-bob",))
        assert told(MESSAGE, facts)[2:] == [
            "tenant.author",
            "candidates.found",
            "authority.owner",
            "visibility.author",
            "relevance.owner",
        ]


def test_a_place_that_is_routed_and_not_shared_stays_its_tenants() -> None:
    facts = knowing(routes={RouteKey("discord", "s1"): "t2"})
    assert told(MESSAGE, facts)[2:] == ["tenant.routed", "candidates.unlinked"]
    assert decide(message(author="bob"), facts).deliveries == ("i-bob",)


def test_of_several_agents_the_default_alone_receives_it() -> None:
    bound = {
        TenantAccount("t1", "discord", "ann"): ("i-ann", "i-more"),
        TenantAccount("t2", "discord", "ann"): ("i-else",),
    }
    facts = knowing(bindings=bound)
    assert decide(MESSAGE, facts).deliveries == ("i-ann",)
    chosen = {PlatformAccount("discord", "ann"): DmDefault("t2", "i-else")}
    decision = decide(MESSAGE, dataclasses.replace(facts, dm_defaults=chosen))
    assert (decision.tenant, decision.deliveries) == ("t2", ("i-else",))


def test_a_webhook_is_never_routed_by_the_author_it_names() -> None:
    assert told(message(hook="/in"), KNOWN)[2] == "tenant.unknown"
    assert told(message(hook="/in"), knowing(shared={RouteKey("discord", "/in")}))[2] == (
        "tenant.unknown"
    )


def test_a_grant_of_another_tenant_does_not_count_in_a_shared_place() -> None:
    held = PolicyKey("t2", "i-bob", "discord")
    facts = knowing(
        routes={RouteKey("discord", "s1"): "t2"},
        shared=SHARED,
        grants={TenantChannel("t2", "discord", "s1", "c1"): ChannelGrant("i-bob", "bob")},
        principals={held: PrincipalRule(PrincipalPolicy.ANY)},
        visibility={VisibilityKey("discord", "s1", "c1", "bob"): Visibility.VISIBLE},
    )
    assert decide(MESSAGE, facts).deliveries == ("i-ann",)
    assert decide(MESSAGE, dataclasses.replace(facts, shared=frozenset())).deliveries == ()


def test_an_open_instance_serves_those_who_are_not_linked_and_nobody_else() -> None:
    facts = knowing(open=OPEN)
    stranger = decide(message(author="eve"), facts)
    assert (stranger.tenant, stranger.deliveries) == ("t3", ("i-open",))
    assert stranger.candidates[0].is_open
    assert decide(MESSAGE, facts).deliveries == ("i-ann",)
    assert told(message(author="eve", scope_id="s2"), facts)[2] == "tenant.unknown"
    assert told(message(author="eve"), knowing(shared=SHARED))[2] == "tenant.shared-unlinked"


def test_an_open_instance_must_be_addressed_and_hears_no_bots() -> None:
    facts = knowing(open=OPEN)
    quiet, holder = message(author="eve", addressed=False), PolicyKey("t3", "i-open", "discord")
    assert told(quiet, facts)[-1] == "relevance.unaddressed"
    for policy, rule in (
        (RelevancePolicy(), "relevance.unaddressed"),
        (RelevancePolicy(free_response_scopes=frozenset({"c1"})), "relevance.free-response"),
    ):
        assert told(quiet, dataclasses.replace(facts, relevance={holder: policy}))[-1] == rule
    assert told(message(author="eve", author_is_bot=True), facts)[-1] == "candidates.unlinked"


def test_whoever_writes_too_much_to_an_open_instance_is_refused() -> None:
    facts = knowing(open=OPEN, limited=frozenset({PlatformAccount("discord", "eve")}))
    event = message(author="eve")
    assert "authority.open-limited" in told(event, facts)
    assert decide(event, facts).deliveries == ()
    read = from_record(to_record(event, facts, decide(event, facts)))
    assert decide(read.event, read.facts) == read.decision


def test_an_open_instance_is_no_way_into_another_tenants_place() -> None:
    facts = knowing(open=OPEN, routes={RouteKey("discord", "s1"): "t2"})
    assert told(message(author="eve"), facts)[-1] == "candidates.unlinked"
    own = {OpenKey("discord", "s1", "c1"): OpenPlace("t2", "i-desk")}
    assert decide(message(author="eve"), dataclasses.replace(facts, open=own)).deliveries == (
        "i-desk",
    )


def test_direct_messages_of_strangers_need_an_instance_that_is_open_to_them() -> None:
    event = message(author="eve", is_dm=True, scope_id=None, chat_id="d1", addressed=False)
    assert told(event, knowing(open=OPEN))[2] == "tenant.no-dm-default"
    facts = knowing(open={OpenKey("discord", "", ""): OpenPlace("t3", "i-open")})
    assert decide(event, facts).deliveries == ("i-open",)


def test_what_is_not_known_is_neither_delivered_nor_refused() -> None:
    holder = PolicyKey("t1", "i-else", "discord")
    facts = knowing(
        routes={RouteKey("discord", "s1"): "t1"},
        bindings={**KNOWN.bindings, TenantAccount("t1", "discord", "cyd"): ("i-else",)},
        grants={TenantChannel("t1", "discord", "s1", "c1"): ChannelGrant("i-else", "cyd")},
        principals={holder: PrincipalRule(PrincipalPolicy.ANY)},
    )
    view = VisibilityKey("discord", "s1", "c1", "cyd")
    decision = decide(MESSAGE, facts)
    assert decision.deliveries == ("i-ann",)
    assert decision.unknown == ("i-else",)
    waiting = decision.candidate("i-else")
    assert waiting is not None
    assert waiting.unknown is not None
    assert waiting.unknown.rule == "visibility.unknown"
    for answer, outcome in (
        (Visibility.VISIBLE, GateOutcome.DELIVER),
        (Visibility.HIDDEN, GateOutcome.REFUSE),
        (Visibility.UNKNOWN, GateOutcome.UNKNOWN),
    ):
        known = dataclasses.replace(facts, visibility={view: answer})
        found = decide(MESSAGE, known).candidate("i-else")
        assert found is not None
        assert found.outcome is outcome
    # What is refused anyway need not be asked about.
    quiet = dataclasses.replace(facts, principals={})
    assert decide(MESSAGE, quiet).unknown == ()


def test_the_authors_presence_is_evidence_but_a_platforms_no_outweighs_it() -> None:
    assert decide(MESSAGE, KNOWN).deliveries == ("i-ann",)
    view = VisibilityKey("discord", "s1", "c1", "ann")
    for answer, rule in (
        (Visibility.UNKNOWN, "visibility.author"),
        (Visibility.VISIBLE, "visibility.visible"),
        (Visibility.HIDDEN, "visibility.hidden"),
    ):
        assert rule in told(MESSAGE, knowing(visibility={view: answer}))
    # The sender of a webhook chooses the author, so there it is no evidence.
    routed = knowing(routes={RouteKey("discord", "/in"): "t1"})
    assert "visibility.unknown" in told(message(hook="/in"), routed)


def test_a_record_of_an_older_version_is_still_read() -> None:
    record = to_record(MESSAGE, KNOWN, decide(MESSAGE, KNOWN))
    assert not {"shared", "open", "limited"} & set(record["facts"])
    read = from_record(record)
    assert decide(read.event, read.facts) == read.decision


def _world(chance: random.Random) -> tuple[GateEvent, Facts, dict[str, str]]:
    """A world whose instances each belong to one tenant, which the third value tells."""
    pick, people = chance.choice, ("ann", "bob", "eve", "crow")

    def maybe(part: float = 0.5) -> bool:
        return chance.random() < part

    owners = {f"i{number}": pick(["t1", "t2", "t3"]) for number in range(5)}
    bound: dict[TenantAccount, tuple[str, ...]] = {}
    homes = {}
    for who in people:
        linked = [each for each in owners if maybe(0.3)]
        for each in linked:
            key = TenantAccount(owners[each], "web", who)
            bound[key] = (*bound.get(key, ()), each)
        if linked and maybe(0.9):
            home = pick(linked)
            homes[PlatformAccount("web", who)] = DmDefault(owners[home], home)
    keys = [RouteKey("web", key) for key in ("s1", "s2", "c1", "/hook")]
    granted = {}
    for channel in ("c1", "c2"):
        holder = pick(list(owners))
        place = TenantChannel(owners[holder], "web", pick([None, "s1"]), channel)
        granted[place] = ChannelGrant(holder, pick([*people, None]))
    opened = {}
    for scope, channel in (("", ""), ("s1", ""), ("s1", "c1"), ("", "c1")):
        if maybe(0.6):
            each = pick(list(owners))
            opened[OpenKey("web", scope, channel)] = OpenPlace(owners[each], each)
    facts = Facts(
        routes={key: pick(["t1", "t2", "t3"]) for key in keys if maybe()},
        bindings=bound,
        dm_defaults=homes,
        grants=granted,
        principals={
            PolicyKey(owners[each], each, "web"): PrincipalRule(PrincipalPolicy.ANY)
            for each in owners
            if maybe()
        },
        visibility={
            VisibilityKey("web", scope, chat, who): pick(list(Visibility))
            for scope in (None, "s1")
            for chat in ("c1", "c2")
            for who in people
        },
        shared=frozenset(key for key in keys if maybe(0.4)),
        open=opened,
    )
    event = GateEvent(
        "e",
        "web",
        "bot",
        pick(["c1", "c2"]),
        maybe(0.2),
        pick(people),
        pick([None, "s1", "s1"]),
        None,
        maybe(0.1),
        maybe(0.7),
        pick([None, None, None, "/hook"]),
    )
    return event, facts, owners


def _is_open_here(event: GateEvent, facts: Facts, instance: str) -> bool:
    """Whether an operator opened an instance in just this place."""
    scope = event.scope_id or ""
    places = [(scope, event.chat_id)] + ([(scope, "")] if scope else [])
    for place in [("", "")] if event.is_dm else places:
        found = facts.open.get(OpenKey("web", *place))
        if found is not None and found.instance == instance:
            return not event.hook
    return False


def test_no_delivery_crosses_tenants_in_ten_thousand_worlds() -> None:
    reasons: dict[str, int] = {}
    for seed in range(10_000):
        event, facts, owners = _world(random.Random(seed))
        decision = decide(event, facts)
        received = (*decision.deliveries, *decision.unknown)
        key, author = event.discriminator, event.author or ""
        route = facts.routes.get(key)
        home = facts.dm_defaults.get(PlatformAccount("web", author))
        for instance in received:
            tenant = owners[instance]
            assert tenant == decision.tenant, seed
            bound = facts.bindings.get(TenantAccount(tenant, "web", author), ())
            held = any(
                grant.instance == instance and place.tenant == tenant
                for place, grant in facts.grants.items()
            )
            # Nobody hears an author but their own agents, a holder in the author's own tenant,
            # or an agent that an operator has opened in this place to those who are not linked.
            is_open = _is_open_here(event, facts, instance)
            assert instance in bound or (held and bound) or is_open, seed
            is_routed = route is not None and key not in facts.shared
            if is_routed or (event.hook and not event.is_dm):
                assert tenant == route, seed
            if home is not None and (event.is_dm or not (is_routed or event.hook)):
                # The author decides: only the tenant of the default, and of one's own agents
                # only the default itself.
                assert tenant == home.tenant, seed
                assert instance == home.instance or held or is_open, seed
            rule = decision.verdicts[2].rule
            reasons[rule] = reasons.get(rule, 0) + 1
    assert {"tenant.routed", "tenant.author", "tenant.open", "tenant.dm-default"} <= set(reasons)
    assert min(reasons.values()) > 200
