"""A program that appends until it is killed, and prints each id once it is acknowledged.

Sixteen callers append at once. A fault of the database is retried with the same record, as a
plane would do it.
"""

import asyncio
import sys

from sqlalchemy import MetaData

from accord.storage import JournalRecord, Schema, Store, StoreError, open_store


async def keep_appending(store: Store, caller: str) -> None:
    turn = 0
    while True:
        name = f"{caller}-{turn}"
        body = f'{{"name":"{name}","padding":"{"x" * (turn * 37 % 900)}"}}'
        try:
            await store.append(JournalRecord("faults", name, 1_700_000_000_000, caller, body))
        except StoreError as error:
            print(f"error {error}", flush=True)
            await asyncio.sleep(0.05)
            continue
        print(f"done {name}", flush=True)
        turn += 1


async def main(where: str, run: str) -> None:
    async with open_store(where, Schema("faults", MetaData())) as store:
        await asyncio.gather(*(keep_appending(store, f"{run}-{n}") for n in range(16)))


asyncio.run(main(sys.argv[1], sys.argv[2]))
