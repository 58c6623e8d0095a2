import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from accord.community.identity import community_folder
from accord.community.rules import Invite
from accord.kernel.signing import SigningKey
from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def refused(result: "subprocess.CompletedProcess[str]", code: int, *parts: str) -> None:
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def until_ready(address: str) -> None:
    """A station says where it is as soon as it answers; its planes follow."""
    deadline = time.monotonic() + 30
    while (answer := httpx.get(f"{address}/readyz")).status_code != 200:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.02)


def test_a_station_comes_up_answers_and_ends_with_exit_0(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with python_child("-m", "accord.cli", "up", "--home", str(home), "--port", "0") as child:
        lines = [child.read_line() for _ in range(9)]
        told = dict(line.split(maxsplit=1) for line in lines[1:5])
        address = told["address"]
        assert told["console"].startswith(f"{address}/console/login?link=")
        assert told["home"] == str(home)
        assert told["device"].startswith("ed25519:")
        assert [line.split()[0] for line in lines[5:]] == ["Three", "1.", "2.", "3."]
        assert httpx.get(f"{address}/livez").text == "alive\n"
        until_ready(address)
        child.terminate()
        assert child.wait() == 0
        child.assert_gone()
    assert (home / "stores" / "station.db").exists()


WHOLE = {
    "ACCORD_COMMUNITY__FOUND": "Home",
    "ACCORD_AUTHORITY__ENABLED": "true",
    "ACCORD_CONCIERGE__ENABLED": "true",
}


def test_on_an_empty_machine_every_plane_comes_up_in_a_community_of_its_own(
    tmp_path: Path, accord: Run
) -> None:
    home = tmp_path / "home"
    arguments = ["up", "--home", str(home), "--port", "0", "--json"]
    for start in range(2):
        with python_child("-m", "accord.cli", *arguments, env=WHOLE) as child:
            address = json.loads(child.read_line())["address"]
            until_ready(address)
            planes = {each["name"] for each in httpx.get(f"{address}/readyz").json()["planes"]}
            assert planes >= {"community", "relay", "concierge", "authority", "bridge", "console"}
            listed = json.loads(accord("community", "list", "--home", str(home), "--json").stdout)
            assert [each["name"] for each in listed["communities"]] == ["Home"], start
            child.terminate()
            assert child.wait() == 0


def test_the_station_can_be_started_again_and_moved_and_keeps_its_id(tmp_path: Path) -> None:
    devices = []
    for name in ("here", "here", "there"):
        if name == "there":
            (tmp_path / "here").rename(tmp_path / "there")
        arguments = ["up", "--home", str(tmp_path / name), "--port", "0", "--json"]
        with python_child("-m", "accord.cli", *arguments) as child:
            devices.append(json.loads(child.read_line())["device"])
            child.terminate()
            assert child.wait() == 0
    assert len(set(devices)) == 1


def test_a_station_goes_on_when_the_reader_of_its_first_words_has_gone(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    program = (
        "import os, sys; os.dup2(int(sys.argv.pop(1)), 1); from accord.cli import main; main()"
    )
    home = tmp_path / "home"
    command = [sys.executable, "-c", program, str(write), "up", "--home", str(home), "--port", "0"]
    with subprocess.Popen(command, pass_fds=[write], stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        try:
            assert process.stderr
            assert any("station is up" in line for line in process.stderr)
            lock = json.loads((home / "station.lock").read_text())
            until_ready(lock["address"])
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_a_second_station_on_one_home_is_refused_and_told_who_holds_it(
    accord: Run, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with python_child(
        "-m", "accord.cli", "up", "--home", str(home), "--port", "0", "--json"
    ) as child:
        address = json.loads(child.read_line())["address"]
        second = accord("up", "--port", "0")
        refused(second, 1, str(home), f"process {child.pid} at {address}", "stop it first")
        until_ready(address)


def test_broken_toml_is_one_sentence_and_makes_nothing(accord: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "accord.toml").write_text("[station\n")
    before = snapshot(tmp_path)
    refused(accord("up"), 2, f"{home}/accord.toml, line 1, column 9", "not TOML", "; write")
    assert snapshot(tmp_path) == before


def test_an_unknown_setting_is_one_sentence_and_makes_nothing(accord: Run, tmp_path: Path) -> None:
    file = tmp_path / "accord.toml"
    file.write_text("[station]\nprot = 1\n")
    before = snapshot(tmp_path)
    refused(accord("up", "--config", str(file)), 2, "[station] prot", "did you mean port?")
    refused(accord("up", env={"ACCORD_STATION__PROT": "1"}), 2, "variable ACCORD_STATION__PROT")
    assert snapshot(tmp_path) == before


def test_a_port_in_use_is_one_sentence_and_makes_nothing(accord: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        refused(accord("up", "--port", port), 1, f"port {port} is in use", "--port")
    assert snapshot(tmp_path) == {}


def test_what_is_no_invite_is_one_sentence_and_makes_nothing(accord: Run, tmp_path: Path) -> None:
    refused(accord("up", "--port", "0", "--join", "nonsense"), 1, "not an invite", "whole link")
    assert snapshot(tmp_path) == {}


def test_an_invite_for_a_home_that_is_in_another_community_is_one_sentence_and_makes_nothing(
    accord: Run, tmp_path: Path
) -> None:
    key, first, second = (SigningKey.generate() for _ in range(3))
    folder = community_folder(tmp_path / "home", first.id)
    folder.mkdir(parents=True)
    (folder / f"signed.{key.id.removeprefix('ed25519:')}").write_text("")
    invite = Invite.make(
        key,
        community_id=second.id,
        community_name="Our street",
        invitee_node_id=key.id,
        initial_level="member",
        bootstrap_endpoints=("https://192.0.2.1:7080",),
        expires_at="2030-01-01T00:00:00Z",
    )
    before = snapshot(tmp_path)
    told = accord("up", "--port", "0", "--join", invite.link)
    refused(told, 1, f"{tmp_path}/home: ", "in a community already", "accord community join LINK")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("place", ["file", "file/home", "/proc/accord-home"])
def test_a_home_that_cannot_be_written_is_one_sentence_and_makes_nothing(
    accord: Run, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    before = snapshot(tmp_path)
    home = tmp_path / place
    refused(accord("up", "--port", "0", "--home", str(home)), 1, f"{home}: the home", "--home or")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [(b"short", 0o600, "32 bytes"), (b"x" * 33, 0o600, "32 bytes"), (b"x" * 32, 0o644, "0644")],
)
def test_a_bad_device_key_is_one_sentence_and_makes_nothing(
    accord: Run, tmp_path: Path, content: bytes, mode: int, complaint: str
) -> None:
    key = tmp_path / "home" / "keys" / "device.ed25519"
    key.parent.mkdir(parents=True)
    key.write_bytes(content)
    key.chmod(mode)
    before = snapshot(tmp_path)
    refused(accord("up", "--port", "0"), 1, f"{key}: the key file", complaint)
    assert snapshot(tmp_path) == before


def test_a_store_that_cannot_be_reached_is_one_sentence_and_makes_nothing(
    accord: Run, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    url = f"postgresql://me:hunter2@127.0.0.1:{port}/x"
    result = accord("up", "--port", "0", env={"ACCORD_STORE__URL": url})
    refused(result, 1, "does not answer")
    assert "hunter2" not in result.stderr
    assert snapshot(tmp_path) == {}


def test_a_store_that_is_not_a_database_is_one_sentence_and_is_kept(
    accord: Run, tmp_path: Path
) -> None:
    store = tmp_path / "home" / "stores" / "station.db"
    store.parent.mkdir(parents=True)
    store.write_text("this is no database, but somebody's text" * 100)
    before = snapshot(tmp_path)
    refused(accord("up", "--port", "0"), 1, str(store), "not a database")
    assert snapshot(tmp_path) == before


def test_the_log_of_a_station_with_a_secret_does_not_tell_it(
    postgres_url: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    secret = "hunter2-in-the-query"
    joint = "&" if "?" in postgres_url else "?"
    env = {
        "ACCORD_STORE__URL": f"{postgres_url}{joint}application_name={secret}",
        "ACCORD_LOG__LEVEL": "debug",
    }
    arguments = ["up", "--home", str(home), "--port", "0", "--json"]
    with python_child("-m", "accord.cli", *arguments, env=env) as child:
        address = json.loads(child.read_line())["address"]
        until_ready(address)
        child.terminate()
        assert child.wait() == 0
    assert "station is up" in (home / "logs" / "station.log").read_text()
    assert secret not in (home / "logs" / "station.log").read_text()
    assert list((home / "stores").iterdir()) == []
