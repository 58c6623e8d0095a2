"""A process that reconciles in a child of its own and kills it, again and again.

Arguments: the server's address, the ledger's file, how many times, and a seed. It forks, so that a
kill costs no new interpreter. It prints how many of the children were killed before they ended, and
after how many of those kills another run came to something else than an undisturbed one.
"""

import asyncio
import logging
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import nats
import structlog
from tests.authority.reconcile_cases import FileLedger, deployment, everything

from accord.authority.reconcile import JetStream, Reconciler
from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import UlidSource


async def reconcile(url: str, ledger: Path) -> dict[str, Any]:
    """Reconcile, and say what is there then."""
    client = await nats.connect(url)
    ids = UlidSource(SystemClock())
    reconciler = Reconciler(JetStream(client), FileLedger(ledger, deployment()).as_authority(), ids)
    await reconciler.prepare()
    record = await reconciler.reconcile("shop-prod")
    found = await everything(JetStream(client))
    await client.close()
    return {**found, "record": record}


async def wipe(url: str) -> None:
    client = await nats.connect(url)
    for info in await client.jetstream().streams_info():
        await client.jetstream().delete_stream(info.config.name or "")
    await client.close()


def start_over(url: str, ledger: Path) -> None:
    asyncio.run(wipe(url))
    ledger.unlink(missing_ok=True)


def forked(url: str, ledger: Path) -> int:
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(reconcile(url, ledger))
        finally:
            os._exit(0)
    return child


def main(url: str, ledger: Path, times: int, chance: random.Random) -> None:
    """Kill at moments spread over the time that an undisturbed run takes."""
    expected = asyncio.run(reconcile(url, ledger))
    start_over(url, ledger)
    began = time.perf_counter()
    os.waitpid(forked(url, ledger), 0)
    whole = time.perf_counter() - began
    killed = wrong = 0
    for _ in range(times):
        start_over(url, ledger)
        for _ in range(chance.choice((1, 1, 2))):  # the second finds what the first has left
            child = forked(url, ledger)
            time.sleep(chance.uniform(0, whole))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            killed += os.WIFSIGNALED(status)
        wrong += asyncio.run(reconcile(url, ledger)) != expected
    print(f"killed {killed} wrong {wrong}", flush=True)


if __name__ == "__main__":
    # The output is read by the test.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    address, path, count, seed = sys.argv[1:]
    main(address, Path(path), int(count), random.Random(int(seed)))
