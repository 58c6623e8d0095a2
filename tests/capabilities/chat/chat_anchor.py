"""An anchor in a process of its own, which can be killed: founds a community, then serves it.

    python chat_anchor.py FOLDER MEMBER...

It prints where it listens, its community, and an invite for each member that has not joined yet.
"""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from tests.capabilities.chat.conftest import Neighbour

from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey


async def main(folder: str, *members: str) -> None:
    anchor = Neighbour("anchor", Path(folder), SystemClock())
    async with AsyncExitStack() as opened:
        await anchor.arrive()
        opened.push_async_callback(anchor.leave)
        if anchor.node.communities:
            anchor.community = next(iter(anchor.node.communities))
        else:
            await anchor.found()
        print(anchor.url, flush=True)
        print(anchor.community, flush=True)
        for name in members:
            key = SigningKey.from_seed(name.encode().ljust(32, b"."))
            print(await anchor.invite(key), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
