"""The queue writer when its store fails: all are answered, and no acknowledgement is lost."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.directory import MemoryDirectory

from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import UlidSource
from accord.relay.connector import (
    Batch,
    BatchResult,
    ConnectionHub,
    DeliveryContext,
    LocalBus,
    QueueWriter,
    queue,
)
from accord.relay.errors import Code, RelayError
from accord.storage import StoreError
from accord.testing import run_virtual


class FailingStore:
    """Fails until it is mended."""

    broken = True

    async def write(self, work: Callable[[Any], Any]) -> Any:
        await asyncio.sleep(0.01)
        if self.broken:
            raise StoreError("the disk is full")
        return work(None)

    async def read(self, work: Callable[[Any], Any]) -> Any:
        raise NotImplementedError


def made(store: FailingStore) -> QueueWriter:
    clock = SystemClock()
    context = DeliveryContext(store, MemoryDirectory(), clock, UlidSource(clock), "p1")
    return QueueWriter(context, ConnectionHub(context, LocalBus()))


def test_whoever_waits_is_told_of_the_failure_and_of_the_end() -> None:
    async def main() -> None:
        queue_writer = made(FailingStore())
        running = asyncio.create_task(queue_writer.run())
        first = asyncio.create_task(queue_writer.open("alpha", "t1"))
        await asyncio.sleep(0.005)
        # This one waits behind the batch that fails while the writer is closed.
        second = asyncio.create_task(queue_writer.open("beta", "t1"))
        await asyncio.sleep(0)
        queue_writer.close()
        await running
        with pytest.raises(StoreError):
            await first
        with pytest.raises(RelayError) as caught:
            await second
        assert caught.value.code is Code.UNAVAILABLE
        with pytest.raises(RelayError):
            await queue_writer.flip(("alpha", 1))

    run_virtual(main())


def test_acknowledgements_outlive_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Batch] = []

    def post(_connection: Any, batch: Batch, *_: Any) -> BatchResult:
        written.append(batch)
        return BatchResult()

    monkeypatch.setattr(queue, "write_batch", post)

    async def main() -> None:
        store = FailingStore()
        queue_writer = made(store)
        running = asyncio.create_task(queue_writer.run())
        queue_writer.sent(("alpha", 1), [1, 2, 3])
        queue_writer.acked(("alpha", 1), [1, 2])
        await asyncio.sleep(5)
        store.broken = False
        await asyncio.sleep(5)
        assert [batch.acked for batch in written] == [{("alpha", 1): {1, 2}}]
        assert [batch.sent for batch in written] == [{("alpha", 1): {3}}]
        queue_writer.close()
        await running

    run_virtual(main())
