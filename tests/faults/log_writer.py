"""A program that appends to a log and receives into it until it is killed.

Four callers say something themselves, four bring what others said; each prints the digest of an
event once it is acknowledged.
"""

import asyncio
import itertools
import sys
from pathlib import Path

from accord.community.intake import ProverPool
from accord.community.log import EventLog, open_log
from accord.community.rules import Event, compose_event
from accord.community.store import COMMUNITY_STORE
from accord.kernel.clock import SystemClock, format_time
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.storage import open_store

ROOT = SigningKey(b"root".ljust(32, b"."))
FOUNDER = SigningKey(b"founder".ljust(32, b"."))
CLOCK = SystemClock()
POLICY = {
    "capability_token_ttl_seconds": 3600,
    "default_member_can_invite": True,
    "federation_enabled": False,
    "min_signatures_to_demote": 1,
    "min_signatures_to_invite": 1,
    "min_signatures_to_revoke": 1,
}


def post(name: str) -> dict[str, object]:
    return {"client_id": name, "category": "offer", "title": "A chair", "body": "x" * 300}


def acknowledged(event: Event) -> None:
    print(f"done {event.digest.hex()}", flush=True)


async def keep_appending(log: EventLog, name: str) -> None:
    for turn in itertools.count():
        acknowledged(await log.append("market.post.created", post(f"{name}-{turn}")))


async def keep_receiving(log: EventLog, name: str) -> None:
    key = SigningKey(name.encode().ljust(32, b"."))
    ids = UlidSource(CLOCK)
    last: Event | None = None
    while True:
        batch = []
        for turn in range(5):
            last = compose_event(
                key,
                "market.post.created",
                post(f"{name}-{turn}"),
                event_id=ids.new(),
                lamport=max(log.head_lamport, last.lamport if last else 0) + 1,
                wall_clock=format_time(CLOCK.now()),
                community_id=ROOT.id,
                author_seq=(last.author_seq or 0) + 1 if last else 1,
                prev=last.hash if last else None,
            )
            batch.append(last)
        receipt = await log.receive([event.encode() for event in batch])
        assert receipt.accepted == len(batch), receipt
        for event in batch:
            acknowledged(event)


async def main(where: str, folder: str, run: str, proving: str) -> None:
    provers = ProverPool(1) if proving == "provers" else None
    async with (
        open_store(where, COMMUNITY_STORE) as store,
        open_log(
            store, ROOT.id, key=FOUNDER, clock=CLOCK, folder=Path(folder), provers=provers
        ) as log,
    ):
        assert not log.is_recovering
        if not log.state.is_founded:
            data = {"name": "Town", "founder_node_id": FOUNDER.id, "policy": POLICY}
            await log.append("community.created", data, key=ROOT)
        await asyncio.gather(
            *(keep_appending(log, f"own {run} {n}") for n in range(4)),
            *(keep_receiving(log, f"{run} {n}") for n in range(4)),
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
