"""Home, Market and Members: what a person does with a community."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.console.consoles import EVIL, Browser, Opened, opened, with_parts
from tests.console.planes import COUNTED, buried, proposed, relayed, ruled, shop

from accord.community.rules import display_id
from accord.console import ConsoleError, PlaneHealth
from accord.console.pages import members
from accord.kernel.signing import SigningKey

POST = {"title": "Ladder", "body": "Long", "category": "offer", "days": "7", "tags": "tools, high"}


async def posts(found: Opened) -> list[str]:
    [community] = await found.parts.node.communities()
    async with found.parts.node.client(community["community_id"]) as client:
        told = await client.call("market.list", {}, {})
    return [each["title"] for each in told["output"]["posts"]]


async def test_home_says_how_planes_do_and_what_needs_attention(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert "All is well" in (await browser.get("")).text
        bot = PlaneHealth("telegram bot", "troubled", is_well=False, reason=EVIL)
        found.planes.append(PlaneHealth("relay", "ready", is_well=True, parts=(bot,)))
        found.planes.append(PlaneHealth("authority", "backing off", False, "no NATS", 3))
        shown = (await browser.get("")).text
        assert "authority is backing off" in shown
        assert "telegram bot is troubled" in shown
        assert "no NATS" in shown
        assert EVIL not in shown


class Letters:
    """A relay's delivery, as far as Home looks at it."""

    def __init__(self, count: int) -> None:
        self.count = count

    async def dead_letters(self, *, limit: int) -> list[SimpleNamespace]:
        if self.count < 0:
            raise ConsoleError("the store does not answer")
        return [SimpleNamespace(instance="echo", reason="too old")] * min(self.count, limit)

    async def outbox(self, *, limit: int, dead: bool) -> list[int]:
        assert dead
        return []


@pytest.mark.parametrize(
    ("count", "said"),
    [(3, "could not be delivered: 3"), (500, "delivered: 100 or more"), (-1, "cannot be counted")],
)
async def test_home_counts_dead_letters(tmp_path: Path, count: int, said: str) -> None:
    async with opened(tmp_path / "home") as found:
        relay = SimpleNamespace(delivery=Letters(count))
        async with with_parts(found, relay=lambda: relay).inside() as browser:
            assert said in (await browser.get("")).text


async def test_home_delivers_dead_letters_again_by_one_button(tmp_path: Path) -> None:
    async with relayed(tmp_path / "home") as relay:
        await relay.enrol()
        await buried(relay, "a", "b")
        async with relay.found.inside() as browser:
            shown = (await browser.get("")).text
            assert "Messages that could not be delivered: 2" in shown
            assert "Deliver all of echo again" in shown
            given = {"instance": "echo", "letter": "all", "back": "home"}
            done = await browser.send("agents/replay", given)
            assert done.url.path == "/console/"
            assert "2 will be delivered to echo again." in done.text
            assert "could not be delivered" not in done.text


async def test_home_accepts_a_plan_that_nobody_fails_on_and_only_shows_one_that_others_may(
    tmp_path: Path,
) -> None:
    async with ruled(tmp_path / "home") as (found, running):
        do = running.operating.do
        await do("deploy", {"deployment": "shop", "manifest": shop(), "accept": True})
        grave = await proposed(running, shop(COUNTED))
        async with found.inside() as browser:
            shown = (await browser.get("")).text
            assert "A plan waits for a decision: shop@v1 for shop" in shown
            assert "look at it first" in shown
            assert f'name="plan" value="{grave["id"]}"' in shown
            assert "contracts/accept" not in shown
            rejected = {"plan": grave["id"], "back": "home"}
            told = (await browser.send("contracts/reject", rejected)).text
            assert "Rejected for shop" in told
            plan = await proposed(running, shop(cache=True))
            assert plan["classification"] != "migration"
            assert "contracts/accept" in (await browser.get("")).text
            accepted = {"plan": plan["id"], "sure": "yes", "back": "home"}
            done = await browser.send("contracts/accept", accepted)
            assert "Accepted for shop" in done.text
            assert "All is well" in done.text


async def test_the_first_steps_count_what_was_done_and_end_with_an_answered_question(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "home", founded=False) as found, found.inside() as browser:
        assert "First steps: 0 of 5" in (await browser.get("")).text
        await browser.send("home/found", {"name": "Our street"})
        await browser.send("market/post", POST)
        water = ("water.md", b"Rain water must be boiled for five minutes.", "text/markdown")
        given = {"corpus": "library", "title": "Water", "licence": "CC0-1.0"}
        await browser.send("files/add", given, files={"file": water})
        assert "First steps: 3 of 5" in (await browser.get("")).text
        shown = await browser.send("ask/ask", {"q": "How long must rain water be boiled"})
        await browser.get(f"ask/whole?c={shown.url.params['c']}")
        assert "First steps" not in (await browser.get("")).text


async def test_home_withdraws_an_invite_that_nobody_has_redeemed(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        stranger = SigningKey.generate().id
        await browser.send("members/invite", {"node_id": stranger, "name": EVIL, "hours": "24"})
        shown = (await browser.get("")).text
        assert "Invited, and not here yet" in shown
        assert EVIL not in shown
        [event] = re.findall(r'name="event_id" value="([^"]+)"', shown)
        given = {"node_id": stranger, "event_id": event, "back": "home"}
        assert "All is well" in (await browser.send("members/withdraw", given)).text


async def test_home_founds_a_community_where_there_is_none(tmp_path: Path) -> None:
    async with opened(tmp_path / "home", founded=False) as found, found.inside() as browser:
        assert "in no community yet" in (await browser.get("")).text
        assert "in no community yet" in (await browser.get("market")).text
        shown = await browser.send("home/found", {"name": EVIL})
        assert shown.status_code == 200
        assert "is founded" in shown.text
        assert EVIL not in shown.text
        assert "is founded" not in (await browser.get("")).text  # said once


async def test_a_link_that_leads_nowhere_is_refused_with_the_form_as_it_was(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        refused = await browser.send("home/join", {"link": "hearthnet://v1/nonsense"})
        assert 400 <= refused.status_code < 500
        assert 'role="alert"' in refused.text
        assert 'value="hearthnet://v1/nonsense"' in refused.text


async def test_a_session_acts_in_the_community_that_it_chose(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        [street] = await found.parts.node.communities()
        await found.node.found("The garden", {})
        chosen = await browser.send("community", {"community": street["community_id"]})
        assert '<dd dir="auto">Our street</dd>' in chosen.text
        assert "Members of <bdi>Our street</bdi>" in (await browser.get("members")).text
        assert (await browser.send("community", {"community": "nobody"})).status_code == 400
        async with found.inside() as another:  # in the station's current one
            assert "Members of <bdi>The garden</bdi>" in (await another.get("members")).text


async def test_communities_with_the_same_name_are_told_apart(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        founded = await browser.send("home/found", {"name": "Our street"})
        assert "Our street is founded" in founded.text
        there = [each["community_id"] for each in await found.parts.node.communities()]
        for each in there:
            assert f"Our street ({display_id(each)})</option>" in founded.text
        # Whoever founds one acts in it from then on.
        assert f"<code>{display_id(there[0])}</code>" in founded.text
        assert f"accord community leave {display_id(there[0])}" in founded.text


async def test_a_community_is_left_by_whoever_is_sure(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        [street] = await found.parts.node.communities()
        given = {"community": street["community_id"]}
        refused = await browser.send("home/leave", given)
        assert "tick the box" in refused.text
        assert len(await found.parts.node.communities()) == 1
        left = await browser.send("home/leave", {**given, "sure": "yes"})
        assert "This station has left" in left.text
        assert "in no community yet" in left.text
        assert await found.parts.node.communities() == []
        assert 'role="alert"' in (await browser.send("home/leave", {**given, "sure": "yes"})).text


@pytest.mark.parametrize("name", ["Anna Maria", "Бабушка и дед", "جدّتي", "おばあちゃん"])
async def test_names_have_spaces_and_letters_of_any_script(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        called = await browser.send("home/call", {"own_name": name})
        assert f"called <bdi>{name}</bdi>" in called.text
        assert name in (await browser.get("members")).text
        friend = SigningKey.generate().id
        assert 'role="alert"' not in await _invited(browser, friend, name=name)
        assert f"<bdi>{name}</bdi> ({display_id(friend)})" in (await browser.get("members")).text
        assert "is founded" in (await browser.send("home/found", {"name": name})).text
        for wrong in ("", " ", "a\nb", "x" * 121):
            refused = await browser.send("home/call", {"own_name": wrong})
            assert 'role="alert"' in refused.text


async def test_an_invite_is_withdrawn_by_its_button(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        friend = SigningKey.generate().id
        await _invited(browser, friend, name="kitchen")
        shown = (await browser.get("members")).text
        event = re.search(r'name="event_id" value="(\w+)"', shown)
        assert event is not None
        given = {"node_id": friend, "event_id": event[1]}
        withdrawn = await browser.send("members/withdraw", given)
        assert "The invite is withdrawn" in withdrawn.text
        assert "Nobody is invited now." in withdrawn.text
        again = await browser.send("members/withdraw", given)
        assert "no such invite" in again.text.lower()


async def test_what_is_posted_is_listed_found_and_ended(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert "It is on the market." in (await browser.send("market/post", POST)).text
        await browser.send("market/post", {**POST, "title": EVIL, "category": "info"})
        shown = (await browser.get("market")).text
        assert "Ladder" in shown
        assert EVIL not in shown
        assert "accord market expire" in shown
        assert "Ladder</h3>" not in (await browser.get("market?category=info")).text
        searched = (await browser.get("market?q=ladder")).text
        assert '<h3 dir="auto">Ladder</h3>' in searched
        event = re.search(r'name="event_id" value="(\w+)"', searched)
        assert event is not None
        ended = await browser.send("market/expire", {"event_id": event[1], "reason": "fulfilled"})
        assert "It is off the market." in ended.text
        assert await posts(found) == [EVIL]


async def test_a_bad_post_gets_a_banner_keeps_what_was_typed_and_changes_nothing(
    tmp_path: Path,
) -> None:
    wrongs = [
        {"title": ""},
        {"title": "x" * 201},
        {"category": "nonsense"},
        {"days": "many"},
        {"days": "nan"},
        {"days": "1e9"},
        {"tags": "x" * 41},
    ]
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        for wrong in wrongs:
            refused = await browser.send("market/post", {**POST, "title": "Kept", **wrong})
            assert refused.status_code == 400, wrong
            assert 'role="alert"' in refused.text
            assert "Long</textarea>" in refused.text
        assert await posts(found) == []


async def test_queries_that_nobody_could_answer_get_a_banner(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        for query in ("category=nonsense", "q=" + "x" * 5000, "q=%00%ff"):
            shown = await browser.get(f"market?{query}")
            assert shown.status_code in (200, 400)
            assert EVIL not in shown.text
        for form in ({"event_id": "01"}, {"event_id": "", "reason": EVIL}, {}):
            refused = await browser.send("market/expire", form)
            assert refused.status_code in (400, 404)


async def _invited(browser: Browser, node_id: str, **fields: str) -> str:
    given = {"node_id": node_id, "hours": "1", "level": "member", **fields}
    return (await browser.send("members/invite", given)).text


async def test_an_invite_is_a_link_and_a_code_to_scan(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        friend = SigningKey.generate().id
        shown = await _invited(browser, friend, name=EVIL)
        assert "hearthnet://v1/" in shown
        assert "<svg" in shown
        assert EVIL not in shown
        assert "as member, until" in (await browser.get("members")).text
        assert "hearthnet://" not in (await browser.get("members")).text


async def test_an_invite_that_cannot_be_names_why_and_invites_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        friend = SigningKey.generate().id
        assert 'role="alert"' in await _invited(browser, "kitchen")
        assert 'role="alert"' in await _invited(browser, friend, hours="0")
        assert 'role="alert"' in await _invited(browser, friend, level="king")
        assert "Nobody is invited now." in (await browser.get("members")).text


async def test_revoking_asks_whether_one_is_sure_and_says_who_must_still_sign(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        target = {"node_id": found.parts.node.key.id, "reason": "inactive"}
        refused = await browser.send("members/revoke", target)
        assert "cannot be undone" in refused.text
        asked = await browser.send("members/revoke", {**target, "sure": "yes"})
        assert "1 of 3 have signed" in asked.text
        assert "accord community cosign" in asked.text


async def test_a_node_that_is_away_is_said_and_the_other_pages_go_on(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        found.is_up = False
        assert "The community is not up." in (await browser.get("market")).text
        home = await browser.get("")
        assert home.status_code == 200
        assert "The community cannot be seen" in home.text


async def test_home_shows_the_stations_own_id_to_whoever_looks_for_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        home = (await browser.get("")).text
        own, [community] = found.parts.node.key.id, await found.parts.node.communities()
        ids = re.findall(r"<dt>([^<]*[iI]d)</dt><dd[^>]*><code[^>]*>([^<]+)</code>", home)
        assert ids == [("Id", own), ("Community id", display_id(community["community_id"]))]
        assert home.index(own) < home.index('id="health"')


async def test_what_only_waits_for_a_decision_is_not_shown_as_trouble(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        way = PlaneHealth("outward", "waiting", is_well=False, reason="it waits to be accepted")
        found.planes.append(PlaneHealth("bridge", "ready", is_well=True, parts=(way,)))
        shown = (await browser.get("")).text
        assert "it waits to be accepted" in shown
        assert "All is well" in shown
        assert "state ill" not in shown
        broken = PlaneHealth("inward", "closed", is_well=False, reason="its session has ended")
        found.planes.append(PlaneHealth("bridge", "ready", is_well=True, parts=(broken,)))
        shown = (await browser.get("")).text
        assert "inward is closed" in shown
        assert "state ill" in shown


def test_a_member_who_is_away_is_not_shown_as_trouble() -> None:
    assert members._seen(None) == ("not seen yet", None)
    assert members._seen({"failures": 3}) == ("is away", None)
    assert members._seen({"failures": 0}) == ("is here", True)


async def test_who_is_a_member_already_is_not_invited(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert "is a member already" in await _invited(browser, found.parts.node.key.id)
        assert "Nobody is invited now." in (await browser.get("members")).text
