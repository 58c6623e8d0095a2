"""The history of the station's figures: a ring in its store that holds a day.

Every interval the station reads its own metrics and overwrites the oldest sample. The samples are
what `accord top` shows, so the console's plots and Prometheus agree.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import orjson
import structlog
from prometheus_client import CollectorRegistry
from sqlalchemy import BigInteger, Column, Connection, Integer, Table, Text, delete, insert, select

from accord.kernel.clock import Clock
from accord.station.store import STATION
from accord.storage import Store, StoreError
from accord.telemetry.figures import Figure, Reading, figures, read_samples

_log = structlog.stdlib.get_logger(__name__)

DAY_SECONDS = 24 * 3600

figure_history = Table(
    "figure_history",
    STATION.metadata,
    Column("slot", Integer, primary_key=True, autoincrement=False),
    # Milliseconds since the epoch.
    Column("at", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class FigureSample:
    """The figures at a time, in seconds since the epoch."""

    at: float
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class FigureHistory:
    """Samples of the figures in a station's store, one for each interval of the last day."""

    store: Store
    clock: Clock
    interval_seconds: float

    async def record(self, registry: CollectorRegistry) -> None:
        """Take a sample every interval until cancelled; one that cannot be stored is skipped."""
        before = self._read(registry)
        while True:
            await asyncio.sleep(self.interval_seconds)
            now = self._read(registry)
            try:
                await self.add(FigureSample(self.clock.now(), tuple(figures(before, now))))
            except StoreError as error:
                # For example a full disk: the station runs all the same.
                _log.warning("a sample of the figures could not be stored", why=str(error))
            before = now

    async def add(self, sample: FigureSample) -> None:
        """Store a sample in place of the one a day before; raises `StoreError`."""
        slots = max(1, int(DAY_SECONDS // self.interval_seconds))
        slot = int(sample.at // self.interval_seconds) % slots
        body = [[each.plane, each.name, each.value, each.unit] for each in sample.figures]
        row = {"slot": slot, "at": int(sample.at * 1000), "body": orjson.dumps(body).decode()}

        def work(connection: Connection) -> None:
            # Slots beyond the ring are left from a shorter interval.
            stale = (figure_history.c.slot == slot) | (figure_history.c.slot >= slots)
            connection.execute(delete(figure_history).where(stale))
            connection.execute(insert(figure_history).values(row))

        await self.store.write(work)

    async def read(self) -> Sequence[FigureSample]:
        """The samples of the last day, the oldest first; raises `StoreError`."""
        since = int((self.clock.now() - DAY_SECONDS) * 1000)

        def work(connection: Connection) -> list[tuple[int, str]]:
            found = connection.execute(
                select(figure_history.c.at, figure_history.c.body)
                .where(figure_history.c.at >= since)
                .order_by(figure_history.c.at)
            )
            return [(row.at, row.body) for row in found]

        return [
            FigureSample(at / 1000, tuple(Figure(*each) for each in orjson.loads(body)))
            for at, body in await self.store.read(work)
        ]

    def _read(self, registry: CollectorRegistry) -> Reading:
        return Reading(self.clock.monotonic(), read_samples(registry.collect()))
