"""Settings on the console: folded, searched, and changed by an owner where that is safe."""

import os
import re
import stat
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import expect
from tests.console.consoles import EVIL, Opened, opened, served, with_parts
from tests.console.test_console_in_a_browser import examine

from accord.console.sessions import Role
from accord.station import SettingsError, load
from accord.station.console import SettingEdits
from accord.station.edits import EDITABLE, Applies, change_setting, choices
from accord.station.settings import sections
from accord.testing.browser import Chromium

FILE = """# The kitchen's station.
[station]
name = "kitchen"  # as the children say

[log]
# Not too much.
level = "info"
"""


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("ACCORD_"):
            monkeypatch.delenv(name)


def written(home: Path, text: str = FILE) -> Path:
    home.mkdir(exist_ok=True)
    (home / "accord.toml").write_text(text)
    return home


@asynccontextmanager
async def settled(home: Path, text: str = FILE) -> AsyncIterator[tuple[Opened, list[str]]]:
    """A console whose settings are those of a file, and what the audit was told."""
    acts: list[str] = []

    async def note(what: str, by: str, **about: str) -> None:
        acts.append(f"{what} {about.get('setting', '')} by {by.split()[0]}")

    async with opened(home) as found:
        edits = SettingEdits(load(written(home, text)))
        yield (
            with_parts(found, settings=edits.shown, change_setting=edits.change, note=note),
            acts,
        )


def test_a_change_keeps_comments_order_and_everything_else(tmp_path: Path) -> None:
    home = written(tmp_path)
    (home / "accord.toml").chmod(0o640)
    change_setting(load(home), "station", "name", "shed")
    assert (home / "accord.toml").read_text() == FILE.replace('"kitchen"', '"shed"')
    change_setting(load(home), "console", "idle_hours", "1.5")
    changed = load(home)
    assert changed.console.idle_hours == 1.5
    assert "# Not too much." in (home / "accord.toml").read_text()
    assert stat.S_IMODE((home / "accord.toml").stat().st_mode) == 0o640
    change_setting(load(home), "console", "idle_hours", None)
    change_setting(load(home), "station", "name", None)
    assert load(home).station.name == "station"
    assert load(home).log.level == "info"
    assert not list(home.glob(".accord.toml*"))


def test_without_a_file_one_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    change_setting(load(tmp_path), "log", "level", "debug")
    assert tomllib.loads((tmp_path / "accord.toml").read_text()) == {"log": {"level": "debug"}}
    assert stat.S_IMODE((tmp_path / "accord.toml").stat().st_mode) == 0o600


def test_a_file_that_was_named_is_changed_and_a_link_stays_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    elsewhere = tmp_path / "my.toml"
    elsewhere.write_text(FILE)
    named = tmp_path / "named.toml"
    named.symlink_to(elsewhere)
    change_setting(load(home, named), "station", "name", "shed")
    assert named.is_symlink()
    assert '"shed"' in elsewhere.read_text()
    assert not (home / "accord.toml").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.level", "loud"),
        ("log.file", "yes"),
        ("log.file", ""),
        ("station.name", ""),
        ("station.name", "x" * 101),
        ("station.name", "a\nb"),
        ("station.drain_seconds", "-1"),
        ("station.drain_seconds", "soon"),
        ("station.drain_seconds", "nan"),
        ("station.drain_seconds", "9" * 400),
        ("models.max_concurrent", "1.5"),
        ("models.max_concurrent", "0x10"),
        ("console.language", "fr"),
        # Those that a page does not change, and those that are none.
        ("station.host", "0.0.0.0"),
        ("store.url", "postgresql://elsewhere/db"),
        ("metrics.token", "mine"),
        ("doors.host", "0.0.0.0"),
        ("community.archive_days", "1"),
        ("station.nothing", "1"),
        ("nothing.name", "1"),
        ("", "1"),
        ("station", "1"),
    ],
)
async def test_a_refused_value_changes_nothing(tmp_path: Path, name: str, text: str) -> None:
    async with settled(tmp_path / "home") as (found, acts), found.inside() as owner:
        before = load(found.home)
        acts.clear()
        refused = await owner.send("settings/change", {"setting": name, "value": text})
        assert refused.status_code == 400, refused.text
        assert 'role="alert"' in refused.text
        assert (found.home / "accord.toml").read_text() == FILE
        assert load(found.home) == before
        assert acts == []
        assert [each.name for each in found.home.glob("*.toml*")] == ["accord.toml"]


async def test_an_owner_changes_a_setting_which_is_told_and_noted(tmp_path: Path) -> None:
    async with settled(tmp_path / "home") as (found, acts), found.inside() as owner:
        given = {"setting": "station.name", "value": f"shed {EVIL[:20]}"}
        saved = (await owner.send("settings/change", given)).text
        assert "It holds when the station has been started again." in saved
        assert "Saved, and not in use yet" in saved
        assert "kitchen" in saved
        assert "<script>" not in saved
        assert load(found.home).station.name == f"shed {EVIL[:20]}"
        assert acts[-1] == "console.setting_changed station.name by console"
        back = (await owner.send("settings/change", {**given, "default": "yes"})).text
        assert load(found.home).station.name == "station"
        assert "Saved, and not in use yet" in back  # it runs as the kitchen still
        await owner.send("settings/change", {"setting": "station.name", "value": "kitchen"})
        assert "not in use yet" not in (await owner.get("settings")).text


async def test_some_settings_hold_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[str] = []
    monkeypatch.setattr("accord.station.logs.set_level", levels.append)
    async with settled(tmp_path / "home") as (found, _), found.inside() as owner:
        told = await owner.send("settings/change", {"setting": "log.level", "value": "debug"})
        assert "holds from now on" in told.text
        assert levels == ["debug"]
        assert "not in use yet" not in told.text
        await owner.send("settings/change", {"setting": "console.language", "value": "de"})
        assert 'lang="de"' in (await owner.get("")).text


def test_an_option_of_the_command_line_is_not_taken_for_a_change(tmp_path: Path) -> None:
    settings = load(written(tmp_path))
    station = settings.station.model_copy(update={"port": 0, "name": "Demo station"})
    edits = SettingEdits(settings.model_copy(update={"station": station}))
    shown = {each.key: each for each in edits.shown() if each.section == "station"}
    assert (shown["name"].value, shown["name"].saved) == ("Demo station", None)
    assert (shown["port"].value, shown["port"].saved) == ("0", None)
    # What somebody changes by hand is told, too; a file that is wrong tells nothing.
    written(tmp_path, FILE.replace("kitchen", "shed"))
    shown = {each.key: each for each in edits.shown() if each.section == "station"}
    assert shown["name"].saved == "shed"
    written(tmp_path, "[station")
    assert not [each for each in edits.shown() if each.saved is not None]


@pytest.mark.parametrize("role", [Role.READER, Role.OPERATOR])
async def test_only_an_owner_changes_settings(tmp_path: Path, role: Role) -> None:
    async with settled(tmp_path / "home") as (found, _):
        assert found.parts.users is not None
        await found.parts.users.add("anna", role)
        async with found.inside("anna") as anna:
            shown = (await anna.get("settings")).text
            assert "[station]" in shown
            assert "settings/change" not in shown
            given = {"setting": "station.name", "value": "mine"}
            refused = await anna.send("settings/change", given)
            assert refused.status_code == 403
            assert (found.home / "accord.toml").read_text() == FILE


async def test_settings_are_folded_and_found_by_words(tmp_path: Path) -> None:
    async with settled(tmp_path / "home") as (found, _), found.inside() as owner:
        shown = (await owner.get("settings")).text
        assert shown.count('<details class="settings"') == len(sections())
        assert not re.search(r'<details class="settings"[^>]* open', shown)
        assert "1 changed" in shown
        assert "default: station" in shown
        one = (await owner.get("settings?words=DISPLAY+name")).text
        assert re.search(r'id="s-station" open', one)
        assert 'id="s-log"' not in one
        assert "ACCORD_STATION__NAME" in one
        assert "ACCORD_STATION__PORT" not in one
        none = (await owner.get("settings", params={"words": EVIL})).text
        assert "No setting has these words." in none
        assert EVIL not in none


async def test_what_was_typed_stays_when_it_is_refused(tmp_path: Path) -> None:
    async with settled(tmp_path / "home") as (found, _), found.inside() as owner:
        given = {"setting": "station.drain_seconds", "value": "a while"}
        refused = (await owner.send("settings/change", given)).text
        assert 'value="a while"' in refused
        assert re.search(r'id="s-station" open', refused)


def test_what_the_environment_sets_is_not_changed_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = written(tmp_path)
    monkeypatch.setenv("ACCORD_STATION__NAME", "from outside")
    with pytest.raises(SettingsError, match="environment"):
        change_setting(load(home), "station", "name", "shed")
    assert (home / "accord.toml").read_text() == FILE


@pytest.mark.parametrize(
    "text",
    ["[station\nname = 1", "station = 3\n", '[log]\nlevel = "loud"\n', "[nothing]\na = 1\n"],
)
def test_a_file_that_is_wrong_already_is_left_alone(tmp_path: Path, text: str) -> None:
    settings = load(tmp_path / "home")
    home = written(tmp_path / "home", text)
    with pytest.raises(SettingsError):
        change_setting(settings, "station", "name", "shed")
    assert (home / "accord.toml").read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        'station.name = "kitchen"\nlog.level = "info"\n',
        'station = { name = "kitchen", port = 7071 }\n',
        '"station"."name" = "kitchen"\n',
        "",
        "\n\n# nothing yet\n",
        '[relay]\n[[relay.telegram]]\ntoken = "1:a"\n[station]\nport = 7072\n',
    ],
)
def test_every_way_to_write_a_file_stays_valid(tmp_path: Path, text: str) -> None:
    home = written(tmp_path, text)
    before = tomllib.loads(text)
    change_setting(load(home), "station", "name", "shed")
    after = tomllib.loads((home / "accord.toml").read_text())
    assert after.pop("station") == {**before.pop("station", {}), "name": "shed"}
    assert after == before


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    home = written(tmp_path)
    settings = load(home)
    (home / "accord.toml").unlink()
    (home / "accord.toml").mkdir()
    with pytest.raises(SettingsError, match="cannot be read"):
        change_setting(settings, "station", "name", "shed")


def test_the_declared_settings_exist_and_none_is_a_secret_or_an_address() -> None:
    for section, key in EDITABLE:
        field = sections()[section].model_fields[key]
        assert field.annotation in (str, int, float, bool) or choices(section, key), key
        named = {"host", "port", "url", "urls", "token", "key", "proxies", "days", "certificate"}
        assert not named & set(key.split("_")), key
    assert {name for name, when in EDITABLE.items() if when is Applies.NOW} == {
        ("log", "level"),
        ("console", "language"),
    }


async def test_on_a_phone_settings_are_short_searched_and_changed(
    chromium: Chromium, tmp_path: Path
) -> None:
    async with (
        settled(tmp_path / "home") as (found, _),
        served(found) as address,
        chromium.opened() as browser,
    ):
        page = await browser.new_page(viewport={"width": 390, "height": 844})
        await page.goto(f"{address}/console/login?link={found.tickets.link()}")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()
        await page.goto(f"{address}/console/settings")
        assert await page.evaluate("document.documentElement.scrollHeight") < 4000
        await page.get_by_label("Find a setting").press_sequentially("display name")
        await expect(page.get_by_text("ACCORD_STATION__NAME", exact=True)).to_be_visible()
        await expect(page.locator("details.settings")).to_have_count(1)
        await page.get_by_label("Change station.name").click()
        await examine(page, "settings-change", tmp_path)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        await page.get_by_label("New value of station.name").fill("")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("alert")).to_contain_text("at least 1 character")
        await page.get_by_label("New value of station.name").fill("shed")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("heading", name="Saved, and not in use yet")).to_be_visible()
        assert load(found.home).station.name == "shed"
        await page.emulate_media(color_scheme="dark")
        await page.set_viewport_size({"width": 1280, "height": 800})
        await page.goto(f"{address}/console/settings?words=log")
        await examine(page, "settings-dark", tmp_path)
