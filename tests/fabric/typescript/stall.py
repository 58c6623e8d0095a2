"""A service with a feed, a download, and an operation with signals; also as a process of its own.

Arguments: the address of the authority, and the seed of the key. It prints `ready`, and `begun` for
each attempt of an operation.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import structlog
from pydantic import BaseModel

from accord.fabric import (
    Authority,
    Caller,
    Downloads,
    ObjectStore,
    Progress,
    Publisher,
    Signals,
    TypedService,
)
from accord.kernel import canonical
from accord.kernel.signing import SigningKey

service = TypedService("stall@v1", "Counts, walks and hands out files.")
BYTES = bytes(range(256)) * 4096


@service.event("Stall.Walked")
class Step(BaseModel):
    """A number."""

    n: int


service.contract.store("files", "What is fetched.")
bumped = 0


@service.rpc()
async def double(step: Step) -> Step:
    """Twice as much."""
    return Step(n=step.n * 2)


@service.rpc(once=True)
async def bump(step: Step) -> Step:
    """How often this process did it, and what was given."""
    global bumped
    bumped += 1
    return Step(n=bumped * 100 + step.n)


@service.rpc(receives=True)
async def fetch(
    step: Step, caller: Caller, files: ObjectStore, downloads: Downloads
) -> dict[str, Any]:
    """A file of a mebibyte for each step."""
    await files.put("file", BYTES * step.n)
    return await downloads.offer(caller.session, files, "file")


@service.feed()
async def count(step: Step) -> AsyncIterator[Step]:
    """All numbers below."""
    for n in range(step.n):
        yield Step(n=n)


@service.operation(cancel=[])
async def walk(
    step: Step, progress: Progress[Step], go: Signals[Step], walked: Publisher[Step]
) -> Step:
    """Wait for a signal."""
    print("begun", flush=True)
    await progress(step)
    more = await go.first()
    end = Step(n=step.n + more.n)
    await walked.publish(end)
    return end


async def main(url: str, seed: str) -> None:
    key = SigningKey.from_seed(canonical.decode_base64url(seed))
    async with service(key=key, authority=Authority(url)).connect():
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(sys.argv[1], sys.argv[2]))
