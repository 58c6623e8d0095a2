"""An operation as its handler sees it: who asked, what is known, how to tell and to be told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from accord.fabric.operations.ledger import Signal


class OperationContext:
    """A running operation.

    Attributes:
        id: The id of the operation.
        caller: The session key of whoever started it.
        attempt: 1, and more where an earlier instance ended in the middle. Then the handler begins
            anew, is given all signals again, and finds how far it was in `resumed_from`.
        resumed_from: The progress that an earlier attempt told last, if it told any.
        transfer: What was uploaded for it, where the contract says so: key, size, digest.
    """

    def __init__(
        self,
        identity: str,
        caller: str,
        attempt: int,
        resumed_from: Any,
        transfer: Mapping[str, Any] | None,
        tell: Callable[[Any], Awaitable[None]],
    ) -> None:
        self.id = identity
        self.caller = caller
        self.attempt = attempt
        self.resumed_from = resumed_from
        self.transfer = transfer
        self._tell = tell
        self._signals: list[Signal] = []
        self._more = asyncio.Event()

    async def progress(self, payload: Any) -> None:
        """Tell observers how far it is; durable once this returns.

        Raises:
            ValidationError: It breaks the contract's schema.
            FabricError: It could not be kept.
        """
        await self._tell(payload)

    async def signals(self) -> AsyncIterator[Signal]:
        """Every signal from the first one on, in order, and those that will come."""
        at = 0
        while True:
            while at < len(self._signals):
                at += 1
                yield self._signals[at - 1]
            self._more.clear()
            await self._more.wait()

    async def signal(self, name: str) -> Any:
        """The payload of the first signal of a name; waits until there is one."""
        async for signal in self.signals():
            if signal.name == name:
                return signal.input
        raise AssertionError  # signals do not end

    def take(self, signal: Signal) -> None:
        """Hand over a signal."""
        self._signals.append(signal)
        self._more.set()
