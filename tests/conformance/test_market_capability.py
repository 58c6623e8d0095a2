"""Sections 4.11 to 4.14 of the specification, line by line, from a second node over HTTP."""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from tests.capabilities.market.conftest import Market, WordEmbedder, open_market
from tests.community.node.conftest import Street

from accord.capabilities.market import client_id_for
from accord.community.client import Client
from accord.community.errors import Code
from accord.community.rules import Level, capabilities, must_verify_answer
from accord.kernel.clock import parse_time
from accord.testing import VirtualClock

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUMBERS = itertools.count()
DAY = 86_400


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def market(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Market]:
    """One market for all tests, of which each brings posts of its own."""
    async with AsyncExitStack() as opened:
        street = Street(tmp_path_factory.mktemp("street"), VirtualClock(), opened)
        yield await open_market(street, WordEmbedder())


def post(**members: Any) -> dict[str, Any]:
    """A post as the specification shows one."""
    return {
        "client_id": f"client {next(NUMBERS)}",
        "category": "request",
        "title": "Suche Wasserkanister, 20L",
        "body": "Brauche bis morgen",
        "location": {"lat": 51.5, "lng": 6.2, "label": "Issum"},
        "tags": ["wasser", "notfall"],
        "ttl_seconds": DAY,
        **members,
    }


async def test_the_capabilities_are_described_as_the_table_says() -> None:
    described = capabilities.load_descriptors("accord.capabilities.market")
    assert described.keys() == {
        "market.list@1.0",
        "market.post@1.0",
        "market.expire@1.0",
        "market.search@1.0",
    }
    for descriptor in described.values():
        assert descriptor.stability == "stable"
        assert descriptor.trust is Level.MEMBER
        assert not descriptor.streams
    assert described["market.list@1.0"].idempotent
    assert described["market.post@1.0"].idempotent
    assert Code.NOT_FOUND in described["market.expire@1.0"].errors
    assert must_verify_answer("market.post")
    assert must_verify_answer("market.expire")


# 4.11 market.list, while there is little to synchronise


async def test_posts_of_two_nodes_with_one_lamport_are_not_torn_apart(market: Market) -> None:
    market.street.clock.advance(10)
    await market.bob.node.sync(market.community)
    since = market.alice.in_(market.community).state.lamport
    for house in (market.alice, market.bob):
        await market.output(house, house, "market.post", **post())
    market.street.clock.advance(10)
    await market.bob.node.sync(market.community)
    page = await market.output(
        market.dave, market.alice, "market.list", since_lamport=since, limit=1
    )
    assert len(page["posts"]) == 2
    assert page["posts"][0]["lamport"] == page["posts"][1]["lamport"]


# 4.12 market.post


async def test_a_post_answers_with_its_event(market: Market) -> None:
    made = post()
    answer = await market.call(market.alice, market.alice, "market.post", made)
    assert answer["output"].keys() == {"event_id", "lamport"}
    assert answer["meta"].keys() == {"ms"}
    hosted = market.alice.in_(market.community)
    (stored,) = hosted.state.content.posts[answer["output"]["event_id"]]
    assert stored.lamport == answer["output"]["lamport"]
    said = {name: value for name, value in stored.fields.items() if name != "client_id"}
    assert said == {name: value for name, value in made.items() if name != "client_id"}


async def test_a_post_is_told_on_its_topic(market: Market) -> None:
    topics = market.alice.node.bus.topics
    topic = "marketplace.post.created"
    last = topics.last_seq(topic, community=market.community)
    made = await market.output(market.alice, market.alice, "market.post", **post())
    (message,) = await topics.following(topic, last, community=market.community, timeout_seconds=5)
    assert message.data["event_id"] == made["event_id"]
    assert message.data["event_type"] == "market.post.created"


async def test_posting_again_under_one_client_id_is_posting_once(market: Market) -> None:
    made = post()
    first = await market.output(market.alice, market.alice, "market.post", **made)
    again = await market.output(market.alice, market.alice, "market.post", **made)
    changed = {**made, "title": "Another title"}
    assert again == first
    assert await market.output(market.alice, market.alice, "market.post", **changed) == first


async def test_client_ids_of_different_callers_have_nothing_to_do_with_each_other(
    market: Market,
) -> None:
    made = post()
    callers = (market.carol, market.dave, market.alice)
    ids = {
        (await market.output(caller, caller, "market.post", **made))["event_id"]
        for caller in callers
    }
    assert len(ids) == 3


async def test_a_post_of_the_node_itself_bears_the_client_id_that_was_given(market: Market) -> None:
    made = post()
    answer = await market.output(market.alice, market.alice, "market.post", **made)
    (stored,) = market.alice.in_(market.community).state.content.posts[answer["event_id"]]
    assert (stored.author, stored.client_id) == (market.alice.id, made["client_id"])


async def test_a_post_stands_for_a_week_unless_it_says_otherwise(market: Market) -> None:
    made = post()
    del made["ttl_seconds"], made["location"], made["tags"]
    answer = await market.output(market.alice, market.alice, "market.post", **made)
    listed = await market.output(
        market.carol, market.alice, "market.list", since_lamport=answer["lamport"] - 1
    )
    (shown,) = listed["posts"]
    stands = parse_time(shown["expires_at"]) - parse_time(shown["created_at"])
    assert stands == 7 * DAY
    assert shown["tags"] == []
    assert "location" not in shown


async def test_a_post_that_breaks_its_limits_is_a_bad_request(market: Market) -> None:
    right = post()
    before = await market.output(market.carol, market.alice, "market.list", limit=500)
    for changes in (
        {"ttl_seconds": 30 * DAY + 1},
        {"ttl_seconds": 0},
        {"ttl_seconds": 1.5},
        {"category": "spam"},
        {"title": ""},
        {"title": "x" * 201},
        {"body": "x" * 20_001},
        {"tags": ["x"] * 21},
        {"tags": [""]},
        {"location": {"lat": 91, "lng": 0}},
        {"location": {"lat": 1}},
        {"client_id": ""},
        {"client_id": None},
        {"wings": 2},
    ):
        error = await market.refusal(
            market.alice, market.alice, "market.post", **{**right, **changes}
        )
        assert error.code is Code.BAD_REQUEST, changes
    for name in ("client_id", "category", "title", "body"):
        lacking = {each: value for each, value in right.items() if each != name}
        error = await market.refusal(market.alice, market.alice, "market.post", **lacking)
        assert error.code is Code.BAD_REQUEST, name
    after = await market.output(market.carol, market.alice, "market.list", limit=500)
    assert after["posts"] == before["posts"]
    longest = post(ttl_seconds=30 * DAY)
    assert await market.output(market.alice, market.alice, "market.post", **longest)


# 4.11 market.list


async def test_posts_are_listed_as_the_specification_shows_them(market: Market) -> None:
    made = post()
    answer = await market.output(market.alice, market.alice, "market.post", **made)
    call = {"since_lamport": answer["lamport"] - 1}
    listed = await market.call(market.dave, market.alice, "market.list", call)
    assert listed["output"].keys() == {"posts", "max_lamport"}
    assert listed["meta"].keys() == {"ms"}
    (shown,) = listed["output"]["posts"]
    created = shown["created_at"]
    assert shown == {
        **answer,
        "author": market.alice.id,
        **{name: made[name] for name in ("category", "title", "body", "location", "tags")},
        "created_at": created,
        "expires_at": shown["expires_at"],
    }
    assert parse_time(shown["expires_at"]) - parse_time(created) == DAY


async def test_posts_are_listed_by_category_and_tags(market: Market) -> None:
    since = (await market.output(market.carol, market.alice, "market.list", limit=500))[
        "max_lamport"
    ]
    made = {}
    for category, tags in (
        ("offer", ["Wasser"]),
        ("offer", ["strom"]),
        ("request", ["wasser", "strom"]),
        ("emergency", []),
    ):
        given = post(category=category, tags=tags)
        answer = await market.output(market.alice, market.alice, "market.post", **given)
        made[answer["event_id"]] = category, tags

    async def listed(**wanted: Any) -> list[tuple[str, list[str]]]:
        found = await market.output(
            market.dave, market.alice, "market.list", since_lamport=since, **wanted
        )
        return [made[each["event_id"]] for each in found["posts"]]

    everything = list(made.values())
    assert await listed() == everything
    assert await listed(category="offer") == everything[:2]
    assert await listed(category="info") == []
    assert await listed(tags=["wasser"]) == [everything[0], everything[2]]
    assert await listed(tags=["wasser", "strom"]) == [everything[2]]
    assert await listed(tags=["wasser"], category="request") == [everything[2]]


async def test_a_delta_goes_on_where_the_last_one_ended(market: Market) -> None:
    since = (await market.output(market.carol, market.alice, "market.list", limit=500))[
        "max_lamport"
    ]
    made = []
    for _ in range(7):
        answer = await market.output(market.alice, market.alice, "market.post", **post())
        made.append(answer["event_id"])
    seen: list[str] = []
    for expected in (3, 3, 1, 0):
        page = await market.output(
            market.dave, market.alice, "market.list", since_lamport=since, limit=3
        )
        assert len(page["posts"]) == expected
        seen += [each["event_id"] for each in page["posts"]]
        since = page["max_lamport"]
    assert seen == made
    assert since == market.alice.in_(market.community).state.lamport


async def test_what_cannot_be_listed_is_a_bad_request(market: Market) -> None:
    for wanted in (
        {"limit": 501},
        {"limit": 0},
        {"category": "spam"},
        {"since_lamport": -1},
        {"tags": "wasser"},
        {"page": 2},
    ):
        error = await market.refusal(market.dave, market.alice, "market.list", **wanted)
        assert error.code is Code.BAD_REQUEST, wanted


async def test_a_post_that_ran_out_is_not_listed(market: Market) -> None:
    made = post(ttl_seconds=60)
    answer = await market.output(market.alice, market.alice, "market.post", **made)
    asked = {"since_lamport": answer["lamport"] - 1, "limit": 500}
    listed = await market.output(market.dave, market.alice, "market.list", **asked)
    assert answer["event_id"] in {each["event_id"] for each in listed["posts"]}
    market.street.clock.advance(60)
    listed = await market.output(market.dave, market.alice, "market.list", **asked)
    assert answer["event_id"] not in {each["event_id"] for each in listed["posts"]}


# 4.13 market.expire


async def expired(market: Market, made: Any, by: Any, reason: str, at: Any = None) -> Any:
    return await market.output(
        by,
        at or market.alice,
        "market.expire",
        client_id=f"end {next(NUMBERS)}",
        event_id=made["event_id"],
        reason=reason,
    )


async def refused(market: Market, made: Any, by: Any, reason: str, at: Any = None) -> Code:
    error = await market.refusal(
        by,
        at or market.alice,
        "market.expire",
        client_id=f"end {next(NUMBERS)}",
        event_id=made["event_id"],
        reason=reason,
    )
    return error.code


async def test_whoever_posted_ends_the_post_and_all_hear_of_it(market: Market) -> None:
    topics = market.alice.node.bus.topics
    topic = "marketplace.post.expired"
    for reason in ("fulfilled", "withdrawn", "user_request", "stale"):
        made = await market.output(market.alice, market.alice, "market.post", **post())
        last = topics.last_seq(topic, community=market.community)
        ended = await expired(market, made, market.alice, reason)
        assert ended.keys() == {"event_id", "lamport"}
        assert ended["lamport"] > made["lamport"]
        (message,) = await topics.following(
            topic, last, community=market.community, timeout_seconds=5
        )
        assert message.data["data"]["target_event_id"] == made["event_id"]
        assert message.data["data"]["reason"] == reason
        listed = await market.output(
            market.dave, market.alice, "market.list", since_lamport=made["lamport"] - 1
        )
        assert listed["posts"] == []


async def test_ending_again_under_one_client_id_is_ending_once(market: Market) -> None:
    made = await market.output(market.alice, market.alice, "market.post", **post())
    given = {"client_id": "once", "event_id": made["event_id"], "reason": "stale"}
    first = await market.output(market.alice, market.alice, "market.expire", **given)
    assert await market.output(market.alice, market.alice, "market.expire", **given) == first
    assert await refused(market, made, market.alice, "stale") is Code.NOT_FOUND


async def test_a_stranger_to_a_post_may_not_end_it_and_a_moderator_may(market: Market) -> None:
    made = await market.output(market.alice, market.alice, "market.post", **post())
    for house in (market.bob, market.dave):
        await house.node.sync(market.community)
    bob, dave = market.bob, market.dave
    assert await refused(market, made, dave, "stale", dave) is Code.UNAUTHORIZED
    assert await refused(market, made, bob, "user_request", bob) is Code.UNAUTHORIZED
    assert await expired(market, made, bob, "stale", bob)


async def test_nobody_moderates_through_another_node(market: Market) -> None:
    made = await market.output(market.alice, market.alice, "market.post", **post())
    await market.dave.node.sync(market.community)
    assert await refused(market, made, market.bob, "stale") is Code.UNAUTHORIZED
    assert await refused(market, made, market.bob, "stale", market.dave) is Code.UNAUTHORIZED


async def test_a_post_that_an_older_version_made_for_somebody_is_ended_by_them(
    market: Market,
) -> None:
    old = {**post(), "client_id": client_id_for(market.carol.id, "mine")}
    made = await market.alice.node.act(market.community, "market.post.created", old)
    assert await refused(market, made, market.dave, "withdrawn") is Code.UNAUTHORIZED
    assert await expired(market, made, market.carol, "withdrawn")


async def test_a_post_that_is_not_here_is_not_found(market: Market) -> None:
    nothing = {"event_id": market.street.ids.new()}
    assert await refused(market, nothing, market.carol, "stale") is Code.NOT_FOUND


async def test_what_is_no_reason_is_a_bad_request(market: Market) -> None:
    made = await market.output(market.alice, market.alice, "market.post", **post())
    assert await refused(market, made, market.carol, "boredom") is Code.BAD_REQUEST
    assert await refused(market, {"event_id": "../x"}, market.carol, "stale") is Code.BAD_REQUEST


# 4.14 market.search


async def test_posts_are_found_by_what_they_mean(market: Market) -> None:
    titles = {"aqua aqua aqua": 0, "bottle for aqua": 1, "a bicycle": 2}
    ids = {}
    for title in titles:
        given = post(title=title, body="", tags=[], category="info")
        ids[title] = (await market.output(market.alice, market.alice, "market.post", **given))[
            "event_id"
        ]
    answer = await market.call(
        market.dave, market.alice, "market.search", {"query": "water can", "k": 100}
    )
    assert answer["output"].keys() == {"posts", "max_lamport"}
    assert answer["meta"]["ranking"] == "embeddings"
    scores = [each["score"] for each in answer["output"]["posts"]]
    assert scores == sorted(scores, reverse=True)
    ranks = [each["event_id"] for each in answer["output"]["posts"]]
    assert ranks.index(ids["bottle for aqua"]) < ranks.index(ids["a bicycle"])
    listed = await market.output(market.dave, market.alice, "market.list", limit=500)
    shown = {each["event_id"]: each for each in listed["posts"]}
    for each in answer["output"]["posts"]:
        assert {name: value for name, value in each.items() if name != "score"} == shown[
            each["event_id"]
        ]


async def test_ten_posts_are_found_unless_another_number_is_asked_for(market: Market) -> None:
    for _ in range(12):
        await market.output(market.alice, market.alice, "market.post", **post())
    found = await market.output(market.dave, market.alice, "market.search", query="wasser")
    assert len(found["posts"]) == 10
    found = await market.output(market.dave, market.alice, "market.search", query="wasser", k=3)
    assert len(found["posts"]) == 3


async def test_what_cannot_be_searched_is_a_bad_request(market: Market) -> None:
    for given in ({"query": ""}, {}, {"query": "x", "k": 0}, {"query": "x", "k": 101}):
        error = await market.refusal(market.dave, market.alice, "market.search", **given)
        assert error.code is Code.BAD_REQUEST, given


async def test_who_is_no_member_gets_nothing(market: Market) -> None:
    stranger = market.street.key("stranger")
    async with Client(
        market.alice.url, stranger, market.community, market.alice.id, clock=market.street.clock
    ) as client:
        for name in ("list", "post", "expire", "search"):
            with pytest.raises(Exception, match="no member"):
                await client.call(f"market.{name}", {}, {})
