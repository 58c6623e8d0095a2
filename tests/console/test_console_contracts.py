"""Contracts: the catalog, what one says, how two differ with witnesses, and plans to decide on."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.console.consoles import EVIL, opened
from tests.console.planes import COUNTED, proposed, ruled, shop

from accord.authority.assembly import RunningAuthority
from accord.authority.contracts import builtins
from accord.authority.rules import PlanState
from accord.console import PlaneHealth
from accord.console.pages import contracts
from accord.contracts import compare, digest


async def pending(running: RunningAuthority) -> list[str]:
    return [each.id for each in await running.authority.plans.all(state=PlanState.PENDING)]


async def test_without_an_authority_the_page_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert "The authority is not part of this station." in (await browser.get("contracts")).text
        found.planes.append(PlaneHealth("authority", "starting", is_well=True))
        assert "The authority is not up now." in (await browser.get("contracts")).text
        name = "A" * 43
        for path in (
            f"contract?digest={name}",
            f"diff?old={name}&new={name}",
            "plan?id=" + "0" * 26,
        ):
            assert (await browser.get(f"contracts/{path}")).status_code == 503
        given = {"plan": "0" * 26, "sure": "yes"}
        for act in ("accept", "reject"):
            assert (await browser.send(f"contracts/{act}", given)).status_code == 503


async def test_a_plan_is_looked_at_and_accepted_on_purpose(tmp_path: Path) -> None:
    async with ruled(tmp_path / "home") as (found, running), found.inside() as browser:
        plan = await proposed(running, shop(cache=True))
        shown = (await browser.get("contracts")).text
        assert f"/console/contracts/plan?id={plan['id']}" in shown
        assert "Trellis jobs" in shown
        assert EVIL not in shown
        whole = (await browser.get(f"contracts/plan?id={plan['id']}")).text
        assert "+ kv cache of shop@v1" in whole
        assert "+ trellis.auth@v1 rpc Auth.Sessions.Resolve call" in whole
        assert f"accord authority accept {plan['id']}" in whole
        hasty = await browser.send("contracts/accept", {"plan": plan["id"]})
        assert 'role="alert"' in hasty.text
        assert await pending(running) == [plan["id"]]
        done = await browser.send("contracts/accept", {"plan": plan["id"], "sure": "yes"})
        assert "Accepted for shop" in done.text
        assert "None. All is decided." in done.text
        assert re.search(r"accepted</th><td>shop</td>", done.text)
        assert (await running.authority.deployments.get("shop")).desired.contracts == {
            "shop@v1": plan["digest"]
        }
        twice = await browser.send("contracts/accept", {"plan": plan["id"], "sure": "yes"})
        assert 'role="alert"' in twice.text


async def test_a_migration_shows_what_breaks_and_is_rejected_with_a_reason(tmp_path: Path) -> None:
    async with ruled(tmp_path / "home") as (found, running), found.inside() as browser:
        first = await proposed(running, shop(cache=True))
        await running.authority.plans.accept(first["id"], "operator")
        second = await proposed(running, shop(COUNTED))
        whole = (await browser.get(f"contracts/plan?id={second['id']}")).text
        assert '<span class="state ill">breaking</span>' in whole
        assert "<code>payload.refused</code>" in whole
        assert "- kv cache of shop@v1" in whole
        assert "others may fail on it" in whole
        said = {"plan": second["id"], "why": f"too much {EVIL}"}
        done = (await browser.send("contracts/reject", said)).text
        assert "Rejected for shop; nothing has changed." in done
        assert "too much &lt;script&gt;" in done
        assert EVIL not in done
        assert await pending(running) == []
        deployment = await running.authority.deployments.get("shop")
        assert deployment.desired.contracts == {"shop@v1": first["digest"]}
        decided = (await browser.get(f"contracts/plan?id={second['id']}")).text
        assert "rejected, by console" in decided
        assert "<button>Accept</button>" not in decided


async def test_a_contract_tells_what_it_offers_and_needs(tmp_path: Path) -> None:
    async with ruled(tmp_path / "home") as (found, running), found.inside() as browser:
        old = await proposed(running, shop())
        new = await proposed(running, shop(COUNTED, cache=True))
        shown = (await browser.get(f"contracts/contract?digest={new['digest']}")).text
        assert '<th scope="row">Shop.Find</th><td>RPC</td>' in shown
        assert "call: shop::buy" in shown
        assert '<th scope="row">cache</th><td>key-value bucket</td>' in shown
        assert '<th scope="row">trellis.auth@v1</th>' in shown
        assert f"diff?old={old['digest']}&amp;new={new['digest']}" in shown
        assert EVIL not in shown
        file = await browser.get(f"contracts/manifest?digest={new['digest']}")
        assert file.headers["content-disposition"].startswith("attachment")
        assert digest(file.json()) == new["digest"]
        for each in builtins().values():
            assert each["id"] in (await browser.get("contracts")).text


async def test_two_digests_differ_by_rules_pointers_and_witnesses(tmp_path: Path) -> None:
    async with ruled(tmp_path / "home") as (found, running), found.inside() as browser:
        old = (await proposed(running, shop()))["digest"]
        new = (await proposed(running, shop(COUNTED)))["digest"]
        shown = (await browser.get(f"contracts/diff?old={old}&new={new}")).text
        assert "shop@v1: not compatible" in shown
        assert "<code>payload.refused</code>" in shown
        assert "<code>/rpc/Shop.Find/input</code>" in shown
        assert "A payload that shows it" in shown
        assert "&#34;id&#34;: &#34;&#34;" in shown
        beside = (
            await browser.get(f"contracts/diff?old={old}&new={new}&relation=coexistence")
        ).text
        assert "--relation coexistence" in beside
        same = (await browser.get(f"contracts/diff?old={old}&new={old}")).text
        assert "Nothing that matters differs." in same


async def test_what_is_no_contract_or_plan_is_refused(tmp_path: Path) -> None:
    async with ruled(tmp_path / "home") as (found, running), found.inside() as browser:
        known = (await proposed(running, shop()))["digest"]
        unknown = "A" * 43
        for path in (
            "contract",
            "manifest?digest=..",
            "contract?digest=%00",
            f"contract?digest={EVIL}",
            f"contract?digest={unknown}",
            f"diff?old={known}",
            f"diff?old={known}&new={unknown}",
            f"diff?old={known}&new={known}&relation=love",
            "plan",
            "plan?id=" + "0" * 26,
            "plan?id=..%2f",
        ):
            refused = await browser.get(f"contracts/{path}")
            assert 400 <= refused.status_code < 500, path
            assert 'role="alert"' in refused.text
            assert EVIL not in refused.text
        before = await pending(running)
        for named in ("", "x", "0" * 26, EVIL):
            for act in ("accept", "reject"):
                given = {"plan": named, "sure": "yes"}
                assert 'role="alert"' in (await browser.send(f"contracts/{act}", given)).text
        assert await pending(running) == before


@pytest.mark.parametrize(
    ("part", "lines"),
    [
        ({"added": ["a"], "removed": ["b"]}, ["+ a", "- b"]),
        ({"added": [], "changed": []}, []),
        ({}, []),
        (None, []),
        (["x", {"name": "y", "none": None}], ["x", "name y"]),
        ({"added": [{"kind": "kv", "contract": "c@v1", "alias": "k"}]}, ["+ kv k of c@v1"]),
        ("word", ["word"]),
    ],
)
def test_a_part_of_a_plan_is_told_in_lines(part: Any, lines: list[str]) -> None:
    assert contracts.plan_changes({"part": part}) == ([("part", lines)] if lines else [])


def test_differences_say_what_the_comparison_says() -> None:
    report = compare(shop(cache=True), shop(COUNTED))
    told = contracts.report_differences(report)
    assert [each.rule for each in told] == [
        each.rule for each in (*report.findings, *report.updates)
    ]
    assert told[0].is_grave
    assert told[0].witness is not None
