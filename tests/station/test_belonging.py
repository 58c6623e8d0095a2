"""What a start does in a home that is, or was, in a community."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accord.cli import app
from accord.community.identity import community_folder
from accord.community.rules import Invite
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.station import PlaneContext, StationError, load
from accord.station.community import (
    CommunityPlane,
    joined_communities,
    refuse_late_invite,
    report_unused_invite,
)
from accord.station.home import Home


def community() -> str:
    return SigningKey.generate().id


def invite(community_id: str) -> Invite:
    key = SigningKey.generate()
    return Invite.make(
        key,
        community_id=community_id,
        community_name="Our street",
        invitee_node_id=key.id,
        initial_level="member",
        bootstrap_endpoints=("https://192.0.2.1:7080",),
        expires_at="2030-01-01T00:00:00Z",
    )


def belong(home: Path, community_id: str, *, signed: bool = True) -> None:
    folder = community_folder(home, community_id)
    folder.mkdir(parents=True)
    if signed:
        (folder / "signed.somebody").write_text("")


def test_an_invite_to_another_community_is_refused_with_what_to_do(tmp_path: Path) -> None:
    first = community()
    belong(tmp_path, first)
    with pytest.raises(StationError, match="is in a community already") as refused:
        refuse_late_invite(tmp_path, invite(community()))
    told = str(refused.value)
    assert "'Our street'" in told
    assert community_folder(tmp_path, first).name in told
    assert "`accord community join LINK`" in told


def test_an_invite_to_the_same_community_may_be_given_at_every_start(tmp_path: Path) -> None:
    first = community()
    belong(tmp_path, first)
    refuse_late_invite(tmp_path, invite(first))


def test_a_new_home_and_one_where_a_join_has_failed_take_any_invite(tmp_path: Path) -> None:
    refuse_late_invite(tmp_path / "home", invite(community()))
    belong(tmp_path, community(), signed=False)
    assert joined_communities(tmp_path) == frozenset()
    refuse_late_invite(tmp_path, invite(community()))


def test_an_invite_in_the_settings_that_comes_late_is_a_part_in_trouble() -> None:
    first = community()
    assert report_unused_invite([first], invite(first)) is None
    part = report_unused_invite([first], invite(community()))
    assert part is not None
    assert (part.name, part.state, part.is_well) == ("invite", "not used", False)
    assert "`accord community join LINK`" in part.reason


async def start_and_stop(home: Path) -> None:
    """Run a community plane that founds "Home" where it may, until it is ready."""
    chosen = load(home)
    founding = chosen.community.model_copy(update={"port": 0, "found": "Home"})
    settings = chosen.model_copy(update={"community": founding})
    plane = CommunityPlane(settings, SigningKey.load(Home(home).device_key), SystemClock())
    ready, draining = asyncio.Event(), asyncio.Event()
    work = asyncio.create_task(plane.run(PlaneContext(ready.set, draining)))
    try:
        async with asyncio.timeout(60):
            await ready.wait()
    finally:
        draining.set()
        await work


async def test_a_station_that_has_left_its_community_founds_no_other(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def run(*words: str) -> Any:
        result = CliRunner().invoke(app, ["community", *words, "--home", str(home), "--json"])
        assert result.exit_code == 0, result.exception
        return json.loads(result.stdout)

    await asyncio.to_thread(run, "id")
    await start_and_stop(home)
    (founded,) = (await asyncio.to_thread(run, "list"))["communities"]
    await asyncio.to_thread(run, "leave", founded["community_id"])
    await start_and_stop(home)
    assert (await asyncio.to_thread(run, "list"))["communities"] == []
