import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from accord.kernel.signing import SigningError
from accord.station import StationError
from accord.station.home import Home, HomeHolder, ensure_device_key, hold_home, home_holder

ADDRESS = "http://127.0.0.1:7070"


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def start_and_fail(home: Home) -> None:
    with ExitStack() as undo, hold_home(home, ADDRESS, undo):
        ensure_device_key(home, undo)
        raise RuntimeError


def test_a_new_home_is_for_its_owner_alone(tmp_path: Path) -> None:
    home = Home(tmp_path / "deep" / "home")
    with ExitStack() as undo, hold_home(home, ADDRESS, undo):
        key = ensure_device_key(home, undo)
        undo.pop_all()
    folders = [
        home.path.parent,
        home.path,
        *(path for path in home.path.iterdir() if path.is_dir()),
    ]
    assert [path.stat().st_mode & 0o777 for path in folders] == [0o700] * 5
    assert home.device_key.stat().st_mode & 0o777 == 0o600
    assert ensure_device_key(home, ExitStack()).id == key.id


def test_a_failed_start_leaves_no_trace_of_a_new_home(tmp_path: Path) -> None:
    home = Home(tmp_path / "deep" / "home")
    with pytest.raises(RuntimeError):
        start_and_fail(home)
    assert everything(tmp_path) == []


def test_a_failed_start_leaves_what_was_in_the_home_before(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "accord.toml").write_text("[station]\n")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "other").write_text("mine")
    before = everything(tmp_path)
    with pytest.raises(RuntimeError):
        start_and_fail(home)
    assert everything(tmp_path) == before


def test_a_held_home_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    assert home_holder(home) is None
    with ExitStack() as undo, hold_home(home, ADDRESS, undo):
        assert home_holder(home) == HomeHolder(os.getpid(), ADDRESS)
        before = everything(tmp_path)
        with (
            pytest.raises(StationError) as caught,
            ExitStack() as other,
            hold_home(home, "elsewhere", other),
        ):
            pass
        assert str(caught.value) == (
            f"{home.path}: process {os.getpid()} at {ADDRESS} already runs the station of this "
            "home; stop it first, or name another home with --home or ACCORD_HOME"
        )
        assert everything(tmp_path) == before
        assert home_holder(home) == HomeHolder(os.getpid(), ADDRESS)
        undo.pop_all()
    assert home_holder(home) is None


def test_a_home_whose_last_station_was_killed_can_be_taken_again(tmp_path: Path) -> None:
    home = Home(tmp_path)
    long_gone = {"pid": 1, "address": "http://a-very-long-address-that-must-not-shine-through:1"}
    (tmp_path / "station.lock").write_text(json.dumps(long_gone))
    with ExitStack() as undo, hold_home(home, ADDRESS, undo):
        assert home_holder(home) == HomeHolder(os.getpid(), ADDRESS)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff"])
def test_an_unreadable_lock_file_still_names_somebody(tmp_path: Path, content: bytes) -> None:
    home = Home(tmp_path)
    with ExitStack() as undo, hold_home(home, ADDRESS, undo):
        (tmp_path / "station.lock").write_bytes(content)
        with (
            pytest.raises(StationError, match="another process already runs"),
            ExitStack() as other,
            hold_home(home, ADDRESS, other),
        ):
            pass


@pytest.mark.parametrize("place", ["file/home", "file", "/proc/accord-home"])
def test_a_home_that_cannot_be_made_is_refused_in_one_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    home = Home(tmp_path / place)
    with pytest.raises(StationError) as caught, ExitStack() as undo, hold_home(home, ADDRESS, undo):
        pass
    assert str(caught.value).startswith(f"{home.path}: the home folder cannot be used: ")
    assert "--home or ACCORD_HOME" in str(caught.value)
    assert everything(tmp_path) == [tmp_path / "file"]


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that this user cannot write to; root becomes somebody else for a while."""
    folder = Path(tempfile.mkdtemp(prefix="accord-read-only-"))
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.rmdir()


def test_a_read_only_folder_is_refused_in_one_sentence(read_only: Path) -> None:
    for home in (Home(read_only), Home(read_only / "home")):
        with pytest.raises(StationError) as caught, ExitStack() as undo, hold_home(home, "", undo):
            pass
        assert str(caught.value) == (
            f"{home.path}: the home folder cannot be used: Permission denied; let this user write "
            "to it, or name another with --home or ACCORD_HOME"
        )
        assert everything(read_only) == []


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_a_key_file_of_wrong_length_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    home = Home(tmp_path)
    home.device_key.parent.mkdir()
    home.device_key.write_bytes(content)
    home.device_key.chmod(0o600)
    with pytest.raises(SigningError), ExitStack() as undo:
        ensure_device_key(home, undo)
    assert home.device_key.read_bytes() == content


def test_a_key_file_that_others_may_read_is_refused_and_kept(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with ExitStack() as undo, hold_home(home, ADDRESS, undo):
        ensure_device_key(home, undo)
        undo.pop_all()
    home.device_key.chmod(0o644)
    with pytest.raises(SigningError, match="mode 0644"), ExitStack() as undo:
        ensure_device_key(home, undo)
    assert home.device_key.exists()
