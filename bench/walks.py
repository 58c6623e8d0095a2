"""The files of Accord in which a function runs while one thing passes through the system.

`python -m bench walks [--files]` counts the three walks of ARCHITECTURE.md, each in a process of
its own with every process that it starts. What runs before is outside: servers are up, the person
is linked, the peers know each other. Functions that run because a module is imported do not count,
nor do those of `accord.testing`, such as the clock that the benchmark runs a walk by.
"""

import asyncio
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = str(ROOT / "src" / "accord") + os.sep
_TESTING: Final = SOURCE + "testing" + os.sep
_FOLDER: Final = "WALK_FOLDER"
_SECONDS: Final = 300.0


def show(*, files: bool) -> None:
    """Print the number of files of each walk, and their names."""
    for name in WALKS:
        found = walked(name)
        print(f"{name:12}{len(found):4} files", flush=True)
        for each in found if files else ():
            print(f"    {each}", flush=True)


def walked(name: str) -> list[str]:
    """The files of one walk, below `src/accord`."""
    with tempfile.TemporaryDirectory(prefix="accord-walk-") as temporary:
        folder = Path(temporary)
        (folder / "on").write_bytes(b"\0")
        # Python imports it at its start, also in the processes that a walk starts.
        (folder / "sitecustomize.py").write_text("import bench.walks\nbench.walks.watch()\n")
        path = os.pathsep.join([temporary, str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, _FOLDER: temporary, "PYTHONPATH": path.rstrip(os.pathsep)}
        done = subprocess.run(
            [sys.executable, "-c", f"import bench.walks; bench.walks.walk({name!r})"],
            env=environment,
            cwd=ROOT,
            timeout=_SECONDS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{name}: {done.stdout}")
        lines = (folder / "files").read_text().split("\n")
    return sorted({line.removeprefix(SOURCE) for line in lines if line})


def watch() -> None:
    """Write down each file of Accord in which a function of this process runs while it is on."""
    folder = Path(os.environ[_FOLDER])
    with (folder / "on").open("r+b") as switch:
        on = mmap.mmap(switch.fileno(), 1)
    found = os.open(folder / "files", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or file in seen or not on[0] or not file.startswith(SOURCE):
            return
        if not file.startswith(_TESTING) and not _is_imported(frame):
            seen.add(file)
            os.write(found, f"{file}\n".encode())

    threading.setprofile(note)
    sys.setprofile(note)


def _is_imported(frame: FrameType | None) -> bool:
    """Whether it runs because a module of Accord is imported."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(SOURCE):
            return True
        frame = frame.f_back
    return False


@contextmanager
def _counted() -> Iterator[None]:
    with (Path(os.environ[_FOLDER]) / "on").open("r+b") as switch:
        on = mmap.mmap(switch.fileno(), 1)
    on[0] = 1
    try:
        yield
    finally:
        on[0] = 0


def message(folder: Path) -> None:
    """A message on Telegram, to an agent behind a gateway, and its reply."""
    asyncio.run(_message(folder))


async def _message(folder: Path) -> None:
    from tests.relay.platforms.telegram_service import TelegramService
    from tests.relay.platforms.test_telegram_end_to_end import connector, echo_agent

    service = TelegramService()
    async with connector(folder, service) as whole, echo_agent(whole):
        await whole.control.bind("echo", "telegram", "41")
        with _counted():
            service.write("just us")
            await service.until(lambda: service.texts[-1:] == ["you said: just us"])


def contract(folder: Path) -> None:
    """A contract, from its file through a plan to the grant of a service that connects."""
    from accord.contracts.authoring import Contract
    from accord.contracts.session_proof import session_key
    from accord.fabric import Service
    from accord.kernel.signing import SigningKey
    from accord.station import load
    from accord.station.run import authority_planes, serve

    made, key = (
        Contract("shop@v1", display_name="Shop", description="Sells."),
        SigningKey.generate(),
    )
    made.serves_callers()
    made.schema("Thing", {"type": "object"})
    made.rpc("Shop.Find", "Thing", "Thing")
    file = folder / "shop.json"
    file.write_bytes(made.to_json())
    home = folder / "home"
    home.mkdir()
    (home / "accord.toml").write_text("[station]\nport = 0\n[authority]\nnats_port = 0\n")

    async def connect(url: str) -> None:
        service = Service(made, key=key, authority=url)
        service.rpc("Shop.Find")(_answer)
        async with service.connect():
            pass

    def deploy(url: str) -> None:
        try:
            with _counted():
                _command(home, "authority", "deploy", "shop", str(file), "--accept")
                _command(home, "authority", "instance", "add", "shop", session_key(key))
                asyncio.run(connect(url))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as beside:
        deploying: list[Future[None]] = []
        serve(
            load(home),
            announce=lambda ground, _: deploying.append(beside.submit(deploy, ground.address)),
            assemble=authority_planes,
        )
        deploying[0].result()


async def _answer(_request: Any, payload: Any) -> Any:
    return payload


def _command(home: Path, *words: str) -> None:
    from typer.testing import CliRunner

    from accord.cli import app

    done = CliRunner().invoke(app, [*words, "--home", str(home)])
    if done.exit_code:
        raise RuntimeError(f"accord {' '.join(words)}: {done.output}") from done.exception


def event(folder: Path) -> None:
    """A post in the market, to a peer, and to the tables of the pipeline."""
    asyncio.run(_event(folder))


async def _event(folder: Path) -> None:
    from tests.community.node.conftest import Street, post
    from tests.pipeline.folders import BRISK

    from accord.capabilities import market
    from accord.pipeline.exporter import ExportSource, export
    from accord.pipeline.folder import Layout
    from accord.pipeline.landing import Landing
    from accord.pipeline.runs import SparkTarget, run_once
    from accord.pipeline.tables.gold_community import COMMUNITY_TABLES
    from accord.testing import VirtualClock

    layout = Layout(folder / "tables")
    async with AsyncExitStack() as opened:
        street = Street(folder, VirtualClock(), opened)
        alice, bob = [await street.house(name) for name in ("alice", "bob")]
        market.register(alice.node, street.clock, None)
        community = await street.found(alice)
        await street.admit(alice, bob, community)
        await bob.node.sync(community)
        with _counted():
            async with alice.client(community, alice) as client:
                await client.call("market.post", {}, post())
            await bob.node.sync(community)
            source = ExportSource("community", bob.in_(community).log.store, "bob")
            await export([source], Landing(layout.landing))
            target = SparkTarget("local[2]", conf=BRISK)
            await asyncio.to_thread(run_once, layout, target, definitions=COMMUNITY_TABLES)


WALKS: Final[dict[str, Callable[[Path], None]]] = {
    "message": message,
    "contract": contract,
    "event": event,
}


def walk(name: str) -> None:
    """Let one pass, in a process that `walked` started."""
    with tempfile.TemporaryDirectory(prefix="accord-walk-") as temporary:
        WALKS[name](Path(temporary))
