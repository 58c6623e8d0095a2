"""The one authority of a station is killed with its NATS server and comes back: nothing is lost."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.authority.end_to_end.whole_system import THING, until
from typer.testing import CliRunner

from accord.cli import app
from accord.contracts.authoring import Contract
from accord.fabric import Authority, FabricError, Received, Service
from accord.fabric.state import StateMap
from accord.kernel.signing import SigningKey
from accord.testing.processes import Child, python_child

pytestmark = pytest.mark.slow


def mint() -> Contract:
    """A service that publishes to itself, and keeps what it has published."""
    contract = Contract("mint@v1", display_name="Mint", description="Makes coins.")
    contract.schema("Thing", THING)
    contract.event("Mint.Made", "Thing", params=["/id"])
    contract.consumer("made", own=["Mint.Made"], ack_wait_ms=2000)
    contract.state("kept", "Thing", kind="map")
    return contract


def told(home: Path, *words: str) -> Any:
    command = ["authority", *words, "--home", str(home), "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, f"{words}: {result.exception} {result.output}"
    return json.loads(result.stdout)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(home: Path, port: int, nats_port: int) -> Iterator[Child]:
    words = ("authority", "serve", "--home", str(home), "--port", str(port), "--json")
    env = {"ACCORD_AUTHORITY__NATS_PORT": str(nats_port)}
    with python_child("-m", "accord.cli", *words, env=env) as child:
        child.read_line()
        yield child


async def test_a_killed_authority_comes_back_with_all_that_was_promised(tmp_path: Path) -> None:
    home, ports = tmp_path / "home", (free_port(), free_port())
    manifest, key_file = tmp_path / "mint.json", tmp_path / "mint.key"
    manifest.write_bytes(mint().to_json())
    with ExitStack() as running:
        child = running.enter_context(serving(home, *ports))

        def prepare() -> None:
            plan = told(home, "deploy", "mint", str(manifest))["plan"]["id"]
            told(home, "accept", plan)
            told(home, "instance", "add", "mint", "--key-file", str(key_file), "--name", "one")

        await asyncio.to_thread(prepare)
        before = [each["act"] for each in await _history(home)]
        address = Authority(f"http://127.0.0.1:{ports[0]}", 60)
        service = Service(mint(), key=SigningKey.load(key_file), authority=address)
        taken: set[str] = set()

        @service.events("made")
        async def take(event: Received) -> None:
            taken.add(event.payload["id"])

        async with service.connect() as session:
            notes = StateMap(session.link, session.terms, "kept")
            promised: list[str] = []
            done = asyncio.Event()

            async def make() -> None:
                number = 0
                while not done.is_set():
                    thing = str(number)
                    number += 1
                    try:
                        await session.publish("Mint.Made", {"id": thing}, within=1)
                        await notes.put(thing, {"id": thing})
                    except FabricError:
                        await asyncio.sleep(0.05)
                    else:
                        promised.append(thing)

            making = asyncio.create_task(make())
            await until(lambda: len(promised) > 10)
            child.kill()
            await asyncio.to_thread(running.enter_context, serving(home, *ports))
            count = len(promised)
            await until(lambda: len(promised) > count + 10, 60)
            done.set()
            await making
            await until(lambda: set(promised) <= taken, 60)
            assert set(promised) <= {entry.value["id"] async for entry in notes.entries()}
        after = [each["act"] for each in await _history(home)]
        assert after[: len(before)] == before


async def _history(home: Path) -> list[Any]:
    history: list[Any] = (await asyncio.to_thread(told, home, "history"))["history"]
    return history
