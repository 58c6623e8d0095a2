"""Backups on the console: made, followed, listed, downloaded, restored from, and deleted."""

import asyncio
import io
import json
import re
import tarfile
from pathlib import Path

import pytest
from playwright.async_api import expect
from tests.console.consoles import Browser, Opened, opened, served, with_parts
from tests.console.test_console_in_a_browser import examine

from accord.console import ConsoleError
from accord.console.backups import archive, delete_backup, get_backup, list_backups, new_backup
from accord.console.parts import CommandRunner
from accord.console.sessions import Role
from accord.kernel.clock import SystemClock
from accord.station.backup import restore
from accord.testing.browser import Chromium

NAME = "20300101T000000Z"


def made(home: Path, name: str = NAME, at: int = 1_893_456_000, **files: bytes) -> Path:
    """A complete backup as it lies in a home."""
    folder = home / "backups" / name
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    told = {"form": 1, "version": "0.3.0", "made": at, "files": dict.fromkeys(files, "")}
    (folder / "backup.json").write_text(json.dumps(told))
    return folder


def unpacked(content: bytes, folder: Path) -> Path:
    with tarfile.open(fileobj=io.BytesIO(content)) as opened_tar:
        opened_tar.extractall(folder, filter="data")
    [backup] = folder.iterdir()
    return backup


async def finished(found: Opened) -> None:
    while (work := found.parts.backups.latest) is None or not work.has_ended:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert work.code == 0, (work.said, work.printed)


async def test_an_owner_makes_a_backup_downloads_it_and_it_can_be_restored(tmp_path: Path) -> None:
    acts: list[tuple[str, str]] = []

    async def note(what: str, by: str, **_about: str) -> None:
        acts.append((what, by))

    async with opened(tmp_path / "home") as found:
        found = with_parts(found, note=note)
        async with found.inside() as owner:
            assert "None was made here yet." in (await owner.get("backups")).text
            begun = await owner.send("backups/make")
            assert "The backup has begun." in begun.text
            assert 'sse-connect="/console/backups/live"' in begun.text
            # One at a time.
            assert (await owner.send("backups/make")).status_code == 409
            told = (await owner.get("backups/live")).text
            events = re.findall(r"^event: (\w+)$", told, re.MULTILINE)
            assert set(events[:-1]) == {"work"}
            assert events[-1] == "end"
            await finished(found)
            [first] = list_backups(found.home)
            shown = (await owner.get("backups")).text
            assert f"accord restore {first.path}" in shown
            assert "while the old station is stopped" in shown
            sent = await owner.get(f"backups/download?name={first.name}")
            assert sent.headers["content-disposition"] == f'attachment; filename="{first.name}.tar"'
            # The next one does not copy the one before.
            await owner.send("backups/make")
            await finished(found)
            both = list_backups(found.home)
            assert len(both) == 2
            assert not [each for each in both[0].path.rglob("*") if "backups" in each.parts[-2:]]
            gone = await owner.send("backups/delete", {"name": both[0].name})
            assert gone.status_code == 400
            await owner.send("backups/delete", {"name": both[0].name, "sure": "yes"})
            assert len(list_backups(found.home)) == 1
        what = [each for each, _ in acts if "backup" in each]
        assert what == [
            *("console.backup_begun", "console.backup_downloaded"),
            *("console.backup_begun", "console.backup_deleted"),
        ]
        assert {by for each, by in acts if "backup" in each} == {acts[-1][1]}
    copy = unpacked(sent.content, tmp_path / "elsewhere")
    restore(copy, tmp_path / "new", lambda _step: None, alone=True)
    assert (tmp_path / "new" / "stores" / "console.db").is_file()
    assert not (tmp_path / "new" / "backups").exists()


@pytest.mark.parametrize("role", [Role.READER, Role.OPERATOR])
async def test_only_an_owner_sees_and_makes_backups(tmp_path: Path, role: Role) -> None:
    async with opened(tmp_path / "home") as found:
        assert found.parts.users is not None
        await found.parts.users.add("anna", role)
        made(found.home, secret=b"a key of the station")
        async with found.inside("anna") as anna:
            for path in ("backups", "backups/live", f"backups/download?name={NAME}"):
                refused = await anna.get(path)
                assert refused.status_code == 403, path
                assert f"backups/{NAME}" not in refused.text
                assert "a key of" not in refused.text
            for act in ("make", "stop", "delete"):
                refused = await anna.send(f"backups/{act}", {"name": NAME, "sure": "yes"})
                assert refused.status_code == 403, act
            assert "/console/backups" not in (await anna.get("")).text
        assert found.parts.backups.latest is None
        assert len(list_backups(found.home)) == 1


async def test_a_backup_that_fails_says_why_and_one_that_is_stopped_leaves_nothing(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as owner:
        (found.home / "backups").write_text("in the way")
        refused = await owner.send("backups/make")
        assert refused.status_code == 507
        assert "cannot be written" in refused.text
        (found.home / "backups").unlink()
        await owner.send("backups/make")
        stopped = await owner.send("backups/stop")
        assert "nothing of it is kept" in stopped.text
        assert list_backups(found.home) == []
        (found.home / "stores" / "console.db").write_bytes(b"no database at all")
        await owner.send("backups/make")
        while not (work := found.parts.backups.latest) or not work.has_ended:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert work.code != 0
        shown = (await owner.get("backups")).text
        assert "failed" in shown
        assert "console.db" in shown
        assert list_backups(found.home) == []


async def test_a_backup_is_asked_for_by_its_name_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as owner:
        made(found.home)
        (found.home / "secret").write_text("not yours")
        for name in ("", "..", "../secret", f"{NAME}/..", NAME[:-1], "%2e%2e", "x" * 300, "a\0b"):
            answer = await owner.get("backups/download", params={"name": name})
            assert answer.status_code == 404, name
            gone = await owner.send("backups/delete", {"name": name, "sure": "yes"})
            assert gone.status_code in (400, 404), name
        assert len(list_backups(found.home)) == 1


def test_what_is_no_complete_backup_is_not_listed(tmp_path: Path) -> None:
    made(tmp_path, "20300101T000000Z", 2)
    made(tmp_path, "20300102T000000Z-1", 3)
    for name in (".accord-half", "notes", "20300103T000000Z"):
        (tmp_path / "backups" / name).mkdir()
    for name, text in (("20300104T000000Z", "no json"), ("20300105T000000Z", '{"made": "never"}')):
        (tmp_path / "backups" / name).mkdir()
        (tmp_path / "backups" / name / "backup.json").write_text(text)
    (tmp_path / "backups" / "20300106T000000Z").symlink_to(tmp_path / "backups" / NAME)
    names = [each.name for each in list_backups(tmp_path)]
    assert names == ["20300102T000000Z-1", "20300101T000000Z"]
    with pytest.raises(ConsoleError, match="no such backup"):
        get_backup(tmp_path, "20300106T000000Z")
    delete_backup(tmp_path, NAME)
    assert not (tmp_path / "backups" / NAME).exists()


def test_a_new_backup_has_a_name_that_is_free(tmp_path: Path) -> None:
    clock = SystemClock()
    first = new_backup(tmp_path, clock)
    first.mkdir()
    second = new_backup(tmp_path, clock)
    assert first != second
    assert not second.exists()
    assert first.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 300_000])
def test_an_archive_has_every_file_as_it_is(tmp_path: Path, size: int) -> None:
    folder = made(tmp_path, first=b"x" * size, second=b"y")
    (folder / "away").symlink_to("/etc/passwd")
    sent = b"".join(archive(get_backup(tmp_path, NAME)))
    copy = unpacked(sent, tmp_path / "copy")
    assert copy.name == NAME
    assert {each.name for each in copy.iterdir()} == {"backup.json", "first", "second"}
    assert (copy / "first").read_bytes() == b"x" * size
    assert (copy / "second").read_bytes() == b"y"


async def test_a_backup_runs_beside_a_command_of_the_pipeline(tmp_path: Path) -> None:
    idle = CommandRunner(program=("sleep",))
    async with opened(tmp_path / "home") as found:
        found = with_parts(found, children=idle)
        async with found.inside() as owner:
            await idle.start("sleep", ["60"])
            assert await _begins(owner)
            await finished(found)
            await idle.stop()


async def _begins(owner: Browser) -> bool:
    return "The backup has begun." in (await owner.send("backups/make")).text


async def test_a_person_makes_a_backup_and_sees_it_come(chromium: Chromium, tmp_path: Path) -> None:
    async with (
        opened(tmp_path / "home") as found,
        served(found) as address,
        chromium.opened() as browser,
    ):
        page = await browser.new_page(viewport={"width": 390, "height": 844})
        await page.goto(f"{address}/console/login?link={found.tickets.link()}")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()
        await page.goto(f"{address}/console/backups")
        await page.get_by_role("button", name="Make a backup").click()
        await expect(page.get_by_role("status")).to_contain_text("The backup has begun.")
        # The list comes by itself when it is done.
        await expect(page.get_by_role("link", name="Download")).to_be_visible(timeout=60_000)
        await page.get_by_text("Restore or delete it").click()
        await expect(page.get_by_text("accord restore")).to_be_visible()
        await examine(page, "backups", tmp_path)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        async with page.expect_download() as coming:
            await page.get_by_role("link", name="Download").click()
        sent = await coming.value
        [backup] = list_backups(found.home)
        assert sent.suggested_filename == f"{backup.name}.tar"
        assert tarfile.is_tarfile(await sent.path())
