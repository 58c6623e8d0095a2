import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from accord.pipeline.java import Java
from accord.station import doctor, load
from accord.station.doctor import Check, Probe, Status
from accord.station.home import Home, taken


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_a_sound_machine_passes_and_the_home_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "accord.toml"
    file.write_text("[station]\nport = 0\n")
    checks = by_name(list(doctor.examine(tmp_path / "deep" / "home", file)))
    for name in ("python", "java", "wheels of accord", "settings", "home", "port", "disk", "clock"):
        assert checks[name].status is not Status.FAIL, checks[name]
    assert {check.advice for check in checks.values() if check.status is Status.OK} == {""}
    assert list(tmp_path.iterdir()) == [file]


def test_whatever_is_not_fine_comes_with_what_to_do(tmp_path: Path) -> None:
    judged = [
        doctor.python((3, 10, 1)),
        doctor.java(None),
        doctor.disk(Probe("ext4", 1000, 0.001, 0.0)),
        doctor.disk(Probe("ext4", 1 << 29, 0.001, 0.0)),
        doctor.disk(Probe("tmpfs", 1 << 40, 0.001, 0.0)),
        doctor.disk(Probe("ext4", 1 << 40, 3.0, 0.0)),
        doctor.clock(-86_400, 0.0, 0.0),
        doctor.clock(1, 30.0, 0.0),
        doctor.clock(1, 0.0, -5.0),
    ]
    assert [check.status for check in judged] == [
        Status.FAIL,
        Status.WARN,
        Status.FAIL,
        Status.WARN,
        Status.WARN,
        Status.WARN,
        Status.FAIL,
        Status.WARN,
        Status.WARN,
    ]
    assert all(check.seen and check.advice for check in judged)


def test_whatever_is_fine_says_what_was_seen(tmp_path: Path) -> None:
    judged = [
        doctor.python((3, 11, 0)),
        doctor.java(Java(Path("/opt/java/bin/java"), 21, "PATH")),
        doctor.disk(Probe("ext4", 1 << 40, 0.001, 0.0)),
        doctor.clock(1000, 0.1, 0.0),
    ]
    assert {check.status for check in judged} == {Status.OK}
    assert all(check.seen and not check.advice for check in judged)


def test_broken_settings_are_findings_and_not_an_end(tmp_path: Path) -> None:
    (tmp_path / "accord.toml").write_text("[station]\nprot = 1\nport = -1\n")
    settings = [check for check in doctor.examine(tmp_path) if check.name == "settings"]
    assert [check.status for check in settings] == [Status.FAIL, Status.FAIL]
    assert any(check.advice == "did you mean port?" for check in settings)


def test_a_home_that_others_can_open_is_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    check = doctor.folder_mode(tmp_path)
    assert (check.status, check.advice) == (Status.WARN, f"chmod 700 {tmp_path}")
    tmp_path.chmod(0o700)
    assert doctor.folder_mode(tmp_path).status is Status.OK


def test_a_home_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    assert doctor.folder_mode(tmp_path / "home").status is Status.FAIL
    checks = by_name(list(doctor.examine(tmp_path / "home")))
    assert checks["home"].status is Status.FAIL


def test_a_home_that_cannot_be_written_fails(tmp_path: Path) -> None:
    checks = by_name(list(doctor.examine("/proc/accord-home")))
    assert checks["disk"].status is Status.FAIL
    assert "clock" in checks


def test_a_port_in_use_fails_unless_it_is_the_stations_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken_port:
        number = taken_port.getsockname()[1]
        (tmp_path / "accord.toml").write_text(f"[station]\nport = {number}\n")
        check = doctor.port(load(tmp_path))
        assert check.status is Status.FAIL
        assert f"port {number} is in use" in check.seen
        with ExitStack() as undo, taken(Home(tmp_path), f"http://127.0.0.1:{number}", undo):
            check = doctor.port(load(tmp_path))
            assert (check.status, str(os.getpid()) in check.seen) == (Status.OK, True)


def test_a_missing_extra_is_a_warning_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ["pydantic>=2", "absent-thing>=1; extra == 'pipeline'", "pytest; extra == 'dev'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _name: needed)
    core, extra = doctor.wheels()
    assert (core.name, core.status) == ("wheels of accord", Status.OK)
    assert core.seen.startswith("pydantic 2")
    assert (extra.name, extra.status) == ("wheels of accord[pipeline]", Status.WARN)
    assert extra.seen == "missing: absent-thing"
    assert extra.advice == "pip install 'accord[pipeline]'"


def test_the_probe_leaves_nothing(tmp_path: Path) -> None:
    seen = doctor.probe(tmp_path)
    assert seen.free > 0
    assert abs(seen.skew_seconds) < 60
    assert list(tmp_path.iterdir()) == []
