"""Registry: versions, who uses what, and for whom a change would fail."""

from pathlib import Path
from typing import Any

import pytest
from tests.console.consoles import EVIL, opened
from tests.console.planes import COUNTED, Bench, ruled, shop

from accord.authority.assembly import RunningAuthority
from accord.console import PlaneHealth
from accord.console.versions import version_graph
from accord.contracts import digest
from accord.contracts.authoring import Contract


async def push(running: RunningAuthority, manifest: dict[str, Any], note: str = "") -> None:
    said = {"manifest": manifest, "by": "ci", **({"note": note} if note else {})}
    await running.operating.do("registry/push", said)


async def deploy(running: RunningAuthority, name: str, manifest: dict[str, Any]) -> None:
    body = {"deployment": name, "manifest": manifest, "accept": True}
    await running.operating.do("deploy", body)


def buyer() -> dict[str, Any]:
    contract = Contract("buyer@v1", display_name="Buyer", description="Buys.")
    contract.uses("shop", "shop@v1", rpc=["Shop.Find"])
    return contract.manifest()


async def test_without_an_authority_the_page_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert "The authority is not part of this station." in (await browser.get("registry")).text
        found.planes.append(PlaneHealth("authority", "starting", is_well=True))
        assert (await browser.get("registry/contract?id=shop@v1")).status_code == 503


async def test_versions_are_shown_with_who_relies_on_them(tmp_path: Path) -> None:
    async with ruled(tmp_path / "home") as (found, running), found.inside() as browser:
        assert "Nothing was pushed yet." in (await browser.get("registry")).text
        await push(running, shop(), f"first {EVIL}")
        await deploy(running, "shop", shop())
        await deploy(running, "buyer", buyer())
        listed = (await browser.get("registry")).text
        assert "/console/registry/contract?id=shop%40v1" in listed
        assert EVIL not in listed
        shown = (await browser.get("registry/contract?id=shop@v1")).text
        assert "accepted for shop" in shown
        assert "implements it" in shown
        assert '<th scope="row">buyer</th>' in shown
        assert "rpc Shop.Find" in shown
        assert EVIL not in shown
        assert "pushed" in shown


async def test_a_change_names_those_for_whom_it_would_fail(tmp_path: Path) -> None:
    async with ruled(tmp_path / "home") as (found, running), found.inside() as browser:
        await push(running, shop())
        await push(running, shop(COUNTED))
        await deploy(running, "shop", shop())
        await deploy(running, "buyer", buyer())
        idle = Contract("idle@v1", display_name="Idle", description="Uses nothing of it.")
        await deploy(running, "idle", idle.manifest())
        shown = (await browser.get("registry/contract?id=shop@v1")).text
        assert "not compatible" in shown
        section = shown.partition("For whom it would fail")[2]
        assert "buyer (buyer@v1)" in section
        assert "/rpc/Shop.Find/input" in section
        assert "idle" not in section
        assert "the pipeline has published no tables" in section
        back = f"registry/contract?id=shop@v1&old={digest(shop(COUNTED))}&new={digest(shop())}"
        assert (await browser.get(back)).status_code == 200


async def test_recorded_calls_are_asked_where_there_are_tables(tmp_path: Path) -> None:
    async with ruled(tmp_path / "home") as (found, running):
        bench = Bench(found, tmp_path / "bench")
        gold = found.home / "pipeline" / "gold"
        gold.mkdir(parents=True)
        (gold / "CURRENT").write_text("1")
        await push(running, shop())
        await push(running, shop(COUNTED))
        async with bench.found.inside() as browser:
            shown = (await browser.get("registry/contract?id=shop@v1")).text
            assert "Replay recorded calls" in shown
            asked = {"id": "shop@v1", "digest": digest(shop(COUNTED))}
            wrong = {"id": "buyer@v1", "digest": digest(shop())}
            assert (await browser.send("registry/whatif", wrong)).status_code == 404
            await browser.send("registry/whatif", asked)
            bench.go("found")
            await bench.ended()
            assert bench.given == shop(COUNTED)
            assert bench.arguments[:3] == ["pipeline", "whatif", "contract"]
            shown = (await browser.get("registry/contract?id=shop@v1")).text
            assert f"accord pipeline whatif contract shop@v1 {asked['digest'][:12]}" in shown
            assert "Published version 00000007. &lt;script&gt;" in shown


async def test_what_is_no_id_or_digest_is_refused(tmp_path: Path) -> None:
    async with ruled(tmp_path / "home") as (found, _), found.inside() as browser:
        for path in ("contract?id=x", "contract?id=shop@v1&old=x", "contract"):
            assert (await browser.get(f"registry/{path}")).status_code == 400
        assert (await browser.get("registry/contract?id=none@v1")).status_code == 200


@pytest.mark.slow
async def test_versions_are_a_graph_whose_steps_say_for_whom_they_would_fail(
    tmp_path: Path,
) -> None:
    async with ruled(tmp_path / "home") as (found, running), found.inside() as browser:
        await push(running, shop())
        one = (await browser.get("registry/contract?id=shop@v1")).text
        assert 'class="versions"' not in one
        await push(running, shop(cache=True))
        await push(running, shop(COUNTED))
        await deploy(running, "shop", shop())
        await deploy(running, "buyer", buyer())
        shown = (await browser.get("registry/contract?id=shop@v1")).text
        drawn = shown.partition('class="versions"')[2].partition("</svg>")[0]
        assert drawn.count("<circle") == 3
        third, second, first = drawn.split("<circle")[1:]
        assert "version 3" in third
        assert "may fail for buyer, shop" in third
        assert f"old={digest(shop(cache=True))}&amp;new={digest(shop(COUNTED))}" in third
        assert '<text class="well"' in second
        assert "accepted for shop" in first
        assert "new=" not in first


def test_a_graph_of_versions_is_cut_and_bears_what_is_missing() -> None:
    versions = [{"digest": f"d{n}", "number": n, "states": ["x" * 90]} for n in range(20, 0, -1)]
    drawn = version_graph([{**versions[0], "number": 21}, *versions], {"d20": shop()}, [])
    assert [each.name for each in drawn.nodes][:2] == ["version 21", "version 19"]
    assert len(drawn.nodes) + drawn.more == 20
    assert {each.step for each in drawn.nodes} == {None}
    assert all(len(each.states) <= 40 and each.y < drawn.height for each in drawn.nodes)
    assert version_graph([], {}, []).nodes == ()
