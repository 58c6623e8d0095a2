"""Exports a store to a folder, in small segments: a program to be killed.

Arguments: the store's folder, the landing. Prints a line for each segment, and `done`.
"""

import asyncio
import sys

from sqlalchemy import MetaData

from accord.pipeline.exporter import ExportSource, SegmentLimits, export
from accord.pipeline.landing import Landing
from accord.storage import Schema, open_store


async def main(stores: str, folder: str) -> None:
    """Export everything."""
    async with open_store(stores, Schema("plane", MetaData())) as store:
        await export(
            [ExportSource("plane", store, "0a1b2c3d")],
            Landing(folder),
            limits=SegmentLimits(rows=20),
            progress=lambda done, total: print(done, total),
        )
    print("done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
