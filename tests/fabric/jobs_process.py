"""A worker on keyed jobs as a process of its own, which says when each job begins and ends.

Arguments: the server's address, and the queue as it is bound, in JSON. Lines are
`begin|end <key> <job> <monotonic time>`, the time being the machine's.
"""

import asyncio
import os
import sys
import time
from typing import Any

import orjson
import structlog
from tests.fabric.fabric_network import linked
from tests.fabric.work_network import NUMBER, bound

from accord.contracts.authoring import Contract
from accord.fabric import Terms
from accord.fabric.jobs import JobContext, Worker, open_queue


def terms(declared: dict[str, Any]) -> Terms:
    """The contract that a queue was declared in."""
    contract = Contract("work@v1", display_name="Work", description="Works.")
    contract.schema("Number", NUMBER)
    contract.job("task", "Number", **declared)
    return Terms(contract)


def say(*words: object) -> None:
    line = " ".join(map(str, (*words, time.monotonic())))
    os.write(1, f"{line}\n".encode())


async def handle(context: JobContext, payload: Any) -> None:
    say("begin", payload["n"], context.id)
    await asyncio.sleep(0.1)
    say("end", payload["n"], context.id)


async def main(url: str, declared: dict[str, Any], binding: dict[str, Any]) -> None:
    resources = bound(jobs={"queues": {"task": binding}, "workStream": "JOBS_WORK"})
    async with linked(url, bound=resources) as link:
        queue = open_queue(link, terms(declared), "task").queue
        async with Worker(link, queue, handle).running():
            say("ready")
            await asyncio.Event().wait()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    given = orjson.loads(sys.argv[2])
    asyncio.run(main(sys.argv[1], given["declared"], given["binding"]))
