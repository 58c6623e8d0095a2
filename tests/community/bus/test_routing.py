"""Which node a call goes to, and what follows from a failure."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.community.errors import Code, CommunityError
from accord.community.rules import (
    FRESH_SECONDS,
    QUARANTINE_SECONDS,
    ROUTE_RULES,
    CallHistory,
    CallNeeds,
    CallOutcome,
    Level,
    Misconduct,
    NodeFacts,
    Route,
    RoutePolicy,
    Version,
    routing,
)

CHAT = CallNeeds("llm.chat", Version(1, 0), repeatable=True)
BEST = RoutePolicy(local_first=False)
DAY = 86_400.0


def listing(name: str = "llm.chat", version: str = "1.1", **params: Any) -> dict[str, Any]:
    return {"name": name, "version": version, "params": params, "max_concurrent": 4}


def history(*seconds: float, failures: int = 0, at: float = 0.0) -> CallHistory:
    made = CallHistory()
    for each in seconds:
        made.observe(CallOutcome(at, each, succeeded=True))
    for _ in range(failures):
        made.observe(CallOutcome(at, 0.01, succeeded=False))
    return made


def node(name: str, *seconds: float, **known: Any) -> NodeFacts:
    known.setdefault("history", history(*seconds))
    known.setdefault("level", Level.ANCHOR)
    known.setdefault("listings", [listing()])
    return NodeFacts(name, name, **known)


def ranked(
    *nodes: NodeFacts, needs: CallNeeds = CHAT, policy: RoutePolicy = BEST, now: float = 0.0
) -> list[Route]:
    return routing.rank(needs, nodes, policy, now)


def best(*nodes: NodeFacts, **how: Any) -> str | None:
    return next((each.node_id for each in ranked(*nodes, **how) if each.usable), None)


def rules(route: Route) -> set[str]:
    return {each.rule for each in route.reasons}


def test_the_fastest_is_best() -> None:
    assert best(node("slow", 0.3, 0.3), node("fast", 0.1, 0.1)) == "fast"


def test_the_usual_latency_counts_not_the_worst() -> None:
    assert best(node("steady", 0.2, 0.2, 0.2), node("odd", 0.1, 0.1, 9.0)) == "odd"


def test_load_makes_a_node_slower() -> None:
    assert best(node("busy", 0.1, load={"cpu": 3.0}), node("idle", 0.2)) == "idle"
    assert best(node("queued", 0.1, load={"queue": 12}), node("idle", 0.2)) == "idle"


def test_failures_cost_and_more_where_a_call_cannot_be_repeated() -> None:
    shaky = node("shaky", history=history(0.01, 0.01, 0.01, failures=1))
    assert best(shaky, node("sound", 0.1)) == "sound"
    assert best(shaky, node("slow", 0.9)) == "shaky"
    once = CallNeeds("llm.chat", Version(1, 0))
    assert best(shaky, node("slow", 0.9), needs=once) == "slow"


def test_this_node_is_first_where_the_policy_says_so() -> None:
    here, there = node("here", 0.9, local=True), node("there", 0.1)
    assert best(here, there, policy=RoutePolicy()) == "here"
    assert best(here, there) == "there"
    assert best(node("here", 0.105, local=True), there) == "here"


def test_a_full_node_is_passed_over_even_if_it_is_this_one() -> None:
    here = node("here", local=True, load={"in_flight_total": 4})
    there = node("there")
    assert best(here, there, policy=RoutePolicy()) == "there"
    there.history.full_until = 5.0
    assert best(here, there, policy=RoutePolicy()) is None
    assert best(here, there, policy=RoutePolicy(), now=6.0) == "there"


def test_of_equals_the_more_trusted_is_taken_then_the_first_by_name() -> None:
    assert best(node("a", level=Level.MEMBER), node("b")) == "b"
    assert best(node("b"), node("a")) == "a"


def test_nodes_below_the_level_of_the_policy_are_given_nothing() -> None:
    (route,) = ranked(node("a", level=Level.MEMBER), policy=RoutePolicy(least_level=Level.TRUSTED))
    assert not route.usable
    assert "route.level" in rules(route)
    assert best(node("a", level=Level.UNKNOWN), policy=RoutePolicy()) is None


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        ({"listings": [listing("embed.text")]}, "route.capability"),
        ({"listings": [listing(version="2.0")]}, "route.version"),
        ({"listings": [listing(version="nonsense")]}, "route.version"),
        ({"listings": [listing(models=["other"])]}, "route.model"),
        ({"listings": [listing(models="wanted")]}, "route.model"),
        ({"age": None}, "route.stale"),
        ({"age": FRESH_SECONDS + 1}, "route.stale"),
        ({"is_lost": True}, "route.lost"),
        ({"is_tried": True}, "route.tried"),
    ],
)
def test_each_obstacle_is_named(facts: dict[str, Any], rule: str) -> None:
    needs = CallNeeds("llm.chat", Version(1, 0), model="wanted" if rule == "route.model" else None)
    (route,) = ranked(node("a", **facts), needs=needs)
    assert not route.usable
    assert rule in rules(route)


def test_a_model_is_found_by_its_name_on_whichever_node_has_it() -> None:
    needs = CallNeeds("llm.chat", Version(1, 0), model="qwen")
    many = node("many", 0.5, listings=[listing(model="small", models=["small", "qwen"])])
    one = node("one", 0.1, listings=[listing(model="small")])
    assert best(many, one, needs=needs) == "many"
    assert best(many, one) == "one"


def test_the_small_model_that_every_node_has_is_offered_last() -> None:
    here = node("here", listings=[listing(models=["small"], built_in=["small"])], local=True)
    there = node("there", listings=[listing(models=["small", "large"], built_in=["small"])])
    found = routing.offered_models(ranked(here, there, policy=RoutePolicy()))
    assert [(each.name, each.nodes, each.built_in) for each in found] == [
        ("large", ("there",), False),
        ("small", ("here", "there"), True),
    ]


def test_a_node_that_holds_the_corpus_is_asked_first() -> None:
    needs = CallNeeds("rag.query", Version(1, 0), corpus="tools", repeatable=True)
    offers = {"listings": [listing("rag.query", "1.0")]}
    holder = node("holder", 0.5, holds_corpus=True, **offers)
    other = node("other", 0.1, holds_corpus=False, **offers)
    assert best(other, holder, needs=needs) == "holder"


def test_a_node_that_names_other_languages_comes_later() -> None:
    needs = CallNeeds("embed.text", Version(1, 0), language="de", repeatable=True)
    english = node("a", 0.1, listings=[listing("embed.text", languages=["en"])])
    silent = node("b", 0.2, listings=[listing("embed.text")])
    assert best(english, silent, needs=needs) == "b"


def test_a_claim_of_hardware_counts_only_until_a_call_was_measured() -> None:
    liar = node("liar", hardware={"gpu": "RTX 9090"})
    honest = node("honest")
    assert best(liar, honest) == "liar"
    slow = node("liar", 2.0, hardware={"gpu": "RTX 9090"})
    assert best(slow, node("honest", 0.2)) == "honest"
    assert "route.hardware" not in rules(ranked(slow)[0])


@pytest.mark.parametrize("odd", [-1, "much", None, True, float("nan"), float("inf"), [], 10**400])
def test_what_others_write_about_their_load_never_breaks_the_ranking(odd: Any) -> None:
    told = {"cpu": odd, "in_flight_total": odd, "queue": odd}
    route = ranked(node("odd", load=told, hardware={"gpu": odd}))[0]
    assert -1 <= route.cost < 100
    assert best(node("odd", load=told), node("sound", 0.001)) == "sound"


def test_every_reason_is_explained() -> None:
    every = [
        node("a", 0.1),
        node("b", local=True, load={"cpu": 1}),
        node("c", age=None, is_lost=True, is_tried=True, level=Level.UNKNOWN),
    ]
    needs = CallNeeds("llm.chat", Version(1, 0), model="m", corpus="c", language="de")
    for each in ranked(*every, needs=needs):
        assert rules(each) <= ROUTE_RULES.keys()


def test_one_that_fails_more_than_it_answers_is_left_alone_for_a_minute_then_probed() -> None:
    bad = history(0.01, failures=3)
    good = node("good", 0.001)
    assert best(node("bad", history=bad), now=QUARANTINE_SECONDS - 0.1) is None
    after = QUARANTINE_SECONDS
    assert best(node("bad", history=bad), good, now=after) == "bad"
    bad.begin_probe()
    assert best(node("bad", history=bad), good, now=after) == "good"
    bad.observe(CallOutcome(after, 0.01, succeeded=False))
    assert best(node("bad", history=bad), good, now=after + 1) == "good"
    bad.begin_probe()
    bad.observe(CallOutcome(after + 70, 0.01, succeeded=True))
    assert best(node("bad", history=bad), now=after + 70) == "bad"


def test_a_probe_that_its_caller_gave_up_decides_nothing() -> None:
    bad = CallHistory(quarantined_until=1.0)
    bad.begin_probe()
    bad.end_probe()
    assert best(node("bad", history=bad), now=2.0) == "bad"
    assert bad.quarantined_until == 1.0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.booleans()), max_size=80))
def test_any_history_gives_a_finite_cost_and_bounded_memory(
    past: list[tuple[float, float, bool]],
) -> None:
    made, now = CallHistory(), 0.0
    for pause, seconds, succeeded in past:
        now += pause
        made.observe(CallOutcome(now, seconds, succeeded))
    assert -1.0 <= ranked(node("a", history=made), now=now)[0].cost < 1e9
    assert len(made.recent(now)) <= 64


@pytest.mark.parametrize(
    ("code", "is_refusal", "elsewhere", "misconduct"),
    [
        (Code.PARTITION, False, True, None),
        (Code.TIMEOUT, False, True, Misconduct.SLOW),
        (Code.INVALID_SIGNATURE, False, True, Misconduct.GARBAGE),
        (Code.BAD_REQUEST, False, True, Misconduct.GARBAGE),
        (Code.INTERNAL_ERROR, False, True, Misconduct.GARBAGE),
        (Code.BAD_REQUEST, True, False, None),
        (Code.UNAUTHORIZED, True, True, None),
        (Code.CAPACITY_EXCEEDED, True, True, None),
        (Code.INTERNAL_ERROR, True, True, None),
        (Code.NOT_IMPLEMENTED, True, True, Misconduct.LIE),
        (Code.NOT_FOUND, True, True, Misconduct.LIE),
    ],
)
def test_what_follows_from_an_error(
    code: Code, is_refusal: bool, elsewhere: bool, misconduct: Misconduct | None
) -> None:
    error = CommunityError(code, "")
    found = routing.judge_failure(CHAT, error, is_refusal=is_refusal)
    assert (found.elsewhere, found.misconduct) == (elsewhere, misconduct)
    begun = routing.judge_failure(CHAT, error, is_refusal=is_refusal, has_begun=True)
    assert not begun.elsewhere
    assert begun.misconduct is misconduct


def test_a_call_that_may_not_be_repeated_goes_elsewhere_only_if_nothing_was_done() -> None:
    once = CallNeeds("experimental.pay", Version(1, 0))

    def elsewhere(code: Code, *, is_refusal: bool, **details: Any) -> bool:
        error = CommunityError(code, "", details=details)
        return routing.judge_failure(once, error, is_refusal=is_refusal).elsewhere

    assert not elsewhere(Code.PARTITION, is_refusal=False)
    assert elsewhere(Code.PARTITION, is_refusal=False, unsent=True)
    assert not elsewhere(Code.TIMEOUT, is_refusal=False)
    assert not elsewhere(Code.INTERNAL_ERROR, is_refusal=True)
    assert elsewhere(Code.CAPACITY_EXCEEDED, is_refusal=True)
    assert not elsewhere(Code.NOT_FOUND, is_refusal=True)


def test_a_node_that_misbehaves_again_is_left_alone_for_longer_up_to_a_day() -> None:
    made, now, pauses = None, 0.0, []
    for _ in range(7):
        made = routing.bar(made, "a", "llm.chat", Misconduct.GARBAGE, now)
        pauses.append(made.until - now)
        assert not made.is_over(made.until - 1)
        now = made.until
        assert made.is_over(now)
    assert pauses == [300, 1200, 4800, 19200, 76800, DAY, DAY]
    assert made is not None
    assert not made.is_forgotten(now + DAY - 1)
    assert made.is_forgotten(now + DAY + 1)
    assert routing.bar(made, "a", "", Misconduct.SLOW, now + DAY + 1).count == 1


def test_a_clock_that_was_set_back_does_not_bar_a_node_for_years() -> None:
    made = routing.bar(None, "a", "llm.chat", Misconduct.SLOW, 1e9)
    assert made.is_over(1e6)


@pytest.mark.parametrize(
    ("capability", "routed"),
    [
        ("llm.chat", True),
        ("embed.text", True),
        ("rag.query", True),
        ("experimental.weather", True),
        ("rag.ingest", False),
        ("rag.list_corpora", False),
        ("market.post", False),
        ("chat.send", False),
        ("chat.history", False),
        ("file.read", False),
        ("community.invite", False),
        ("experimental.file.share", False),
        ("experimental.rag.search", False),
    ],
)
def test_what_concerns_the_own_node_stays_there(capability: str, routed: bool) -> None:
    assert routing.is_routed(capability) is routed
