import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from accord.pipeline.session import Java
from accord.station import StationError, checks, doctor, load
from accord.station.checks import CheckStatus, ClockTimes, DiskProbe, MachineCheck
from accord.station.home import Home, hold_home


def by_name(checks: list[MachineCheck]) -> dict[str, MachineCheck]:
    return {check.name: check for check in checks}


def test_a_sound_machine_passes_and_the_home_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "accord.toml"
    file.write_text("[station]\nport = 0\n")
    checks = by_name(list(doctor.examine(tmp_path / "deep" / "home", file)))
    for name in ("python", "java", "wheels of accord", "settings", "home", "port", "disk", "clock"):
        assert checks[name].status is not CheckStatus.FAIL, checks[name]
    assert {check.advice for check in checks.values() if check.status is CheckStatus.OK} == {""}
    assert list(tmp_path.iterdir()) == [file]


WEIGHTS = StationError("no embedding model is installed", mend="install it with pip")
UNWELL = [
    (checks.python((3, 10, 1)), CheckStatus.FAIL),
    (checks.java(None), CheckStatus.WARN),
    (checks.spark(["pyspark"]), CheckStatus.WARN),
    (checks.model("embedding model", "searches go by words", WEIGHTS), CheckStatus.WARN),
    (checks.disk(DiskProbe("ext4", 1000)), CheckStatus.FAIL),
    (checks.disk(DiskProbe("tmpfs", 1 << 29)), CheckStatus.WARN),
    (checks.disk(DiskProbe("tmpfs", 1 << 40)), CheckStatus.WARN),
    (checks.disk(DiskProbe("ext4", 1 << 40, 3.0)), CheckStatus.WARN),
    (checks.clock(ClockTimes(-86_400)), CheckStatus.FAIL),
    (checks.clock(ClockTimes(1, written=-3600)), CheckStatus.WARN),
    (checks.clock(ClockTimes(1, skew=90)), CheckStatus.WARN),
    (checks.clock(ClockTimes(1, step=-5)), CheckStatus.WARN),
    (checks.clock_of_others([3600, 3590, 0]), CheckStatus.WARN),
    (checks.clock_of_others([-120]), CheckStatus.WARN),
]


@pytest.mark.parametrize(("check", "status"), UNWELL, ids=lambda each: getattr(each, "name", ""))
def test_whatever_is_not_fine_comes_with_what_to_do(
    check: MachineCheck, status: CheckStatus
) -> None:
    assert check.status is status
    assert check.seen
    assert check.advice
    part = check.part()
    assert not part.is_well
    assert part.state != "ready"
    assert part.reason == f"{check.seen}; {check.advice}"


def test_whatever_is_fine_says_what_was_seen() -> None:
    judged = [
        checks.python((3, 11, 0)),
        checks.java(Java(Path("/opt/java/bin/java"), 21, "PATH")),
        checks.spark([]),
        checks.model("embedding model", "searches go by words", None),
        checks.disk(DiskProbe("ext4", 1 << 40, 0.001)),
        checks.clock(ClockTimes(1000, 5.0, 0.1)),
        checks.clock_of_others([]),
        checks.clock_of_others([3600, 1, -1]),
    ]
    assert {check.status for check in judged} == {CheckStatus.OK}
    assert all(check.seen and not check.advice for check in judged)
    assert {(check.part().state, check.part().reason) for check in judged} == {("ready", "")}


def test_a_wrong_clock_says_which_way_it_is_wrong() -> None:
    assert "3600 s ahead of most of 3" in checks.clock_of_others([3600, 3600, 0]).seen
    assert "120 s behind most of 1" in checks.clock_of_others([-120]).seen
    assert (
        "86400 s behind the time at which Accord was installed"
        in checks.clock(ClockTimes(-86_400)).seen
    )


def test_broken_settings_are_findings_and_not_an_end(tmp_path: Path) -> None:
    (tmp_path / "accord.toml").write_text("[station]\nprot = 1\nport = -1\n")
    settings = [check for check in doctor.examine(tmp_path) if check.name == "settings"]
    assert [check.status for check in settings] == [CheckStatus.FAIL, CheckStatus.FAIL]
    assert any(check.advice == "did you mean port?" for check in settings)


def test_a_home_that_others_can_open_is_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    check = doctor.folder_check(tmp_path)
    assert (check.status, check.advice) == (CheckStatus.WARN, f"chmod 700 {tmp_path}")
    tmp_path.chmod(0o700)
    assert doctor.folder_check(tmp_path).status is CheckStatus.OK


def test_a_home_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    assert doctor.folder_check(tmp_path / "home").status is CheckStatus.FAIL
    checks = by_name(list(doctor.examine(tmp_path / "home")))
    assert checks["home"].status is CheckStatus.FAIL


def test_a_home_that_cannot_be_written_fails(tmp_path: Path) -> None:
    checks = by_name(list(doctor.examine("/proc/accord-home")))
    assert checks["disk"].status is CheckStatus.FAIL
    assert "clock" in checks


def test_a_port_in_use_fails_unless_it_is_the_stations_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken_port:
        number = taken_port.getsockname()[1]
        (tmp_path / "accord.toml").write_text(f"[station]\nport = {number}\n")
        check = doctor.port_check(load(tmp_path))
        assert check.status is CheckStatus.FAIL
        assert f"port {number} is in use" in check.seen
        with ExitStack() as undo, hold_home(Home(tmp_path), f"http://127.0.0.1:{number}", undo):
            check = doctor.port_check(load(tmp_path))
            assert (check.status, str(os.getpid()) in check.seen) == (CheckStatus.OK, True)


def test_a_station_that_was_told_another_port_is_named_with_the_port_it_holds(
    tmp_path: Path,
) -> None:
    (tmp_path / "accord.toml").write_text("[station]\nport = 7070\n")
    with ExitStack() as undo, hold_home(Home(tmp_path), "http://127.0.0.1:7071", undo):
        check = doctor.port_check(load(tmp_path))
    assert check.status is CheckStatus.OK
    assert check.seen == (
        f"127.0.0.1:7071 is held by this home's own station, process {os.getpid()}; "
        "the settings say 127.0.0.1:7070"
    )


def test_every_port_that_the_settings_name_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORD_AUTHORITY__ENABLED", "true")
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        lines = (
            f"[community]\nport = {number}",
            f"[relay]\nlisten = '127.0.0.1:{number}'",
            f"[authority]\nnats_port = {number}",
        )
        (tmp_path / "accord.toml").write_text("\n".join(lines))
        found = by_name(list(doctor.other_port_checks(load(tmp_path))))
    assert {*found} == {"bus port", "relay port", "nats port"}
    assert {check.status for check in found.values()} == {CheckStatus.WARN}


def test_a_command_that_holds_the_home_is_no_station_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "accord.toml").write_text("[station]\nport = 0\n")
    with ExitStack() as undo, hold_home(Home(tmp_path), "the command line", undo):
        checks = by_name(list(doctor.examine(tmp_path)))
    assert "station" not in checks
    assert checks["port"].seen.endswith("is free")


def test_a_missing_extra_is_a_warning_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ["pydantic>=2", "absent-thing>=1; extra == 'pipeline'", "pytest; extra == 'dev'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _name: needed)
    core, extra = doctor.package_checks()
    assert (core.name, core.status) == ("wheels of accord", CheckStatus.OK)
    assert core.seen.startswith("pydantic 2")
    assert (extra.name, extra.status) == ("wheels of accord[pipeline]", CheckStatus.WARN)
    assert extra.seen == "missing: absent-thing"
    assert extra.advice == "pip install 'accord[pipeline]'"


def test_the_probe_leaves_nothing(tmp_path: Path) -> None:
    seen = doctor.probe_disk(tmp_path)
    assert seen.free > 0
    assert abs(seen.skew_seconds) < 60
    assert list(tmp_path.iterdir()) == []
