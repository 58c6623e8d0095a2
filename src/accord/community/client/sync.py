"""`Client` for programs that are not async: the same, on an event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from typing import Any, Self, TypeVar

from accord.community.bus.registry import Frame
from accord.community.client.client import Client
from accord.kernel.signing import SigningKey

T = TypeVar("T")


class SyncClient:
    """Speaks with one node in one community; a context manager. See `Client`."""

    def __init__(
        self, endpoint: str, key: SigningKey, community: str, node_id: str, **options: Any
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="accord client", daemon=True
        )
        self._client = Client(endpoint, key, community, node_id, **options)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._client.__aexit__())
        self._run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(
        self,
        capability: str,
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the protocol's word
        **options: Any,
    ) -> dict[str, Any]:
        """Call a capability and return its answer; see `Client.call`."""
        return self._run(self._client.call(capability, params, input, **options))

    def stream(
        self,
        capability: str,
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the protocol's word
        **options: Any,
    ) -> Iterator[Frame]:
        """Call a capability that answers by a stream; see `Client.stream`."""
        return self._iterate(self._client.stream(capability, params, input, **options))

    def subscribe(
        self, topic: str, last_seq: int | None = None, **options: Any
    ) -> Iterator[tuple[int, Any]]:
        """Listen to a topic; see `Client.subscribe`."""
        return self._iterate(self._client.subscribe(topic, last_seq, **options))

    def get(self, path: str, query: Mapping[str, str | int] | None = None) -> Any:
        """Ask for what a path that is not public has to say; see `Client.get`."""
        return self._run(self._client.get(path, query))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        end = object()

        async def following() -> T | object:
            return await anext(items, end)

        async def close() -> None:
            await items.aclose()  # type: ignore[attr-defined]

        try:
            while (item := self._run(following())) is not end:
                yield item  # type: ignore[misc]
        finally:
            self._run(close())
