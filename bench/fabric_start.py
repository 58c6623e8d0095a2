"""From the start of a process to a connected session, beside the goals and beside nats-py.

A process imports `accord.fabric`, is admitted by an authority over HTTP, and connects to NATS,
which asks the authority again; the one beside it imports nats-py and connects to a server that asks
nobody. Authority and servers share the machine. Seconds are from the start of the interpreter. The
best of some rounds counts, since other work on the machine only ever slows one down.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import uvloop
from starlette.applications import Starlette

from accord.authority.assembly import run_authority
from accord.authority.nats import ListenAddress, embedded_server
from accord.authority.rules import Compatibility, DeploymentKind
from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.station.listener import Listener, bind
from accord.testing.servers import nats_server
from bench.figure import Figure

CONNECT_SECONDS: Final = 1.0
IMPORT_SECONDS: Final = 0.3
"""What import and connection may take, and the import alone of processor time."""

_ROUNDS: Final = 8
_OURS: Final = """
import asyncio, json, sys, time

began = time.process_time(), time.perf_counter()
from accord.fabric import Authority, Service
from accord.kernel.signing import SigningKey

spent = time.process_time() - began[0], time.perf_counter() - began[1]
asked = json.loads(sys.argv[1])


async def main():
    key = SigningKey(bytes.fromhex(asked["key"]))
    service = Service(asked["contract"], key=key, authority=Authority(asked["url"]))
    async with service.connect():
        print(json.dumps(spent), flush=True)


asyncio.run(main())
"""
_RAW: Final = """
import asyncio, json, sys, time

began = time.process_time(), time.perf_counter()
import nats

spent = time.process_time() - began[0], time.perf_counter() - began[1]


async def main():
    client = await nats.connect(json.loads(sys.argv[1])["url"])
    print(json.dumps(spent), flush=True)
    await client.close()


asyncio.run(main())
"""


def run() -> Iterator[Figure]:
    """Measure both in turns."""
    yield from uvloop.run(_measure())


async def _measure() -> list[Figure]:
    contract = Contract("bench@v1", display_name="Bench", description="Is measured.")
    best = {"ours": [float("inf")] * 3, "raw": [float("inf")] * 3}
    with nats_server() as plain:
        async with _admitting(contract) as asked:
            given = {"ours": (_OURS, asked), "raw": (_RAW, {"url": plain.url})}
            for _ in range(_ROUNDS):
                for name, (program, words) in given.items():
                    taken = await asyncio.to_thread(_taken, program, words)
                    best[name] = list(map(min, best[name], taken))
    (whole, processor, imported), raw = best["ours"], best["raw"]
    goal, nats = "the goal", "nats-py"
    return [
        Figure("import and connect", "starts/s", 1 / whole, 1 / CONNECT_SECONDS, goal, 1.0),
        Figure("import, processor", "imports/s", 1 / processor, 1 / IMPORT_SECONDS, goal, 1.0),
        Figure("import and connect", "s", whole, raw[0], nats),
        Figure("import, processor", "s", processor, raw[1], nats),
        Figure("import", "s", imported, raw[2], nats),
    ]


def _taken(program: str, asked: Any) -> tuple[float, float, float]:
    """Seconds until a process is connected, of its import on the processor, and by the clock."""
    words = [sys.executable, "-c", program, json.dumps(asked)]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    began = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        # A warning of the log may come before.
        told = next((line for line in process.stdout if line.startswith(b"[")), b"")
        taken = time.perf_counter() - began
    processor, imported = json.loads(told)
    return taken, processor, imported


@asynccontextmanager
async def _admitting(contract: Contract) -> AsyncIterator[dict[str, Any]]:
    """An authority with one enrolled device; what its program must know."""
    clock, key = SystemClock(), SigningKey.generate()
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as temporary:
        folder = Path(temporary)
        async with (
            embedded_server(folder / "nats", ListenAddress(), clock) as server,
            run_authority(folder / "store", server.cluster, clock, token="operators") as running,
        ):
            authority = running.authority
            await authority.deployments.create(
                "bench", DeploymentKind.SERVICE, Compatibility.STRICT
            )
            plan = await authority.plans.propose("bench", contract.to_json(), "operator")
            if plan is not None:
                await authority.plans.accept(plan.id, "operator")
            await authority.deployments.add_instance("bench", session_key(key), "one")
            listener = Listener(Starlette(routes=list(running.routes)))
            with bind("127.0.0.1", 0) as listening:
                serving = asyncio.create_task(listener.serve([listening]))
                await listener.serving.wait()
                url = f"http://127.0.0.1:{listening.getsockname()[1]}"
                try:
                    yield {"url": url, "key": key.seed.hex(), "contract": contract.manifest()}
                finally:
                    listener.should_exit = True
                    await serving
