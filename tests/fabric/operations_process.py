"""One instance of a service that runs operations, as a process of its own.

Arguments: the server's address, the bucket, and the length of a lease in seconds. It prints
`ready`, and `begun <operation> <attempt>` for each attempt.
"""

import asyncio
import os
import sys
from typing import Any

import structlog
from tests.fabric.fabric_network import Sessions, linked
from tests.fabric.work_network import ALL, bound, received, work

from accord.fabric import Caller, Terms
from accord.fabric.operations import OperationContext, Operations


class Everybody(Sessions):
    """Every session is a person who may everything."""

    async def resolve(self, session: str) -> Caller:
        return Caller(session, "person", "app", capabilities=frozenset(ALL))


async def run(context: OperationContext, payload: Any) -> Any:
    print("begun", context.id, context.attempt, flush=True)
    if payload["n"] == 9:
        os._exit(9)  # an operation that its process does not survive
    done = (context.resumed_from or {"n": 0})["n"]
    await context.progress({"n": done + 1})
    more = await context.signal("more")
    return {"n": 100 * context.attempt + done + more["n"]}


async def main(url: str, bucket: str, lease: float) -> None:
    async with (
        linked(url, bound=bound(operations={"bucket": bucket})) as link,
        received(link, Everybody(), bucket) as dispatcher,
    ):
        operations = Operations(link, Terms(work()), dispatcher, lease=lease, keepalive=0.3)
        operations.serve("Work.Run", run)
        async with operations:
            print("ready", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
