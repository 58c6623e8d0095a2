"""A machine that fails a station is told of everywhere, and takes down only what stands on it."""

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from accord.testing.servers import reserved_port
from accord.testing.stations import FaultyMachine, RunningStation, doctor, station

pytestmark = pytest.mark.slow

FOUNDED = {"ACCORD_COMMUNITY__FOUND": "Home"}


@pytest.fixture
def spoiled(tmp_path: Path) -> FaultyMachine:
    return FaultyMachine(tmp_path / "world")


def told_everywhere(running: RunningStation, *, code: int = 0, **sentences: str) -> None:
    """Console, doctor and status say the same."""
    page = running.front_page()
    checks = doctor(running.home, code=code)
    planes = json.loads(running.command("status", "--json", code=code))["planes"]
    for name, sentence in sentences.items():
        assert sentence in page
        assert sentence in checks[name.replace("_", " ")]["seen"]
        assert sentence in json.dumps(planes, ensure_ascii=False)


def logged(home: Path, event: str) -> int:
    lines = (home / "logs" / "station.log").read_text().splitlines()
    return sum(json.loads(line)["event"] == event for line in lines)


def post(running: RunningStation, title: str, *, code: int = 0) -> str:
    return running.command("market", "post", title, "--json", code=code)


@contextmanager
def files_no_larger_than(pid: int, size: int) -> Iterator[None]:
    """Make every write of a process beyond a size fail, as on a full disk."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def test_ports_that_others_have_cost_their_planes_alone_until_they_are_free(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    with reserved_port() as bus_port, reserved_port() as nats_port:
        env = {
            **FOUNDED,
            "ACCORD_COMMUNITY__PORT": str(bus_port),
            "ACCORD_AUTHORITY__ENABLED": "true",
            "ACCORD_AUTHORITY__NATS_PORT": str(nats_port),
        }
        with (
            socket.create_server(("127.0.0.1", bus_port)) as one,
            socket.create_server(("127.0.0.1", nats_port)) as other,
        ):
            (home / "accord.toml").parent.mkdir()
            (home / "accord.toml").write_text(
                f"[station]\nport = 0\n[community]\nport = {bus_port}\n"
                f"[authority]\nenabled = true\nnats_port = {nats_port}\n"
            )
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv("ACCORD_AUTHORITY__ENABLED", raising=False)
                checks = doctor(home)
            for name, port in (("bus port", bus_port), ("nats port", nats_port)):
                assert checks[name]["status"] == "warn"
                assert f"port {port} is in use by another program" in checks[name]["seen"]
            with station(home, env=env) as running:
                running.until_state("community", "backing off")
                running.until_state("authority", "backing off")
                assert running.reports()["relay"]["state"] == "ready"
                assert running.reports()["console"]["state"] == "ready"
                told_everywhere(
                    running,
                    code=1,
                    community=f"port {bus_port} is in use by another program",
                    authority=f"NATS: port {nats_port} is in use by another program",
                )
                one.close()
                other.close()
                running.until_state("community", "ready")
                running.until_state("authority", "ready")


def test_a_disk_that_fills_is_told_before_it_is_full_and_nothing_kept_is_lost(
    tmp_path: Path, spoiled: FaultyMachine
) -> None:
    home = tmp_path / "home"
    with station(home, spoiled, env=FOUNDED) as running:
        running.until_state("community", "ready")
        running.front_page()
        post(running, "Kept before")
        spoiled.free(500_000_000)
        running.until_state("machine/disk", "nearly full")
        assert "disk is nearly full" in running.front_page()
        spoiled.free(1_000_000)
        running.until_state("machine/disk", "full")
        told_everywhere(running, disk="1 MB free")
        wal = home / "stores" / "community.db-wal"
        with files_no_larger_than(running.child.pid, wal.stat().st_size):
            post(running, "Not acknowledged", code=1)
            about = json.loads(running.command("community", "show", "--json"))
            assert about["name"] == "Home"
            assert "Needs attention" in running.front_page()
            assert running.reports()["community"]["state"] == "ready"
        spoiled.free(None)
        running.until("the disk is well", lambda seen: seen["machine/disk"]["well"])
        post(running, "Kept after")
        listed = running.command("market", "list")
        assert "Kept before" in listed
        assert "Kept after" in listed
        assert json.loads(running.command("community", "verify", "--json"))["ok"]
        running.child.terminate()
        assert running.child.wait() == 0
    changes = ("disk is nearly full", "disk is full", "disk is ok again")
    assert [logged(home, each) for each in changes] == [1, 1, 1]


def test_a_clock_that_cannot_be_right_stops_signing_and_nothing_else_until_it_is(
    tmp_path: Path, spoiled: FaultyMachine
) -> None:
    home = tmp_path / "home"
    with station(home, spoiled, env=FOUNDED) as running:
        running.until_state("community", "ready")
        post(running, "At the right time")
        spoiled.clock(-20 * 365 * 86_400)
        running.until_state("community", "backing off")
        running.until_state("machine/clock", "wrong")
        assert running.reports()["relay"]["state"] == "ready"
        told_everywhere(running, code=1, clock="behind the time at which Accord was installed")
        assert (
            "behind the time at which Accord was installed"
            in running.reports()["community"]["reason"]
        )
        spoiled.clock(0)
        running.until_state("community", "ready")
        post(running, "At the right time again")
        # Stepped, twice; then behind what was written meanwhile, but not behind the installation.
        running.until_state("machine/clock", "unsteady")
        spoiled.clock(-120)
        running.until_state("machine/clock", "doubtful")
        assert "behind the last write in the home" in running.front_page()
        running.child.terminate()
        assert running.child.wait() == 0


def test_a_clock_far_from_those_of_others_is_told_of(
    tmp_path: Path, spoiled: FaultyMachine
) -> None:
    alice, bob = tmp_path / "alice", tmp_path / "bob"
    often = {"ACCORD_COMMUNITY__SYNC_SECONDS": "0.5"}
    with (
        station(alice, spoiled, env={**FOUNDED, **often}) as host,
        station(bob, env=often) as guest,
    ):
        host.until_state("community", "ready")
        guest.until_state("community", "ready")
        node = guest.command("community", "id").strip()
        link = host.command("community", "invite", node, "--name", "bob").strip()
        guest.command("community", "join", link)
        host.front_page()
        host.until("a neighbour", lambda seen: seen["community/clock and others"]["well"])
        spoiled.clock(600)
        host.until_state("community/clock and others", "apart")
        told_everywhere(host, clock_and_others="s ahead of most of 1 other")
        assert host.reports()["community"]["state"] == "ready"
        spoiled.clock(0)
        host.until_state("community/clock and others", "ready")
