import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.authority.identities.conftest import PASSWORD, Web
from tests.authority.identities.conftest import authority_template as authority_template
from tests.authority.identities.conftest import house as house
from tests.authority.identities.conftest import web as web
from tests.community.node.conftest import Street
from tests.community.node.conftest import street as street
from tests.console.consoles import with_parts
from tests.console.planes import Relay, buried, relayed
from typer.testing import CliRunner

from accord.cli import app
from accord.kernel import canonical
from accord.kernel.clock import SystemClock
from accord.relay.platforms import webchat
from accord.station import Settings, load
from accord.station import store as acts
from accord.station.audit import AuditEntry, open_trail, recent
from accord.station.backup import back_up, restore
from accord.station.console import login_link
from accord.station.relay import operate_relay
from accord.station.store import STATION, store_location
from accord.storage import journal, open_store

CLOCK = SystemClock()


async def begun(home: Path) -> Settings:
    """The settings of a home whose station has run once."""
    settings = load(home)
    (home / "keys").mkdir(parents=True)
    async with open_store(store_location(settings), STATION):
        pass
    return settings


async def told(settings: Settings, *planes: str) -> list[AuditEntry]:
    async with open_trail(settings, planes or ("station",)) as trail:
        return await trail.news()


def by_act(deeds: list[AuditEntry]) -> dict[str, AuditEntry]:
    return {deed.what: deed for deed in deeds}


async def test_a_login_link_is_told_without_its_secret(tmp_path: Path) -> None:
    settings = await begun(tmp_path)
    link = login_link(settings, CLOCK, "http://127.0.0.1:7070")
    [deed] = await told(settings)
    assert (deed.what, deed.who, deed.result) == ("console.link_issued", "operator", "done")
    assert link.partition("link=")[2] not in str(deed.to_dict())


async def test_a_start_tells_which_settings_changed_and_never_their_values(tmp_path: Path) -> None:
    await begun(tmp_path)
    for text in (
        "[station]\nport = 7071\n",
        "[station]\nport = 7071\n",
        '[station]\nname = "shed"\n[metrics]\ntoken = "hunter2"\n',
    ):
        (tmp_path / "accord.toml").write_text(text)
        acts.record_start(load(tmp_path), CLOCK)
    settings = load(tmp_path)
    found = await told(settings)
    assert [deed.what for deed in found] == [*["station.started"] * 3, "settings.changed"]
    assert found[-1].about == "changed metrics.token, station.name, station.port"
    async with open_store(store_location(settings), STATION) as store:
        kept = await store.read(lambda c: journal.read(c, "station.settings"))
    assert len(kept) == 2
    assert "hunter2" not in str(kept)
    assert "shed" not in str(kept)


async def test_backups_and_restored_homes_are_told(tmp_path: Path) -> None:
    settings = await begun(tmp_path / "home")
    await asyncio.to_thread(back_up, settings, tmp_path / "copy", lambda _: None)
    [made] = await told(settings)
    assert (made.what, made.about) == ("backup.made", f"path {tmp_path / 'copy'}")
    await asyncio.to_thread(restore, tmp_path / "copy", tmp_path / "new", lambda _: None)
    [restored] = await told(load(tmp_path / "new"))
    assert restored.what == "station.restored"


def test_where_no_station_ran_nothing_is_noted_and_nothing_is_made(tmp_path: Path) -> None:
    acts.record_act(load(tmp_path / "home"), CLOCK, "backup.made")
    assert not (tmp_path / "home").exists()


async def test_what_an_operator_does_to_agents_is_told_with_the_operator(tmp_path: Path) -> None:
    settings = await begun(tmp_path)
    async with operate_relay(settings, CLOCK, "operator") as connector:
        token = await connector.control.mint_token("t1", "echo")
        await connector.control.enrol(token.token, "gw")
        code = await connector.control.link(await connector.control.principal("echo"))
        await connector.control.bind("echo", "memory", "ann")
        await connector.control.revoke("echo")
    async with webchat.open_admin(store_location(settings), CLOCK) as admin:
        space = await admin.create_space("lobby")
        invite = await admin.invite(space.id)
    deeds = await told(settings, "relay", "webchat")
    found = by_act(deeds)
    assert {deed.who for deed in deeds} == {"operator"}
    assert found["link.bound"].about == "instance echo, platform memory, tenant t1, user_id ann"
    assert {"token.minted", "gateway.enrolled", "link.offered", "instance.barred"} < {*found}
    assert found["space.invited"].plane == "webchat"
    shown = str([deed.to_dict() for deed in deeds])
    for secret in (token.token, code.code, invite.url.partition("invite=")[2]):
        assert secret not in shown


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[Relay]:
    async with relayed(tmp_path / "home") as opened:
        yield opened


async def test_what_is_done_in_the_console_is_told_with_its_session(relay: Relay) -> None:
    noted: list[dict[str, Any]] = []
    async with relay.found.inside() as browser:
        await browser.send("agents/token", {"hours": "1", "agent": "tool", "tenant": "t1"})
        await relay.enrol()
        await relay.write("ann", "one")
        await buried(relay)
        await browser.send("agents/replay", {"instance": "echo", "letter": "all"})
        await buried(relay)
        await browser.send("agents/drop", {"instance": "echo", "letter": "all"})
        await browser.send("agents/revoke", {"instance": "echo", "sure": "yes"})
    for entry in await relay.connector.store.read(lambda c: journal.read(c, "relay.control")):
        body = canonical.decode(entry.body)
        noted += body.get("actions", [body])
    who = {each["action"]: each["by"] for each in noted}
    session = who["instance.barred"]
    assert session.startswith("console ")
    assert who["letters.replayed"] == who["letters.dropped"] == session
    minted = [each["by"] for each in noted if each["action"] == "token.minted"]
    assert minted == [session, "operator"]
    assert "private words" not in str(noted)


async def test_membership_is_told_with_its_author_and_whether_it_stands(street: Street) -> None:
    ann, bob = await street.house("ann"), await street.house("bob")
    community = await street.found(ann)
    await street.admit(ann, bob, community)
    await ann.post(community)
    eve = street.key("eve")
    forged = street.event(
        eve,
        community,
        "community.member.promoted",
        {"target_node_id": eve.id, "new_level": "anchor"},
        lamport=9,
    )
    await ann.in_(community).log.receive([forged.encode()])
    found = await told(load(street.path / "ann"), "community")
    assert [(deed.what, deed.who) for deed in found[1:5]] == [
        ("community.invites.guarded", ann.id),
        ("community.member.invited", ann.id),
        ("community.invite.witnessed", ann.id),
        ("community.member.joined", bob.id),
    ]
    refused = by_act(found)["community.member.promoted"]
    assert refused.who == eve.id
    assert refused.result != "done"
    assert refused.why
    assert not any("market" in deed.what for deed in found)


async def test_what_happens_to_people_is_told_without_links_and_passwords(
    web: Web, tmp_path: Path
) -> None:
    await web.admin("people/add", name="Ann", capabilities=["notes::notes.read"], by="root")
    link = (await web.admin("people/link", name="Ann", by="root")).json()["url"]
    await web.submit(await web.http.get(link))
    await web.submit(await web.http.get("/login"), password=PASSWORD)
    deeds = await told(load(tmp_path), "authority")
    found = by_act(deeds)
    assert (found["person_added"].who, found["link_issued"].who) == ("root", "root")
    assert found["person_added"].why == "name Ann, capabilities notes::notes.read"
    assert (found["logged_in"].who, found["logged_in"].why) == ("person Ann", "by a link")
    assert found["password_set"].who == "person Ann"
    shown = str([deed.to_dict() for deed in deeds])
    assert link.rpartition("/")[2] not in shown
    assert PASSWORD not in shown


async def test_a_trail_goes_on_from_where_it_was_read(web: Web, tmp_path: Path) -> None:
    settings = load(tmp_path)
    async with open_store(store_location(settings), STATION):
        pass
    async with open_trail(settings) as trail:
        assert any(deed.plane == "authority" for deed in await trail.news())
        assert await trail.news() == []
        acts.record_act(settings, CLOCK, "console.entered", "console 1")
        await web.admin("people/add", name="Ann")
        assert {deed.what for deed in await trail.news()} == {"console.entered", "person_added"}
        assert await trail.news() == []


async def test_the_latest_acts_are_found_without_reading_all(street: Street) -> None:
    ann = await street.house("ann")
    community = await street.found(ann)
    for number in range(5):
        await street.invite(ann, street.key(f"guest {number}").id, community)
        await ann.post(community, number)
    settings = load(street.path / "ann")
    for number in range(4):
        acts.record_act(settings, CLOCK, f"nobody listens {number}")
    async with open_store(store_location(settings), STATION):
        pass
    for number in range(4):
        acts.record_act(settings, CLOCK, f"entry {number}")
    async with open_trail(settings, latest=3) as trail:
        found = await trail.news()
    assert [deed.what for deed in found if deed.plane == "station"] == [
        "entry 1",
        "entry 2",
        "entry 3",
    ]
    assert [deed.what for deed in found if deed.plane == "community"] == [
        "community.member.invited"
    ] * 3
    assert await recent(settings, 2) == sorted(found, key=lambda deed: deed.at)[-2:]


async def test_the_console_shows_who_did_what(relay: Relay) -> None:
    async def audit(most: int) -> list[dict[str, Any]]:
        return [AuditEntry(0.0, "relay", "<b>eve</b>", "token.minted").to_dict()][:most]

    async with with_parts(relay.found, audit=audit).inside() as browser:
        page = (await browser.get("log")).text
    assert "Who did what" in page
    assert "&lt;b&gt;eve&lt;/b&gt;" in page


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--plane", "moon"], 2, "--plane"),
        (["--since", "yesterday"], 2, "--since"),
        ([], 1, "there is no station here yet"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, options: list[str], code: int, said: str) -> None:
    refused = CliRunner().invoke(app, ["audit", "--home", str(tmp_path), *options])
    assert refused.exit_code == code
    assert said in f"{refused.output} {refused.exception}"
