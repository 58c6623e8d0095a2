"""Whoever hands somebody a backup must not write, read or let anybody in by it."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3
from typer.testing import CliRunner

from accord.cli import app
from accord.pipeline.corpus import store
from accord.pipeline.errors import PipelineError
from accord.station import StationError


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, f"{words}: {result.exception!r} {result.output}"
    return result.output


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A backup of a station that was never up."""
    run("community", "id", "--home", str(tmp_path / "home"))
    run("backup", str(tmp_path / "copy"), "--home", str(tmp_path / "home"))
    return tmp_path / "copy"


def plant(copy: Path, name: str, data: bytes = b"planted") -> None:
    """Name a file in the list of a backup, with the digest of some bytes."""
    told = json.loads((copy / "backup.json").read_bytes())
    told["files"][name] = blake3(data).hexdigest()
    (copy / "backup.json").write_text(json.dumps(told))


def by_link_and_dots(copy: Path) -> None:
    # Below the backup the link leads back into it; below the home there is no link.
    (copy / "a" / "b" / "c").mkdir(parents=True)
    (copy / "planted").write_bytes(b"planted")
    (copy / "deep").symlink_to("a/b/c")
    plant(copy, "deep/../../../planted")


def by_dots_alone(copy: Path) -> None:
    (copy.parent / "planted").write_bytes(b"planted")
    plant(copy, "../planted")


def by_dots_inside(copy: Path) -> None:
    (copy / "a").mkdir()
    (copy / "planted").write_bytes(b"planted")
    plant(copy, "a/../planted")


def by_absolute_name(copy: Path) -> None:
    outside = copy.parent / "outside"
    outside.write_bytes(b"planted")
    plant(copy, str(outside))


def by_link_to_a_file(copy: Path) -> None:
    outside = copy.parent / "outside"
    outside.write_bytes(b"planted")
    (copy / "taken").symlink_to(outside)
    plant(copy, "taken")


def by_link_inside(copy: Path) -> None:
    (copy / "planted").write_bytes(b"planted")
    (copy / "taken").symlink_to("planted")
    plant(copy, "taken")


def by_linked_folder(copy: Path) -> None:
    (copy.parent / "outside").mkdir()
    (copy.parent / "outside" / "file").write_bytes(b"planted")
    (copy / "folder").symlink_to(copy.parent / "outside")
    plant(copy, "folder/file")


def by_a_pipe(copy: Path) -> None:
    os.mkfifo(copy / "pipe")
    plant(copy, "pipe", b"")


def by_an_empty_name(copy: Path) -> None:
    plant(copy, "")


def by_a_doubled_slash(copy: Path) -> None:
    (copy / "a").mkdir()
    (copy / "a" / "planted").write_bytes(b"planted")
    plant(copy, "a//planted")


def by_console_logins(copy: Path) -> None:
    (copy / "console").mkdir()
    (copy / "console" / "sessions.db").write_bytes(b"planted")
    plant(copy, "console/sessions.db")


def by_nested_list(copy: Path) -> None:
    (copy / "backup.json").write_text('{"form":1,"files":' + "[" * 100_000)


def by_digest_that_is_none(copy: Path) -> None:
    told = json.loads((copy / "backup.json").read_bytes())
    told["files"]["keys/device.ed25519"] = ["x"]
    (copy / "backup.json").write_text(json.dumps(told))


@pytest.mark.parametrize(
    "attack",
    [
        by_link_and_dots,
        by_dots_alone,
        by_dots_inside,
        by_absolute_name,
        by_link_to_a_file,
        by_link_inside,
        by_linked_folder,
        by_a_pipe,
        by_an_empty_name,
        by_a_doubled_slash,
        by_console_logins,
        by_nested_list,
        by_digest_that_is_none,
    ],
    ids=lambda attack: attack.__name__,
)
def test_a_hostile_backup_restores_nothing_and_writes_nothing(
    copy: Path, tmp_path: Path, attack: Callable[[Path], None]
) -> None:
    attack(copy)
    before = sorted(tmp_path.rglob("*"))
    result = CliRunner().invoke(app, ["restore", str(copy), "--home", str(tmp_path / "target")])
    assert isinstance(result.exception, StationError)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_store_that_the_list_does_not_name_is_not_restored(copy: Path, tmp_path: Path) -> None:
    (copy / "stores" / "community.db").write_bytes(b"nobody proved this")
    told = json.loads((copy / "backup.json").read_bytes())
    told["files"].pop("stores/community.db", None)
    (copy / "backup.json").write_text(json.dumps(told))
    run("restore", str(copy), "--home", str(tmp_path / "target"))
    assert not (tmp_path / "target" / "stores" / "community.db").exists()


def test_what_is_restored_is_for_its_owner_alone(copy: Path, tmp_path: Path) -> None:
    (copy / "accord.toml").write_bytes(b"")
    (copy / "accord.toml").chmod(0o4777)
    plant(copy, "accord.toml", b"")
    run("restore", str(copy), "--home", str(tmp_path / "target"))
    assert (tmp_path / "target" / "accord.toml").stat().st_mode & 0o7777 == 0o700


def test_a_catalogue_of_a_corpus_names_no_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    os.mkfifo(tmp_path / "elsewhere")  # whoever opened it would wait for ever
    with pytest.raises(PipelineError, match="gone or damaged"):
        list(store.read_part(tmp_path / "parts", "../elsewhere"))
