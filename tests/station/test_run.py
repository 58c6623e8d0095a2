import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from accord.station.supervisor import descendants
from accord.testing.processes import Child, python_child

pytestmark = pytest.mark.slow

# A station with planes that a test can direct from outside: one lives, one fails until a file
# appears, one takes its time to finish until another file appears.
PROGRAM = """
import asyncio, sys
from pathlib import Path
from accord.station import load
from accord.station.run import serve

class Steady:
    name, routes = "steady", ()
    async def run(self, context):
        context.ready()
        await context.draining.wait()

class Mended:
    name, routes = "mended", ()
    async def run(self, context):
        if not Path(HOME, "mended").exists():
            raise RuntimeError("token=hunter2 is not accepted")
        context.ready()
        await context.draining.wait()

class Slow:
    name, routes = "slow", ()
    async def run(self, context):
        context.ready()
        await context.draining.wait()
        while not Path(HOME, "finish").exists():
            await asyncio.sleep(0.01)

class Parent:
    name, routes = "parent", ()
    async def run(self, context):
        family = await asyncio.create_subprocess_exec(
            "sh", "-c", "sleep 600 & wait", start_new_session=True
        )
        context.ready()
        await family.wait()

HOME, *names = sys.argv[1:]
made = {"steady": Steady, "mended": Mended, "slow": Slow, "parent": Parent}
clean = serve(
    load(HOME),
    announce=lambda ground, _: print(ground.address, flush=True),
    assemble=lambda ground: [made[name]() for name in names],
)
sys.exit(0 if clean else 1)
"""


@contextmanager
def station(home: Path, *planes: str, **settings: str) -> Iterator[tuple[Child, httpx.Client]]:
    variables = {f"ACCORD_STATION__{name.upper()}": value for name, value in settings.items()}
    environment = {"ACCORD_STATION__PORT": "0", **variables}
    with (
        python_child("-c", PROGRAM, str(home), *planes, env=environment) as child,
        httpx.Client(base_url=child.read_line()) as client,
    ):
        yield child, client


def until(client: httpx.Client, **wanted: str) -> dict[str, Any]:
    """Ask `/readyz` until each plane is in the wanted state."""
    deadline = time.monotonic() + 30
    body: dict[str, Any] = {}
    while time.monotonic() < deadline:
        body = client.get("/readyz").json()
        states = {plane["name"]: plane["state"] for plane in body["planes"]}
        if all(states[name] == state for name, state in wanted.items()):
            return body
        time.sleep(0.02)
    raise AssertionError(f"never came to {wanted}, but stays at {body}")


def test_a_failing_plane_is_reported_and_restarted_while_another_lives_on(tmp_path: Path) -> None:
    with station(tmp_path, "steady", "mended") as (child, client):
        body = until(client, steady="ready", mended="backing off")
        assert not body["ready"]
        assert body["planes"][1]["reason"] == "RuntimeError: token=[redacted] is not accepted"
        (tmp_path / "mended").touch()
        body = until(client, steady="ready", mended="ready")
        assert body["ready"]
        assert body["planes"][0]["restarts"] == 0
        assert body["planes"][1]["restarts"] >= 1
        assert 'accord_plane_state{plane="mended",state="ready"} 1.0' in client.get("/metrics").text
        child.terminate()
        assert child.wait() == 0
    assert "hunter2" not in (tmp_path / "logs" / "station.log").read_text()


def test_sigterm_drains_with_readiness_gone_first_and_exits_0(tmp_path: Path) -> None:
    with station(tmp_path, "slow", "steady", drain_seconds="60") as (child, client):
        until(client, slow="ready", steady="ready")
        child.terminate()
        body = until(client, slow="draining", steady="stopped")
        assert (body["ready"], body["draining"]) == (False, True)
        assert client.get("/readyz").status_code == 503
        assert client.get("/livez").status_code == 200
        (tmp_path / "finish").touch()
        assert child.wait() == 0
        child.assert_gone()


def test_a_station_that_gives_notice_serves_on_while_it_says_that_it_is_not_ready(
    tmp_path: Path,
) -> None:
    with station(tmp_path, "steady", notice_seconds="600") as (child, client):
        until(client, steady="ready")
        child.terminate()
        deadline = time.monotonic() + 30
        while (answer := client.get("/readyz")).status_code == 200:
            assert time.monotonic() < deadline
        body = answer.json()
        assert (body["ready"], body["draining"]) == (False, False)
        assert {plane["state"] for plane in body["planes"]} == {"ready"}
        child.terminate()
        assert child.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with station(tmp_path, "slow", drain_seconds="600") as (child, client):
        until(client, slow="ready")
        os.kill(child.pid, number)
        until(client, slow="draining")
        os.kill(child.pid, number)
        assert child.wait() == 128 + number


def test_a_second_signal_leaves_no_process_behind(tmp_path: Path) -> None:
    with station(tmp_path, "parent", drain_seconds="600") as (child, client):
        until(client, parent="ready")
        child.terminate()
        until(client, parent="draining")
        assert len(descendants(child.pid)) >= 2  # a shell of another session, and its own child
        child.terminate()
        assert child.wait() == 128 + signal.SIGTERM
        child.assert_gone()


def test_a_plane_that_does_not_finish_in_time_is_cancelled_and_the_exit_tells(
    tmp_path: Path,
) -> None:
    with station(tmp_path, "slow", drain_seconds="0.05") as (child, client):
        until(client, slow="ready")
        child.terminate()
        assert child.wait() == 1
    log = [
        json.loads(line) for line in (tmp_path / "logs" / "station.log").read_text().splitlines()
    ]
    assert any(line.get("reason") == "it did not finish within 0.05 seconds" for line in log)


def test_a_killed_station_can_be_started_again_on_its_home_with_its_key(tmp_path: Path) -> None:
    keys = []
    for _ in range(2):
        with station(tmp_path, "steady") as (child, client):
            until(client, steady="ready")
            keys.append((tmp_path / "keys" / "device.ed25519").read_bytes())
            child.kill()
    assert keys[0] == keys[1]


def test_an_idle_connection_does_not_keep_the_station_from_ending(tmp_path: Path) -> None:
    with station(tmp_path, "steady") as (child, client):
        port = client.base_url.port
        with socket.create_connection(("127.0.0.1", port)):
            until(client, steady="ready")
            child.terminate()
            assert child.wait() == 0
