"""The ledger when its store fails: everybody is answered, and no acknowledgement is forgotten."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from accord.kernel.clock import SystemClock
from accord.relay.connector.delivery import Limits
from accord.relay.connector.delivery import ledger as ledger_module
from accord.relay.connector.delivery.entries import Batch, Posted
from accord.relay.connector.delivery.ledger import Ledger
from accord.relay.errors import Code, RelayError
from accord.storage import StoreError
from accord.testing import run_virtual
from accord.testing.directory import MemoryDirectory


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


def made(store: FailingStore) -> Ledger:
    clock = SystemClock()
    return Ledger(store, MemoryDirectory(), clock, "p1", Limits(), lambda *_: None)


def test_whoever_waits_is_told_of_the_failure_and_of_the_end() -> None:
    async def main() -> None:
        ledger = made(FailingStore())
        running = asyncio.create_task(ledger.run())
        first = asyncio.create_task(ledger.open("alpha", "t1"))
        await asyncio.sleep(0.005)
        # This one waits behind the batch that fails while the ledger is closed.
        second = asyncio.create_task(ledger.open("beta", "t1"))
        await asyncio.sleep(0)
        ledger.close()
        await running
        with pytest.raises(StoreError):
            await first
        with pytest.raises(RelayError) as caught:
            await second
        assert caught.value.code is Code.UNAVAILABLE
        with pytest.raises(RelayError):
            await ledger.flip(("alpha", 1))

    run_virtual(main())


def test_acknowledgements_outlive_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Batch] = []

    def post(_connection: Any, batch: Batch, *_: Any) -> Posted:
        written.append(batch)
        return Posted()

    monkeypatch.setattr(ledger_module, "post", post)

    async def main() -> None:
        store = FailingStore()
        ledger = made(store)
        running = asyncio.create_task(ledger.run())
        ledger.sent(("alpha", 1), [1, 2, 3])
        ledger.acked(("alpha", 1), [1, 2])
        await asyncio.sleep(5)
        store.broken = False
        await asyncio.sleep(5)
        assert [batch.acked for batch in written] == [{("alpha", 1): {1, 2}}]
        assert [batch.sent for batch in written] == [{("alpha", 1): {3}}]
        ledger.close()
        await running

    run_virtual(main())
